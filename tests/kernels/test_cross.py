"""The kernels as other machines compile them: cross-compiled here, and their object files read.

A loader in the process (LLVM's RuntimeDyld) adds no stubs to Mach-O objects and knows only some relocations: what it
cannot do would end the process on a Mac, where no test of ours runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import lief
import llvmlite.binding as llvm
import pytest

from ds4ref.kernels.cpu.build import ALLOWED_EXTERNALS, symbol

ROOT = Path(__file__).resolve().parents[2]
(MAC, LINUX) = (
    "arm64-apple-macosx:apple-m1",
    "aarch64-unknown-linux-gnu:neoverse-n1",
    "aarch64-unknown-linux-gnu:cortex-x925",
)
CALL_LIBC = ["advise_experts", "pool_run", "pool_work", "round_e4m3", "route"]
FEW = [
    *CALL_LIBC,
    "attention",
    "gemm_decode.IQ2_XXS.q8k",
    "gemm_multiply.Q4_K.q8k.3",
    "hc_split",
    "pack.Q2_K.q8k",
    "read_ticks",
    "round_f16",
    "rows.F16.float",
    "select_rows",
]

CROSS = """
import sys
from pathlib import Path
from ds4ref.kernels.cpu.build import compile_entry, cross_machine, entries, optimized_object
from ds4ref.kernels.cpu.library import target_machine
import llvmlite.binding as llvm
machine = cross_machine()
known = entries()
folder, targets, *names = sys.argv[1:]
texts = [str(compile_entry(name, known[name])) for name in names or sorted(known)]
if PLANTED:
    texts.append(PLANTED)
for number, target in enumerate(targets.split()):
    triple, cpu = target.split(":")
    code, _ = optimized_object([llvm.parse_assembly(text) for text in texts], target_machine(triple, cpu=cpu))
    Path(folder, f"{number}.o").write_bytes(code)
"""

PLANTED = """
declare float @expf(float)
define float @ds4_planted(float %x) {
  %y = call float @expf(float %x)
  ret float %y
}
"""

MRS_CNTVCT = 0xD53BE040


def cross_compiled(folder: Path, targets: Iterable[str], names: list[str], planted: str = "") -> list[Path]:
    """Compile entry points, all if ``names`` is empty, for targets of one tier; return an object file for each."""
    targets = list(targets)
    try:
        llvm.initialize_all_targets()
        llvm.Target.from_triple(targets[0].partition(":")[0])
    except RuntimeError:
        pytest.skip("this LLVM has no AArch64 target")
    environment = dict(os.environ, DS4_CROSS_TARGET=targets[0], DS4_SIMD_TIER="", NUMBA_OPT="0", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", f"PLANTED = {planted!r}\n{CROSS}", str(folder), " ".join(targets), *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    return [folder / f"{number}.o" for number in range(len(targets))]


class Object:
    """An object file: names of its functions, its undefined symbols, relocations (type, symbol) and code."""

    def __init__(self, path: Path):
        file = lief.parse(path)
        if isinstance(file, lief.MachO.Binary):
            self.undefined = {s.name[1:] for s in file.symbols if s.numberof_sections == 0 and s.name.startswith("_")}
            self.defined = {s.name[1:] for s in file.symbols if s.numberof_sections and s.name.startswith("_")}
            self.relocations = {(r.type.name, r.symbol.name[1:] if r.has_symbol else "") for r in file.relocations}
            self.code = bytes(file.get_section("__text").content)
        else:
            self.undefined = {s.name for s in file.symbols if s.name and s.shndx == 0}
            self.defined = {s.name for s in file.symbols if s.is_function and s.shndx}
            self.relocations = {(r.type.name, r.symbol.name if r.has_symbol else "") for r in file.object_relocations}
            self.code = bytes(file.get_section(".text").content)

    def faults(self) -> list[str]:
        """Return what the loader of a later process cannot do with this file; empty: it can load it."""
        foreign = [f"calls {name}" for name in sorted(self.undefined - ALLOWED_EXTERNALS)]
        unknown = {kind for kind, _ in self.relocations} - LOADED
        direct = {name for kind, name in self.relocations if kind == "BRANCH26"} & self.undefined
        return [
            *foreign,
            *(f"relocation {kind}" for kind in sorted(unknown)),
            *(f"jumps to {n}" for n in sorted(direct)),
        ]


LOADED = {
    "UNSIGNED",
    "SUBTRACTOR",
    "BRANCH26",
    "PAGE21",
    "PAGEOFF12",
    "GOT_LOAD_PAGE21",
    "GOT_LOAD_PAGEOFF12",
    "ADDEND",
}
LOADED |= {f"AARCH64_MOVW_UABS_G{part}" for part in ("0_NC", "1_NC", "2_NC", "3")}
LOADED |= {"AARCH64_CALL26", "AARCH64_JUMP26", "AARCH64_PREL64", "AARCH64_PREL32", "AARCH64_ABS64"}
"""Relocations of AArch64 that RuntimeDyld resolves (those of Mach-O's without a prefix)."""


@pytest.mark.thorough
@pytest.mark.parametrize("names", [FEW, pytest.param([], marks=pytest.mark.slow)], ids=["few", "all"])
def test_other_machines_load_what_is_compiled(names: list[str], tmp_path: Path):
    for path in cross_compiled(tmp_path, (MAC, LINUX), names):
        program = Object(path)
        assert program.faults() == []
        assert {symbol(name) for name in names or FEW} <= program.defined
        assert {"sched_yield", "usleep", "madvise", "log2f", "log1pf"} <= program.undefined
        words = {int.from_bytes(program.code[i : i + 4], "little") for i in range(0, len(program.code), 4)}
        assert any(MRS_CNTVCT | register in words for register in range(31)), "the clock of the steps is not read"


@pytest.mark.thorough
def test_a_call_of_libm_is_seen(tmp_path: Path):
    for path in cross_compiled(tmp_path, (MAC, LINUX), ["read_ticks"], PLANTED):
        assert Object(path).faults() == ["calls expf"]
