"""Measure this machine's peak rates, from which lower bounds on the engine's time follow. Measuring compiles a few
loops; importing this module is cheap."""

from __future__ import annotations

from .costs import Peaks
from .environment import host, usable_cores
from .errors import BackendError


def peaks_key(threads: int) -> dict[str, str | int]:
    """Return the key under which a measurement is stored: this machine, the thread count and the kernels.

    The key "kernels" changes with processor, instruction set, kernel sources and compiler version.
    """
    try:
        from ds4ref.kernels.cpu.library import cache_key

        kernels = cache_key()
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"cannot measure this machine's peaks: {error}") from error
    return {"host": host(), "kernels": kernels, "threads": threads}


def measure_peaks(threads: int) -> Peaks:
    """Measure the peak rates of ``threads`` threads; raise BackendError if they cannot be measured here."""
    try:
        from ds4ref.kernels.cpu.peaks import measure
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendError(f"cannot measure this machine's peaks: {error}") from error
    return Peaks(**measure(max(1, min(threads, usable_cores()))))
