"""The machine code of the hot loops: the intended instructions, nothing wider than the tier, no spills, no float
addresses.
"""

import platform
import re

import pytest
from numba import int64

from ds4ref.kernels.cpu.simd import KERNELS, TIER
from ds4ref.kernels.cpu.simd.tiers import FEATURES

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="checks x86-64 instructions")

WANTED = {
    ("A", "Q8_0", "a8"): "vpdpbusd vcvtph2ps",
    ("A", "Q4_K", "q8k"): "vpdpbusd vpdpwssd vpackssdw vgf2p8affineqb",
    ("A", "Q2_K", "q8k"): "vpdpbusd vpdpwssd vpackssdw vgf2p8affineqb",
    ("A", "IQ2_XXS", "q8k"): "vpdpbusd vpmultishiftqb vgf2p8affineqb",
    ("A", "IQ3_XXS", "q8k"): "vpdpbusd vpmultishiftqb vgf2p8affineqb",
    ("A", "IQ2_S", "float"): "vpdpbusd vpmultishiftqb vpermb",
    ("A", "F16", "float"): "vcvtph2ps vfmadd",
    ("B", "Q8_0", "a8"): "vpmaddubsw vpmaddwd vpsignb",
    ("B", "Q4_K", "q8k"): "vpmaddubsw vpmaddwd",
    ("B", "Q2_K", "q8k"): "vpmaddubsw vpmaddwd",
    ("B", "IQ2_XXS", "q8k"): "vpmaddubsw vpmaddwd vpsignb vmovhps",
    ("B", "IQ3_XXS", "q8k"): "vpmaddubsw vpmaddwd vpsignb vpinsrd",
    ("B", "IQ2_S", "q8k"): "vpmaddubsw vpmaddwd vpsignb vmovhps",
    ("B", "F16", "float"): "vcvtph2ps vfmadd",
    ("C", "Q8_0", "a8"): "pmaddwd",
}


def loops(text):
    """The straight-line loops of an assembly text: blocks that jump to their own beginning, one instruction a line."""
    lines = [re.split(r"\s+##?\s", line.strip())[0] for line in text.splitlines()]
    jumps = [re.match(r"j[a-z]+\s+(\.?L\w+)$", line) for line in lines]
    targets = {jump[1] for jump in jumps if jump}
    found, label, body = [], "", []
    for line, jump in zip(lines, jumps, strict=True):
        if line.endswith(":"):
            if line[:-1] in targets:
                label, body = line[:-1], []
        elif line and not line.startswith((".", "#")):
            body.append(line)
            if jump:
                if jump[1] == label:
                    found.append("\n".join(body))
                label, body = "", []
    return found


@pytest.fixture(scope="module")
def assembly():
    texts = {}

    def text(key, count=1):
        if (key, count) not in texts:
            rows = KERNELS[key].rows[count]
            rows.compile((int64,) * 6)
            texts[key, count] = rows.inspect_asm()[(int64,) * 6]
        return texts[key, count]

    return text


@pytest.mark.parametrize("key", [key[1:] for key in WANTED if key[0] == TIER], ids="/".join)
def test_intended_instructions(assembly, key):
    wanted = WANTED[(TIER, *key)].split()
    # the loop over single inputs at the end of a row may be unrolled to the longest
    hot = max(loops(assembly(key)), key=lambda loop: (sum(name in loop for name in wanted), len(loop)))
    for name in wanted:
        assert name in hot, f"{name} is not in the hot loop"


@pytest.mark.parametrize("key", KERNELS, ids="/".join)
def test_addresses_are_integers(assembly, key):
    assert not re.search(r"cvtt?s[ds]2u?si|cvtsi2sd", assembly(key))


@pytest.mark.parametrize("key", KERNELS, ids="/".join)
def test_nothing_wider_than_the_tier(assembly, key):
    if FEATURES.get({"A": "", "B": "avx512f", "C": "avx"}[TIER]):
        pytest.skip("Numba compiles for a processor above the forced tier")
    if TIER != "A":
        assert "zmm" not in assembly(key)
    if TIER == "C":
        assert "ymm" not in assembly(key)


SPILLS = {("B", "IQ2_XXS", "q8k"): 3, ("B", "IQ3_XXS", "q8k"): 2, ("B", "IQ2_S", "q8k"): 4}
"""Writes to the stack a round that are known: as LLVM schedules for Haswell; for Zen 3 it writes none."""


@pytest.mark.parametrize("key", [key[1:] for key in WANTED if key[0] == TIER], ids="/".join)
def test_no_spills_in_the_hot_loop(assembly, key):
    """With the sixteen registers of tier B, constants may be read from the stack, but nothing is written to it; so with
    the many tables of IQ2_XXS and IQ2_S in tier A, whose processors have loads to spare there."""
    hot = max(loops(assembly(key)), key=len)
    spilled = r"mm\d+, \S*\(%rsp\)$" if TIER == "B" or key[0].startswith("IQ2") else r"mm.*\(%rsp\)|\(%rsp\).*mm"
    spills = [line for line in hot.splitlines() if re.search(spilled, line)]
    assert len(spills) <= SPILLS.get((TIER, *key), 0), "\n".join(spills)
