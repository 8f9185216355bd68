"""Which lines of which files the model was shown: the guard behind every edit.

A file that changed since the model saw it is not edited, and a line may be edited by its number only if it was shown.
Results are seen when the next answer begins (``settle``): what the calls of one answer show, later calls of the same
answer cannot have known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .edit import Change, Text
from .workspace import ToolError


class Shown(NamedTuple):
    """The version of a file that was shown, and the numbers (from 1) of those of its lines that were."""

    version: bytes = b""
    lines: frozenset[int] = frozenset()


class LineMemory:
    """What was shown, one version a path."""

    def __init__(self) -> None:
        self._read: dict[str, Shown] = {}
        self._unread: list[tuple[str, Shown]] = []

    def show(self, path: str, text: Text, lines: Iterable[int]) -> None:
        """Record lines that the model is going to see whole."""
        self._unread.append((path, Shown(text.version, frozenset(lines))))

    def settle(self) -> None:
        """Record that the model has read all results."""
        for path, new in self._unread:
            old = self._read.get(path, Shown())
            self._read[path] = Shown(new.version, new.lines | old.lines) if old.version == new.version else new
        self._unread = []

    def edited(self, path: str, after: Text, change: Change | None) -> None:
        """Record an edit by the model, which led to ``after``: lines that it replaced or moved are forgotten.

        Without ``change`` the model wrote the whole file and knows every line.
        """
        lines = frozenset(range(1, len(after.lines) + 1))
        if change is not None:
            behind = change.start + len(change.removed)
            old = self._read.get(path, Shown()).lines
            lines = frozenset(n for n in old if n <= change.start or (n > behind and not change.shift))
        self._unread = [item for item in self._unread if item[0] != path]
        self._read[path] = Shown(after.version, lines)

    def check_version(self, path: str, name: str, text: Text) -> None:
        """Raise ToolError if the model has seen the file ``name``, and not as it is now."""
        if self._read.get(path, Shown(text.version)).version != text.version:
            raise ToolError(f"{name} has changed since it was read; read it again before editing")

    def check_lines(self, path: str, name: str, first: int, last: int) -> None:
        """Raise ToolError unless the model has seen lines first..last."""
        lines = self._read.get(path, Shown()).lines
        if not lines:
            raise ToolError(f"line edit requires a recent read/search of {name}; read the range before editing")
        missing = next((n for n in range(first, last + 1) if n not in lines), None)
        if missing is not None:
            why = "was not shown recently or moved after an edit; read this range again before editing"
            raise ToolError(f"line {missing} of {name} {why}")
