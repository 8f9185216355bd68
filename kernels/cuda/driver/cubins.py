"""Machine code of kernels, kept in the user's cache: compiled once for an architecture, then only loaded.

    CACHE/cubins/SOURCES-VERSIONS/sm_90/KEY.cubin      written here; VERSIONS: of numba-cuda and of the compiler

A key is a digest of all that a kernel is made of: every source of the packages it comes from (SOURCES), its name, what
its maker bound (format, layout, device functions), options, types of arguments. A kernel of which something is of a
kind that ``describe`` does not know has no key, and is compiled in every process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
import types as python
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ...cachedir import cache_dir
from .shim import dispatcher_class

PACKAGES = Path(__file__).resolve().parents[2]
"""``kernels``: what kernels are made of lies below it."""

KEPT = 4
"""Sources or versions whose machine code is kept."""
OPTIONS = "max_registers", "fastmath", "opt", "debug", "lineinfo", "launch_bounds"
"""What ``cuda.jit`` may be told that changes machine code."""


class UnknownError(Exception):
    """A value that no key can tell from others."""


@functools.cache
def sources() -> str:
    """Return a digest of the sources of ``kernels/cuda`` and ``kernels/formats``."""
    digest = hashlib.sha256()
    for path in sorted(path for part in ("cuda", "formats") for path in (PACKAGES / part).rglob("*.py")):
        digest.update(path.relative_to(PACKAGES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def describe(value: Any, under: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield what tells ``value`` from others of the same sources. UnknownError if its kind is not known."""
    if id(value) in under:
        yield "itself"
        return
    under = *under, id(value)
    if isinstance(value, dispatcher_class):
        yield f"kernel {[str(value.targetoptions.get(option)) for option in OPTIONS]}"
        yield from describe(value.py_func, under)
    elif isinstance(value, python.FunctionType):
        yield f"function {value.__module__}.{value.__qualname__} in line {value.__code__.co_firstlineno}"
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield name
            yield from describe(cell.cell_contents, under)
        yield from describe(value.__defaults__, under)
    elif value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        yield f"array {value.dtype.str} {value.shape} {digest}"
    elif isinstance(value, tuple | list):
        yield f"{type(value).__qualname__} of {len(value)}"
        for item in value:
            yield from describe(item, under)
    elif isinstance(value, type | python.BuiltinFunctionType):
        yield f"name {value.__module__}.{value.__qualname__}"
    elif type(value).__module__.split(".")[0] in ("numba", "cuda"):  # types, and intrinsics by name
        yield f"{type(value).__qualname__} {getattr(value, '_name', value)}"
    elif isinstance(value, python.ModuleType):
        yield f"module {value.__name__}"
    else:
        raise UnknownError(f"{type(value).__module__}.{type(value).__qualname__}")


def key_of(kernel: Any, kinds: tuple[Any, ...]) -> str | None:
    """Return the key of a kernel for arguments of these types, None if it has none."""
    try:
        parts = [sources(), *describe(kernel), *(str(kind) for kind in kinds)]
    except UnknownError:
        return None
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


@functools.cache
def kept() -> Path | None:
    """Return the folder to write to, below which each architecture has its own; None if there is no home directory."""
    from numba.cuda.cudadrv.runtime import runtime

    versions = "-".join((metadata.version("numba-cuda"), *map(str, runtime.get_version())))
    try:
        return cache_dir() / "cubins" / f"{sources()[:12]}-{versions}"
    except FileNotFoundError:
        return None


def find(key: str, architecture: str) -> tuple[bytes, str] | None:
    """Return the machine code kept under ``key`` for ``architecture`` (sm_90), and the name of its entry; None if there
    is none, or it is not whole."""
    with contextlib.suppress(OSError, ValueError):
        head, code = Path(kept() or "", architecture, f"{key}.cubin").read_bytes().split(b"\n", 1)
        digest, entry = head.decode().split(" ")
        if hashlib.sha256(code).hexdigest() == digest:
            return code, entry
    return None


def keep(key: str, architecture: str, code: bytes, entry: str) -> None:
    """Write machine code. A folder that cannot be written to is no error."""
    folder = kept()
    if folder is None:
        return
    head = f"{hashlib.sha256(code).hexdigest()} {entry}\n".encode()
    with contextlib.suppress(OSError):
        if not folder.exists():
            folder.mkdir(parents=True)
            _forget(folder.parent)
        (folder / architecture).mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder / architecture, delete=False) as file:
            try:
                file.write(head + code)
                file.close()
                os.replace(file.name, folder / architecture / f"{key}.cubin")
            except BaseException:
                os.unlink(file.name)
                raise


def _forget(folder: Path) -> None:
    """Delete what other sources or versions left, but for the newest ones."""
    for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
