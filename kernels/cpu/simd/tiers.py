"""The instruction set that compiled kernels may use, called a *tier* and chosen once per process.

On x86: ``A`` AVX-512 (F, BW, VL, VNNI) with VBMI, BITALG and GFNI; ``X`` the same and, for products of many tokens, AMX
with int8, chosen only by name: its speed was never measured; ``B`` AVX2 with FMA and F16C. On AArch64: ``N`` NEON with
dot products of bytes (sdot). Anywhere: ``C``, plain LLVM vector operations that work on any processor. For an
instruction that the target lacks LLVM raises no error but aborts the whole process. So the choice depends on the
features that Numba will *compile for*, which ``NUMBA_CPU_FEATURES`` may have reduced, not on those of this machine.

``DS4_SIMD_TIER=A|X|B|N|C`` forces a tier, so that one machine can test several; a tier that the target lacks raises
``TierError``.

``DS4_CROSS_TARGET=TRIPLE:CPU`` compiles for another machine, such as ``arm64-apple-macosx:apple-m1``; ``cpu.build``
then writes object files that only that machine loads.
"""

from __future__ import annotations

import os

from ...system import is_aarch64
from .. import numba_internals

TIER_VARIABLE = "DS4_SIMD_TIER"

# best first
_NEEDS = {
    "A": ("avx512f avx512bw avx512vl avx512dq avx512vnni avx512vbmi avx512bitalg gfni avx2 fma f16c".split()),
    "B": "avx2 fma f16c".split(),
    "N": ["dotprod"],
    "C": [],
}
_NEEDS["X"] = [*_NEEDS["A"], "amx-tile", "amx-int8"]
BY_NAME = "X"


class TierError(RuntimeError):
    """The forced tier does not exist, or the target lacks its instructions."""


def target_features() -> dict[str, bool]:
    """Return which features the machine has that Numba compiles for, as {LLVM's name, such as ``avx512vnni``:
    present}."""
    flags = [word.strip() for word in numba_internals.target_features().split(",") if word.strip()]
    return {flag[1:]: flag[0] == "+" for flag in flags}


def missing(tier: str, features: dict[str, bool]) -> list[str]:
    """Return the features that ``tier`` needs and the target lacks."""
    return [name for name in _NEEDS[tier] if not features.get(name, False)]


def choose(forced: str | None, features: dict[str, bool]) -> str:
    """Return the forced tier if the target has it, else the best one that it has. Raises TierError."""
    if forced:
        if forced not in _NEEDS:
            raise TierError(f"{TIER_VARIABLE}={forced}: unknown tier; valid values are {', '.join(_NEEDS)}")
        if lacking := missing(forced, features):
            raise TierError(f"{TIER_VARIABLE}={forced}: this processor lacks {', '.join(lacking)}")
        return forced
    return next(tier for tier in _NEEDS if tier not in BY_NAME and not missing(tier, features))


numba_internals.compile_for_target()
FEATURES = target_features()
CPU = numba_internals.target_cpu()
# A byte permute of two registers (vpermi2b) is one operation on Zen, three on Intel, where four of one register win.
WIDE_PERMUTES = CPU.startswith("znver")
# Software prefetch is worth 1.3 to 1.8 x on Intel (Emerald Rapids) and costs a quarter on Zen 4, whose hardware
# prefetcher follows a row by itself.
SOFTWARE_PREFETCH = not CPU.startswith("znver")
TIER = choose(os.environ.get(TIER_VARIABLE), FEATURES)
AMX = TIER == "X"
if AMX:
    TIER = "A"  # with the same results
TRIPLE = numba_internals.target_triple()
IS_X86 = TRIPLE.split("-")[0] in ("x86_64", "i386", "i686")
IS_AARCH64 = is_aarch64(TRIPLE.split("-")[0])
X86_TIER = TIER in ("A", "B")
NEON_TIER = TIER == "N"
