"""Which intermediates are the inputs of which matrices, and their mean squares: what an importance matrix is made of.

A ``Collector`` is a set of hooks that adds up squares while tokens pass. A matrix gets one row of sums; a stack of
routed experts one an expert, over the tokens that were sent to it. The down projections of the experts read rows that
already carry the routing weight, and so do the sums. Matrices that read the same intermediate have the same sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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
_STACKS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


class Collector:
    """Hooks that add up squares. ``sums`` by tensor name: float64 (vectors, cols) and counts (vectors,)."""

    def __init__(self, shape: ModelShape):
        self.shape = shape
        self.sums: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.routes = 0
        self._entering: np.ndarray | None = None
        self._ids: np.ndarray | None = None

    def begin(self, chunk: Chunk) -> None:
        """Nothing to prepare."""

    def tap(self, name: str, layer: int, value: Any, chunk: Chunk) -> Any:
        """Add up what passes; nothing is changed."""
        if name in READERS:
            rows = value.reshape(-1, chunk.w.attn_output_a.cols if name == "kqv_back" else value.shape[-1])
            squares = np.square(rows.astype(np.float64)).sum(axis=0)
            for attr in READERS[name]:
                if getattr(chunk.w, attr) is not None:
                    self._add(layer, attr, 1, 0, squares, len(rows))
        if name == "ffn_norm":
            self._entering = value
        elif name == "ffn_moe_topk":
            assert self._entering is not None
            self._ids = np.asarray(value)
            self.routes += self._ids.size
            for expert in np.unique(self._ids):
                tokens = np.flatnonzero((self._ids == expert).any(axis=1))
                squares = np.square(self._entering[tokens].astype(np.float64)).sum(axis=0)
                for attr in _STACKS[:2]:
                    self._add(layer, attr, self.shape.n_experts, int(expert), squares, len(tokens))
        elif name == "ffn_moe_weighted_swiglu":
            assert self._ids is not None
            flat, ids = value.reshape(-1, value.shape[-1]), self._ids.reshape(-1)
            for expert in np.unique(ids):
                rows = np.flatnonzero(ids == expert)
                squares = np.square(flat[rows].astype(np.float64)).sum(axis=0)
                self._add(layer, _STACKS[2], self.shape.n_experts, int(expert), squares, len(rows))
        return value

    def _add(self, layer: int, attr: str, vectors: int, which: int, squares: np.ndarray, count: int) -> None:
        name = f"blk.{layer}.{_TENSORS.get(attr, attr)}.weight"
        if name not in self.sums:
            self.sums[name] = np.zeros((vectors, len(squares))), np.zeros(vectors)
        sums, counts = self.sums[name]
        sums[which] += squares
        counts[which] += count
