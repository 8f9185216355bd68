"""Compiles kernels without a GPU: PTX by numba-cuda, machine code by ptxas, disassembly by nvdisasm, all from wheels.

    text = ptx_of(kernel, signature, (9, 0))
    built = assembled(text, (9, 0))          # registers, spills, shared memory, SASS

A process compiles for one architecture: Numba caches device functions for the first one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
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


def tool(name: str) -> str:
    """Return the path of ``ptxas`` or ``nvdisasm``, from a wheel or PATH; FileNotFoundError says how to install it."""
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob(f"*/bin/{name}")):
            return str(path)
    if found := shutil.which(name):
        return found
    raise FileNotFoundError(f"no {name}: pip install nvidia-cuda-{'nvcc' if name == 'ptxas' else name}")


FILE = 1 << 20


def place(file: int, line: int) -> int:
    """Encode a file number (``.file`` of PTX; 1 is the kernel's own file) and a line as one number."""
    return (file - 1) * FILE + line


def files_of(ptx: str) -> dict[str, int]:
    """Return the numbers of the source files named in a PTX text, by path."""
    return {path: int(number) for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', ptx)}


class Built(NamedTuple):
    """The result of ptxas for one kernel.

    registers      per thread
    stack          bytes per thread
    spill_stores   bytes of spill stores per thread
    spill_loads    bytes of spill loads per thread
    shared         bytes of static shared memory per block
    sass           the machine code as nvdisasm prints it, one instruction or label per entry
    lines          the source ``place`` of each entry of ``sass``, 0 for labels and unknown ones
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    sass: tuple[str, ...]
    lines: tuple[int, ...]


def assembled(ptx: str, cc: tuple[int, int], registers: int | None = None) -> Built:
    """Run ptxas and nvdisasm on the PTX of one kernel; raises RuntimeError with ptxas's message.

    ``registers``: limit of registers per thread.
    """
    with tempfile.TemporaryDirectory(prefix="ds4-ptx-") as folder:
        source, binary = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(ptx)
        limit = [f"-maxrregcount={registers}"] if registers else []
        options = ["-v", "-O3", "-lineinfo", f"-arch=sm_{cc[0]}{cc[1]}", *limit]
        command = [tool("ptxas"), *options, str(source), "-o", str(binary)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ptxas: {done.stderr.strip()[:2000]}")
        listing = subprocess.run(
            [tool("nvdisasm"), "-c", "-g", str(binary)], capture_output=True, text=True, check=True
        ).stdout
    messages = done.stderr

    def number(pattern: str) -> int:
        match = re.search(pattern, messages)
        return int(match[1]) if match else 0

    return Built(
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes smem"),
        *sass_lines(listing, files_of(ptx)),
    )


def sass_lines(listing: str, files: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Parse nvdisasm's listing; return (instructions and labels, source ``place`` of each). Labels end with ":"."""
    instructions: list[tuple[str, int]] = []
    source = 0
    for line in listing.splitlines():
        line = line.strip()
        if match := re.match(r'//## File "(.*?)", line (\d+)', line):
            source = place(files.get(match[1], 1), int(match[2]))
        elif match := re.match(r"(\.L_x_\w+):", line):
            instructions.append((match[1] + ":", 0))
        elif match := re.match(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions.append((" ".join(match[1].split()), source))
    return tuple(text for text, _ in instructions), tuple(number for _, number in instructions)
