"""Sizes of launches: threads of a block (powers of two, whole warps) and blocks of a grid."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .shim import cuda

MOST_THREADS = 1024
"""Threads of a block at most."""


def threads_for(items: int, most: int = 256, each: int = 4) -> int:
    """Threads for a block with ``items`` independent items, about ``each`` of them a thread."""
    wanted = -(-items // each)
    return max(32, min(most, 1 << max(0, wanted - 1).bit_length()))


def blocks_for(items: int, threads: int) -> int:
    """Blocks that do ``threads`` items each, mostly a thread each, for all items; at least one."""
    return max(1, -(-items // threads))


def per_value(most: int = 256) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: compile a kernel whose threads take items a grid apart, and return the function (stream, *arguments)
    that launches it with a thread, in blocks of at most ``most``, for each of its parameter ``size``. Python's floats
    become float32."""

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
