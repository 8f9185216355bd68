"""Cost of a token of DeepSeek V4.1 (``archs.costs``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from .. import costs
from .weights import check_tensors

if TYPE_CHECKING:
    from ...weights.source import TensorSource
    from .shape import ModelShape


class Costs(costs.Costs):
    """The cost model of a model file."""

    @classmethod
    def of_file(cls, source: TensorSource, shape: ModelShape, act_quant: bool = True) -> Self:
        """Return the cost model of an open model file; raise ShapeError if its tensors do not fit ``shape``."""
        return cls.of_tensors(check_tensors(source, shape), shape, act_quant)
