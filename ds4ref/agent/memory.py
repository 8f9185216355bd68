"""Which lines of which files the model has seen: the guard behind every edit.

A line may be edited by its number only if the model was shown it, whole, before it asked, and if the file has not been
changed since by anybody else. What it is shown in answer to some calls it has not seen while it wrote these: such lines
count from the next answer on (``settle``). So of two calls in one answer the second cannot hit lines that the first one
moved or replaced. What the model wrote itself it knows.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from .edit import Change, Document
from .workspace import Place, ToolError

_Sums = dict[int, int]
"""Line number (from 1): CRC32 of the line with its ending."""


@dataclass
class _Seen:
    """``version`` is the one that was shown last, ``read`` the one that the model has seen, None if it has seen none.
    What it changed itself counts as seen."""

    version: bytes
    read: bytes | None = None
    known: _Sums = field(default_factory=dict)
    fresh: _Sums = field(default_factory=dict)


class LineMemory:
    """What was seen, by path. Each file is remembered in one version: to be shown another one makes it the one."""

    def __init__(self) -> None:
        self._files: dict[str, _Seen] = {}

    def settle(self) -> None:
        """The model has read the results: what they showed is known now."""
        for seen in self._files.values():
            seen.known |= seen.fresh
            seen.fresh, seen.read = {}, seen.version

    def forget(self) -> None:
        """The model has seen nothing."""
        self._files.clear()

    def show(self, place: Place, text: Document, numbers: Iterable[int]) -> None:
        """The model is going to see these lines."""
        seen = self._of(place, text)
        seen.fresh |= {n: _sum(text.lines[n - 1]) for n in numbers}

    def wrote(self, place: Place, text: Document) -> None:
        """The model wrote all of it."""
        version = _version(text)
        known = {n: _sum(line) for n, line in enumerate(text.lines, 1)}
        self._files[place.path] = _Seen(version, version, known)

    def edited(self, place: Place, change: Change, after: Document) -> None:
        """``change`` led to ``after``. Its lines are not known any more, nor are those that it moved."""
        seen = self._files.get(place.path)
        if seen is None:
            return
        version = _version(after)
        seen.version, seen.read = version, None if seen.read is None else version
        behind = change.start + len(change.removed)

        def kept(sums: _Sums) -> _Sums:
            return {n: crc for n, crc in sums.items() if n <= change.start or (n > behind and not change.shift)}

        seen.known, seen.fresh = kept(seen.known), kept(seen.fresh)

    def check_version(self, place: Place, text: Document) -> None:
        """ToolError if the model has seen the file and somebody else changed it since."""
        seen = self._files.get(place.path)
        if seen is not None and seen.read not in (None, _version(text)):
            raise ToolError(f"{place.shown} has changed since it was read; read it again before editing")

    def check_lines(self, place: Place, text: Document, first: int, last: int) -> None:
        """ToolError unless each of these lines is known and still the same, in the same place."""
        seen, path = self._files.get(place.path), place.shown
        if seen is None or not (seen.known or seen.fresh):
            raise ToolError(f"line edit requires a recent read/search of {path}; read the range before editing")
        for n in range(first, last + 1):
            if n not in seen.known:
                why = "was not shown recently or moved after an edit; read this range again before editing"
                raise ToolError(f"line {n} of {path} {why}")
            if n > len(text.lines) or seen.known[n] != _sum(text.lines[n - 1]):
                raise ToolError(f"file changed around line {n} of {path}; read this range again before editing")
        self.check_version(place, text)

    def _of(self, place: Place, text: Document) -> _Seen:
        version = _version(text)
        seen = self._files.get(place.path)
        if seen is None or seen.version != version:
            seen = self._files[place.path] = _Seen(version, None if seen is None else seen.read)
        return seen


def _sum(line: str) -> int:
    return zlib.crc32(line.encode("utf-8", "surrogateescape"))


def _version(text: Document) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
