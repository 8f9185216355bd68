"""What CUDA devices there are, and why one cannot be used.

Every finding is one line: no driver, a driver without devices, a device that is too old, no compiler for kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from .shim import IMPLEMENTATION, SIMULATED, _cuda

OLDEST = (8, 0)
"""Compute capability that the kernels need at least: asynchronous copies into shared memory, int8 matrix products."""


@dataclass(frozen=True)
class Found:
    """One device: its name, compute capability, memory in bytes, and why it cannot be used (None: it can)."""

    number: int
    name: str
    capability: tuple[int, int]
    memory: int
    refusal: str | None


def refusal() -> str | None:
    """Why no kernel can run here, None if one can."""
    if SIMULATED:
        return None
    if not _cuda.is_available():
        reason = _driver_error()
        return f"no CUDA device: {reason}; NUMBA_ENABLE_CUDASIM=1 simulates one, slowly"
    usable = [found for found in devices() if found.refusal is None]
    return None if usable else "no usable CUDA device: " + "; ".join(f"{d.name}: {d.refusal}" for d in devices())


def devices() -> list[Found]:
    """All devices of this process, in the driver's order; the simulator counts as one."""
    if SIMULATED:
        return [Found(0, "numba's CUDA simulator", (0, 0), 0, None)]
    if not _cuda.is_available():
        return []
    found = []
    for number, device in enumerate(_cuda.gpus):
        name = device.name.decode() if isinstance(device.name, bytes) else device.name
        capability = tuple(device.compute_capability)
        too_old = (
            f"compute capability {_dotted(capability)} is below {_dotted(OLDEST)}" if capability < OLDEST else None
        )
        with device:
            memory = _cuda.current_context().get_memory_info().total
        found.append(Found(number, name, capability, int(memory), too_old))
    return found


def report() -> list[str]:
    """Lines for people: which numba.cuda, which devices, why not."""
    lines = [f"numba.cuda: {'simulator, ' if SIMULATED else ''}{_implementation()}"]
    why = refusal()
    lines += [f"{d.number}: {d.name}{_details(d)}: {d.refusal or 'usable'}" for d in devices()]
    return lines if why is None or len(lines) > 1 else [*lines, why]


def _implementation() -> str:
    return (
        "numba-cuda" if IMPLEMENTATION == "NVIDIA" else "numba's bundled target (pip install 'ds4ref[cuda]' is newer)"
    )


def _details(device: Found) -> str:
    if device.capability == (0, 0):
        return ""
    return f", compute capability {_dotted(device.capability)}, {device.memory / 2**30:.1f} GiB"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _driver_error() -> str:
    try:
        from numba.cuda.cudadrv.driver import driver

        driver.ensure_initialized()
        error = driver.initialization_error
    except Exception as e:  # whatever it is, it is why
        error = str(e)
    text = " ".join(str(error).split()) if error else "the driver found none"
    return text.split(". ")[0].rstrip(".:")
