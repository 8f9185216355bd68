"""Vector kernels for the CPU, written as LLVM vector operations inside Numba functions.

``KERNELS[fmt, act]`` is the mat-vec kernel for a weight format and a rounding of the inputs; ``TIER`` names the
instruction set in use (``tiers``). Importing this package imports Numba and compiles nothing yet.
"""

from __future__ import annotations

from ...formats import APART, FORMATS
from . import (
    blocks_32,
    codebook_avx2,
    fp4,
    fp8,
    iq2_xxs,
    iq2_xxs_ahead,
    k_avx2,
    q2_k,
    q4_k,
    q8_0,
    q8_0_avx2,
    quads,
)
from .float_rows import PLAIN, apart_kernel, block_kernel
from .gemm import APART_GEMMS, GEMMS, Gemm, gemm_rows
from .integer_rows import integer_kernel
from .quantize import quantize_a8, quantize_q8k
from .row_kernel import RowKernel
from .tiers import TIER, TierError

OVERRIDES: dict[str, dict[tuple[str, str], RowKernel]] = {
    "A": {
        ("Q8_0", "a8"): q8_0.A8,
        ("Q4_K", "q8k"): q4_k.Q8K,
        ("Q4_K", "float"): q4_k.FLOAT,
        ("Q2_K", "q8k"): q2_k.Q8K,
        ("Q2_K", "float"): q2_k.FLOAT,
        ("IQ2_XXS", "q8k"): iq2_xxs_ahead.Q8K,
        ("IQ2_XXS", "float"): iq2_xxs.FLOAT,
        ("MXFP4", "float"): fp4.JOINED,
        ("F8_E4M3", "float"): fp8.JOINED,
        **quads.KERNELS,
        **blocks_32.KERNELS,
    },
    "B": {
        ("Q8_0", "a8"): q8_0_avx2.A8,
        ("Q4_K", "q8k"): k_avx2.Q4_K,
        ("Q4_K", "float"): k_avx2.Q4_K_FLOAT,
        ("Q2_K", "q8k"): k_avx2.Q2_K,
        ("Q2_K", "float"): k_avx2.Q2_K_FLOAT,
        **codebook_avx2.KERNELS,
    },
}
"""Hand-written kernels by tier; kernels for all other pairs are generated from the format's declaration."""

WITH_INTEGERS = (
    ("Q8_0", "a8"),
    ("Q4_K", "q8k"),
    ("Q2_K", "q8k"),
    ("IQ2_XXS", "q8k"),
    ("IQ3_XXS", "q8k"),
    ("IQ2_S", "q8k"),
)
"""Pairs of format and input rounding that have kernels on int8 inputs, in every tier; tier A has some more. For other
pairs, rounded inputs are multiplied as floats."""


def generated(fmt: str, act: str) -> RowKernel:
    """Generate the row kernel of a format from its declaration."""
    if act != "float":
        return integer_kernel(FORMATS[fmt])
    return PLAIN[fmt] if fmt in PLAIN else block_kernel(FORMATS[fmt])


def _all() -> dict[tuple[str, str], RowKernel]:
    pairs = [(fmt.name, "float") for fmt in FORMATS.values() if fmt.multiplies]
    written = OVERRIDES.get(TIER, {})
    pairs = dict.fromkeys([*pairs, *WITH_INTEGERS, *written])
    return {pair: written[pair] if pair in written else generated(*pair) for pair in pairs}


KERNELS = _all()
APART_KERNELS = {name: apart_kernel(layout) for name, layout in APART.items()}
if TIER == "A":
    APART_KERNELS |= {"MXFP4.apart": fp4.APART, "F8_E4M3.apart": fp8.APART}
"""Kernels, for float inputs, of the layouts that store codes and scales apart; they take the address of a pair of
addresses."""


__all__ = [
    "APART_GEMMS",
    "APART_KERNELS",
    "GEMMS",
    "KERNELS",
    "OVERRIDES",
    "TIER",
    "Gemm",
    "RowKernel",
    "TierError",
    "gemm_rows",
    "generated",
    "quantize_a8",
    "quantize_q8k",
]
