"""Reads little-endian fields of a file front to back, never past a limit, holding one window of it in memory.

The directory of a model file is read through here and not through the memory map: a file that shrinks while it is
being parsed then gives a short read, which is an error, instead of a fault that kills the process.
"""

from __future__ import annotations

import os
import struct
from typing import Any

from ..errors import ModelFileError

_WINDOW = 1 << 20
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def shown(text: str | bytes, limit: int = 60) -> str:
    """``text`` quoted for a one-line message, shortened."""
    head = repr(text[:limit]).removeprefix("b")
    return head if len(text) <= limit else head + "..."


class Cursor:
    """A read position in an open file.

    limit  first byte that must not be read: the end of the file, or of what is sane
    why    what to say of a field that reaches past ``limit``
    """

    def __init__(self, path: str, fd: int, limit: int, why: str):
        self.path, self._fd, self.limit, self._why = path, fd, limit, why
        self.position = 0
        self._base, self._window = 0, b""

    def fail(self, reason: str, offset: int | None = None) -> ModelFileError:
        """An error at ``offset``, by default the current position. To be raised by the caller."""
        return ModelFileError(self.path, reason, self.position if offset is None else offset)

    def remaining(self) -> int:
        return self.limit - self.position

    def take(self, count: int, what: str) -> bytes:
        """The next ``count`` bytes, which are ``what``."""
        start = self._require(count, what)
        self.position += count
        return self._window[start : start + count]

    def u32(self, what: str) -> int:
        start = self._require(4, what)
        self.position += 4
        return _U32.unpack_from(self._window, start)[0]

    def u64(self, what: str) -> int:
        start = self._require(8, what)
        self.position += 8
        return _U64.unpack_from(self._window, start)[0]

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        start = self._require(layout.size, what)
        self.position += layout.size
        return layout.unpack_from(self._window, start)

    def string(self, what: str, longest: int) -> str:
        """Length and UTF-8 bytes."""
        at = self.position
        length = self.u64(f"length of {what}")
        if length > longest:
            raise self.fail(f"{what} is {length} bytes long, at most {longest} are allowed", at)
        data = self.take(length, what)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not valid UTF-8: {shown(data)}", at) from None

    def skip(self, count: int, what: str) -> None:
        """Steps over ``count`` bytes without reading them."""
        if count > self.remaining():
            raise self.fail(f"{what} needs {count} bytes {self._why}")
        self.position += count

    def skip_strings(self, count: int, what: str) -> None:
        """Steps over ``count`` strings; only their lengths are looked at."""
        unpack = _U64.unpack_from
        while count:
            at = self._require(8, f"length of an item of {what}")
            base, window = self._base, self._window
            last = len(window) - 8
            while count and at <= last:
                start = at
                at += 8 + unpack(window, at)[0]
                count -= 1
            if base + at > self.limit:
                length = at - start - 8
                raise self.fail(f"an item of {what} is {length} bytes long, {self._why}", base + start)
            self.position = base + at

    def _require(self, count: int, what: str) -> int:
        """Makes the next ``count`` bytes available; their index in the window."""
        start = self.position - self._base
        if start + count > len(self._window):
            if count > self.remaining():
                raise self.fail(f"{what} needs {count} bytes {self._why}")
            self._window = self._read(self.position, min(max(count, _WINDOW), self.remaining()))
            self._base, start = self.position, 0
        return start

    def _read(self, offset: int, count: int) -> bytes:
        return read_at(self.path, self._fd, offset, count)


def read_at(path: str, fd: int, offset: int, count: int) -> bytes:
    """``count`` bytes at ``offset``; ModelFileError if the file no longer has them."""
    parts = []
    while count:
        try:
            part = os.pread(fd, count, offset)
        except OSError as error:
            raise ModelFileError(path, f"cannot read: {error.strerror or error}", offset) from None
        if not part:
            raise ModelFileError(path, "the file has become shorter while it was open", offset)
        parts.append(part)
        offset += len(part)
        count -= len(part)
    return b"".join(parts)
