"""Write files atomically and durably, digest files, and format sizes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from .errors import DataError, closest


def flush_to_disk(fd: int) -> None:
    """Return once the contents of the open file or folder ``fd`` are on the disk. Raise OSError if that fails.

    macOS's fsync only hands them to the disk, whose own cache is lost in a power cut; there F_FULLFSYNC is used too.
    """
    os.fsync(fd)
    if sys.platform == "darwin":
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL):
                raise  # an error of the disk; network file systems only lack the call


MODEL_ENDINGS = (".gguf", ".safetensors", ".bin")
"""Endings of the names of model files, which ``models_near`` looks for."""


def models_near(path: str | os.PathLike[str]) -> str:
    """Return a text to append to the error for a model that does not exist, or for a folder that is not a model.

    It names the file that was probably meant, or else the models in that folder; "" if there are none.
    """
    path = os.fspath(path)
    folder, name = (path, "") if os.path.isdir(path) else os.path.split(path)
    try:
        there = sorted(os.listdir(folder or "."))
    except OSError:
        return ""
    there = [entry for entry in there if entry.endswith(MODEL_ENDINGS)
             or os.path.isfile(os.path.join(folder, entry, "config.json"))]  # fmt: skip
    near = closest(name, there) if name else None
    if near is not None:
        return f" (did you mean {os.path.join(folder, near)}?)"
    more = f" and {len(there) - 3} more" if len(there) > 3 else ""
    return f"; models there: {', '.join(there[:3])}{more}" if there else ""


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary stream that replaces ``path`` when the block succeeds and is discarded when it fails.

    An OSError names ``path``, also one that has no file name of its own, as of a full disk. What killed processes left
    of ``path`` is removed.
    """
    import tempfile  # not needed to start

    path = os.path.abspath(os.fspath(path))
    folder, name = os.path.split(path)
    for left in os.listdir(folder):
        if left.startswith(f".{name}.") and left.endswith(".tmp"):
            _remove_unlocked(os.path.join(folder, left))
    while True:
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
        if _lock(handle) is not False and os.fstat(handle).st_nlink:
            break
        os.close(handle)  # another process took it for what a killed one left, before it was locked
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            flush_to_disk(stream.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
            os.replace(temporary, path)  # still locked: nobody may take it for a leftover
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path
        raise


def _lock(fd: int) -> bool | None:
    """Lock an open file until it is closed; return False if another process has locked it, None where locks are
    missing."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _remove_unlocked(path: str) -> None:
    """Remove a temporary file, unless a process that writes it still has it locked."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR)
        try:
            if _lock(fd):
                os.unlink(path)
        finally:
            os.close(fd)


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], busy: str) -> Iterator[None]:
    """Hold a lock on the file ``path``, which is created if it is missing, while the block runs.

    Raise DataError with the message ``busy`` if another process holds the lock. A file system without locks locks
    nothing.
    """
    with open(path, "ab") as file:
        if _lock(file.fileno()) is False:
            raise DataError(busy)
        yield


WHOLE, ENDS = 1 << 30, 16 << 20


def file_digest(path: str | os.PathLike[str], *others: str | os.PathLike[str]) -> str:
    """Return "sha256:..." of a file; above 1 GiB "ends:...", the SHA-256 of its size, first and last 16 MiB.

    For a folder return "folder:...", the SHA-256 of the names and digests of its JSON and safetensors files; for
    several files (``others``) "files:...", the SHA-256 of their digests.
    """
    if others:
        digests = "\n".join(map(file_digest, (path, *others)))
        return f"files:{hashlib.sha256(digests.encode()).hexdigest()}"
    if os.path.isdir(path):
        digest = hashlib.sha256()
        for name in sorted(os.listdir(path)):
            if name.endswith((".json", ".safetensors")):
                digest.update(f"{name} {file_digest(os.path.join(path, name))}\n".encode())
        return f"folder:{digest.hexdigest()}"
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        digest = hashlib.sha256(f"{size} ".encode() + file.read(ENDS))
        file.seek(-ENDS, os.SEEK_END)
        digest.update(file.read())
    return f"ends:{digest.hexdigest()}"


def size_text(nbytes: int) -> str:
    """Format a number of bytes in the largest unit that it reaches: "93.8 MiB"."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            value = nbytes / scale
            return f"{value:.2f} {unit}" if unit == "GiB" else f"{value:.1f} {unit}"
    return f"{nbytes} bytes"
