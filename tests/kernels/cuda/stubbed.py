"""Child processes that find a stand-in where the NVIDIA driver's library would be (``stub/``: C, compiled here).

numba-cuda, NVIDIA's Python packages and their compiler are the real ones: kernels are compiled for the device that the
stand-in plays and loaded, launches are checked, and nothing is computed. ``stub/stub.h`` says what can be played.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((Path(__file__).parent / "stub").glob("*.c"))


def build(folder: Path) -> Path:
    """Compile the stand-in into ``folder``; return the folder. RuntimeError if it cannot be compiled."""
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]
    made = [*command, "-o", str(folder / "libcuda.so.1"), *map(str, SOURCES), "-ldl", "-lpthread"]
    done = subprocess.run(made, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"the stand-in for the driver does not compile: {done.stderr[-2000:]}")
    return folder


def no_compiler() -> str | None:
    """Say why there can be no stand-in here; None if there can."""
    if not sys.platform.startswith("linux"):
        return "the stand-in for the driver is a library for Linux"
    return None if shutil.which("cc") else "there is no C compiler (cc) for the stand-in for the driver"


@dataclass
class Call:
    """A call of the driver: its name without the number of its version, its result, details."""

    name: str
    code: int
    details: str


@dataclass
class Done:
    """A process that ended: exit code, output, and what it asked of the driver."""

    code: int
    out: str
    err: str
    calls: list[Call]

    def counted(self, start: int = 0) -> Counter[str]:
        """Number of calls by name, from call ``start`` on."""
        return Counter(call.name for call in self.calls[start:])

    def named(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.name == name]

    def refused(self) -> list[Call]:
        """Calls that failed, but for functions that the stand-in lacks and nothing needs."""
        return [call for call in self.calls if call.code and call.name != "cuGetProcAddress"]

    def lines(self) -> list[str]:
        """Lines on stderr."""
        return self.err.splitlines()


class Stub:
    """Runs Python in processes that see the stand-in. Settings are those of ``stub.h`` in lower case, without
    ``STUB_CUDA_``."""

    def __init__(self, folder: Path):
        self.folder, self._made = folder, 0

    def python(self, *argv: Any, library: bool = True, **settings: Any) -> Done:
        """Run ``python ARGV``; without ``library`` no driver is found at all."""
        self._made += 1
        log = self.folder / f"calls{self._made}"
        environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        environment |= {"STUB_CUDA_LOG": str(log)}
        environment |= {f"STUB_CUDA_{key.upper()}": str(value) for key, value in settings.items()}
        if library:
            paths = [str(self.folder), environment.get("LD_LIBRARY_PATH", "")]
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        command = [sys.executable, *map(str, argv)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr, calls_in(log))

    def ds4(self, *argv: Any, library: bool = True, **settings: Any) -> Done:
        return self.python("-m", "ds4ref.cli.ds4", *argv, library=library, **settings)


def calls_in(log: Path) -> list[Call]:
    """Read what the stand-in wrote down."""
    if not log.exists():
        return []
    parts = [line.split(" ", 2) for line in log.read_text().splitlines()]
    return [Call(part[0], int(part[1]), part[2] if len(part) > 2 else "") for part in parts]
