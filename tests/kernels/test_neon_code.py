"""The machine code of tiers N and I, cross-compiled and read: the intended instructions, nothing on the stack.

How it computes is tested under emulation, where the tests of the kernels run in these tiers (``make arm``).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from benchmarks import assembly

ROOT = Path(__file__).resolve().parents[2]
MACHINES = {"N": "arm64-apple-macosx:apple-m1", "I": "aarch64-unknown-linux-gnu:neoverse-v2"}

WANTED = {
    "Q8_0/a8": "sdot fcvtl fmla",
    "Q8_0/float": "tbl scvtf fmla",
    "Q4_K/q8k": "sdot mla ushl",
    "Q4_K/float": "sdot mla",
    "Q2_K/q8k": "sdot mla tbl",
    "Q2_K/float": "sdot mla",
    "IQ2_XXS/q8k": "sdot mla zip1 mul sri tbl ldrb",
    "IQ2_XXS/float": "sdot mla zip1 mul sri tbl",
    "MXFP4/float": "sdot tbl",
    "F16/float": "fcvtl fmla",
    "BF16/float": "fmla",
}
"""Instructions that one loop of each row kernel has."""

MOST = {"Q4_K/q8k": 98, "Q2_K/q8k": 101, "IQ2_XXS/q8k": 210}
"""Instructions of that loop: some more than there are (92, 97, 203)."""

TILES = {"attention": 2, "attend": 2, "index_scores": 1}
"""Tasks and how many of their loops fill a tile of 16 accumulators."""

GEMMS = {
    "gemm_multiply.Q8_0.a8.4": 170,
    "gemm_multiply.Q4_K.q8k.4": 145,
    "gemm_multiply.Q2_K.q8k.4": 119,
    "gemm_multiply.floats.4": 240,
}
"""Tiles of four tokens, and most instructions of their hot loop in tier N; there are 168, 143, 117 and 237."""

QUANTIZERS = {"quantize_a8": "fmax fmaxv uzp1", "quantize_q8k": "fmax fmaxv fmin fminv saddlv uzp1"}
"""Tasks that round inputs, and instructions that they have."""

COMPILE = """
import json, sys
from benchmarks.rows_code import compiled, machine
from ds4ref.kernels.cpu.build import compile_entry, entries, optimized
from ds4ref.kernels.cpu.simd import TIER
target, known = machine(), entries()
rows, tasks = sys.argv[1].split(), sys.argv[2].split()
texts = {name: target.emit_assembly(compiled(*name.split("/"), 1, target)) for name in rows}
texts |= {name: target.emit_assembly(optimized([compile_entry(name, known[name])], target)) for name in tasks}
print(json.dumps({"tier": TIER, "texts": texts}))
"""


def loops(text: str) -> list[list[str]]:
    """Return the straight-line loops of a text as lists of instructions; Apple's ``sdot.4s v0`` becomes ``sdot v0``."""
    return [re.sub(r"(?m)^([a-z]\w*)\.\d+[bhsd]\b", r"\1", loop).splitlines() for loop in assembly.loops(text)]


@pytest.fixture(scope="module", params=MACHINES)
def texts(request):
    try:
        llvm.initialize_all_targets()
        llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no AArch64 target")
    target = MACHINES[request.param]
    environment = dict(os.environ, DS4_CROSS_TARGET=target, DS4_SIMD_TIER="", NUMBA_OPT="0", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", COMPILE, " ".join(WANTED), " ".join([*TILES, *GEMMS, *QUANTIZERS])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["tier"] == request.param
    return result


@pytest.mark.slow
def test_hot_loops(texts):
    """No loop of a kernel touches the stack, and LLVM has not undone what ``as_it_is`` keeps together."""
    for name, wanted in WANTED.items():
        bodies = loops(texts["texts"][name])
        found = [{line.split()[0] for line in body} for body in bodies]
        sizes = [len(body) for body, words in zip(bodies, found, strict=True) if set(wanted.split()) <= words]
        assert sizes, f"{name}: no loop has {wanted}"
        assert max(sizes) <= MOST.get(name, 1000), f"{name}: {sizes}"
        spills = [line for body in bodies for line in body if "[sp" in line]
        assert not spills, f"{name}: {spills}"


@pytest.mark.slow
def test_tiles_stay_in_registers(texts):
    for name, count in TILES.items():
        tiles = [body for body in loops(texts["texts"][name]) if sum(line.split()[0] == "fmla" for line in body) == 16]
        assert len(tiles) >= count, name
        assert not [line for body in tiles for line in body if "[sp" in line], name


@pytest.mark.slow
def test_tiles_of_products_stay_in_registers(texts):
    """Twelve rows, four tokens and 32 inputs are 96 ``sdot`` or 48 ``smmla``; six rows of floats 192 ``fmla``."""
    for name, most in GEMMS.items():
        floats = "floats" in name
        word, count = ("fmla", 192) if floats else {"N": ("sdot", 96), "I": ("smmla", 48)}[texts["tier"]]
        bodies = loops(texts["texts"][name])
        (hot,) = (body for body in bodies if sum(line.split()[0] == word for line in body) == count)
        assert len(hot) <= most - (0 if floats or texts["tier"] == "N" else 46), f"{name}: {len(hot)}"
        assert not [line for line in hot if "[sp" in line], name


@pytest.mark.slow
def test_inputs_are_rounded_in_registers(texts):
    """Nothing goes to the stack but registers that belong to the caller, on the way in and out."""
    for name, wanted in QUANTIZERS.items():
        lines = [line for block in assembly.blocks(texts["texts"][name]) for line in block.lines]
        assert set(wanted.split()) <= {line.split()[0].partition(".")[0] for line in lines}, name
        vectors = [line for line in lines if re.search(r"\bq\d+\b.*\[sp", line)]
        assert not vectors, f"{name}: {vectors}"
