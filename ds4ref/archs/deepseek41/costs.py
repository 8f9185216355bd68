"""Cost of a token of DeepSeek V4.1 (``archs.costs``).

costs = Costs.of_recipe(FLASH, "published")
costs.decode(8192).bound(Peaks(read_gbs=400, int8_gops=30e3, f32_gflops=14e3)).seconds
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Self

from ...errors import UsageError
from .. import costs
from ..deepseek4.tensors import RECIPES
from .published import stored_as
from .tensors import expected_tensors, slots
from .weights import check_tensors

if TYPE_CHECKING:
    from ...weights.source import TensorSource
    from ..binding import Slot
    from .shape import ModelShape

PUBLISHED = "published"
"""Name of the recipe of DeepSeek's folder."""


class Costs(costs.Costs):
    """The cost model of a model file, or of a model of given dimensions in given storage formats."""

    @classmethod
    def of_recipe(cls, shape: ModelShape, recipe: str = "q2", act_quant: bool = True) -> Self:
        """Return the cost model of a model of these dimensions without a file: quantized by a recipe of
        ``deepseek4.tensors.RECIPES``, or in the formats of DeepSeek's folder.

        Raise UsageError for an unknown recipe.
        """
        places = {slot.name: slot for slot in slots(shape)}
        if recipe == PUBLISHED:
            return cls(shape, [_published(slot) for slot in places.values()], act_quant)
        if recipe not in RECIPES:
            raise UsageError(f"unknown recipe {recipe!r}: choose from {', '.join((*RECIPES, PUBLISHED))}")
        specs = expected_tensors(shape, recipe)
        stored = [costs.Stored(places[spec.name], spec.nbytes, spec.fmt, spec.elements) for spec in specs]
        return cls(shape, stored, act_quant)

    @classmethod
    def of_file(cls, source: TensorSource, shape: ModelShape, act_quant: bool = True) -> Self:
        """Return the cost model of an open model file; raise ShapeError if its tensors do not fit ``shape``."""
        return cls.of_tensors(check_tensors(source, shape), shape, act_quant)


def _published(slot: Slot) -> costs.Stored:
    fmt, nbytes = stored_as(slot)
    return costs.Stored(slot, nbytes, fmt, prod(slot.dims))
