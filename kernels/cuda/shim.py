"""The one import of ``numba.cuda``: numba-cuda where it is installed (it takes the name over), else numba's bundled
target, or the simulator of either with NUMBA_ENABLE_CUDASIM=1.

Kernel modules say ``from .shim import cuda`` and write ``@cuda.jit``, as everywhere. Under the simulator ``cuda`` is a
stand-in: it asks for the running kernel at every use, so that device functions may live in other modules than their
kernels (numba's simulator exchanges a module's globals while a kernel of it runs, which threads of a block undo for one
another), and device functions stay plain Python functions, which call each other at a fraction of the cost.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the bundled target announces its end, which is known here
    import numba.cuda as _cuda
    from numba import types as _types

SIMULATED = "simulator" in _cuda.jit.__module__
"""Whether kernels run in numba's simulator, as Python."""

IMPLEMENTATION = getattr(_cuda, "implementation", "Built-in")
"""Whose ``numba.cuda`` this is: "NVIDIA" for numba-cuda, which has types of its own, "Built-in" for the bundled one."""

types: Any = _types
if IMPLEMENTATION == "NVIDIA":
    types = _cuda.types
    from numba.cuda.core import config
else:
    from numba.core import config
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # what one token does is often little, and meant to be

f16, f32, f64 = types.float16, types.float32, types.float64
i8, i16, i32, i64 = types.int8, types.int16, types.int32, types.int64
u8, u16, u32, u64 = types.uint8, types.uint16, types.uint32, types.uint64


class _Simulated:
    """``numba.cuda`` as simulated kernels see it, with the scheduler of ``simulation``."""

    def __getattr__(self, name: str) -> Any:
        context = _simulator._kernel_context
        return getattr(_cuda if context is None else context, name)

    @staticmethod
    def jit(function: Any = None, device: bool = False, **options: Any) -> Any:
        """A device function is itself; a kernel is the simulator's."""

        def wrap(body: Callable[..., Any]) -> Any:
            return body if device else _cuda.jit(body)

        return wrap(function) if callable(function) else wrap


_GROUPS = (tuple, slice)


class SimArray:
    """A device array under the simulator: NumPy's, without its negative indices, which a GPU does not know."""

    __slots__ = ("_ary", "dtype", "ndim", "shape", "size")

    def __init__(self, values: np.ndarray):
        self._ary, self.shape, self.dtype, self.size, self.ndim = (
            values, values.shape, values.dtype, values.size, values.ndim,
        )  # fmt: skip

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, _GROUPS) and at < 0:
            raise IndexError(f"index {at} is negative")
        return self._ary[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        if not isinstance(at, _GROUPS) and at < 0:
            raise IndexError(f"index {at} is negative")
        self._ary[at] = value

    def __len__(self) -> int:
        return self.shape[0]


cuda: Any = _cuda
if SIMULATED:
    from numba.cuda.simulator import kernel as _simulator

    from .simulation import install

    install()
    cuda = _Simulated()


def extending() -> tuple[Any, Any, Any, Any]:
    """What compiled intrinsics are defined with: the decorator, types, helpers for LLVM, and ``signature``. The two
    targets have them in different places."""
    from numba.cuda.extending import intrinsic

    try:
        cgutils = importlib.import_module("numba.cuda.cgutils")
        from numba.cuda.typing import signature
    except ImportError:
        from numba.core import cgutils
        from numba.core.typing import signature
    return intrinsic, types, cgutils, signature


def as_kernel_array(pointer: int, shape: Sequence[int], dtype: np.dtype, memory: np.ndarray | None) -> Any:
    """What a kernel takes for the array of this shape and type at a device address; ``memory`` (uint8) is that place
    under the simulator."""
    if memory is not None:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return SimArray(memory[pointer : pointer + size].view(dtype).reshape(shape))
    described = {
        "shape": tuple(shape), "strides": None, "typestr": dtype.str, "data": (pointer, False), "version": 3,
    }  # fmt: skip
    return _cuda.from_cuda_array_interface(described, owner=None, sync=False)


PLAIN_SHARED = 48 << 10
"""Bytes of shared memory that a block gets without asking."""

_allowed: set[tuple[Any, tuple[Any, ...]]] = set()


def allow_shared(kernel: Any, nbytes: int, args: Sequence[Any], fixed: int = 0) -> None:
    """Let launches of ``kernel`` with such arguments ask for ``nbytes`` of dynamic shared memory, besides ``fixed``
    that its arrays of known size take."""
    if SIMULATED or nbytes + fixed <= PLAIN_SHARED:
        return
    kinds = tuple(kernel.typeof_pyval(arg) for arg in args)
    if (kernel, kinds) in _allowed:
        return
    function = kernel.compile(kinds)._codelibrary.get_cufunc()
    maximum = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if IMPLEMENTATION == "NVIDIA":
        from numba.cuda.cudadrv.driver import binding, driver

        attribute = binding.CUfunction_attribute(maximum)
        driver.cuKernelSetAttribute(attribute, nbytes, function.handle, _cuda.current_context().device.id)
    else:
        import ctypes

        handle = ctypes.c_void_p(getattr(function.handle, "value", function.handle))
        code = ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(handle, maximum, nbytes)
        if code:
            raise RuntimeError(f"the GPU does not give a block {nbytes} bytes of shared memory (error {code})")
    _allowed.add((kernel, kinds))


SIMULATED_MULTIPROCESSORS = 2


def multiprocessors() -> int:
    """How many multiprocessors the device has."""
    if SIMULATED:
        return SIMULATED_MULTIPROCESSORS
    return int(_cuda.get_current_device().MULTIPROCESSOR_COUNT)


def shared_limit() -> int:
    """Bytes of shared memory that a block can be given, at most."""
    if SIMULATED:
        return 99 << 10  # the least of the GPUs that these kernels are for
    return int(_cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
