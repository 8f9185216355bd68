"""The kernels as other machines compile them: cross-compiled here, and their object files read.

A loader in the process (LLVM's RuntimeDyld) adds no stubs to Mach-O objects and knows only some relocations: what it
cannot do would end the process on a Mac, where no test of ours runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lief
import llvmlite.binding as llvm
import pytest

from ds4ref.kernels.cpu.build import ALLOWED_EXTERNALS, symbol

ROOT = Path(__file__).resolve().parents[2]
MACHINES = "arm64-apple-macosx:apple-m1", "aarch64-unknown-linux-gnu:neoverse-n1"
FEW = (
    "advise_experts pool_run pool_work round_e4m3 route attention gemm_decode.IQ2_XXS.float gemm_multiply.floats.3 "
    "hc_split pack.Q2_K.q8k read_ticks round_f16 rows.F16.float select_rows"
).split()
CROSS = """
import sys
from pathlib import Path
from ds4ref.kernels.cpu.build import compile_entry, cross_machine, entries, optimized_object
machine, known = cross_machine(), entries()
target, *names = sys.argv[1:]
code, _ = optimized_object([compile_entry(name, known[name]) for name in names or sorted(known)], machine)
Path(target).write_bytes(code)
"""
MRS_CNTVCT = 0xD53BE040
"""The instruction that reads the clock, into register 0."""

LOADED = set("UNSIGNED SUBTRACTOR BRANCH26 PAGE21 PAGEOFF12 GOT_LOAD_PAGE21 GOT_LOAD_PAGEOFF12 ADDEND".split())
LOADED |= {f"AARCH64_MOVW_UABS_G{part}" for part in ("0_NC", "1_NC", "2_NC", "3")}
LOADED |= {"AARCH64_CALL26", "AARCH64_JUMP26", "AARCH64_PREL64", "AARCH64_PREL32", "AARCH64_ABS64"}
"""Relocations of AArch64 that RuntimeDyld resolves (those of Mach-O's without a prefix)."""


def read(path: Path) -> tuple[set[str], set[str], set[tuple[str, str]], bytes]:
    """Defined functions, undefined symbols, relocations (type, symbol) and code of an object file."""
    file = lief.parse(path)
    if isinstance(file, lief.MachO.Binary):
        symbols = {s.name[1:]: bool(s.numberof_sections) for s in file.symbols if s.name.startswith("_")}
        relocations = {(r.type.name, r.symbol.name[1:] if r.has_symbol else "") for r in file.relocations}
        code = file.get_section("__text").content
    else:
        symbols = {s.name: bool(s.shndx) for s in file.symbols if s.name and (s.is_function or not s.shndx)}
        relocations = {(r.type.name, r.symbol.name if r.has_symbol else "") for r in file.object_relocations}
        code = file.get_section(".text").content
    defined = {name for name, here in symbols.items() if here}
    return defined, set(symbols) - defined, relocations, bytes(code)


@pytest.mark.thorough
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("names", [FEW, pytest.param([], marks=pytest.mark.slow)], ids=["few", "all"])
def test_other_machines_load_what_is_compiled(names: list[str], machine: str, tmp_path: Path):
    try:
        llvm.initialize_all_targets()
        llvm.Target.from_triple(machine.partition(":")[0])
    except RuntimeError:
        pytest.skip("this LLVM has no AArch64 target")
    environment = dict(os.environ, DS4_CROSS_TARGET=machine, DS4_SIMD_TIER="", NUMBA_OPT="0", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", CROSS, str(tmp_path / "0.o"), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    defined, undefined, relocations, code = read(tmp_path / "0.o")
    assert {symbol(name) for name in names or FEW} <= defined
    assert {"sched_yield", "usleep", "madvise", "log2f", "log1pf"} <= undefined <= ALLOWED_EXTERNALS
    assert {kind for kind, _ in relocations} <= LOADED
    assert not {name for kind, name in relocations if kind == "BRANCH26"} & undefined, "jumps into a library"
    words = {int.from_bytes(code[i : i + 4], "little") for i in range(0, len(code), 4)}
    assert any(MRS_CNTVCT | register in words for register in range(31)), "the clock of the steps is not read"
