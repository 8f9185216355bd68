"""The kernels as a Mac with Apple's processor would compile them: cross-compiled here, and the object file read."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from ds4ref.kernels.cpu.build import ALLOWED_EXTERNALS, symbol

ROOT = Path(__file__).resolve().parents[2]
CALL_LIBC = ["advise_experts", "pool_run", "pool_work", "round_e4m3", "route"]
FEW = [*CALL_LIBC, "attention", "hc_split", "pack.Q2_K.q8k", "read_ticks", "round_f16", "rows.F16.float", "select_rows"]

CROSS = """
import sys
from ds4ref.kernels.cpu.build import compile_entry, cross_machine, entries, optimized_object
machine = cross_machine()
known = entries()
path, *names = sys.argv[1:]
modules = [compile_entry(name, known[name]) for name in names or sorted(known)]
code, undefined = optimized_object(modules, machine)
with open(path, "wb") as file:
    file.write(code)
print(*sorted(undefined))
"""

UNDEFINED, DEFINED = 0x00, 0x0E
BRANCH26 = 2
MRS_CNTVCT = 0xD53BE040


class MachO:
    """What a 64-bit Mach-O object file holds: symbols (name, type), relocations (symbol or None, type), code."""

    def __init__(self, data: bytes):
        magic, _, _, kind, count, _ = struct.unpack_from("<6I", data)
        assert (magic, kind) == (0xFEEDFACF, 1)
        self.symbols: list[tuple[str, int]] = []
        self.text = b""
        found: list[tuple[int, int]] = []
        at = 32
        for _ in range(count):
            command, size = struct.unpack_from("<2I", data, at)
            if command == 0x19:  # LC_SEGMENT_64
                for section in range(at + 72, at + size, 80):
                    length, offset, _, first, number = struct.unpack_from("<Q4I", data, section + 40)
                    if data[section : section + 16].rstrip(b"\0") == b"__text":
                        self.text = data[offset : offset + length]
                    found += (struct.unpack_from("<2I", data, first + 8 * i) for i in range(number))
            elif command == 2:  # LC_SYMTAB
                first, number, strings, _ = struct.unpack_from("<4I", data, at + 8)
                for i in range(number):
                    name, flags = struct.unpack_from("<IB", data, first + 16 * i)
                    end = data.index(b"\0", strings + name)
                    self.symbols.append((data[strings + name : end].decode(), flags & 0x0E))
            at += size
        self.relocations = [
            (self.symbols[word & 0xFFFFFF] if word >> 27 & 1 else None, word >> 28) for _, word in found
        ]

    def names(self, kind: int) -> set[str]:
        """Symbols without the underscore in front."""
        return {name[1:] for name, flags in self.symbols if flags == kind and name.startswith("_")}


def cross_compiled(path: Path, names: list[str]) -> MachO:
    target = "arm64-apple-macosx:apple-m1"
    environment = dict(os.environ, DS4_CROSS_TARGET=target, DS4_SIMD_TIER="C", NUMBA_OPT="0", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", CROSS, str(path), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(done.stdout.split()) <= ALLOWED_EXTERNALS
    return MachO(path.read_bytes())


@pytest.mark.thorough
@pytest.mark.parametrize("names", [FEW, pytest.param([], marks=pytest.mark.slow)], ids=["few", "all"])
def test_macos_loads_what_is_compiled(names: list[str], tmp_path: Path):
    """The loader of Mach-O objects adds no stubs: an external function must be called through an address."""
    try:
        llvm.initialize_all_targets()
        llvm.Target.from_triple("arm64-apple-macosx")
    except RuntimeError:
        pytest.skip("this LLVM has no AArch64 target")
    program = cross_compiled(tmp_path / "kernels.o", names)
    assert {symbol(name) for name in names or FEW} <= program.names(DEFINED)
    undefined = program.names(UNDEFINED)
    assert {"sched_yield", "usleep", "madvise", "log2f", "log1pf"} <= undefined <= ALLOWED_EXTERNALS
    direct = {target[0] for target, kind in program.relocations if target and kind == BRANCH26}
    assert not direct & {f"_{name}" for name in undefined}
    named = {target[0] for target, _ in program.relocations if target}
    assert "_usleep" in named
    words = {word for (word,) in struct.iter_unpack("<I", program.text)}
    assert any(MRS_CNTVCT | register in words for register in range(31)), "the clock of the steps is not read"
