"""Reference quantizers: Q8_0, and the optimum for given scales.

The compiled quantizers (``kernels.cpu.quantize``) are tested against these: Q8_0 byte for byte, other formats'
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
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    scaled = (values * inverse[:, None]).astype(np.float64)  # exact from here on
    codes = np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)
    blocks = np.empty(len(values), FORMATS["Q8_0"].layout)
    blocks["d"], blocks["q"] = d, codes
    return blocks.view(np.uint8).reshape(len(x), -1)


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
