"""SHA-256 of large files, cached by path, size and modification time."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable

from ...errors import DataError
from ...files import file_digest
from .schema import transaction

BLOCK = 8 << 20


def cached_sha256(
    db: sqlite3.Connection, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> str:
    """Return the SHA-256 of a file in hexadecimal, from the cache if size and modification time are unchanged.

    db         the run store's database, which holds the cache
    path       the file. Of a folder, the digest of its files' digests is returned, which is not cached; its large
               files are then identified by their size, beginning and end
    progress   called with (bytes read, bytes in all)

    Raise DataError if the file cannot be read or changes while it is read.
    """
    where = os.path.realpath(path)
    try:
        if os.path.isdir(where):
            return file_digest(where).partition(":")[2]
        before = os.stat(where)
        known = db.execute("SELECT size, mtime_ns, sha256 FROM digests WHERE path = ?", (where,)).fetchone()
        if known is not None and known[:2] == (before.st_size, before.st_mtime_ns):
            return str(known[2])
        digest = _read(where, before.st_size, progress)
        after = os.stat(where)
    except OSError as error:
        raise DataError(f"cannot hash {path}: {error.strerror}") from None
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError(f"cannot hash {path}: it changed while it was read")
    with transaction(db):
        db.execute(
            "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?)", (where, after.st_size, after.st_mtime_ns, digest)
        )
    return digest


def _read(path: str, size: int, progress: Callable[[int, int], None] | None) -> str:
    digest, done = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(BLOCK)
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
            done += count
            if progress is not None:
                progress(done, max(size, done))
    return digest.hexdigest()
