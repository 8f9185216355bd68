"""Importance of weights of a dense decoder: names the intermediate that each matrix multiplies
(``archs.Collector``)."""

from __future__ import annotations

from typing import Any

from ..sums import Sums

READERS = {
    "attn_norm": ("attn_q", "attn_k", "attn_v"),
    "kqv_out": ("attn_output",),
    "ffn_norm": ("ffn_gate", "ffn_up"),
    "ffn_swiglu": ("ffn_down",),
}
"""Intermediate -> tensors that multiply it."""


class Collector(Sums):
    """Hooks that sum the squares of the inputs of every layer's matrices."""

    def __init__(self, shape: Any):
        super().__init__()
        self.shape = shape

    def begin(self, chunk: Any) -> None:
        """Do nothing."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Add the squares of an intermediate to the sums of its matrices and return the intermediate unchanged."""
        for role in READERS.get(name, ()):
            self.add(f"blk.{layer}.{role}.weight", value.reshape(len(value), -1))
        return value
