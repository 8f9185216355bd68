"""The decoder of Llama, Mistral, Mixtral, Qwen2, Qwen3 and Gemma 3.

In reading order: shape, rope, chunk, blocks, experts, forward.

These models are residual blocks with grouped-query attention and a gated feed-forward or experts, each after a norm
(Touvron et al. 2023; Qwen team 2025). A ``Family`` lists the differences: how RoPE pairs channels, whether query and
key heads are normed, whether projections have biases, whether files may have experts. ``published`` reads Hugging
Face's folders (with ``windows`` and ``published_experts``), ``weights`` binds a file's tensors, ``cache`` and
``payload`` hold and save the KV cache of a sequence, ``costs`` counts bytes and operations. The pass uses only the ops
that every backend implements.

    ARCH = Dense(Family("llama", halves=False, qk_norm=False))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import Arch
from .shape import DenseShape, Family

if TYPE_CHECKING:
    from ...weights.source import TensorSource


class Dense(Arch):
    """One of these families; ``family`` describes how it differs from the others."""

    package = "dense"

    def __init__(self, family: Family):
        self.family = family

    def read_shape(self, source: TensorSource, strict: bool = False) -> DenseShape:
        """Return the dimensions of a model file; ``strict`` has no effect, because these families have models of many
        sizes."""
        return DenseShape.from_metadata(source, self.family)


__all__ = ["Dense", "DenseShape", "Family"]
