"""Pages of host memory that belong to mapped files: how many can be had, and reading them with several threads."""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
from collections import deque
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

READERS = 8
"""Threads that read at a time: a fast disk needs several requests under way."""
PIECE = 8 << 20
FAILED = (errno.EFAULT, 133)
"""Errors of pages that cannot be read: behind the file's end or after an error of the disk, memory that is broken
(EHWPOISON)."""
POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14: read pages now, and fail where an access would kill the process."""


def available(path: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of memory that programs can have, caches of files included; None if the system does not say."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def pages_of(arrays: Iterable[np.ndarray]) -> list[tuple[int, int]]:
    """Start and size of the ranges of whole pages around arrays, none of them touching another."""
    page = mmap.PAGESIZE
    ranges: list[list[int]] = []
    for start, size in sorted((array.ctypes.data, array.nbytes) for array in arrays):
        low, high = start // page * page, -(-(start + size) // page) * page
        if ranges and low <= ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], high)
        else:
            ranges.append([low, high])
    return [(low, high - low) for low, high in ranges]


def read_in(arrays: Iterable[np.ndarray]) -> None:
    """Bring the pages of mapped files into memory, with READERS threads. OSError in one line if they cannot be read."""
    pieces = [(start + at, min(PIECE, size - at)) for start, size in pages_of(arrays) for at in range(0, size, PIECE)]
    if len(pieces) == 1:
        _read_piece(pieces[0])
        return
    waiting, failed = deque(pieces), deque[OSError]()
    # not an executor: Ctrl-C inside one of its locks leaves that lock taken, and the workers and its end wait for ever
    readers = [Thread(target=_read_pieces, args=(waiting, failed), daemon=True) for _ in range(READERS)]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    finally:
        waiting.clear()  # after Ctrl-C, no more than the pieces under way
    if failed:
        raise failed[0]


def _read_pieces(waiting: deque[tuple[int, int]], failed: deque[OSError]) -> None:
    """Read pieces until none waits; after an error, none does."""
    while True:
        try:
            piece = waiting.popleft()
        except IndexError:
            return
        try:
            _read_piece(piece)
        except OSError as error:
            failed.append(error)
            waiting.clear()


def _read_piece(piece: tuple[int, int]) -> None:
    start, size = piece
    library = _library()
    if library is None or not library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), POPULATE_READ):
        return
    if ctypes.get_errno() in FAILED:
        raise OSError("the model's file cannot be read any more: it was cut short, or its disk failed")
    # other errors: an older kernel does not know the request, and pages come when they are touched


@cache
def _library() -> Any:
    """The C library, where it has ``madvise``."""
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
