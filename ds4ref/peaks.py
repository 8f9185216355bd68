"""The machine's peaks as the engine's bounds need them. Measuring compiles a few loops; import is cheap."""

from __future__ import annotations

import os

from .costs import Peaks
from .environment import host
from .errors import BackendError


def peaks_key(threads: int) -> dict[str, str | int]:
    """What a measurement holds for: this machine, so many threads, and the kernels, whose key changes with processor,
    tier of instructions, sources and versions of the compiler."""
    try:
        from kernels.cpu.library import cache_key

        kernels = cache_key()
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"cannot measure this machine's peaks: {error}") from error
    return {"host": host(), "kernels": kernels, "threads": threads}


def measure_peaks(threads: int) -> Peaks:
    """Best rates of ``threads`` threads on this machine; BackendError where that cannot be measured."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        from kernels.cpu.peaks import measure
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"cannot measure this machine's peaks: {error}") from error
    return Peaks(**measure(max(1, min(threads, usable))))
