"""The CUDA backend on lowered kernels: what it would launch on a GPU is compiled for one and run here.

    with hosted() as driver:
        backend = CUDA()          # kernels.cuda: its arrays are memory of this process
    DS4_TEST_CUDA=compiled python -m pytest ...    # every test of the CUDA backend does so

Launch sizes, kernels and their types are those of a GPU, unlike under the simulator. A recording's graph is its calls,
one after the other. Each launch may reach only the arrays it is given, and reads up to the end of the 256 bytes that
any allocation of a GPU fills; new memory is full of NaNs.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.cuda_compile import missing

from .lowered import launch

LAUNCHED: dict[Any, int] = {}
"""Launches by kernel, since ``hosted`` began."""


MULTIPROCESSORS = 3
"""Few, so that blocks that stay and take one piece of work after the other have several, also of small matrices."""

SHARED_LIMIT = 227 << 10
"""Bytes of shared memory that a block of an H100 may ask for."""

_opened: list[Any] = []


def available() -> str | None:
    """Why kernels cannot be lowered here; None if they can."""
    import platform

    if platform.machine() != "x86_64":
        return "fibers switch by x86-64 instructions"
    return missing()


class _Launcher:
    """What ``kernel[grid, block, stream, shared]`` gives."""

    def __init__(self, kernel: Any, grid: Any, block: Any, stream: Any = 0, shared: int = 0):
        self.kernel, self.grid, self.block, self.shared = kernel, grid, block, shared

    def __call__(self, *args: Any) -> None:
        LAUNCHED[self.kernel] = LAUNCHED.get(self.kernel, 0) + 1
        grid, block = (tuple(map(int, np.atleast_1d(n))) for n in (self.grid, self.block))
        launch(self.kernel, grid, block, *args, shared=int(self.shared), slack=256, order=_opened[-1].order)


def _array(pointer: int, shape: Any, dtype: np.dtype, memory: np.ndarray | None) -> np.ndarray:
    """``kernels.cuda.shim.as_kernel_array`` over this process's memory."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = (ctypes.c_uint8 * size).from_address(pointer)
    return np.frombuffer(raw, dtype).reshape(shape)


@contextlib.contextmanager
def hosted() -> Iterator[Any]:
    """Kernels of ``kernels.cuda`` run lowered; gives the driver that backends opened meanwhile use."""
    from numba.cuda.dispatcher import CUDADispatcher

    from kernels.cuda import backend, driver  # noqa: F401  (all modules are there then)

    class Hosted(driver.Simulated):
        """Memory of this process, by its real address. ``order``: of threads (``fibers.ORDERS``)."""

        order = "forward"

        def alloc(self, nbytes: int) -> Any:
            self._count("alloc")
            raw = np.full(nbytes + 512, 0xFF, np.uint8)
            start = -raw.ctypes.data % 256
            memory = raw[start : start + -(-nbytes // 256) * 256]
            return driver.Block(memory.ctypes.data, nbytes, memory)

    instead = {
        "as_kernel_array": _array,
        "open_driver": lambda *number: opened,
        "multiprocessors": lambda: MULTIPROCESSORS,
        "shared_limit": lambda: SHARED_LIMIT,
        "allow_shared": lambda *asked: None,
    }
    opened = Hosted()
    _opened.append(opened)
    LAUNCHED.clear()
    with contextlib.ExitStack() as patches:
        configure = mock.patch.object(CUDADispatcher, "configure", lambda self, *sizes: _Launcher(self, *sizes))
        patches.enter_context(configure)
        for module in [module for name, module in sys.modules.items() if name.startswith("kernels.cuda")]:
            for name in instead.keys() & vars(module).keys():
                patches.enter_context(mock.patch.object(module, name, instead[name]))
        yield opened
    _opened.pop()
