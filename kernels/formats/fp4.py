"""MXFP4 and NVFP4: 4-bit floats with 8-bit scales (docs/explanation/model.md 2.3)."""

from __future__ import annotations

import numpy as np

from .format import Listed, Numbers, PowerOfTwo, SmallFloat, block_format, plane

E2M1 = SmallFloat(exponent=2, fraction=1, bias=0, negative_zero=False)
"""Twice the values of OCP's E2M1, so that they are integers: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives."""

# MXFP4: 17 bytes for 32 weights.
#
#     w = 2^(e - 128) * E2M1[code]
#
# Byte i of ``qs`` holds weight i in its low nibble and weight i + 16 in its high one. As in ggml, e = 255 is a number;
# in OCP's E8M0 it is NaN.
_MXFP4 = np.dtype([("e", "u1"), ("qs", "u1", 16)])

MXFP4 = block_format(
    "MXFP4", 39, 32, _MXFP4,
    codes=Numbers(plane(_MXFP4, "qs", 4, run=16, shifts=(0, 4))),
    small=E2M1,
    scale=PowerOfTwo(0, bias=128, nan=False),
    quantizer="search", loss=0.15,
)  # fmt: skip


# NVFP4: 36 bytes for 64 weights in 4 groups.
#
#     w = s_j / 2 * E2M1[code]        j = group of 16 weights
#
# A scale is an E4M3 number without sign; 0 and 0x7F mean 0. In each group's 8 bytes the low nibbles are weights 0 to 7,
# the high ones weights 8 to 15.
_NVFP4 = np.dtype([("scales", "u1", 4), ("qs", "u1", (4, 8))])
_SCALES = np.tile(SmallFloat(exponent=4, fraction=3, bias=8).table[:128], 2)  # half of each scale
_SCALES[0x7F] = 0

NVFP4 = block_format(
    "NVFP4", 40, 64, _NVFP4,
    codes=Numbers(plane(_NVFP4, "qs", 4, run=8, shifts=(0, 4))),
    small=E2M1,
    group=16,
    scales=Listed(_SCALES, 0, 4),
)  # fmt: skip
