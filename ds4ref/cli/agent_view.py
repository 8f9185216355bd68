"""What an agent's user sees, and is asked: words on stdout, tools and questions on stderr.

Whatever comes from a model, a file or a command is shown, never obeyed: control characters, and those that change the
direction of text, appear as escapes, so that what a user says yes to is what will happen.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from ..agent.tools import Result
from ..cancellation import Cancellation
from ..console.common import CYAN, GREY, tint
from ..generate import Piece
from ..targets import Delta
from .printer import Printer

RED, GREEN = "\x1b[31m", "\x1b[32m"
SHOWN_LINES, SHOWN_WIDTH = 12, 200


def visible(text: str) -> str:
    """Return text in which nothing hides: every character that prints nothing of its own is an escape."""
    return "".join(c if c.isprintable() or c == "\n" else "    " if c == "\t" else repr(c)[1:-1] for c in text)


class AgentView:
    """The terminal, or the two streams, of this process. Pressing ``cancel`` ends a question, as a no."""

    def __init__(self, prog: str):
        self.prog, self.cancel = prog, Cancellation()
        self._printer: Printer | None = None

    @property
    def can_ask(self) -> bool:
        """Whether a user can see a question and answer it."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def delta(self, delta: Delta) -> None:
        """Print more of an answer."""
        for text, thinking in ((delta.reasoning, True), (delta.text, False)):
            if text:
                self._printer = self._printer or Printer()
                self._printer(Piece(None, text, thinking))

    def answered(self) -> None:
        """End an answer."""
        if self._printer is not None:
            self._printer.__exit__()
            self._printer = None

    def call(self, title: str) -> None:
        """Announce a call."""
        self._show([(CYAN, line) for line in f"* {visible(title)}".replace("\n", "\n  ").split("\n")])

    def result(self, result: Result) -> None:
        """Show the note of a result and the beginning of its detail; a closed stderr is no reason to fail."""
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
        """Ask on the terminal until the answer is y, n or a (always). The end of input, and Ctrl-C, are n."""
        lines = "".join(f"  {line}\n" for line in visible(detail).split("\n"))
        sys.stderr.write(f"{self.prog}: the model wants to {visible(what)}:\n{lines}")
        while True:
            with suppress(ImportError, OSError):  # what was typed before the question is no answer
                import termios

                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            sys.stderr.write(f"[y]es, [n]o, [a]lways {tool}? ")
            sys.stderr.flush()
            line = b""
            with suppress(KeyboardInterrupt), self.cancel.does(_strike):
                line = os.read(sys.stdin.fileno(), 1024)
            if not line:
                sys.stderr.write("\n")
                return "n"
            word = line.decode("utf-8", "replace").strip().lower()
            if word in ("y", "yes", "n", "no", "a", "always"):
                return word[0]


def _strike() -> None:
    raise KeyboardInterrupt
