"""Machine code of kernels, kept in the user's cache folder: compiled once for a GPU architecture, then only loaded.

    CACHE/cubins/SOURCES-VERSIONS/sm_90/KEY.cubin      VERSIONS are those of numba-cuda and of the compiler

A key is a digest of everything that determines a kernel: the source files of the packages it comes from (SOURCES), its
name, the values that its function closes over (format, layout, device functions), options, types of arguments. If one
of them is of a kind that ``describe`` does not know, the kernel has no key and is compiled in every process.
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
"""The folder ``kernels``, which holds all source files that kernels are made of."""

KEPT = 4
"""Number of combinations of sources and versions whose machine code is kept."""
OPTIONS = "max_registers", "fastmath", "opt", "debug", "lineinfo", "launch_bounds"
"""Options of ``cuda.jit`` that change the machine code."""


class UnknownError(Exception):
    """A kernel depends on a value that a key cannot describe."""


@functools.cache
def sources() -> str:
    """Return a digest of the sources of ``kernels/cuda`` and ``kernels/formats``."""
    digest = hashlib.sha256()
    for path in sorted(path for part in ("cuda", "formats") for path in (PACKAGES / part).rglob("*.py")):
        digest.update(path.relative_to(PACKAGES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def describe(value: Any, under: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield texts that describe ``value`` (a kernel, or something it depends on), given the source files; raise
    UnknownError for a value of an unknown kind.

    under: ids of the values that ``value`` is part of, to notice cycles
    """
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
    """Return the key of a kernel compiled for arguments of the types ``kinds``; None if it cannot have one."""
    try:
        parts = [sources(), *describe(kernel), *(str(kind) for kind in kinds)]
    except UnknownError:
        return None
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


@functools.cache
def kept() -> Path | None:
    """Return the folder for machine code from these sources and versions, with a subfolder for each architecture; None
    if there is no home directory."""
    from numba.cuda.cudadrv.runtime import runtime

    versions = "-".join((metadata.version("numba-cuda"), *map(str, runtime.get_version())))
    try:
        return cache_dir() / "cubins" / f"{sources()[:12]}-{versions}"
    except FileNotFoundError:
        return None


def find(key: str, architecture: str) -> tuple[bytes, str] | None:
    """Return the machine code kept under ``key`` for ``architecture`` (such as sm_90), and the name of its entry point;
    None if there is none, or the file is damaged."""
    with contextlib.suppress(OSError, ValueError):
        head, code = Path(kept() or "", architecture, f"{key}.cubin").read_bytes().split(b"\n", 1)
        digest, entry = head.decode().split(" ")
        if hashlib.sha256(code).hexdigest() == digest:
            return code, entry
    return None


def keep(key: str, architecture: str, code: bytes, entry: str) -> None:
    """Write machine code, whose entry point is called ``entry``, to the cache. A folder that cannot be written to is
    not an error."""
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
    """Delete the machine code from other sources or versions in ``folder``, except the KEPT newest."""
    for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
