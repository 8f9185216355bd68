"""Launch kernels through the driver's C interface: this replaces numba.cuda's ``kernel[grid, block, stream,
shared](*args)``, which spends 0.1 ms in Python on types and arguments each time.

For each combination of argument types two things are made once: the compiled function, and the memory from which the
driver reads the parameters, in words of 8 bytes. A launch then packs numbers and addresses into it and calls
``cuLaunchKernel``. Arguments of a kernel may be ``KernelArray``, Python's and NumPy's numbers, and tuples of these.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .loading import function_of
from .shim import DriverError, dispatcher_class, driver_library, error_name, from_dtype, typeof, types


class KernelArray:
    """An array in device memory as an argument of a kernel: ``size`` values of ``dtype`` at address ``pointer``."""

    __slots__ = ("dtype", "words")

    def __init__(self, pointer: int, size: int, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        # Numba's array: owner, parent, items, bytes of an item, address, shape, strides
        self.words = 0, 0, size, self.dtype.itemsize, pointer, size, self.dtype.itemsize


def kind_of_kernel_array(value: Any) -> Any | None:
    """Return Numba's type of ``value`` if it is a ``KernelArray``, else None."""
    if not isinstance(value, KernelArray):
        return None
    return types.Array(from_dtype(value.dtype), 1, "C")


def kind_of(value: Any, kind_of_array: Callable[[Any], Any | None] = kind_of_kernel_array) -> Any:
    """Return Numba's type of ``value``, an argument of a kernel; ``kind_of_array`` returns the type of an array."""
    kind = kind_of_array(value)
    if kind is not None:
        return kind
    if not isinstance(value, tuple) or not hasattr(value, "_fields"):
        return typeof(value)
    return types.NamedTuple([kind_of(item, kind_of_array) for item in value], type(value))


LETTERS = {bool: "?7x", int: "q", float: "d", np.bool_: "?7x", np.float32: "f4x", np.float64: "d", np.int32: "i4x",
           np.int64: "q", np.uint32: "I4x", np.uint64: "Q"}  # fmt: skip
"""Type of a number -> format with which ``struct`` packs it into a word of 8 bytes."""


def leaves(args: Iterable[Any]) -> list[Any]:
    """Return the arguments of a kernel with tuples replaced by their items, as Numba passes them."""
    flat: list[Any] = []
    for arg in args:
        if isinstance(arg, tuple):
            flat += leaves(arg)
        else:
            flat.append(arg)
    return flat


class Prepared:
    """A kernel compiled for one combination of argument types, and the memory from which the driver reads its
    parameters."""

    def __init__(self, kernel: Any, args: Sequence[Any], flat: Sequence[Any]) -> None:
        self.function = function_of(kernel, tuple(kind_of(arg) for arg in args))
        letters = ["q" * len(leaf.words) if isinstance(leaf, KernelArray) else LETTERS[type(leaf)] for leaf in flat]
        self.packing = struct.Struct("=" + "".join(letters))
        count = self.packing.size // 8
        self.memory = (ctypes.c_uint64 * max(1, count))()
        start = ctypes.addressof(self.memory)
        self.parameters = (ctypes.c_void_p * max(1, count))(*range(start, start + 8 * count, 8))

    def fill(self, flat: Sequence[Any]) -> None:
        """Write the parameters of a launch: the arguments ``flat``, as ``leaves`` returns them."""
        values: list[Any] = []
        for leaf in flat:
            if isinstance(leaf, KernelArray):
                values += leaf.words
            else:
                values.append(leaf)
        self.packing.pack_into(self.memory, 0, *values)


_prepared: dict[tuple[Any, ...], Prepared] = {}
_lock = threading.RLock()


def prepared(kernel: Any, args: Sequence[Any], flat: Sequence[Any]) -> Prepared:
    """Return what launches of ``kernel`` with arguments of these types need; the first time, compile the kernel.

    flat: the same arguments, as ``leaves`` returns them
    """
    key = kernel, *[leaf.dtype.char if isinstance(leaf, KernelArray) else type(leaf) for leaf in flat]
    ready = _prepared.get(key)
    if ready is None:
        ready = _prepared[key] = Prepared(kernel, args, flat)
    return ready


PLAIN_SHARED = 48 << 10
"""Bytes of shared memory that a block may use without ``allow_shared``."""

_allowed: dict[Prepared, int] = {}


def allow_shared(kernel: Any, nbytes: int, args: Sequence[Any], fixed: int = 0) -> None:
    """Allow launches of ``kernel`` with arguments of these types to use ``nbytes`` of dynamic shared memory per block,
    besides ``fixed`` bytes of static arrays. Raise DriverError if the device refuses."""
    if nbytes + fixed <= PLAIN_SHARED:
        return
    with _lock:
        ready = prepared(kernel, args, leaves(args))
        if _allowed.get(ready, 0) < nbytes:
            ready.function.allow_dynamic(nbytes)
            _allowed[ready] = nbytes


class Launcher:
    """The object that ``kernel[grid, block, stream, shared]`` returns; calling it launches the kernel.

    library: the driver's C library, loaded at the first launch
    """

    library: Any = None

    def __init__(self, kernel: Any, grid: Any, block: Any, stream: Any = 0, shared: int = 0) -> None:
        self.kernel, self.stream, self.shared = kernel, stream, int(shared)
        self.grid, self.block = _three(grid), _three(block)

    def __call__(self, *args: Any) -> None:
        """Launch the kernel with these arguments; raise DriverError if the driver refuses."""
        library = Launcher.library
        if library is None:
            library = Launcher.library = driver_library()
        flat = leaves(args)
        with _lock:
            ready = prepared(self.kernel, args, flat)
            ready.fill(flat)
            code = library.cuLaunchKernel(
                ready.function.handle, *self.grid, *self.block, self.shared, ctypes.c_void_p(int(self.stream)),
                ready.parameters, None,
            )  # fmt: skip
        if code:
            raise DriverError(f"cuLaunchKernel failed: {error_name(library, code)}")


def _three(sizes: Any) -> tuple[int, int, int]:
    """Return the sizes of a grid or block, given as a number or tuple, in three dimensions."""
    if isinstance(sizes, tuple):
        x, y, z = (*sizes, 1, 1)[:3]
        return int(x), int(y), int(z)
    return int(sizes), 1, 1


_numba_configure = dispatcher_class.configure


def _configure(kernel: Any, *sizes: Any) -> Any:
    """Return what ``kernel[sizes]`` returns, in place of Numba's ``CUDADispatcher.configure``: a ``Launcher`` for
    kernels of this package, Numba's own object for all others."""
    if kernel.py_func.__module__.startswith(__package__.rpartition(".")[0] + "."):
        return Launcher(kernel, *sizes)
    return _numba_configure(kernel, *sizes)


dispatcher_class.configure = _configure
