"""Compiles kernels without a GPU: their PTX, by numba-cuda and NVIDIA's NVVM from wheels.

    text = ptx_of(kernel, signature, (9, 0))

A process compiles for one architecture: Numba caches device functions for the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

_CHOSEN: list[tuple[int, int]] = []


class _NoDevice:
    """The part of a device that Numba reads when it compiles device functions."""

    def __init__(self, cc: tuple[int, int]):
        self.compute_capability = cc


def missing() -> str | None:
    """Return the reason why kernels cannot be compiled here, None if they can."""
    try:
        from numba import cuda
    except ImportError as error:
        return str(error)
    if getattr(cuda, "implementation", "") != "NVIDIA":
        return "needs numba-cuda and its compiler: pip install 'ds4ref[cuda13]'"
    return None


def ptx_of(kernel: Any, signature: Any, cc: tuple[int, int], lineinfo: bool = True) -> str:
    """Return the PTX of a kernel (a ``cuda.jit`` or plain function), compiled with the options it was declared with.

    cc         compute capability, as (9, 0)
    lineinfo   include source lines
    """
    from numba import cuda
    from numba.cuda import dispatcher

    _CHOSEN.append(cc)
    if cc != _CHOSEN[0]:
        raise ValueError(f"this process compiles for {_CHOSEN[0]}, not {cc}")
    options = {
        name: value for name, value in getattr(kernel, "targetoptions", {}).items() if name in ("fastmath", "opt")
    }
    function: Callable[..., Any] = getattr(kernel, "py_func", kernel)
    compiled_device = dispatcher.CUDADispatcher.compile_device

    def with_lines(self: Any, *asked: Any) -> Any:
        self.targetoptions["lineinfo"] = lineinfo
        return compiled_device(self, *asked)

    with (
        mock.patch.object(dispatcher, "get_current_device", lambda: _NoDevice(cc)),
        mock.patch.object(dispatcher.CUDADispatcher, "compile_device", with_lines),
    ):
        text, _ = cuda.compile(
            function, signature, cc=cc, output="ptx", device=False, abi="numba", lineinfo=lineinfo, **options
        )
    return text if isinstance(text, str) else text.decode()


FILE = 1 << 20


def place(file: int, line: int) -> int:
    """Encode a file number (``.file`` of PTX; 1 is the kernel's own file) and a line as one number."""
    return (file - 1) * FILE + line


def files_of(ptx: str) -> dict[str, int]:
    """Return the numbers of the source files named in a PTX text, by path."""
    return {path: int(number) for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', ptx)}
