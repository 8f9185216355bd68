"""Q8_0: 34 bytes for 32 weights, a half-precision scale and signed bytes (docs/model.md 2.3).

w = d * q
"""

from __future__ import annotations

import numpy as np

from .format import block_format

BLOCK = np.dtype([("d", "<f2"), ("q", "i1", 32)])


def _decode(blocks: np.ndarray) -> np.ndarray:
    return blocks["d"].astype(np.float32)[:, None] * blocks["q"].astype(np.float32)


Q8_0 = block_format("Q8_0", 8, 32, BLOCK, _decode)
