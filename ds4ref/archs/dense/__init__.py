"""The decoder of Llama, Mistral, Mixtral, Qwen2, Qwen3 and Gemma 3.

In reading order: shape, rope, chunk, blocks, experts, forward.

Pre-norm residual blocks of grouped-query attention and a gated feed-forward or experts (Touvron et al. 2023; Qwen team
2025). A ``Family`` names the differences: how rope pairs channels, whether query and key heads are normed, projections
have biases, files may declare experts. ``published`` reads Hugging Face's folders (``windows``,
``published_experts``), ``weights`` binds a file's tensors, ``cache`` and ``payload`` hold and save the KV cache of a
sequence, ``costs`` counts bytes and operations. Written over the op table alone, so every backend runs it.

    ARCH = Dense(Family("llama", halves=False, qk_norm=False))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .shape import DenseShape, Family
from .weights import bind

if TYPE_CHECKING:
    from ...numerics import Numerics
    from ...residency.resident import ResidentExperts
    from ...weights.source import TensorSource
    from ..importance import Collector
    from .costs import Costs
    from .forward import Model
    from .weights import Weights


class Dense:
    """Implementation of ``archs.Arch`` for one family."""

    def __init__(self, family: Family):
        self.family = family

    def read_shape(self, source: TensorSource, strict: bool = False) -> DenseShape:
        """Return the dimensions of a model file; ``strict`` has no effect, since these families have models of many
        sizes."""
        return DenseShape.from_metadata(source, self.family)

    def bind(self, source: TensorSource, shape: DenseShape) -> Weights:
        """Return the weights of an open model file, bound to its tensors (``archs.Arch.bind``)."""
        return bind(source, shape)

    def model(
        self,
        shape: DenseShape,
        weights: Weights,
        ops: Any,
        numerics: Numerics,
        advise: bool = False,
        resident: ResidentExperts | None = None,
    ) -> Model:
        """Return a model that computes; ``advise`` and ``resident`` are those of ``Arch.model``."""
        from .forward import Model

        return Model(shape, weights, ops, numerics, advise, resident)

    def collector(self, shape: DenseShape) -> Collector:
        """Return the hooks that collect the importance of this family's weights."""
        from ..importance import Collector
        from .weights import READERS, slots

        return Collector(READERS, slots(shape), shape.n_experts)

    def costs(self, source: TensorSource, shape: DenseShape, act_quant: bool = True) -> Costs:
        """Return the bytes and operations per token of a model file."""
        from .costs import Costs

        return Costs.of_file(source, shape, act_quant)


__all__ = ["Dense", "DenseShape", "Family"]
