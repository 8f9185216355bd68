"""Functions that the driver can launch: kernels compiled for this device, or loaded from the cache (``cubins``)."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from . import cubins
from .shim import DriverError, compute_capability, cuda, driver_library, error_name, machine_code

MOST_DYNAMIC = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, the attribute that limits a block's dynamic shared memory."""


class Function:
    """A compiled kernel loaded into the device; ``handle`` is the argument of ``cuLaunchKernel`` for it."""

    def __init__(self, code: bytes, entry: str):
        """Load machine code with this entry point; raise DriverError if the driver cannot."""
        self._lib, self._code = driver_library(), code
        self.handle, loaded = ctypes.c_void_p(), ctypes.c_void_p()
        with contextlib.ExitStack() as undo:
            self._call("cuLibraryLoadData", ctypes.byref(loaded), code, None, None, 0, None, None, 0)
            undo.callback(self._lib.cuLibraryUnload, loaded)
            self._call("cuLibraryGetKernel", ctypes.byref(self.handle), loaded, entry.encode())
            undo.pop_all()  # stays loaded until the process ends

    def allow_dynamic(self, nbytes: int) -> None:
        """Allow a block to use ``nbytes`` of dynamic shared memory; raise DriverError if the device refuses."""
        device = int(cuda.current_context().device.id)
        code = self._lib.cuKernelSetAttribute(MOST_DYNAMIC, nbytes, self.handle, device)
        if code:
            raise DriverError(f"the GPU does not give a block {nbytes} bytes of shared memory (error {code})")

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._lib, name)(*args)
        if code:
            raise DriverError(f"{name} failed: {error_name(self._lib, code)}")


def compiled(kernel: Any, kinds: tuple[Any, ...]) -> Function:
    """Compile ``kernel`` for arguments of the types ``kinds``, and load it."""
    return Function(*machine_code(kernel, kinds))


def function_of(kernel: Any, kinds: tuple[Any, ...]) -> Function:
    """Load ``kernel`` for arguments of the types ``kinds`` from the cache; if it is not there, compile it and keep
    it."""
    key, architecture = cubins.key_of(kernel, kinds), "sm_{}{}".format(*compute_capability())
    kept = cubins.find(key, architecture) if key else None
    if kept is not None:
        with contextlib.suppress(DriverError):  # made for another device or by a newer compiler: compile it again
            return Function(*kept)
    made = machine_code(kernel, kinds)
    if key:
        cubins.keep(key, architecture, *made)
    return Function(*made)
