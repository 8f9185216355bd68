"""The goals of the CPU table: each figure with its unit and bar, in the order of the report."""

from __future__ import annotations

from .report import Goal

FORMATS = {"Q8_0": "a8", "F16": "float", "Q4_K": "q8k", "Q2_K": "q8k", "IQ2_XXS": "q8k"}
"""Weight formats of the CPU table, with the activation rounding that mode ds4 uses for each."""

_MATVEC = {
    "Q8_0": (0.88, 0.95),
    "F16": (0.88, 0.95),
    "Q4_K": (0.88, 0.95),
    "Q2_K": (0.75, 0.88),
    "IQ2_XXS": (0.7, 0.85),
}
GOALS = {
    "read": Goal("read bandwidth", "GB/s"),
    "read 1": Goal("read bandwidth, 1 thread", "GB/s"),
    **{f"matvec {f}": Goal(f"mat-vec / read bandwidth: {f}", "", *bars) for f, bars in _MATVEC.items()},
    **{f"cached {f}": Goal(f"rows in the caches, 1 thread: {f}", "GB/s") for f in FORMATS},
    **{f"float {f}": Goal(f"mat-vec / read bandwidth: {f}, float activations", "") for f in FORMATS if f != "F16"},
    "decode": Goal("slice, whole decode step / bandwidth bound of its bytes", "", 0.80, 0.92),
    "decode ms": Goal("slice, decode", "ms"),
    "gemm peak": Goal("prefill GEMM, best format at T = 512", "GOP/s"),
    "prefill": Goal("slice, prefill of 512 tokens / GEMM peak", "", 0.6, 0.8),
    "prefill tps": Goal("slice, prefill of 512 tokens", "tok/s"),
    "growth prefill": Goal("growth of prefill, 32k vs 2k / growth of its operations", "", 1.3, 1.1, "lower"),
    "growth decode": Goal("growth of decode, 1M vs 2k / growth of its operations", "", 1.3, 1.1, "lower"),
    **{
        f"decode {name}": Goal(f"slice, decode at {name}", "ms", None, None, "lower")
        for name in ("32k", "128k", "512k", "1M")
    },
    "nano": Goal("random model, decode", "tok/s", 500, 1500),
    "help": Goal("ds4 --help", "s", 0.1, 0.06, "lower"),
    "start": Goal("warm process start to first token, embedded model", "s", 0.8, 0.3, "lower"),
    "compile": Goal("cold compile of all kernels", "s", 30, 15, "lower"),
}  # fmt: skip
