"""F8_E4M3: 129 bytes for 128 weights, an E8M0 scale and codes of 8-bit floats (docs/model.md 2.3).

    w = 2^(e - 127) * E4M3FN(code)

A layout of our own for weights that are published as E4M3 with a scale for every 128 x 128: rows carry the scales of
their blocks, so that a row is computed from its own bytes alone. E4M3FN has 4 exponent bits of bias 7 and 3 bits of
fraction, subnormal numbers, no infinity, and NaN where all seven bits are set (Micikevicius et al. 2022,
arXiv:2209.05433). E8M0 is a power of two; 255 is NaN (OCP Microscaling Formats 1.0).
"""

from __future__ import annotations

import numpy as np

from .format import block_format

BLOCK_WEIGHTS = 128
BLOCK = np.dtype([("e", "u1"), ("codes", "u1", BLOCK_WEIGHTS)])


def _e4m3_table() -> np.ndarray:
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    normal = np.ldexp(8.0 + fraction, exponent - 10)
    value = np.where(exponent == 0, np.ldexp(fraction.astype(float), -9), normal)
    value[(code & 127) == 127] = np.nan
    return np.copysign(value, np.where(code & 128, -1.0, 1.0)).astype(np.float32)


def _e8m0_table() -> np.ndarray:
    value = np.ldexp(1.0, np.arange(256) - 127)
    value[255] = np.nan
    return value.astype(np.float32)


E4M3_VALUES, E8M0_VALUES = _e4m3_table(), _e8m0_table()


def e4m3_to_float(codes: np.ndarray) -> np.ndarray:
    """uint8 codes -> float32, same shape."""
    return E4M3_VALUES[codes]


def e8m0_to_float(exponents: np.ndarray) -> np.ndarray:
    """uint8 exponents -> float32, same shape."""
    return E8M0_VALUES[exponents]


def _decode(blocks: np.ndarray) -> np.ndarray:
    return e8m0_to_float(blocks["e"])[:, None] * e4m3_to_float(blocks["codes"])


F8_E4M3 = block_format("F8_E4M3", -1, BLOCK_WEIGHTS, BLOCK, _decode)
