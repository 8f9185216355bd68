"""Records which lines of which files the model was shown; checked before every edit.

A file that changed since the model saw it is not edited, and a line may be edited by number only if it was shown.
Lines count as shown from the next answer on (``settle``): later calls of the same answer cannot have seen the results
of earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .edit import Change, Text
from .workspace import ToolError


class Shown(NamedTuple):
    """The lines of a file that were shown.

    version   SHA-256 of the file's bytes at that time
    lines     numbers of the shown lines, from 1
    """

    version: bytes = b""
    lines: frozenset[int] = frozenset()


class LineMemory:
    """The lines shown to the model, by path; for each file only those of one version."""

    def __init__(self) -> None:
        self._read: dict[str, Shown] = {}
        self._unread: list[tuple[str, Shown]] = []

    def show(self, path: str, text: Text, lines: Iterable[int]) -> None:
        """Record line numbers that a result shows in full; they count from the next ``settle`` on."""
        self._unread.append((path, Shown(text.version, frozenset(lines))))

    def settle(self) -> None:
        """Count the lines recorded by ``show`` as shown: the model now receives the results."""
        for path, new in self._unread:
            old = self._read.get(path, Shown())
            self._read[path] = Shown(new.version, new.lines | old.lines) if old.version == new.version else new
        self._unread = []

    def edited(self, path: str, after: Text, change: Change | None) -> None:
        """Record that the model edited the file into ``after``; lines replaced or moved by ``change`` are forgotten.

        Without ``change`` the model wrote the whole file, so that all lines count as shown.
        """
        lines = frozenset(range(1, len(after.lines) + 1))
        if change is not None:
            behind = change.start + len(change.removed)
            old = self._read.get(path, Shown()).lines
            lines = frozenset(n for n in old if n <= change.start or (n > behind and not change.shift))
        self._unread = [item for item in self._unread if item[0] != path]
        self._read[path] = Shown(after.version, lines)

    def check_version(self, path: str, name: str, text: Text) -> None:
        """Raise ToolError if the file changed since the model saw it; ``name``: its name in the error."""
        if self._read.get(path, Shown(text.version)).version != text.version:
            raise ToolError(f"{name} has changed since it was read; read it again before editing")

    def check_lines(self, path: str, name: str, first: int, last: int) -> None:
        """Raise ToolError unless lines ``first`` to ``last`` were shown; ``name``: the file's name in the error."""
        lines = self._read.get(path, Shown()).lines
        if not lines:
            raise ToolError(f"line edit requires a recent read/search of {name}; read the range before editing")
        missing = next((n for n in range(first, last + 1) if n not in lines), None)
        if missing is not None:
            why = "was not shown recently or moved after an edit; read this range again before editing"
            raise ToolError(f"line {missing} of {name} {why}")
