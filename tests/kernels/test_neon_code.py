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

ROOT = Path(__file__).resolve().parents[2]
MACHINES = {"N": "arm64-apple-macosx:apple-m1", "I": "aarch64-unknown-linux-gnu:neoverse-v2"}

WANTED = {
    "Q8_0/a8": "sdot fcvtl fmla",
    "Q8_0/float": "tbl scvtf fmla",
    "Q4_K/q8k": "sdot mla ushl",
    "Q4_K/float": "sdot mla",
    "Q2_K/q8k": "sdot mla tbl",
    "Q2_K/float": "sdot mla",
    "IQ2_XXS/q8k": "sdot mla ubfx",
    "IQ2_XXS/float": "sdot mla",
    "MXFP4/float": "sdot tbl",
    "F16/float": "fcvtl fmla",
    "BF16/float": "fmla",
}
"""Instructions that one loop of each row kernel has."""

MOST = {"Q4_K/q8k": 98, "Q2_K/q8k": 101, "IQ2_XXS/q8k": 280}
"""Instructions of that loop: some more than there are (92, 97, 246)."""

TILES = {"attention": 2, "attend": 2, "index_scores": 1}
"""Tasks and how many of their loops fill a tile of 16 accumulators."""

COMPILE = """
import json, sys
from numba import cfunc, int64, void
from ds4ref.kernels.cpu.build import compile_entry, cross_machine, entries
from ds4ref.kernels.cpu.simd import KERNELS, TIER
import llvmlite.binding as ll
machine = cross_machine()
options = ll.create_pipeline_tuning_options(speed_level=3)
options.loop_vectorization = options.slp_vectorization = True
def assembly(name, make):
    module = compile_entry(name, make)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    builder = ll.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_assembly(module)
def one_input(rows):
    def entry(weights, first, last, row_bytes, n, table):
        rows(weights, first, last, row_bytes, n, table)
    return lambda: cfunc(void(*[int64] * 6), error_model="numpy")(entry)
rows, tasks = sys.argv[1].split(), sys.argv[2].split()
texts = {name: assembly("rows", one_input(KERNELS[tuple(name.split("/"))].rows[1])) for name in rows}
texts |= {name: assembly(name, entries()[name]) for name in tasks}
print(json.dumps({"tier": TIER, "texts": texts}))
"""


def loops(text):
    """The straight-line loops of an assembly text, as lists of instructions without comments.

    Apple's way to write ``sdot.4s v0, ...`` becomes that of others, ``sdot v0, ...``.
    """
    lines = [re.split(r"//|;", line)[0].strip() for line in text.splitlines()]
    lines = [re.sub(r"^([a-z]\w*)\.\d+[bhsd]\b", r"\1", line) for line in lines]
    at = {line[:-1]: i for i, line in enumerate(lines) if re.fullmatch(r"\.?LBB\w+:", line)}
    jumps = {i: line.split()[-1] for i, line in enumerate(lines) if re.match(r"(b\.\w+|b|[ct]bn?z)\s", line)}
    bodies = [(at[target], i) for i, target in jumps.items() if at.get(target, i) < i]
    straight = [lines[a:b] for a, b in bodies if not any(a < jump < b for jump in jumps)]
    return [[line for line in body if re.match(r"[a-z]", line)] for body in straight]


@pytest.fixture(scope="module", params=MACHINES)
def texts(request):
    try:
        llvm.initialize_all_targets()
        llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no AArch64 target")
    target = MACHINES[request.param]
    environment = dict(os.environ, DS4_CROSS_TARGET=target, DS4_SIMD_TIER="", NUMBA_OPT="0", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", COMPILE, " ".join(WANTED), " ".join(TILES)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=550)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["tier"] == request.param
    return result["texts"]


@pytest.mark.slow
def test_hot_loops(texts):
    """No loop of a kernel touches the stack, and LLVM has not undone what ``as_it_is`` keeps together."""
    for name, wanted in WANTED.items():
        bodies = loops(texts[name])
        found = [{line.split()[0] for line in body} for body in bodies]
        sizes = [len(body) for body, words in zip(bodies, found, strict=True) if set(wanted.split()) <= words]
        assert sizes, f"{name}: no loop has {wanted}"
        assert max(sizes) <= MOST.get(name, 1000), f"{name}: {sizes}"
        spills = [line for body in bodies for line in body if "[sp" in line]
        assert not spills, f"{name}: {spills}"


@pytest.mark.slow
def test_tiles_stay_in_registers(texts):
    for name, count in TILES.items():
        tiles = [body for body in loops(texts[name]) if sum(line.split()[0] == "fmla" for line in body) == 16]
        assert len(tiles) >= count, name
        assert not [line for body in tiles for line in body if "[sp" in line], name
