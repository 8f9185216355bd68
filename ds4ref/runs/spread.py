"""What was seen: medians, bands and quantiles. They show spread and prove nothing; ``stats`` has the intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def median_band(values: ArrayLike) -> tuple[float, float, float]:
    """Median and quartiles; below five values median and range."""
    d = np.asarray(values, np.float64)
    low, high = (0.25, 0.75) if len(d) >= 5 else (0.0, 1.0)
    return float(np.median(d)), float(np.quantile(d, low)), float(np.quantile(d, high))


def quantile(values: ArrayLike, q: float) -> float:
    """Linear between neighbours; ``q`` from 0 to 1."""
    return float(np.quantile(np.asarray(values, np.float64), q))
