"""Compile kernels without a GPU: PTX by numba-cuda, machine code by ptxas, disassembly by nvdisasm, all from wheels.

    text = ptx_of(kernel, signature, (9, 0))
    built = assembled(text, (9, 0))          # registers, spills, shared memory, SASS

A process compiles for one architecture: Numba caches device functions for the first one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
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
    """Return why nothing can be compiled here, None if it can."""
    try:
        from numba import cuda
    except ImportError as error:
        return str(error)
    if getattr(cuda, "implementation", "") != "NVIDIA":
        return "needs numba-cuda and its compiler: pip install 'ds4ref[cuda]'"
    return None


def ptx_of(kernel: Any, signature: Any, cc: tuple[int, int], lineinfo: bool = True) -> str:
    """Return the PTX of a kernel (a ``cuda.jit`` function, or a plain one) with the options it was declared with."""
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


def leaves(args: Iterable[Any]) -> list[Any]:
    """Flatten the arguments of a kernel: Numba passes each item of a tuple by itself."""
    return [leaf for arg in args for leaf in (leaves(arg) if isinstance(arg, tuple) else [arg])]


def kind_of_argument(value: Any, kind_of_array: Callable[[Any], Any | None]) -> Any:
    """Return Numba's type of an argument; ``kind_of_array`` returns that of an array, None for other values."""
    from numba import typeof, types

    kind = kind_of_array(value)
    if kind is not None:
        return kind
    if not isinstance(value, tuple) or not hasattr(value, "_fields"):
        return typeof(value)
    return types.NamedTuple([kind_of_argument(item, kind_of_array) for item in value], type(value))


def tool(name: str) -> str:
    """Return the path of ``ptxas`` or ``nvdisasm``, from its wheel or the PATH. FileNotFoundError says how to get
    it."""
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob(f"*/bin/{name}")):
            return str(path)
    if found := shutil.which(name):
        return found
    raise FileNotFoundError(f"no {name}: pip install nvidia-cuda-{'nvcc' if name == 'ptxas' else name}")


FILE = 1 << 20


def place(file: int, line: int) -> int:
    """Encode a file number (``.file`` of PTX) and a line as one number: the kernel's own file is 1."""
    return (file - 1) * FILE + line


def files_of(ptx: str) -> dict[str, int]:
    """Return source files by path."""
    return {path: int(number) for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', ptx)}


class Built(NamedTuple):
    """ptxas's result: registers a thread, bytes of stack and of spill stores and loads a thread, static shared bytes a
    block, and the machine code as nvdisasm prints it, one instruction a line, with the source ``place`` of each (0 for
    labels and unknown ones)."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    sass: tuple[str, ...]
    lines: tuple[int, ...]


def assembled(ptx: str, cc: tuple[int, int], registers: int | None = None) -> Built:
    """Run ptxas and nvdisasm on one kernel; ``registers`` limits registers a thread. RuntimeError with ptxas's
    message."""
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
    """Return instructions and labels (ending with ":") of nvdisasm's text, and the ``place`` of each."""
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
