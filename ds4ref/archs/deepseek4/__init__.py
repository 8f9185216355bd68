"""DeepSeek V4. The forward pass in reading order:

shape, hooks, chunk, rope, hyper_connections, compressor, indexer, attention, moe, head, forward.

The pass is written once, in terms of the ops that every backend implements (``kernels.ops``), for all numerics modes: a
mode only switches roundings on or off at fixed points. ``tensors`` and ``weights`` bind a file's tensors, ``cache`` and
``payload`` hold and save the KV cache of a sequence, ``costs`` counts bytes and operations. docs/explanation/model.md
has the formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import Arch
from .shape import ModelShape, check_published

if TYPE_CHECKING:
    from ...weights.source import TensorSource


class DeepSeek(Arch):
    """The DeepSeek V4 family."""

    package = "deepseek4"

    def read_shape(self, source: TensorSource, strict: bool = False) -> ModelShape:
        """Return the dimensions of a model file; with ``strict``, raise ShapeError unless they are those of a published
        DeepSeek V4 model."""
        if strict:
            check_published(source)
        return ModelShape.from_metadata(source)


ARCH = DeepSeek()
