"""What CUDA devices there are, and why one cannot be used, each in one line."""

from __future__ import annotations

from dataclasses import dataclass

from .shim import IMPLEMENTATION, cuda

OLDEST = (8, 0)
"""Compute capability that the kernels need at least: asynchronous copies into shared memory, int8 matrix products."""


@dataclass(frozen=True)
class DeviceInfo:
    """One device: name, compute capability, memory in bytes, and why it cannot be used (None: it can)."""

    number: int
    name: str
    capability: tuple[int, int]
    memory: int
    refusal: str | None


def refusal() -> str | None:
    """Say why no kernel can run here; None if one can."""
    if not cuda.is_available():
        return f"no CUDA device: {_driver_error()}"
    present = devices()
    if any(device.refusal is None for device in present):
        return None
    return "no usable CUDA device: " + "; ".join(f"{device.name}: {device.refusal}" for device in present)


def devices() -> list[DeviceInfo]:
    """List all devices of this process, in the driver's order."""
    if not cuda.is_available():
        return []
    infos = []
    for number, device in enumerate(cuda.gpus):
        name = device.name.decode() if isinstance(device.name, bytes) else device.name
        capability = tuple(device.compute_capability)
        too_old = (
            f"compute capability {_dotted(capability)} is below {_dotted(OLDEST)}" if capability < OLDEST else None
        )
        with device:
            memory = cuda.current_context().get_memory_info().total
        infos.append(DeviceInfo(number, name, capability, int(memory), too_old))
    return infos


def report() -> list[str]:
    """Lines for people: the ``numba.cuda`` in use, the devices, why none can be used."""
    target = (
        "numba-cuda" if IMPLEMENTATION == "NVIDIA" else "numba's bundled target (pip install 'ds4ref[cuda]' is newer)"
    )
    lines = [f"numba.cuda: {target}"]
    for d in devices():
        about = f"compute capability {_dotted(d.capability)}, {d.memory / 2**30:.1f} GiB"
        lines.append(f"{d.number}: {d.name}, {about}: {d.refusal or 'usable'}")
    reason = refusal()
    return lines if reason is None or len(lines) > 1 else [*lines, reason]


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _driver_error() -> str:
    try:
        from numba.cuda.cudadrv.driver import driver

        driver.ensure_initialized()
        error = driver.initialization_error
    except Exception as e:  # whatever it is, it is the reason
        error = str(e)
    text = " ".join(str(error).split()) if error else "the driver lists none"
    return text.split(". ")[0].rstrip(".:")
