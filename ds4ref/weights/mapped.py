"""A regular file of weights, read at offsets and mapped when its bytes are needed.

What readers of all containers share: no waiting for the other end of a pipe, and no fault that kills the process when
a file has shrunk since it was opened.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator

import numpy as np

from ..errors import ModelFileError
from .container import require_posix
from .cursor import read_at

TOUCH_BYTES = 64 << 20  # between two signs of progress


class MappedFile:
    """An open file: ``path``, ``size`` in bytes when opened, and descriptor ``fd`` (-1 once closed)."""

    def __init__(self, path: str | os.PathLike[str]):
        """Open ``path``; ModelFileError if it is not a readable regular file, BackendError on Windows."""
        self.path, self.fd = os.fspath(path), -1
        self._map: mmap.mmap | None = None
        require_posix()
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for its other end.
            self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise ModelFileError(self.path, f"cannot open: {getattr(error, 'strerror', None) or error}") from None
        status = os.fstat(self.fd)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ModelFileError(self.path, "not a regular file")

    def read(self, offset: int, count: int) -> bytes:
        """Read ``count`` bytes at ``offset``, not through the map; ModelFileError if the file no longer has them."""
        return read_at(self.path, self.fd, offset, count)

    def view(self, offset: int, count: int) -> np.ndarray:
        """Return bytes of the map, read-only uint8 (count,), valid as long as they are referenced.

        ModelFileError if the file has shrunk since it was opened, as reading the map would kill the process. (A file
        that shrinks later still does: never truncate a model in place.)
        """
        if self.fd < 0:
            raise ModelFileError(self.path, "the file is closed")
        now = os.fstat(self.fd).st_size
        if now < self.size:
            raise ModelFileError(self.path, f"the file has shrunk from {self.size} to {now} bytes since it was opened")
        if self._map is None:
            try:
                self._map = mmap.mmap(self.fd, self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise ModelFileError(self.path, f"cannot map {self.size} bytes: {error}") from None
        return np.frombuffer(self._map, np.uint8, count, offset)

    def close(self) -> None:
        """Close the descriptor. Views stay valid; the map goes with the last of them."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd, self._map = -1, None

    def __del__(self) -> None:
        self.close()


def touch(data: np.ndarray) -> Iterator[tuple[int, int]]:
    """Read one byte of every page of ``data``, uint8 (n,); yields (bytes touched, their sum)."""
    for start in range(0, data.size, TOUCH_BYTES):
        piece = data[start : start + TOUCH_BYTES]
        yield piece.nbytes, int(piece[:: mmap.PAGESIZE].sum(dtype=np.uint64))
