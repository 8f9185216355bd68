"""DeepSeek V4.1 (text). The forward pass in reading order:

shape, hashing, chunk, engram, compressor, indexer, attention, forward.

What V4 computes alike is in ``archs.deepseek4``: rope, hyper-connections, experts, chunk and cache. Three things are
new: lookup tables by hashed n-grams (Engram), hyper-connections whose input weights are those of the half layer
before, and four layers that compress rows for all others. ``tensors`` and ``weights`` bind a model's tensors,
``published`` reads DeepSeek's folder, ``part`` computes some of the layers on one of several machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import Arch
from ..keys import check
from .shape import ModelShape, unlike_published

if TYPE_CHECKING:
    from ds4ref.kernels.ops import Backend

    from ...numerics import Numerics
    from ...weights.source import TensorSource
    from .. import Model


class DeepSeek41(Arch):
    """The DeepSeek V4.1 family."""

    package = "deepseek41"
    rounds_inputs = False

    def read_shape(self, source: TensorSource, strict: bool = False) -> ModelShape:
        """Return the dimensions of a model file; with ``strict``, raise ShapeError unless they are those of V4.1
        Flash."""
        shape = ModelShape.from_metadata(source)
        different = unlike_published(shape) if strict else {}
        check(source, [f"{key} is {got}, wanted {want}" for key, (got, want) in different.items()])
        return shape

    def model_of(
        self, whole: ModelShape, layers: range, weights: Any, ops: Backend, numerics: Numerics, advise: bool = False
    ) -> Model:
        """Return a runnable model of some consecutive ``layers`` of a model of shape ``whole``."""
        self.check_numerics(numerics)
        made: Model = self.part("part").PartModel(whole, layers, weights, ops, numerics, advise)
        return made

    def kernels(self, source: TensorSource, shape: ModelShape, act_quant: bool) -> set[str]:
        """Return the groups of kernels that a model needs: also V4's, and those for candidate blocks, Engram and E2M1
        rows, which no other family has."""
        return super().kernels(source, shape, act_quant) | {"deepseek4", "extras"}


ARCH = DeepSeek41()
