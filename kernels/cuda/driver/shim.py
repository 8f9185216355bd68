"""The only module that imports ``numba.cuda``: the package numba-cuda if it is installed (it takes over the name), else
the CUDA target bundled with Numba. Kernel modules write ``from ..driver.shim import cuda``."""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
import warnings
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the bundled target warns that it is deprecated, which we know
    import numba.cuda as _numba_cuda
    from numba import from_dtype as from_dtype
    from numba import typeof as typeof
    from numba import types as _types

cuda: Any = _numba_cuda

IMPLEMENTATION = getattr(cuda, "implementation", "Built-in")
"""Which ``numba.cuda`` this is: "NVIDIA" for numba-cuda, which has its own types, or "Built-in" for the bundled one."""

types: Any = _types
if IMPLEMENTATION == "NVIDIA":
    types = cuda.types
    from numba.cuda.core import config

    numpy: Any = np
    if not hasattr(numpy, "row_stack"):
        # NumPy 2.5 removed this name of vstack; numba-cuda 0.30 still asks for it, in a module it imports at first use
        numpy.row_stack = np.vstack
        try:
            importlib.import_module("numba.cuda.np.arrayobj")
        finally:
            del numpy.row_stack
else:
    from numba.core import config
dispatcher_class: Any = importlib.import_module("numba.cuda.dispatcher").CUDADispatcher
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # the work for one token often uses little of the GPU, which is expected

f16, f32, f64 = types.float16, types.float32, types.float64
i8, i16, i32, i64 = types.int8, types.int16, types.int32, types.int64
u8, u16, u32, u64 = types.uint8, types.uint16, types.uint32, types.uint64


def extending() -> tuple[Any, Any, Any, Any]:
    """Return what intrinsics are written with, from wherever the ``numba.cuda`` in use has it: the decorator
    ``intrinsic``, types, LLVM helpers (``cgutils``) and ``signature``."""
    from numba.cuda.extending import intrinsic

    try:
        cgutils = importlib.import_module("numba.cuda.cgutils")
        from numba.cuda.typing import signature
    except ImportError:
        from numba.core import cgutils
        from numba.core.typing import signature
    return intrinsic, types, cgutils, signature


LASTING = (
    "ILLEGAL_ADDRESS", "LAUNCH_TIMEOUT", "ERROR_ASSERT", "HARDWARE_STACK", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS",
    "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED", "ECC_UNCORRECTABLE",
)  # fmt: skip
"""Parts of the names of errors after which every call of the driver fails in this process."""


def one_line(error: Any) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def from_below(error: BaseException) -> bool:
    """Return whether an exception means that driver, device or NVIDIA's compiler failed, rather than that our code is
    wrong. Numba and the packages it calls have a dozen classes for that, which have only their modules in common."""
    return isinstance(error, DriverError) or type(error).__module__.startswith(("cuda.", "numba.cuda.cudadrv"))


_left: list[Any] = []


def leave_as_it_is() -> None:
    """Stop ``numba.cuda`` from freeing anything, after an error that made the context unusable: it would print a
    traceback for every module that it fails to free, most of them when Python exits."""
    deferring = cuda.defer_cleanup()
    deferring.__enter__()
    _left.append(deferring)  # kept, because its deletion would end the deferral


class DriverError(Exception):
    """A call of the CUDA driver's C interface failed."""


def driver_library() -> Any:
    """Return the driver's C library; raise OSError if there is none."""
    if sys.platform == "win32":
        return ctypes.WinDLL("nvcuda.dll")  # type: ignore[attr-defined]
    return ctypes.CDLL("libcuda.so.1")


def error_name(library: Any, code: int) -> str:
    """Return the driver's name for an error code; the code itself, as text, if it has none."""
    text = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(text))
    return (text.value or str(code).encode()).decode()


def machine_code(kernel: Any, kinds: tuple[Any, ...]) -> tuple[bytes, str]:
    """Compile ``kernel`` for arguments of the types ``kinds`` and the current device; return the machine code and the
    name of its entry point."""
    made = importlib.import_module("numba.cuda.dispatcher")._Kernel(kernel.py_func, kinds, **kernel.targetoptions)
    code = made._codelibrary.get_cubin()
    return bytes(getattr(code, "code", code)), made.entry_name


def select_device(number: int) -> None:
    """Make device ``number`` the current one of this thread, and the one for which launch sizes are chosen."""
    cuda.select_device(number)
    _attribute.cache_clear()


def compute_capability() -> tuple[int, int]:
    """Return the compute capability of the current device, such as (9, 0)."""
    major, minor = _attribute("compute_capability")
    return major, minor


@functools.cache
def _attribute(name: str) -> Any:
    """Return an attribute of the current device; cached, because Numba takes 30 us to find out which device that is."""
    return getattr(cuda.get_current_device(), name)


def multiprocessors() -> int:
    """Return the number of multiprocessors (SMs) of the current device."""
    return int(_attribute("MULTIPROCESSOR_COUNT"))


def shared_limit() -> int:
    """Return the maximum bytes of shared memory that a block can have on the current device."""
    return int(_attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
