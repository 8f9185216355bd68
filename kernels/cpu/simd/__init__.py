"""Vector kernels for the CPU, written as LLVM vector operations inside Numba functions.

``kernel(fmt, act)`` gives the mat-vec kernel for a weight format and a treatment of the activations; ``TIER`` says
which instruction set this process uses. Importing this package imports Numba and compiles nothing yet.
"""

from __future__ import annotations

from . import iq2_xxs, q2_k, q4_k, q8_0
from .float_rows import FLOAT
from .gemm import GEMMS, Gemm, gemm_rows
from .quantize import quantize_a8, quantize_q8k
from .row_kernel import RowKernel
from .tiers import TIER, TierError

_FAST_FLOAT = (q8_0, q4_k, q2_k, iq2_xxs)

KERNELS: dict[tuple[str, str], RowKernel] = {
    ("Q8_0", "a8"): q8_0.A8,
    ("Q4_K", "q8k"): q4_k.Q8K,
    ("Q2_K", "q8k"): q2_k.Q8K,
    ("IQ2_XXS", "q8k"): iq2_xxs.Q8K,
    **{(fmt, "float"): kernel for fmt, kernel in FLOAT.items()},
}
if TIER == "A":
    KERNELS.update(((module.__name__.rpartition(".")[2].upper(), "float"), module.FLOAT) for module in _FAST_FLOAT)


def kernel(fmt: str, act: str) -> RowKernel:
    """The row kernel for weights in ``fmt`` and activation treatment ``act`` (float, a8, q8k). Raises ValueError."""
    try:
        return KERNELS[fmt, act]
    except KeyError:
        known = ", ".join("/".join(key) for key in KERNELS)
        raise ValueError(f"no row kernel for {fmt} weights with {act} activations; there are: {known}") from None


__all__ = [
    "GEMMS",
    "KERNELS",
    "TIER",
    "Gemm",
    "RowKernel",
    "TierError",
    "gemm_rows",
    "kernel",
    "quantize_a8",
    "quantize_q8k",
]
