"""Tier choice, and the lower tiers: compiled for the processor they are meant for, and run here."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ds4ref.kernels.cpu.simd import tiers
from ds4ref.kernels.cpu.simd.tiers import TierError, choose

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
AVX512 = dict.fromkeys(tiers._NEEDS["A"], True)
AMX = {**AVX512, "amx-tile": True, "amx-int8": True}
NEON = {"neon": True, "dotprod": True}
TIER_FORCED = bool(os.environ.get(tiers.TIER_VARIABLE))
AVX2 = {"avx2": True, "fma": True, "f16c": True}


def test_the_best_tier_is_chosen():
    assert choose(None, AVX512) == "A"
    assert choose(None, {**AVX512, "gfni": False}) == "B"
    assert choose(None, AVX2) == "B"
    assert choose(None, {}) == "C"
    assert choose("", AVX2) == "B"
    assert choose(None, NEON) == "N"
    assert choose(None, {**NEON, "dotprod": False}) == "C"
    assert choose(None, AMX) == "A" and choose("X", AMX) == "X", "only by name"


def test_a_lower_tier_can_be_forced():
    assert [choose(tier, AVX512) for tier in "ABC"] == ["A", "B", "C"]
    assert [choose(tier, NEON) for tier in "NC"] == ["N", "C"]


def test_a_missing_tier_is_refused():
    with pytest.raises(TierError, match="DS4_SIMD_TIER=A: this processor lacks avx512f, "):
        choose("A", AVX2)
    with pytest.raises(TierError, match="DS4_SIMD_TIER=N: this processor lacks dotprod$"):
        choose("N", AVX512)
    with pytest.raises(TierError, match="lacks amx-int8$"):
        choose("X", {**AMX, "amx-int8": False})
    with pytest.raises(TierError, match="valid values are A, B, N, C"):
        choose("avx2", AVX512)


# Features Numba compiles for, so that an instruction above the tier cannot be hidden by this machine having it.
TARGETS = {
    "B": "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe",
    "C": "+sse2",
}


@pytest.mark.slow  # compiles every kernel anew; CI runs it by itself (.ci/run)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="feature strings of x86-64")
@pytest.mark.parametrize("tier", "BC")
def test_lower_tier(tier, tmp_path):
    """The kernel tests again, in a process that compiles for an AVX2 or a plain x86-64 processor."""
    if lacking := tiers.missing(tier, tiers.FEATURES):
        pytest.skip(f"this processor lacks {', '.join(lacking)}")
    if TIER_FORCED:
        pytest.skip("already inside a forced tier")
    cpu = {"B": "haswell", "C": "x86-64"}[tier]
    environment = dict(os.environ, NUMBA_CPU_NAME=cpu, NUMBA_CPU_FEATURES=TARGETS[tier], DS4_SIMD_TIER=tier)
    environment |= {"DS4_TEST_CACHE_DIR": str(tmp_path)}
    names = ("test_cpu_ops.py", "test_cpu_rounding.py", "test_ops.py", "test_simd_asm.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(HERE / n) for n in names)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:]
