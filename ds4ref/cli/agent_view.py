"""The agent's terminal interface: answers on stdout, tool calls and questions on stderr.

Text from a model, a file or a command is escaped: control characters, and characters that change the direction of text,
are shown as escapes, so that a user who approves a call sees exactly what will run.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from ..agent.tools import Result
from ..cancellation import Cancellation
from ..console.common import CYAN, GREY, tint, visible
from ..generate import Piece
from ..targets import Delta
from .printer import Printer

RED, GREEN = "\x1b[31m", "\x1b[32m"
SHOWN_LINES, SHOWN_WIDTH = 12, 200


class AgentView:
    """Prints to this process's standard streams and asks the user. If ``cancel`` is pressed while a question waits, its
    answer is no."""

    def __init__(self, prog: str):
        self.prog, self.cancel = prog, Cancellation()
        self._printer: Printer | None = None

    @property
    def can_ask(self) -> bool:
        """Whether there is a terminal on which to ask the user."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def delta(self, delta: Delta) -> None:
        """Print the next part of an answer."""
        for text, thinking in ((delta.reasoning, True), (delta.text, False)):
            if text:
                self._printer = self._printer or Printer()
                self._printer(Piece(None, text, thinking))

    def answered(self) -> None:
        """End the output of an answer with a newline."""
        if self._printer is not None:
            self._printer.__exit__()
            self._printer = None

    def call(self, title: str) -> None:
        """Print the title of a tool call before it runs."""
        self._show([(CYAN, line) for line in f"* {visible(title)}".replace("\n", "\n  ").split("\n")])

    def result(self, result: Result) -> None:
        """Print the note of a tool's result and the beginning of its detail; does nothing if stderr is closed."""
        diff = {"+": GREEN, "-": RED} if result.detail.startswith("@@ ") else {}
        lines = visible(result.detail).rstrip("\n").split("\n") if result.detail else []
        note = (RED if result.failed else GREY, f"  {visible(result.note)}")
        self._show([note, *((diff.get(line[:1], GREY), f"  {line}") for line in lines)])

    def _show(self, lines: list[tuple[str, str]]) -> None:
        shown = [tint(text[:SHOWN_WIDTH], colour, sys.stderr) for colour, text in lines[:SHOWN_LINES]]
        if len(lines) > SHOWN_LINES:
            shown.append(tint(f"  ... {len(lines) - SHOWN_LINES} more lines ...", GREY, sys.stderr))
        with suppress(OSError, ValueError):
            print(*shown, sep="\n", file=sys.stderr, flush=True)

    def ask(self, tool: str, what: str, detail: str) -> str:
        """Ask the user until the answer is "y", "n" or "a" (always); end of input and Ctrl-C mean "n".

        tool     name of the tool
        what     the action in one line
        detail   all that will happen: a diff or a command
        """
        lines = "".join(f"  {line}\n" for line in visible(detail).split("\n"))
        sys.stderr.write(f"{self.prog}: the model wants to {visible(what)}:\n{lines}")
        while True:
            with suppress(ImportError, OSError):  # ignore what was typed before the question
                import termios

                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            sys.stderr.write(f"[y]es, [n]o, [a]lways {tool}? ")
            sys.stderr.flush()
            line = b""
            with suppress(KeyboardInterrupt), self.cancel.does(_strike):
                # A signal that comes just before a wait begins does not end it: wait in short turns.
                while not select.select([sys.stdin.fileno()], [], [], 0.2)[0]:
                    pass
                line = os.read(sys.stdin.fileno(), 1024)
            if not line:
                sys.stderr.write("\n")
                return "n"
            word = line.decode("utf-8", "replace").strip().lower()
            if word in ("y", "yes", "n", "no", "a", "always"):
                return word[0]


def _strike() -> None:
    raise KeyboardInterrupt
