"""List the CUDA devices and, in one line each, why one cannot be used.

A device is usable if a tiny kernel could be compiled and loaded into it; a driver that is too old or an incomplete
compiler is noticed only then.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

from .loading import compiled
from .shim import IMPLEMENTATION, cuda, one_line, types

OLDEST = (8, 0)
"""Lowest compute capability with what the kernels use: asynchronous copies into shared memory, int8 tensor cores."""


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU: number, name, compute capability, memory in bytes (0 if unknown), and ``refusal``, a line that says why
    it cannot be used (None if it can)."""

    number: int
    name: str
    capability: tuple[int, int]
    memory: int
    refusal: str | None


def refusal(number: int | None = None) -> str | None:
    """Return one line that says why no kernel can run on device ``number`` (None: on any device); None if one can."""
    count, reason = _found()
    if not count:
        return f"no CUDA device: {reason}"
    present = devices()
    if number is not None and number >= len(present):
        return f"no CUDA device {number}: there are {len(present)}"
    if any(device.refusal is None for device in present if number in (None, device.number)):
        return None
    reasons = "; ".join(f"{device.name}: {device.refusal}" for device in present if number in (None, device.number))
    return f"no usable CUDA device: {reasons}"


def devices() -> list[DeviceInfo]:
    """List all devices of this process, in the driver's order. The first call compiles and loads a kernel for each."""
    return [_device(number) for number in range(_found()[0])]


@functools.cache
def _found() -> tuple[int, str]:
    """Return the number of devices and, if that is 0, why."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a driver older than NVIDIA's packages: ``_device`` finds out if
            # that matters
            count = len(cuda.gpus) if cuda.is_available() else 0
    except Exception as error:  # libraries that cannot be loaded, or a driver that cannot say what it has
        return 0, _told(error)
    return count, "" if count else _driver_error()


@functools.cache
def _device(number: int) -> DeviceInfo:
    device = cuda.gpus[number]
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    capability = tuple(device.compute_capability)
    memory, reason = 0, None
    try:
        with device:
            memory = int(cuda.current_context().get_memory_info().total)
            if capability < OLDEST:
                reason = f"compute capability {_dotted(capability)} is below {_dotted(OLDEST)}"
            else:
                _load_a_kernel()
    except Exception as error:  # of any of a dozen classes in four packages; whichever it is, it says why
        reason = _too_old(error) or _reason(error)
    return DeviceInfo(number, name, capability, memory, reason)


@cuda.jit
def nothing(out, x, n):
    """Do nothing, with the arguments of a small kernel."""
    return  # numba-cuda needs a statement after the docstring


def _load_a_kernel() -> None:
    """Compile a kernel that does nothing for the current device and load it."""
    floats = types.Array(types.float32, 1, "C")
    anew = cuda.jit(nothing.py_func)  # a new dispatcher, because code compiled for one device does not load on another
    compiled(anew, (floats, floats, types.int64))


OF_OLD_DRIVERS = (
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
)  # fmt: skip
"""Names of the errors of a driver that is too old for code from a newer compiler."""


def _too_old(error: Exception) -> str | None:
    """If ``error`` comes from a driver older than the compiler, return a line that says which driver, or which pip
    extra of ours, is needed; else None."""
    try:
        has, made_by = _versions()
    except Exception:  # without both versions there is nothing to compare
        return None
    if has >= made_by or has[0] == made_by[0] and not any(name in str(error) for name in OF_OLD_DRIVERS):
        return None
    needed = (made_by[0], 0) if has[0] < made_by[0] else made_by
    instead = f", or pip install 'ds4ref[cuda{has[0]}]'" if has[0] >= 12 else ""
    return (
        f"the driver is for CUDA {_dotted(has)}, kernels are compiled by CUDA {_dotted(made_by)}: "
        f"install a driver for CUDA {_dotted(needed)} or newer{instead}"
    )


def _versions() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the CUDA versions of the driver and of the compiler, each as (major, minor)."""
    from numba.cuda.cudadrv.driver import driver
    from numba.cuda.cudadrv.runtime import runtime

    major, minor = runtime.get_version()
    return driver.get_version(), (major, minor)


def _reason(error: Any) -> str:
    text = one_line(error)
    if type(error).__name__.startswith("DynamicLib"):  # cuda.pathfinder misses a library that the pip extra installs
        return f"{text.split(': ')[0]}: pip install 'ds4ref[cuda13]', or [cuda12] for a driver for CUDA 12"
    return f"no kernel can run on it: {text}"


def report() -> list[str]:
    """Return lines for people to read: which ``numba.cuda`` is in use, the devices, and why none can be used."""
    target = (
        "numba-cuda" if IMPLEMENTATION == "NVIDIA" else "numba's bundled target (pip install 'ds4ref[cuda13]' is newer)"
    )
    lines = [f"numba.cuda: {target}"]
    for d in devices():
        about = f"compute capability {_dotted(d.capability)}"
        if d.memory:
            about += f", {d.memory / 2**30:.1f} GiB"
        lines.append(f"{d.number}: {d.name}, {about}: {d.refusal or 'usable'}")
    reason = refusal()
    return lines if reason is None or len(lines) > 1 else [*lines, reason]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _driver_error() -> str:
    error: Any
    try:
        from numba.cuda.cudadrv.driver import driver

        driver.ensure_initialized()
        error = driver.initialization_error
    except Exception as e:  # whatever it is, it is the reason
        error = e
    return _told(error) if error else "the driver lists none"


def _told(error: Any) -> str:
    """Return the first sentence of an error's text, without the error number that follows the error's name."""
    return one_line(error).split(" (<")[0].split(". ")[0].rstrip(".:")
