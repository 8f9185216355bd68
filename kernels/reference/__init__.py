"""The reference backend: plain NumPy, the readable truth that every other backend is tested against.

float64 accumulation where it helps, float32 results. Speed does not matter here, order does not matter here: each op
is the formula. What each one computes is declared in ``kernels.ops``.
"""

from __future__ import annotations

from ..hostmemory import HostMemory
from .activations import quantize_a8, quantize_q8k
from .attention import attend, attention
from .caches import pool, position_bias, store_rows, windows
from .hyper import hc_expand, hc_head_weights, hc_mix, hc_reduce, hc_split, streams
from .indexer import index_scores, select_rows
from .linear import advise, embed, expert_linear, expert_sum, grouped_linear, linear, take_rows
from .moe import count, route, swiglu
from .norm import add, rms_norm, scale
from .ranking import top
from .rope import rope
from .rounding import hadamard, round_e2m1, round_e4m3, round_f16, round_i8

__all__ = ["Reference"]


class Reference(HostMemory):
    """NumPy decides for itself how many threads it uses, so ``threads`` may be assigned and means nothing."""

    name = "reference"
    threads = 1

    add = staticmethod(add)
    advise = staticmethod(advise)
    attend = staticmethod(attend)
    attention = staticmethod(attention)
    count = staticmethod(count)
    embed = staticmethod(embed)
    expert_linear = staticmethod(expert_linear)
    expert_sum = staticmethod(expert_sum)
    grouped_linear = staticmethod(grouped_linear)
    hadamard = staticmethod(hadamard)
    hc_expand = staticmethod(hc_expand)
    hc_head_weights = staticmethod(hc_head_weights)
    hc_mix = staticmethod(hc_mix)
    hc_reduce = staticmethod(hc_reduce)
    hc_split = staticmethod(hc_split)
    index_scores = staticmethod(index_scores)
    linear = staticmethod(linear)
    pool = staticmethod(pool)
    position_bias = staticmethod(position_bias)
    quantize_a8 = staticmethod(quantize_a8)
    quantize_q8k = staticmethod(quantize_q8k)
    rms_norm = staticmethod(rms_norm)
    rope = staticmethod(rope)
    round_e2m1 = staticmethod(round_e2m1)
    round_e4m3 = staticmethod(round_e4m3)
    round_f16 = staticmethod(round_f16)
    round_i8 = staticmethod(round_i8)
    route = staticmethod(route)
    scale = staticmethod(scale)
    select_rows = staticmethod(select_rows)
    store_rows = staticmethod(store_rows)
    streams = staticmethod(streams)
    swiglu = staticmethod(swiglu)
    take_rows = staticmethod(take_rows)
    top = staticmethod(top)
    windows = staticmethod(windows)

    def load(self) -> None:
        """Nothing to compile."""

    def record(self) -> None:
        """Not this one: it is what recordings are compared with."""
