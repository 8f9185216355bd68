"""What an agent's user sees, and is asked: words on stdout, tools and questions on stderr.

Whatever comes from a model, a file or a command is shown, never obeyed: control characters, and those that change the
direction of text, appear as escapes, so that what a user says yes to is what will happen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..agent.permit import Answer, Question
from ..agent.tools import Result
from ..cancellation import Cancellation
from ..console.common import CYAN, GREY, tint
from ..generate import Piece
from ..targets import Delta
from .printer import Printer

RED, GREEN = "\x1b[31m", "\x1b[32m"
SHOWN_LINES, SHOWN_WIDTH = 12, 200
ASKED_LINES = 40
_ANSWERS = {"y": Answer.YES, "yes": Answer.YES, "n": Answer.NO, "no": Answer.NO, "a": Answer.ALWAYS,
            "always": Answer.ALWAYS}  # fmt: skip


def visible(text: str) -> str:
    """Text in which nothing hides: every character that prints nothing of its own is an escape."""
    return "".join(c if c.isprintable() or c == "\n" else "    " if c == "\t" else repr(c)[1:-1] for c in text)


class AgentView:
    """The terminal, or the two streams, of this process."""

    def __init__(self, prog: str):
        self.prog = prog
        self._printer: Printer | None = None
        self._cancel = Cancellation()

    @property
    def can_ask(self) -> bool:
        """Whether a user can see a question and answer it."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    @contextmanager
    def stopped_by(self, cancel: Cancellation) -> Iterator[None]:
        """While inside, pressing ``cancel`` also ends a question, as a no."""
        before, self._cancel = self._cancel, cancel
        try:
            yield
        finally:
            self._cancel = before
            self.answered()

    # --- what happens

    def delta(self, delta: Delta) -> None:
        """More of an answer."""
        for text, thinking in ((delta.reasoning, True), (delta.text, False)):
            if text:
                if self._printer is None:
                    self._printer = Printer()
                self._printer(Piece(None, text, thinking))

    def answered(self) -> None:
        """The answer is over."""
        if self._printer is not None:
            printer, self._printer = self._printer, None
            printer.__exit__()

    def call(self, title: str) -> None:
        """A tool is going to run."""
        self._write(CYAN, f"* {title}", SHOWN_LINES)

    def result(self, result: Result) -> None:
        """What it gave: a line, and some of the rest."""
        self._write(RED if result.failed else GREY, f"  {result.note}", 1)
        lines = result.detail.removesuffix("\n").split("\n") if result.detail else []
        for line in lines[:SHOWN_LINES]:
            self._write(_colour(line, result), f"  {line}", 1)
        if len(lines) > SHOWN_LINES:
            self._write(GREY, f"  ... {len(lines) - SHOWN_LINES} more lines ...", 1)

    # --- questions

    def ask(self, question: Question) -> Answer:
        """Ask on the terminal until there is an answer. Its end, and Ctrl-C, are a no."""
        lines = visible(question.detail).split("\n")
        self._plain(f"{self.prog}: the model wants to {visible(question.what)}:")
        cut = len(lines) > ASKED_LINES
        self._show(lines[:ASKED_LINES])
        if cut:
            self._plain(f"  ... {len(lines) - ASKED_LINES} more lines: s shows them ...")
        more = ", [s]how all" if cut else ""
        while True:
            text = self._line(f"[y]es, [n]o, [a]lways {question.tool}{more}? ")
            if text is None:
                return Answer.NO
            if cut and text in ("s", "show"):
                self._show(lines)
            elif text in _ANSWERS:
                return _ANSWERS[text]

    def _line(self, prompt: str) -> str | None:
        """What the user types, None at the end of it or on Ctrl-C. What was typed before the question is no answer."""
        descriptor = sys.stdin.fileno()
        with suppress(ImportError, OSError):
            import termios

            termios.tcflush(descriptor, termios.TCIFLUSH)
        sys.stderr.write(prompt)
        sys.stderr.flush()
        data = b""
        try:
            with self._cancel.does(_strike):
                # unbuffered: of several lines the rest must not answer the next question
                while not data.endswith(b"\n"):
                    part = os.read(descriptor, 1024)
                    if not part:
                        break
                    data += part
        except KeyboardInterrupt:
            data = b""
        if not data:
            self._plain("")
            return None
        return data.decode("utf-8", "replace").strip().lower()

    # --- lines

    def _show(self, lines: list[str]) -> None:
        for line in lines:
            self._plain(f"  {line}")

    def _plain(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def _write(self, colour: str, text: str, most: int) -> None:
        """Some lines on stderr, cut to what can be taken in; a closed stderr is no reason to fail."""
        lines = visible(text).split("\n")
        shown = [line if len(line) <= SHOWN_WIDTH else f"{line[:SHOWN_WIDTH]}..." for line in lines[:most]]
        with suppress(OSError, ValueError):
            sys.stderr.write("".join(tint(line, colour, sys.stderr) + "\n" for line in shown))
            if len(lines) > most:
                sys.stderr.write(tint(f"  ... {len(lines) - most} more lines ...", GREY, sys.stderr) + "\n")
            sys.stderr.flush()


def _strike() -> None:
    raise KeyboardInterrupt


def _colour(line: str, result: Result) -> str:
    is_diff = result.detail.startswith("@@ ")
    return {"+": GREEN, "-": RED}.get(line[:1], GREY) if is_diff else GREY
