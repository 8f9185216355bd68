"""The CUDA backend without a GPU: its kernels are compiled for one, and their PTX runs on this processor.

    with hosted() as driver:
        backend = CUDA()          # ds4ref.kernels.cuda: its arrays are memory of this process

Tests marked ``cuda`` run so (``tests/conftest.py``). Launch sizes, kernels and types are those of a GPU. A launch may
reach only the arrays it is given, and read up to the end of the 256 bytes that any allocation of a GPU fills.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from ..host_driver import HostDriver, instead_of_a_device
from . import compiling

LAUNCHED: dict[Any, int] = {}
"""Launches by kernel, since ``hosted`` began."""


_opened: list[Any] = []


def missing() -> str | None:
    """Say why compiled kernels cannot run here; None if they can."""
    if platform.machine() != "x86_64":
        return "compiled CUDA kernels run on x86-64 processors only"
    return compiling.missing()


class _Launcher:
    """What ``kernel[grid, block, stream, shared]`` gives."""

    def __init__(self, kernel: Any, grid: Any, block: Any, stream: Any = 0, shared: int = 0):
        self.kernel, self.grid, self.block, self.shared = kernel, grid, block, shared

    def __call__(self, *args: Any) -> None:
        from .lowered import launch  # late: nothing else needs this translator

        LAUNCHED[self.kernel] = LAUNCHED.get(self.kernel, 0) + 1
        grid, block = (tuple(map(int, np.atleast_1d(n))) for n in (self.grid, self.block))
        launch(self.kernel, grid, block, *args, shared=int(self.shared), slack=256, order=_opened[-1].order)


def _array(pointer: int, size: int, dtype: np.dtype) -> np.ndarray:
    """``launching.KernelArray`` over this process's memory."""
    return np.frombuffer((ctypes.c_uint8 * (size * dtype.itemsize)).from_address(pointer), dtype)


class CompiledDriver(HostDriver):
    """``order``: of the threads of a block (``fibers.ORDERS``)."""

    order = "forward"


@contextlib.contextmanager
def hosted() -> Iterator[Any]:
    """Run kernels of ``ds4ref.kernels.cuda`` compiled; gives the driver that backends opened meanwhile use."""
    from numba.cuda.dispatcher import CUDADispatcher

    from ds4ref.kernels.cuda import backend  # noqa: F401  (before ``configure`` is replaced: ``launching`` does, too)

    driver = CompiledDriver()
    _opened.append(driver)
    LAUNCHED.clear()
    configure = mock.patch.object(CUDADispatcher, "configure", lambda self, *sizes: _Launcher(self, *sizes))
    with configure, instead_of_a_device(driver, _array):
        yield driver
    _opened.pop()
