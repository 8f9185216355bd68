"""How precisely foreign numbers were stored, found from the values themselves.

Logits saved as float16 differ from the engine's by up to half a unit of their last place, which is hundreds of times
the float noise of two right engines. That is no mistake, and its size is known: a unit's square over 12.

    stored = precision(values)        None for full float32, or what the values show
    stored.variance(values)           mean square of the rounding, per value
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ENOUGH = 16
"""So many different values have to agree with a precision before it is believed."""
DECIMALS = range(1, 8)


@dataclass(frozen=True)
class Stored:
    """``kind``: float16, bfloat16 or decimals; ``digits``: how many of those."""

    kind: str
    digits: int = 0

    def __str__(self) -> str:
        return f"{self.digits} decimals" if self.kind == "decimals" else self.kind

    def variance(self, values: np.ndarray) -> np.ndarray:
        """Mean square of the rounding of each value, float64, same shape."""
        if self.kind == "decimals":
            return np.full(values.shape, 10.0 ** (-2 * self.digits) / 12)
        bits, least = (10, -24) if self.kind == "float16" else (7, -133)
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = np.floor(np.log2(np.abs(values.astype(np.float64))))
        unit = np.exp2(np.maximum(np.where(np.isfinite(exponent), exponent, least + bits) - bits, least))
        return unit**2 / 12


def precision(values: np.ndarray) -> Stored | None:
    """The coarsest precision that all finite values agree with, None if that is float32 or finer.

    Integers agree with everything, so that they count as evidence of nothing; so do few values.
    """
    v = np.asarray(values)
    v = v[np.isfinite(v)].astype(np.float64)
    v = np.unique(v[v != np.rint(v)])
    if len(v) < ENOUGH:
        return None
    single = v.astype(np.float32)
    found = []
    if np.array_equal(single, v) and not (single.view(np.uint32) & 0xFFFF).any():
        found.append(Stored("bfloat16"))
    with np.errstate(over="ignore"):
        if np.array_equal(v.astype(np.float16), v):
            found.append(Stored("float16"))
    for digits in DECIMALS:
        # the decimal may have been kept as a float32: its own rounding is allowed for
        near = np.rint(v * 10.0**digits) / 10.0**digits
        if (np.abs(near - v) <= np.abs(v) * 2.0**-24 + 1e-12).all() and _tells(v, digits):
            found.append(Stored("decimals", digits))
            break
    return max(found, key=lambda each: float(each.variance(v).mean())) if found else None


def _tells(v: np.ndarray, digits: int) -> bool:
    """Whether the steps are wide enough against float32's own for agreement to mean anything."""
    return bool(10.0**-digits > 8 * float(np.median(np.abs(v))) * 2.0**-24)
