"""The reference backend: plain NumPy, the readable implementation that every other backend is tested against.

Sums are float64 where it helps, results float32. Neither speed nor the order of sums matters here: each op is written
as its formula. ``ds4ref.kernels.ops`` declares the ops, and ``binding`` checks their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..binding import Binding, bind
from .activations import quantize_a8, quantize_q8k
from .attention import attend, attention
from .caches import pool, position_bias, store_rows, windows
from .hyper import engram_gate, hc_expand, hc_head_weights, hc_mix, hc_reduce, hc_split, streams
from .indexer import block_maxima, block_rows, block_scores, index_scores, select_rows
from .linear import advise, embed, expert_linear, expert_sum, grouped_linear, linear, take_rows
from .moe import count, geglu, route, swiglu
from .norm import add, remove_along, rms_norm, scale
from .ranking import top
from .rope import rope
from .rounding import hadamard, round_e2m1, round_e4m3, round_f16, round_i8, round_nvfp4

__all__ = ["Reference"]


class Reference(Binding):
    """The NumPy backend. NumPy chooses its own number of threads: assigning ``threads`` has no effect."""

    name = "reference"
    threads = 1

    def load(self, progress: Callable[[str], None] | None = None, formats: Collection[str] = ()) -> None:
        """Do nothing: there is nothing to compile."""

    def record(self) -> None:
        """Return None: this backend cannot record, because the recordings of others are tested against it."""


for _op in (
    add, advise, attend, attention, block_maxima, block_rows, block_scores, count, embed, engram_gate, expert_linear,
    expert_sum, geglu, grouped_linear, hadamard, hc_expand, hc_head_weights, hc_mix, hc_reduce, hc_split, index_scores,
    linear, pool, position_bias, quantize_a8, quantize_q8k, remove_along, rms_norm, rope, round_e2m1, round_e4m3,
    round_f16, round_i8, round_nvfp4, route, scale, select_rows, store_rows, streams, swiglu, take_rows, top, windows,
):  # fmt: skip
    setattr(Reference, _op.__name__, bind(_op, check_values=True))
