"""Q4_K: 144 bytes for 256 weights, 4-bit codes in 8 groups with 6-bit scales and minima (docs/model.md 2.3).

    w = d * s_j * code - dmin * m_j        j = group of 32 weights

The 6-bit numbers of groups 0..3 lie in bytes 0..3 (scales) and 4..7 (minima); those of groups 4..7 take their low
four bits from bytes 8..11 and their high two bits from the spare bits of the first eight bytes.
Groups 2p and 2p+1 share 32 code bytes: low nibbles, then high nibbles.
"""

from __future__ import annotations

import numpy as np

from .format import block_format

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("qs", "u1", (4, 32))])


def unpack_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (..., 12) -> scales and minima, uint8 (..., 8) each, 0..63."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=-1)
    return scales, minima


def _decode(blocks: np.ndarray) -> np.ndarray:
    n = len(blocks)
    scales, minima = unpack_scales(blocks["packed"])
    scale = blocks["d"].astype(np.float32)[:, None] * scales.astype(np.float32)
    low = blocks["dmin"].astype(np.float32)[:, None] * minima.astype(np.float32)
    codes = np.stack([blocks["qs"] & 15, blocks["qs"] >> 4], axis=2).reshape(n, 8, 32)
    return (scale[:, :, None] * codes.astype(np.float32) - low[:, :, None]).reshape(n, 256)


Q4_K = block_format("Q4_K", 12, 256, BLOCK, _decode)
