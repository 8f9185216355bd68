"""Importance of weights: mean squares of the intermediates that each matrix multiplies.

A matrix gets one row of sums; a stack of routed experts one row per expert, over the tokens routed to it. The experts'
down projections read rows already multiplied by the routing weight, and the sums are of those rows. Matrices that read
the same intermediate have the same sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..sums import Sums

if TYPE_CHECKING:
    from .chunk import Chunk
    from .shape import ModelShape

# Intermediate -> matrices (attributes of ``LayerWeights``) that multiply it. What the layer's kind lacks is left out.
READERS = {
    "attn_norm": (
        *("attn_q_a", "attn_kv", "attn_compressor_kv", "attn_compressor_gate", "indexer_proj"),
        *("indexer_compressor_kv", "indexer_compressor_gate"),
    ),
    "q_lora_norm": ("attn_q_b", "indexer_attn_q_b"),
    "kqv_back": ("attn_output_a",),  # every group of heads has rows of its own and the same columns
    "attn_low": ("attn_output_b",),
    "ffn_norm": ("ffn_gate_inp", "ffn_gate_shexp", "ffn_up_shexp"),
    "ffn_shexp_mid": ("ffn_down_shexp",),
}
_TENSORS = {"indexer_attn_q_b": "indexer.attn_q_b", "indexer_proj": "indexer.proj"}  # a name with a point of its own


class Collector(Sums):
    """Hooks that sum the squares of the inputs of every layer's matrices."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.shape = shape
        self._entering: np.ndarray | None = None
        self._ids: np.ndarray | None = None

    def begin(self, chunk: Chunk) -> None:
        """Do nothing."""

    def tap(self, name: str, layer: int, value: Any, chunk: Chunk) -> Any:
        """Add the squares of an intermediate to the sums of its matrices and return the intermediate unchanged."""
        if name in READERS:
            rows = value.reshape(-1, chunk.w.attn_output_a.cols if name == "kqv_back" else value.shape[-1])
            for attr in READERS[name]:
                if getattr(chunk.w, attr) is not None:
                    self.add(f"blk.{layer}.{_TENSORS.get(attr, attr)}.weight", rows)
        if name == "ffn_norm":
            self._entering = value
        elif name == "ffn_moe_topk":
            assert self._entering is not None
            self._ids = np.asarray(value)
            self.routes += self._ids.size
            for part in ("gate", "up"):
                self.routed(layer, part, self.shape.n_experts, self._ids, self._entering)
        elif name == "ffn_moe_weighted_swiglu":
            assert self._ids is not None
            self.routed(layer, "down", self.shape.n_experts, self._ids, np.asarray(value))
        return value
