"""Q6_K: 210 bytes for 256 weights, 6-bit codes around 32 in 16 groups with signed 8-bit scales.

    w = d * s_j * (code - 32)        j = group of 16 weights

Codes come in two halves of 128 weights = 4 runs of 32. Within a half the low four bits of runs 0 and 1 are the low
nibbles of 64 bytes of ``ql``, those of runs 2 and 3 the high nibbles; the high two bits of run k are bits 2k, 2k+1
of 32 bytes of ``qh``.
"""

from __future__ import annotations

import numpy as np

from .format import block_format

BLOCK = np.dtype([("ql", "u1", (2, 64)), ("qh", "u1", (2, 32)), ("scales", "i1", 16), ("d", "<f2")])

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _decode(blocks: np.ndarray) -> np.ndarray:
    n = len(blocks)
    scale = blocks["d"].astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
    low = np.stack([blocks["ql"] & 15, blocks["ql"] >> 4], axis=2).reshape(n, 2, 4, 32)
    high = (blocks["qh"][:, :, None, :] >> _SHIFTS) & 3
    codes = (low | (high << 4)).astype(np.float32) - 32
    return (scale[:, :, None] * codes.reshape(n, 16, 16)).reshape(n, 256)


Q6_K = block_format("Q6_K", 14, 256, BLOCK, _decode)
