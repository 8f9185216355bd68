"""The one import of ``numba.cuda``: numba-cuda where it is installed (it takes the name over), else numba's bundled
target. Kernel modules say ``from ..driver.shim import cuda``."""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
import warnings
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the bundled target announces its end, which is known here
    import numba.cuda as _numba_cuda
    from numba import from_dtype as from_dtype
    from numba import typeof as typeof
    from numba import types as _types

cuda: Any = _numba_cuda

IMPLEMENTATION = getattr(cuda, "implementation", "Built-in")
"""Whose ``numba.cuda`` this is: "NVIDIA" for numba-cuda, which has types of its own, "Built-in" for the bundled one."""

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
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # what one token does is often little, and meant to be

f16, f32, f64 = types.float16, types.float32, types.float64
i8, i16, i32, i64 = types.int8, types.int16, types.int32, types.int64
u8, u16, u32, u64 = types.uint8, types.uint16, types.uint32, types.uint64


def extending() -> tuple[Any, Any, Any, Any]:
    """The decorator ``intrinsic``, types, LLVM helpers and ``signature``, wherever the target has them."""
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
"""Parts of names of errors after which every call of the driver fails in this process."""


def one_line(error: Any) -> str:
    """The text of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def from_below(error: BaseException) -> bool:
    """Whether an exception says that driver, device or NVIDIA's compiler failed, and not that our code is wrong. Numba
    and the packages it calls have a dozen classes for that, which have only their modules in common."""
    return isinstance(error, DriverError) or type(error).__module__.startswith(("cuda.", "numba.cuda.cudadrv"))


_left: list[Any] = []


def leave_as_it_is() -> None:
    """Let ``numba.cuda`` free nothing any more, after an error that ended the context: it would print a traceback for
    every module that it fails to free, most of them when Python ends."""
    deferring = cuda.defer_cleanup()
    deferring.__enter__()
    _left.append(deferring)  # as garbage it would end


class DriverError(Exception):
    """A call of the driver that we made failed."""


def driver_library() -> Any:
    """The driver's library. OSError if there is none."""
    if sys.platform == "win32":
        return ctypes.WinDLL("nvcuda.dll")  # type: ignore[attr-defined]
    return ctypes.CDLL("libcuda.so.1")


def error_name(library: Any, code: int) -> str:
    """Return the driver's name of an error, its number if it has none."""
    text = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(text))
    return (text.value or str(code).encode()).decode()


def machine_code(kernel: Any, kinds: tuple[Any, ...]) -> tuple[bytes, str]:
    """Compile ``kernel`` for arguments of these types and this device; return machine code and the entry's name."""
    made = importlib.import_module("numba.cuda.dispatcher")._Kernel(kernel.py_func, kinds, **kernel.targetoptions)
    code = made._codelibrary.get_cubin()
    return bytes(getattr(code, "code", code)), made.entry_name


def select_device(number: int) -> None:
    """Make device ``number`` the one of this thread, and the one that launches are sized for."""
    cuda.select_device(number)
    _attribute.cache_clear()


def compute_capability() -> tuple[int, int]:
    """Compute capability of the device, as (9, 0)."""
    major, minor = _attribute("compute_capability")
    return major, minor


@functools.cache
def _attribute(name: str) -> Any:
    """Return an attribute of the device. Numba takes 30 us to find out which device that is."""
    return getattr(cuda.get_current_device(), name)


def multiprocessors() -> int:
    """Number of multiprocessors of the device."""
    return int(_attribute("MULTIPROCESSOR_COUNT"))


def shared_limit() -> int:
    """Bytes of shared memory that a block can have at most."""
    return int(_attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
