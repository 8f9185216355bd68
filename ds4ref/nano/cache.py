"""Disk cache of generated model files (in the folder of ``kernels.cachedir``): each is built once, by one process, and
appears only when it is complete.

The random model is checked by its SHA-256 on every use (about 10 ms) and rebuilt if it does not match. Slices are too
large to hash: only their length is checked, which suffices because the writer never leaves a partial file.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ds4ref.kernels import cachedir

from ..errors import DataError, ModelFileError

try:
    import fcntl
except ImportError:  # this platform has no advisory locks: files still appear only complete, by an atomic rename
    fcntl = None  # type: ignore[assignment]

# SHA-256 of the random model. It changes only with the recipe, and then on purpose.
NANO_SHA256 = "744727d4711e14f42337a6e1c4174e54e7b413ab2585c8ba27ea520792fa1c8e"

LOCK_SECONDS = 60.0


def cache_dir() -> Path:
    """Return the folder for generated files, which may not exist yet; raise DataError if there is no home directory."""
    try:
        return cachedir.cache_dir()
    except FileNotFoundError as error:
        raise DataError(str(error)) from None


def kept(path: Path, intact: Callable[[Path], bool], make: Callable[[Path], None], wait: float = LOCK_SECONDS) -> str:
    """Return ``path``; if ``intact(path)`` is false, call ``make(path)`` first, in one process at a time.

    Raise DataError if that fails, or if another process takes longer than ``wait`` seconds.
    """
    if not intact(path):
        with building(path, wait):
            if not intact(path):  # no other process was faster
                make(path)
    return str(path)


def reproduced(name: str, sha256: str, write: Callable[[Path], None]) -> str:
    """Return the path of the generated model ``name``, written by ``write(path)`` unless the cache has it; raise
    DataError if the file then has another SHA-256."""

    def make(path: Path) -> None:
        write(path)
        if (digest := file_sha256(path)) != sha256:
            path.unlink(missing_ok=True)
            raise DataError(f"the {name} model came out as {digest}, expected {sha256}: please report this")

    return kept(cache_dir() / f"{name}-{sha256[:12]}.gguf", lambda path: file_sha256(path) == sha256, make)


def random_path() -> str:
    """Return the path of the random model, built first if it is absent or damaged; raise DataError if that fails."""
    from .recipe import NANO, write_model

    return reproduced("nano", NANO_SHA256, lambda path: write_model(path, NANO))


def slice_path(
    layers: int,
    experts: int,
    vocab: int,
    recipe: str,
    progress: Callable[[int, int], None] | None = None,
    model: str = "flash",
) -> str:
    """Return the path of a slice (``recipe.slice_shape``), built first if it is absent or incomplete.

    recipe: storage formats, a key of ``RECIPES``. progress: called with (bytes done, bytes total).
    """
    from .recipe import check_recipe, slice_shape, write_model

    shape = slice_shape(layers, experts, vocab, model)
    check_recipe(recipe)
    of = "" if model == "flash" else f"{model}-"
    path = cache_dir() / f"slice-{of}{recipe}-l{layers}-e{experts}-v{vocab}.gguf"
    return kept(path, is_complete, lambda path: write_model(path, shape, recipe, progress=progress))


def is_complete(path: Path) -> bool:
    """Return whether ``path`` is a GGUF file that is long enough for all its tensors."""
    from ..weights.gguf import GGUFFile

    try:
        GGUFFile.open(path).close()
    except ModelFileError:
        return False
    return True


def file_sha256(path: Path) -> str | None:
    """Return the SHA-256 of a file in hexadecimal; None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


@contextmanager
def building(path: Path, wait: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock for building ``path``, waiting at most ``wait`` seconds while another process holds it.

    The operating system releases the lock when the process ends, so a crash never leaves it behind. Raise DataError if
    the folder cannot be written or the wait times out.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "a")
    except OSError as error:
        raise DataError(
            f"cannot write to the model cache {path.parent}: {error.strerror}; set DS4_CACHE_DIR to a writable folder"
        ) from None
    with file:
        _lock(file, path, wait)
        try:
            _remove_leftovers(path)
            yield
        finally:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_UN)


def _lock(file: IO[str], path: Path, wait: float) -> None:
    if fcntl is None:
        return
    deadline, announced = time.monotonic() + wait, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks: files still appear only complete, by an atomic rename
            return
        if time.monotonic() > deadline:
            raise DataError(f"another process has been building {path} for {wait:.0f} s: try again later")
        if not announced:
            print(f"ds4ref: another process is building {path.name}; waiting for it", file=sys.stderr)
            announced = True
        time.sleep(0.05)


def _remove_leftovers(path: Path) -> None:
    """Delete temporary files that killed builds of ``path`` left. None is in use, because the caller holds the lock."""
    for leftover in path.parent.glob(f".{path.name}.*.part"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        with suppress(OSError):
            leftover.unlink()
