"""Reads little-endian fields of a file front to back, never past a limit, through a 1 MiB buffer.

The header of a model file is read through this cursor and not through the memory map: a file that shrinks while it is
being parsed then gives a short read, which is an error, instead of a SIGBUS that kills the process.
"""

from __future__ import annotations

import struct
from typing import Any

from ..errors import ModelFileError
from .mapped import MappedFile, quote

__all__ = ["Cursor", "quote"]

_WINDOW = 1 << 20
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """A read position in an open file.

    limit  offset of the first byte that must not be read, such as the end of the file
    why    end of the error message for a field that reaches past ``limit``
    """

    def __init__(self, file: MappedFile, limit: int, why: str):
        self._file, self.path, self.limit, self._why = file, file.path, limit, why
        self.position = 0
        self._base, self._window = 0, b""

    def fail(self, reason: str, offset: int | None = None) -> ModelFileError:
        """Return a ModelFileError at byte ``offset`` (default: the current position), for the caller to raise."""
        return ModelFileError(self.path, reason, self.position if offset is None else offset)

    def remaining(self) -> int:
        """Return the number of bytes between the position and the limit."""
        return self.limit - self.position

    def take(self, count: int, label: str) -> bytes:
        """Return the next ``count`` bytes; ``label`` names them in errors."""
        start = self._require(count, label)
        self.position += count
        return self._window[start : start + count]

    def u32(self, label: str) -> int:
        """Read a little-endian u32; ``label`` names it in errors."""
        return self.unpack(_U32, label)[0]

    def u64(self, label: str) -> int:
        """Read a little-endian u64; ``label`` names it in errors."""
        return self.unpack(_U64, label)[0]

    def unpack(self, layout: struct.Struct, label: str) -> tuple[Any, ...]:
        """Read the fields that the struct ``layout`` describes; ``label`` names them in errors."""
        start = self._require(layout.size, label)
        self.position += layout.size
        return layout.unpack_from(self._window, start)

    def string(self, label: str, longest: int) -> str:
        """Read a string (u64 length, UTF-8 bytes) of at most ``longest`` bytes; ``label`` names it in errors."""
        at = self.position
        length = self.u64(f"length of {label}")
        if length > longest:
            raise self.fail(f"{label} is {length} bytes long, at most {longest} are allowed", at)
        data = self.take(length, label)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.fail(f"{label} is not valid UTF-8: {quote(data)}", at) from None

    def skip(self, count: int, label: str) -> None:
        """Skip ``count`` bytes without reading them; ``label`` names them in errors."""
        if count > self.remaining():
            raise self.fail(f"{label} needs {count} bytes {self._why}")
        self.position += count

    def skip_strings(self, count: int, label: str) -> None:
        """Skip ``count`` strings (u64 length, bytes), reading only their lengths; ``label`` names them in errors."""
        unpack = _U64.unpack_from
        while count:
            at = self._require(8, f"length of an item of {label}")
            base, window = self._base, self._window
            last = len(window) - 8
            while count and at <= last:
                start = at
                at += 8 + unpack(window, at)[0]
                count -= 1
            if base + at > self.limit:
                length = at - start - 8
                raise self.fail(f"an item of {label} is {length} bytes long, {self._why}", base + start)
            self.position = base + at

    def _require(self, count: int, label: str) -> int:
        """Load the next ``count`` bytes into the window and return their index in it."""
        start = self.position - self._base
        if start + count > len(self._window):
            if count > self.remaining():
                raise self.fail(f"{label} needs {count} bytes {self._why}")
            self._window = self._file.read(self.position, min(max(count, _WINDOW), self.remaining()))
            self._base, start = self.position, 0
        return start
