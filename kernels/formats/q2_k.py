"""Q2_K: 84 bytes for 256 weights, 2-bit codes in 16 groups with 4-bit scales and minima (docs/model.md 2.3).

    w = d * s_j * code - dmin * m_j        j = group of 16 weights, s_j / m_j = low / high nibble of scales[j]

Codes come in two halves of 128 weights. Weight 32 k + i of a half (k < 4, i < 32) is bits 2k, 2k+1 of byte i
of that half's 32 bytes.
"""

from __future__ import annotations

import numpy as np

from .format import block_format

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", (2, 32)), ("d", "<f2"), ("dmin", "<f2")])

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _decode(blocks: np.ndarray) -> np.ndarray:
    n = len(blocks)
    scale = blocks["d"].astype(np.float32)[:, None] * (blocks["scales"] & 15).astype(np.float32)
    low = blocks["dmin"].astype(np.float32)[:, None] * (blocks["scales"] >> 4).astype(np.float32)
    codes = (blocks["qs"][:, :, None, :] >> _SHIFTS) & 3  # (n, half, k, i)
    return (scale[:, :, None] * codes.reshape(n, 16, 16).astype(np.float32) - low[:, :, None]).reshape(n, 256)


Q2_K = block_format("Q2_K", 10, 256, BLOCK, _decode)
