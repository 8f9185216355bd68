"""Importance of weights of a dense decoder: names the intermediate that each matrix multiplies
(``archs.Collector``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..sums import Sums

READERS = {
    "attn_norm": ("attn_q", "attn_k", "attn_v"),
    "kqv_out": ("attn_output",),
    "ffn_norm": ("ffn_gate", "ffn_up", "ffn_gate_inp"),
    "ffn_swiglu": ("ffn_down",),
}
"""Intermediate -> tensors that multiply it."""


class Collector(Sums):
    """Hooks that sum the squares of the inputs of every layer's matrices."""

    def __init__(self, shape: Any):
        super().__init__()
        self.shape = shape
        without = ("ffn_gate", "ffn_up") if shape.n_experts else ("ffn_gate_inp",)
        self._readers = {name: [role for role in roles if role not in without] for name, roles in READERS.items()}
        self._entering = self._ids = np.empty(0)

    def begin(self, chunk: Any) -> None:
        """Do nothing."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Add the squares of an intermediate to the sums of its matrices and return the intermediate unchanged."""
        for role in self._readers.get(name, ()):
            self.add(f"blk.{layer}.{role}.weight", value.reshape(len(value), -1))
        if name == "ffn_norm":
            self._entering = np.asarray(value)
        elif name == "ffn_moe_topk":
            self._ids = np.asarray(value)
            self.routes += self._ids.size
            for part in ("gate", "up"):
                self.routed(layer, part, self.shape.n_experts, self._ids, self._entering)
        elif name == "ffn_moe_weighted_swiglu":
            self.routed(layer, "down", self.shape.n_experts, self._ids, np.asarray(value))
        return value
