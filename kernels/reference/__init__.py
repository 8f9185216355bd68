"""Plain NumPy ops: the readable truth that every other backend is tested against.

float64 accumulation where it helps, float32 results. Speed does not matter here, order does not matter here: each op
is the formula. The names below are the op table of a backend; ``kernels.cpu`` offers the same ones.
"""

from .activations import quantize_a8, quantize_q8k
from .attention import attention
from .compressor import pool
from .hyper import hc_expand, hc_head_weights, hc_mix, hc_reduce, hc_split
from .indexer import index_scores, select_rows
from .linear import embed, expert_linear, expert_sum, grouped_linear, linear
from .moe import route, swiglu
from .norm import rms_norm
from .rope import rope
from .rounding import hadamard, round_e2m1, round_e4m3, round_f16

__all__ = [
    "OPS",
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

OPS = tuple(name for name in __all__ if name not in ("OPS", "set_threads", "threads"))
"""The names every backend offers."""


def load() -> None:
    """Nothing to compile; present so that every backend has the same surface."""


def set_threads(count: int) -> None:
    """NumPy decides for itself; present so that every backend has the same surface."""


def threads() -> int:
    """Threads this backend uses for its own loops: one."""
    return 1
