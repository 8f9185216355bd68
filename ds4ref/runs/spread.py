"""Descriptive spread: medians, bands and quantiles. They support no inference; ``stats`` has confidence intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

FEW = 5
"""Number of values below which quartiles are meaningless, so that the band is the range."""


def median_band(values: ArrayLike) -> tuple[float, float, float]:
    """Return median and quartiles; below five values, median and range."""
    d = np.asarray(values, np.float64)
    low, high = (0.25, 0.75) if len(d) >= FEW else (0.0, 1.0)
    return float(np.median(d)), float(np.quantile(d, low)), float(np.quantile(d, high))


def band_name(count: int) -> str:
    """Return the name of the band that ``median_band`` uses for ``count`` values: quartiles or range."""
    return "quartiles" if count >= FEW else "min-max"


def quantile(values: ArrayLike, q: float) -> float:
    """Return the quantile ``q`` (0 to 1), interpolated linearly between neighbours."""
    return float(np.quantile(np.asarray(values, np.float64), q))
