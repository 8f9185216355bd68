"""Q4_0: 18 bytes for 32 weights, a half-precision scale and 4-bit codes around 8.

    w = d * (code - 8)

Byte i of ``qs`` holds weight i in its low nibble and weight i + 16 in its high one.
"""

from __future__ import annotations

import numpy as np

from .format import block_format

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


def _decode(blocks: np.ndarray) -> np.ndarray:
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1).astype(np.float32)
    return blocks["d"].astype(np.float32)[:, None] * (codes - 8)


Q4_0 = block_format("Q4_0", 2, 32, BLOCK, _decode)
