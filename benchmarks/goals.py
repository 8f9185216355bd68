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
_GGML = {"Q8_0": (1.3, 1.7), "Q4_K": (1.6, 2.0), "Q2_K": (1.6, 2.0), "IQ2_XXS": (3.5, 5.0)}

GEMM_TOKENS = (32, 128, 512)

GOALS = {
    "read": Goal("read bandwidth", "GB/s"),
    "read 1": Goal("read bandwidth, 1 thread", "GB/s"),
    **{f"matvec {f}": Goal(f"mat-vec / read bandwidth: {f}", "", *bars) for f, bars in _MATVEC.items()},
    **{f"cached {f}": Goal(f"rows in the caches, 1 thread: {f}", "GB/s") for f in FORMATS},
    **{f"float {f}": Goal(f"mat-vec / read bandwidth: {f}, float activations", "") for f in FORMATS if f != "F16"},
    **{f"ggml {f}": Goal(f"mat-vec vs ggml vec_dot: {f}", "x", *bars) for f, bars in _GGML.items()},
    "tier B": Goal("tier B, Q8_0 / read bandwidth, 1 thread", "", 0.85),
    "tier C": Goal("tier C, Q8_0 / read bandwidth, 1 thread", "", 0.5),
    "decode": Goal("slice, whole decode step / bandwidth bound of its bytes", "", 0.80, 0.92),
    "decode ms": Goal("slice, decode", "ms"),
    "besides 2k": Goal("non-mat-vec share of a decode token at 2k", "", 0.10, 0.04, "lower"),
    "besides 32k": Goal("non-mat-vec share of a decode token at 32k", "", 0.25, 0.12, "lower"),
    **{
        f"pass {rows}": Goal(f"slice, a pass of {rows} rows / a pass of one", "x", *bars, "lower")
        for rows, bars in ((2, (None, None)), (3, (None, None)), (4, (1.7, 1.4)), (8, (None, None)))
    },
    "drafts given 2": Goal("slice, 2 drafts of acceptance 0.7, tokens/s over none", "x", 1.4, 1.6),
    "drafts given 3": Goal("slice, 3 drafts of acceptance 0.7, tokens/s over none", "x", 1.4, 1.6),
    "drafts edit": Goal("slice, lookup in an edit of code, tokens/s over none", "x", 2.0, 3.0),
    "drafts none": Goal("slice, drafts of which none is right, tokens/s over none", "x", 0.98, 1.0),
    "together": Goal("slice, 4 conversations in one pass vs in turn, tokens/s", "x", 1.5, 2.0),
    "published": Goal("slice as published (FP8, FP4), decode step / bandwidth bound of its bytes", "", 0.85, 0.92),
    "published ms": Goal("slice as published, decode", "ms"),
    "published vs": Goal("that share / the same of the GGUF slice, interleaved", "x"),
    "llama decode": Goal("slice, decode vs llama.cpp", "x", 1.8, 2.4),
    "llama prefill": Goal("slice, prefill of 512 tokens vs llama.cpp", "x", 2.2, 3.0),
    "busy": Goal("decode beside a busy thread vs llama.cpp beside one", "x", 2.5, 4.0),
    "busy ours": Goal("decode beside a busy thread / alone", "x", None, None, "lower"),
    **{
        f"gemm {f} {T}": Goal(f"prefill GEMM vs torch float32: {f}, T = {T}", "x", 2.0, 3.0)
        for f in FORMATS
        for T in GEMM_TOKENS
    },
    "gemm peak": Goal("prefill GEMM, best format at T = 512", "GOP/s"),
    "prefill": Goal("slice, prefill of 512 tokens / GEMM peak", "", 0.6, 0.8),
    "prefill tps": Goal("slice, prefill of 512 tokens", "tok/s"),
    "growth prefill": Goal("growth of prefill, 32k vs 2k / growth of its operations", "", 1.3, 1.1, "lower"),
    "growth decode": Goal("growth of decode, 1M vs 2k / growth of its operations", "", 1.3, 1.1, "lower"),
    **{
        f"decode {name}": Goal(f"slice, decode at {name}", "ms", None, None, "lower")
        for name in ("32k", "128k", "512k", "1M")
    },
    "memory 32k": Goal("RSS at 32k above the mapped file and the caches of model.md 11", "MB", 300, 100, "lower"),
    **{
        f"memory {name}": Goal(f"RSS above the mapped file at {name} / caches in float32", "", None, None, "lower")
        for name in ("128k", "1M")
    },
    "paging": Goal("model larger than memory, decode with advice vs plain mapping", "x"),
    "paging tps": Goal("model larger than memory, decode", "tok/s"),
    "nano": Goal("random model, decode", "tok/s", 500, 1500),
    "help": Goal("ds4 --help", "s", 0.1, 0.06, "lower"),
    "start": Goal("warm process start to first token, embedded model", "s", 0.8, 0.3, "lower"),
    "compile": Goal("cold compile of all kernels", "s", 30, 15, "lower"),
}  # fmt: skip
