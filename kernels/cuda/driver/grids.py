"""Sizes of kernel launches: threads per block (powers of two, whole warps) and blocks per grid."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .shim import cuda

MOST_THREADS = 1024
"""Maximum number of threads per block."""


def threads_for(items: int, most: int = 256, each: int = 4) -> int:
    """Return the number of threads (32 to ``most``) of a block that works on ``items`` independent items, so that each
    thread has about ``each`` of them."""
    wanted = -(-items // each)
    return max(32, min(most, 1 << max(0, wanted - 1).bit_length()))


def blocks_for(items: int, threads: int) -> int:
    """Return the number of blocks for ``items`` items if each does ``threads`` of them; at least one."""
    return max(1, -(-items // threads))


def per_value(most: int = 256) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for kernels that compute one value per thread: it makes the kernel a function (stream,
    *arguments) that launches it.

    The kernel must have a parameter ``size``, the number of values; it is launched with at least that many threads, in
    blocks of at most ``most``. Python floats are passed as float32.
    """

    def make(function: Callable[..., None]) -> Callable[..., None]:
        kernel, at = cuda.jit(function), list(inspect.signature(function).parameters).index("size")

        @functools.wraps(function)
        def launch(stream: Any, *args: Any) -> None:
            threads = threads_for(args[at], most, 1)
            kernel[blocks_for(args[at], threads), threads, stream](
                *(np.float32(value) if type(value) is float else value for value in args)
            )

        return launch

    return make
