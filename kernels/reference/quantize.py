"""Reference quantizers: the two formats without a search, and the optimum for given scales.

The compiled quantizers (``kernels.cpu.quantize``) are tested against these: Q8_0 and Q4_0 byte for byte, other formats'
codes against ``nearest_codes`` and ``best_octets`` at the scales that their searches chose.
"""

from __future__ import annotations

import numpy as np

from ds4ref.kernels.formats import FORMATS
from ds4ref.kernels.formats.iq2_xxs import GRID, SIGNS


def q8_0(x: np.ndarray) -> np.ndarray:
    """Quantize float32 (rows, cols) to Q8_0 rows: d = max |x| / 127, codes x / d rounded, ties away from zero."""
    values = x.reshape(-1, 32)
    d = np.abs(values).max(axis=1) / np.float32(127)
    scaled = (values * _inverse(d)[:, None]).astype(np.float64)  # exact from here on
    codes = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)
    blocks = np.empty(len(values), FORMATS["Q8_0"].layout)
    blocks["d"], blocks["q"] = d, codes
    return blocks.view(np.uint8).reshape(len(x), -1)


def q4_0(x: np.ndarray) -> np.ndarray:
    """Quantize float32 (rows, cols) to Q4_0 rows; the first weight of greatest magnitude becomes code -8."""
    values = x.reshape(-1, 32)
    extreme = np.take_along_axis(values, np.abs(values).argmax(axis=1)[:, None], axis=1)[:, 0]
    d = extreme / np.float32(-8)
    codes = np.minimum((values * _inverse(d)[:, None] + np.float32(8.5)).astype(np.int32), 15).astype(np.uint8)
    blocks = np.empty(len(values), FORMATS["Q4_0"].layout)
    blocks["d"], blocks["qs"] = d, codes[:, :16] | codes[:, 16:] << 4
    return blocks.view(np.uint8).reshape(len(x), -1)


def _inverse(d: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.where(d != 0, np.float32(1) / d, np.float32(0)).astype(np.float32)


def nearest_codes(x: np.ndarray, scale: np.ndarray, minimum: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return the value nearest to x of scale * code - minimum with an integer code low..high, float64 like ``x``.

    ``scale`` and ``minimum`` broadcast to the shape of ``x``.
    """
    safe = np.where(scale != 0, scale, 1).astype(np.float64)
    codes = np.clip(np.rint((x + minimum) / safe), low, high)
    return scale * np.where(scale != 0, codes, 0) - minimum


def best_octets(x: np.ndarray, w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the least weighted squared error of octets x (n, 8) over IQ2_XXS's codebook at scales (n,), float64 (n,).

    Every codebook entry is tried with every sign pattern that has an even number of minuses.
    """
    out = np.empty(len(x))
    for i, (values, weights, s) in enumerate(zip(x.astype(np.float64), w, scale, strict=True)):
        points = (s * GRID[:, None, :].astype(np.float64) * SIGNS[None, :, :]).reshape(-1, 8)
        out[i] = (weights * np.square(values - points)).sum(axis=1).min()
    return out
