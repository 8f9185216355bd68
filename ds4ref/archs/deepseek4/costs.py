"""Cost of a token of DeepSeek V4 (``archs.costs``).

costs = Costs.of_recipe(FLASH, "q2")
costs.decode(8192).bound(Peaks(read_gbs=400, int8_gops=30e3, f32_gflops=14e3)).seconds
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from ...errors import UsageError
from .. import costs
from .tensors import RECIPES, expected_tensors, slots
from .weights import check_tensors

if TYPE_CHECKING:
    from ...weights.source import TensorSource
    from .shape import ModelShape


class Costs(costs.Costs):
    """The cost model of a model file, or of a model of given dimensions in given storage formats."""

    @classmethod
    def of_recipe(cls, shape: ModelShape, recipe: str = "q2", act_quant: bool = True) -> Self:
        """Return the cost model of a model of these dimensions, quantized by a recipe of ``tensors.RECIPES``, without a
        file.

        Raise UsageError for an unknown recipe.
        """
        if recipe not in RECIPES:
            raise UsageError(f"unknown recipe {recipe!r}: choose from {', '.join(RECIPES)}")
        places = {slot.name: slot for slot in slots(shape)}
        specs = expected_tensors(shape, recipe)
        tensors = [costs.Stored(places[spec.name], spec.nbytes, spec.fmt, spec.elements) for spec in specs]
        return cls(shape, tensors, act_quant)

    @classmethod
    def of_file(cls, source: TensorSource, shape: ModelShape, act_quant: bool = True) -> Self:
        """Return the cost model of an open model file; raise ShapeError if its tensors do not fit ``shape``."""
        return cls.of_tensors(check_tensors(source, shape), shape, act_quant)
