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
from collections.abc import Callable
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
    return "the simulator is on (NUMBA_ENABLE_CUDASIM)" if "simulator" in cuda.jit.__module__ else None


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
    with mock.patch.object(dispatcher, "get_current_device", lambda: _NoDevice(cc)):
        text, _ = cuda.compile(
            function, signature, cc=cc, output="ptx", device=False, abi="numba", lineinfo=lineinfo, **options
        )
    return text if isinstance(text, str) else text.decode()


def tool(name: str) -> str:
    """Path of ``ptxas`` or ``nvdisasm``: out of its wheel, or installed. FileNotFoundError says how to get it."""
    spec = find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob(f"*/bin/{name}")):
            return str(path)
    if found := shutil.which(name):
        return found
    raise FileNotFoundError(f"no {name}: pip install nvidia-cuda-{'nvcc' if name == 'ptxas' else name}")


class Built(NamedTuple):
    """What ptxas made: registers a thread, bytes of stack and of spill stores and loads a thread, static shared bytes a
    block, and the machine code as nvdisasm prints it, one instruction a line, with the line of the kernel's source that
    each is from, 0 for labels and where none is known."""

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
        *sass_lines(listing),
    )


def sass_lines(listing: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Instructions and labels (ending with ":") of nvdisasm's text, and the source line of each."""
    found: list[tuple[str, int]] = []
    source = 0
    for line in listing.splitlines():
        line = line.strip()
        if match := re.match(r"//## File .*?, line (\d+)", line):
            source = int(match[1])
        elif match := re.match(r"(\.L_x_\w+):", line):
            found.append((match[1] + ":", 0))
        elif match := re.match(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            found.append((" ".join(match[1].split()), source))
    return tuple(text for text, _ in found), tuple(number for _, number in found)
