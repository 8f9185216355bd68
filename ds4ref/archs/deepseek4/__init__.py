"""DeepSeek V4. The forward pass in reading order:

shape, hooks, chunk, rope, hyper_connections, compressor, indexer, attention, moe, head, forward.

Written once over the op table (``kernels.ops``) for all numerics modes: a mode switches roundings on or off at fixed
points of the pass. ``tensors`` and ``weights`` bind a file's tensors, ``cache`` and ``payload`` hold and save the KV
cache of a sequence, ``costs`` counts bytes and operations. docs/explanation/model.md has the formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .costs import Costs  # first: importing a module of that name later would hide the function ``costs``
from .shape import ModelShape, check_published
from .weights import bind

if TYPE_CHECKING:
    from ...numerics import Numerics
    from ...residency.resident import ResidentExperts
    from ...weights.source import TensorSource
    from ..importance import Collector
    from .forward import Model
    from .weights import Weights


def read_shape(source: TensorSource, strict: bool = False) -> ModelShape:
    """Return the dimensions of a model file; ``strict`` accepts exactly DeepSeek V4 Flash or Pro."""
    if strict:
        check_published(source)
    return ModelShape.from_metadata(source)


def model(
    shape: ModelShape,
    weights: Weights,
    ops: Any,
    numerics: Numerics,
    advise: bool = False,
    resident: ResidentExperts | None = None,
) -> Model:
    """Return a model that computes; ``advise`` and ``resident`` are those of ``Arch.model``."""
    from .forward import Model

    return Model(shape, weights, ops, numerics, advise, resident)


def costs(source: TensorSource, shape: ModelShape, act_quant: bool = True) -> Costs:
    """Return the bytes and operations per token of a model file."""
    return Costs.of_file(source, shape, act_quant)


def collector(shape: ModelShape) -> Collector:
    """Return the hooks that collect the importance of this family's weights."""
    from ..importance import Collector
    from .tensors import READERS, slots

    return Collector(READERS, slots(shape), shape.n_experts)


__all__ = ["bind", "collector", "costs", "model", "read_shape"]
