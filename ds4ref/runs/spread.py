"""Descriptive spread: medians, bands and quantiles. They prove nothing; ``stats`` has the intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

FEW = 5
"""Fewer values than this have no quartiles of their own: the band is then the range."""


def median_band(values: ArrayLike) -> tuple[float, float, float]:
    """Return median and quartiles; below five values, median and range."""
    d = np.asarray(values, np.float64)
    low, high = (0.25, 0.75) if len(d) >= FEW else (0.0, 1.0)
    return float(np.median(d)), float(np.quantile(d, low)), float(np.quantile(d, high))


def band_name(count: int) -> str:
    """Return the name of ``median_band``'s band for this many values."""
    return "middle half" if count >= FEW else "least to most"


def quantile(values: ArrayLike, q: float) -> float:
    """Return the quantile ``q`` (0 to 1), linear between neighbours."""
    return float(np.quantile(np.asarray(values, np.float64), q))
