"""Steering along known directions as families of faults, so that a diagnosis can name an engine that is steered.

families = steering_families(rows)             of a file of directions (layers, width)
families["ffn_steering"].fault(0.5)            steered at scale 0.5 after the feed-forward halves
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..archs.deepseek4.chunk import Chunk
from ..archs.steering import HALF_NAMES
from .families import Family
from .faults import Begin, Edit

SAYS = "directional steering along the file's directions after {half}, at scale {{value}}"
SCALES = (-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0)


def steering_families(rows: np.ndarray) -> dict[str, Family]:
    """Return the families "attn_steering" and "ffn_steering" along directions ``rows`` (layers, width); the parameter
    is the scale."""
    families = [
        Family(
            f"{half}_steering", SAYS.format(half=text), _steered(rows, half), lambda shape: 0.0,
            lambda shape: SCALES, log=False,
        )
        for half, text in HALF_NAMES.items()
    ]  # fmt: skip
    return {family.name: family for family in families}


def _steered(rows: np.ndarray, half: str) -> Callable[[float], tuple[Begin | None, dict[str, Edit]]]:
    def make(scale: float) -> tuple[Begin | None, dict[str, Edit]]:
        def edit(value: Any, layer: int, chunk: Chunk, taps: dict) -> Any:
            return chunk.ops.remove_along(value, rows[layer], scale)

        return None, {f"{half}_out": edit}

    return make
