"""What was seen: medians, bands and quantiles. They show spread and prove nothing; ``stats`` has the intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

FEW = 5
"""Values below which quartiles would be two of them: a band is then all of it."""


def median_band(values: ArrayLike) -> tuple[float, float, float]:
    """Median and quartiles; below five values median and range."""
    d = np.asarray(values, np.float64)
    low, high = (0.25, 0.75) if len(d) >= FEW else (0.0, 1.0)
    return float(np.median(d)), float(np.quantile(d, low)), float(np.quantile(d, high))


def band_name(count: int) -> str:
    """What the band of ``median_band`` is, of so many values."""
    return "middle half" if count >= FEW else "least to most"


def quantile(values: ArrayLike, q: float) -> float:
    """Linear between neighbours; ``q`` from 0 to 1."""
    return float(np.quantile(np.asarray(values, np.float64), q))
