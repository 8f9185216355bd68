"""DeepSeek V4. The forward pass in reading order:

shape, hooks, chunk, rope, hyper_connections, compressor, indexer, attention, moe, head, forward.

Written once over the op table (``kernels.ops``) for all numerics modes: a mode switches roundings on or off at fixed
points of the pass. ``tensors`` and ``weights`` bind a file's tensors, ``cache`` and ``payload`` hold and save the KV
cache of a sequence, ``costs`` counts bytes and operations. docs/explanation/model.md has the formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import Arch
from .shape import ModelShape, check_published

if TYPE_CHECKING:
    from ...weights.source import TensorSource


class DeepSeek(Arch):
    """The family."""

    package = "deepseek4"

    def read_shape(self, source: TensorSource, strict: bool = False) -> ModelShape:
        """Return the dimensions of a model file; ``strict`` accepts exactly DeepSeek V4 Flash or Pro."""
        if strict:
            check_published(source)
        return ModelShape.from_metadata(source)


ARCH = DeepSeek()
