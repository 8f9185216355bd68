"""The CPU backend: the ops of ``kernels.reference``, compiled, multi-threaded, on raw quantized rows.

    abi, tasktable       argument blocks of compiled tasks: what Python and machine code agree on
    tasks/, simd/        the compiled code, in Numba; imported only by ``build``
    build, library       compile once per machine and source version; load without Numba
    workers              threads, jobs and steps
    linear, norm, ...    the ops: check shapes, allocate the result, hand steps to the pool

Every op gives bit-identical results for any number of threads, and for each token whatever else is in the batch.
"""

from .attention import attention, index_scores, pool, select_rows
from .linear import embed, expert_linear, expert_sum, grouped_linear, linear
from .moe import route, swiglu
from .norm import hc_expand, hc_head_weights, hc_mix, hc_reduce, hc_split, rms_norm
from .program import Program
from .rope import rope
from .rounding import hadamard, quantize_a8, quantize_q8k, round_e2m1, round_e4m3, round_f16
from .workers import load, set_threads, threads

__all__ = [
    "Program",
    "attention",
    "embed",
    "expert_linear",
    "expert_sum",
    "grouped_linear",
    "hadamard",
    "hc_expand",
    "hc_head_weights",
    "hc_mix",
    "hc_reduce",
    "hc_split",
    "index_scores",
    "linear",
    "load",
    "pool",
    "quantize_a8",
    "quantize_q8k",
    "rms_norm",
    "rope",
    "round_e2m1",
    "round_e4m3",
    "round_f16",
    "route",
    "select_rows",
    "set_threads",
    "swiglu",
    "threads",
]
