"""Kernels compiled without a GPU: PTX by numba-cuda, machine code by ptxas, its text by nvdisasm, all out of wheels.

    text = ptx_of(kernel, signature, (9, 0))
    built = assembled(text, (9, 0))          # registers, spills, shared memory, SASS

A process compiles for one architecture: Numba keeps device functions for the first one that asked.
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
    """What Numba asks of a device when it compiles device functions."""

    def __init__(self, cc: tuple[int, int]):
        self.compute_capability = cc


def missing() -> str | None:
    """Why nothing can be compiled here; None if it can."""
    try:
        from numba import cuda
    except ImportError as error:
        return str(error)
    if getattr(cuda, "implementation", "") != "NVIDIA":
        return "needs numba-cuda and its compiler: pip install 'ds4ref[cuda]'"
    return None


def ptx_of(kernel: Any, signature: Any, cc: tuple[int, int], lineinfo: bool = True) -> str:
    """PTX of a kernel (what ``cuda.jit`` gives, or a function) with the options it was declared with."""
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
    """Arguments of a kernel without the tuples around them: Numba passes each one by itself."""
    return [leaf for arg in args for leaf in (leaves(arg) if isinstance(arg, tuple) else [arg])]


def kind_of_argument(value: Any, kind_of_array: Callable[[Any], Any | None]) -> Any:
    """Numba's type of an argument; ``kind_of_array`` gives that of an array, None for other values."""
    from numba import typeof, types

    kind = kind_of_array(value)
    if kind is not None:
        return kind
    if not isinstance(value, tuple) or not hasattr(value, "_fields"):
        return typeof(value)
    return types.NamedTuple([kind_of_argument(item, kind_of_array) for item in value], type(value))


def tool(name: str) -> str:
    """Path of ``ptxas`` or ``nvdisasm``: out of its wheel, or installed. FileNotFoundError says how to get it."""
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob(f"*/bin/{name}")):
            return str(path)
    if found := shutil.which(name):
        return found
    raise FileNotFoundError(f"no {name}: pip install nvidia-cuda-{'nvcc' if name == 'ptxas' else name}")


FILE = 1 << 20


def place(file: int, line: int) -> int:
    """A line of the file of this number (``.file`` of PTX) as one number: the kernel's own file is 1."""
    return (file - 1) * FILE + line


def files_of(ptx: str) -> dict[str, int]:
    """Source files by path."""
    return {path: int(number) for number, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', ptx)}


class Built(NamedTuple):
    """What ptxas made: registers a thread, bytes of stack and of spill stores and loads a thread, static shared bytes a
    block, and the machine code as nvdisasm prints it, one instruction a line, with the ``place`` in the source
    that each is from, 0 for labels and where none is known."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    sass: tuple[str, ...]
    lines: tuple[int, ...]


def assembled(ptx: str, cc: tuple[int, int], registers: int | None = None) -> Built:
    """Run ptxas and nvdisasm on one kernel; ``registers`` is a limit a thread. RuntimeError with ptxas's words."""
    with tempfile.TemporaryDirectory(prefix="ds4-ptx-") as folder:
        source, binary = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(ptx)
        limit = [f"-maxrregcount={registers}"] if registers else []
        asked = ["-v", "-O3", "-lineinfo", f"-arch=sm_{cc[0]}{cc[1]}", *limit]
        command = [tool("ptxas"), *asked, str(source), "-o", str(binary)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ptxas: {done.stderr.strip()[:2000]}")
        listing = subprocess.run(
            [tool("nvdisasm"), "-c", "-g", str(binary)], capture_output=True, text=True, check=True
        ).stdout
    said = done.stderr

    def number(pattern: str) -> int:
        match = re.search(pattern, said)
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
    """Instructions and labels (ending with ":") of nvdisasm's text, and the ``place`` of each."""
    found: list[tuple[str, int]] = []
    source = 0
    for line in listing.splitlines():
        line = line.strip()
        if match := re.match(r'//## File "(.*?)", line (\d+)', line):
            source = place(files.get(match[1], 1), int(match[2]))
        elif match := re.match(r"(\.L_x_\w+):", line):
            found.append((match[1] + ":", 0))
        elif match := re.match(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            found.append((" ".join(match[1].split()), source))
    return tuple(text for text, _ in found), tuple(number for _, number in found)
