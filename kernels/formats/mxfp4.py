"""MXFP4: 17 bytes for 32 weights, an E8M0 scale and 4-bit floats (docs/model.md 2.3).

    w = 2^(e - 128) * (0, 1, 2, 3, 4, 6, 8, 12 and their negatives)[code]

Those are twice the values of E2M1, so that they are whole numbers, and half the scale. Byte i of ``qs`` holds weight i
in its low nibble and weight i + 16 in its high one. Unlike E8M0 itself, e = 255 is a number here, as ggml has it.
"""

from __future__ import annotations

import numpy as np

from .format import block_format

BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])
VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_VALUES = np.array(VALUES, np.float32)
_SCALES = np.ldexp(1.0, np.arange(256) - 128).astype(np.float32)


def _decode(blocks: np.ndarray) -> np.ndarray:
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=1)
    return _SCALES[blocks["e"]][:, None] * _VALUES[codes]


MXFP4 = block_format("MXFP4", 39, 32, BLOCK, _decode)
