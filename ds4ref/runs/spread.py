"""Describes the spread of values: medians, bands and quantiles.

They do not tell whether a difference is due to chance; ``stats`` has confidence intervals for that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

FEW = 5
"""Number of values below which quartiles are meaningless, so that a band extends from minimum to maximum."""


def median_band(values: ArrayLike) -> tuple[float, float, float]:
    """Return (median, lower quartile, upper quartile); of fewer than five values, (median, minimum, maximum)."""
    d = np.asarray(values, np.float64)
    low, high = (0.25, 0.75) if len(d) >= FEW else (0.0, 1.0)
    return float(np.median(d)), float(np.quantile(d, low)), float(np.quantile(d, high))


def band_name(count: int) -> str:
    """Return the name of the band that ``median_band`` returns for ``count`` values: "quartiles" or "min-max"."""
    return "quartiles" if count >= FEW else "min-max"


def quantile(values: ArrayLike, q: float) -> float:
    """Return the quantile ``q`` (0 to 1), interpolated linearly between neighbours."""
    return float(np.quantile(np.asarray(values, np.float64), q))
