"""Integrate ordinary differential equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.integrate import solve_ivp


def rk(rates: Callable[[float, np.ndarray], Iterable[float]], start: Sequence[float], end: float) -> np.ndarray:
    """Integrate ``rates(t, state)`` from 0 to ``end`` with tight tolerances; return the last state."""
    stiff = solve_ivp(rates, (0.0, end), start, method="LSODA", rtol=1e-10, atol=1e-13)
    return stiff.y[:, -1]
