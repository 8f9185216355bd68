"""Prints generated text (docs/reference/ds4.md).

On a terminal with colours, reasoning is grey and its tags are hidden; everywhere else it is printed between a line
``<think>`` and a line ``</think>``, so that it can be told from the answer in a pipe. If the reasoning was cut off,
there is no line ``</think>``. The output always ends with a newline. On a terminal, generated control characters are
shown as visible symbols.
"""

from __future__ import annotations

import sys
from typing import IO

from ..console.common import GREY, RESET, has_colour
from ..generate import Piece
from ..text.protocol import THINK_CLOSE, THINK_OPEN

_CONTROLS = {c: 0x2400 + c for c in range(32) if chr(c) not in "\n\t"} | {0x7F: 0x2421}
_CONTROLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class Printer:
    """Prints one answer piece by piece. Use it as a context manager: at the end it resets colours and ends the last
    line."""

    def __init__(self, out: IO[str] | None = None):
        self.out = out or sys.stdout
        self.colour, self.tty = has_colour(self.out), self.out.isatty()
        self._thinking = self._opened = False  # _opened: whether grey was switched on, or <think> printed
        self._empty = self._column_zero = True

    def __enter__(self) -> Printer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end_grey()
        if self._empty or not self._column_zero:
            self.out.write("\n")
        self.out.flush()

    def __call__(self, piece: Piece) -> None:
        if self._thinking and not piece.thinking:
            self._end_grey()
            self._newline()
            if self._opened and not self.colour:
                self.out.write(f"{THINK_CLOSE}\n")
            self._opened = False
        self._thinking = piece.thinking
        if not piece.text:
            return
        if piece.thinking and not self._opened:
            self._opened = True
            if not self.colour:
                self._newline()
            self.out.write(GREY if self.colour else f"{THINK_OPEN}\n")
        self.out.write(piece.text.translate(_CONTROLS) if self.tty else piece.text)
        self._column_zero, self._empty = piece.text.endswith("\n"), False
        self.out.flush()

    def _newline(self) -> None:
        if not self._column_zero:
            self.out.write("\n")
            self._column_zero = True

    def _end_grey(self) -> None:
        if self._opened and self.colour:
            self.out.write(RESET)
