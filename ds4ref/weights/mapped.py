"""A regular file of weights, read at offsets and memory-mapped when its bytes are needed.

Opening never blocks on a pipe, and a file that has shrunk since it was opened gives an error instead of a SIGBUS that
kills the process.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator

import numpy as np

from ..errors import ModelFileError
from ..files import models_near
from .container import require_posix

TOUCH_BYTES = 64 << 20  # read between two progress reports


def quote(text: str | bytes, limit: int = 60) -> str:
    """Return ``text`` quoted and shortened for a one-line message."""
    head = repr(text[:limit]).removeprefix("b")
    return head if len(text) <= limit else head + "..."


class MappedFile:
    """An open weight file.

    path  path as opened
    size  size in bytes when opened
    fd    file descriptor, -1 once closed
    """

    def __init__(self, path: str | os.PathLike[str]):
        """Open ``path``; raise ModelFileError if it is not a readable regular file, BackendError on Windows."""
        self.path, self.fd = os.fspath(path), -1
        self._map: mmap.mmap | None = None
        require_posix()
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for its other end.
            self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            near = models_near(path) if isinstance(error, FileNotFoundError) else ""
            raise ModelFileError(self.path, f"cannot open: {getattr(error, 'strerror', None) or error}{near}") from None
        status = os.fstat(self.fd)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ModelFileError(self.path, "not a regular file")

    def read(self, offset: int, count: int) -> bytes:
        """Read ``count`` bytes at ``offset`` without the memory map; raise ModelFileError if the file has become too
        short."""
        parts = []
        while count:
            try:
                part = os.pread(self.fd, count, offset)
            except OSError as error:
                raise ModelFileError(self.path, f"cannot read: {error.strerror or error}", offset) from None
            if not part:
                raise ModelFileError(self.path, "the file was truncated while open", offset)
            parts.append(part)
            offset += len(part)
            count -= len(part)
        return b"".join(parts)

    def view(self, offset: int, count: int) -> np.ndarray:
        """Return bytes of the memory map, read-only uint8 (count,), valid as long as they are referenced.

        Raise ModelFileError if the file has shrunk since it was opened, because reading the map would kill the process.
        (A file that shrinks later still does: never truncate a model in place.)
        """
        if self.fd < 0:
            raise ModelFileError(self.path, "the file is closed")
        now = os.fstat(self.fd).st_size
        if now < self.size:
            raise ModelFileError(self.path, f"the file was truncated from {self.size} to {now} bytes while open")
        if self._map is None:
            try:
                self._map = mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise ModelFileError(self.path, f"cannot map {self.size} bytes: {error}") from None
        return np.frombuffer(self._map, np.uint8, count, offset)

    def close(self) -> None:
        """Close the file descriptor. Views stay valid; the map is released with the last view."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd, self._map = -1, None

    def __del__(self) -> None:
        self.close()


def touch(data: np.ndarray) -> Iterator[tuple[int, int]]:
    """Read one byte of every page of ``data``, uint8 (n,), so that the mapped file is loaded into memory.

    Yield, for each step of at most ``TOUCH_BYTES``, (its size, the sum of the bytes read).
    """
    for start in range(0, data.size, TOUCH_BYTES):
        piece = data[start : start + TOUCH_BYTES]
        yield piece.nbytes, int(piece[:: mmap.PAGESIZE].sum(dtype=np.uint64))
