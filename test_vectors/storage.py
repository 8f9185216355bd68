"""Infer from the values themselves how precisely another engine's numbers were stored.

Logits saved as float16 differ from the engine's by up to half a unit in the last place, which is hundreds of times the
float noise between two correct engines. That is not a mistake of the engine, and the variance of this error is known:
the square of a unit, divided by 12.

    written(values)             ("float16", 2^-11), ("4 decimals", 1e-4), ... or ("", 0.0)
    variance(values)            mean square of that error for each value; None if values are not rounded
"""

from __future__ import annotations

import numpy as np

SILENT = -1000.0
"""Log probabilities at or below this mark masked tokens: engines compute none (a float32 softmax ends at -104)."""
SAMPLE = 20000
"""Largest number of values to inspect."""
TELLING = 5
"""Smallest number of different values from which a precision is inferred."""


def written(values: np.ndarray) -> tuple[str, float]:
    """Infer the precision of stored values: (name, largest rounding step, relative for floats, absolute for decimals).

    ("", 0.0) if they were not rounded, apart from by their own dtype.
    """
    x = _sample(values)
    if len(np.unique(x)) < TELLING:
        return "", 0.0
    places = decimals(values)
    if places is not None:
        for name, digits in (("bfloat16", 7), ("float16", 10)):
            if _printed(x, digits, 10.0**-places):
                return name, 2.0 ** -(digits + 1)
        return f"{places} decimals" if places else "whole numbers", 10.0**-places
    with np.errstate(over="ignore"):
        half, single = x.astype(np.float16).astype(np.float64), x.astype(np.float32)
    # bfloat16 first, as most bfloat16 values are float16 values, too
    if np.array_equal(single.astype(np.float64), x) and not (single.view(np.uint32) & 0xFFFF).any():
        return "bfloat16", 2.0**-8
    if np.array_equal(half, x):
        return "float16", 2.0**-11
    return "", 0.0


def _printed(x: np.ndarray, digits: int, step: float) -> bool:
    """Return whether ``x``, rounded to multiples of ``step``, are floats of so many binary digits after the first."""
    unit = np.exp2(np.floor(np.log2(np.abs(x))) - digits)
    telling = unit >= 10 * step  # of other values at most a tenth lies as near to such a float
    away = np.abs(x - np.round(x / unit) * unit)[telling]
    return bool(telling.sum() >= 4 * TELLING and (away <= 0.51 * step).all())


def decimals(values: np.ndarray) -> int | None:
    """Return the number of decimals (0 to 6) that values were rounded to.

    None if they were not rounded, or to more decimals than their own dtype resolves.
    """
    x = _sample(values)
    kind = np.asarray(values).dtype
    if not len(x) or kind == np.float16:
        return None
    error = 0.5 * float(np.finfo(kind).eps if kind.kind == "f" else 0.0) * np.abs(x) + 1e-12
    for places in range(7):
        # the rounding step must be at least 20 times the type's error, or any float32 would seem to be rounded
        if 20 * error.max() <= 10.0**-places and (np.abs(x - np.round(x, places)) <= error).all():
            return places
    return None


def variance(values: np.ndarray) -> np.ndarray | None:
    """Return the mean square of each value's rounding, float64 of the same shape; None for full precision."""
    name, step = written(values)
    if not name:
        return None
    if "float" not in name:
        return np.full(values.shape, step**2 / 12)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.floor(np.log2(np.abs(np.asarray(values, np.float64))))
    # half a unit in the last place is ``step`` times the power of two below the value
    unit = 2 * step * np.exp2(np.where(np.isfinite(exponent), exponent, -24))
    return unit**2 / 12


def _sample(values: np.ndarray) -> np.ndarray:
    """Return up to SAMPLE of the values that are neither 0 nor a mask, as float64."""
    x = np.asarray(values).reshape(-1)
    x = x[:: max(1, x.size // SAMPLE)].astype(np.float64)
    return x[np.isfinite(x) & (x != 0) & (np.abs(x) < -SILENT)]
