"""A plugin of pytest, for the emulated interpreter: kernels come from Mach-O objects in $DS4_TEST_MACH_O, as on a Mac.

Loaded as LLVM loads them there, and run: calls between compiled functions and the order of arguments in registers are
those of Linux, names of C functions have an underscore in front.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from ds4ref.kernels.cpu import library
from ds4ref.kernels.cpu.build import ALLOWED_EXTERNALS

TRIPLE = "arm64-apple-macosx"
FOLDER = Path(os.environ["DS4_TEST_MACH_O"])


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
def memset_pattern16(target: int, pattern: int, size: int) -> None:
    """Fill memory with 16 bytes again and again: Linux has no such function."""
    ctypes.memmove(target, (ctypes.string_at(pattern, 16) * (size // 16 + 1))[:size], size)


def declare_externals() -> None:
    """Tell LLVM where the C functions are that a Mac would give the kernels."""
    libraries = [ctypes.CDLL(None), ctypes.CDLL("libm.so.6")]
    for name in ALLOWED_EXTERNALS:
        functions = (getattr(one, name.lstrip("_"), None) for one in libraries)
        function = memset_pattern16 if name == "memset_pattern16" else next(filter(None, functions))
        llvm.add_symbol(f"_{name}", ctypes.cast(function, ctypes.c_void_p).value)


def objects(group: str = "engine", progress: Callable[[str], None] | None = None) -> Path:
    """Return the folder of a group's objects, in place of ``library.objects``."""
    return FOLDER / group / "newest"


def pytest_configure() -> None:
    declare_externals()
    machine_for: Callable[..., Any] = library.target_machine
    library.target_machine = lambda _, **options: machine_for(TRIPLE, **options)
    library.objects = objects


def pytest_report_header() -> str:
    return f"kernels: Mach-O objects in {FOLDER}"
