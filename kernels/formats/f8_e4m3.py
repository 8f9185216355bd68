"""8-bit floats as codes, with E8M0 scales (docs/explanation/model.md 2.3).

    w = 2^(e - 127) * E4M3FN(code)

    F8_E4M3         129 bytes for 128 weights: scale, codes
    F8_E4M3_32      33 bytes for 32 weights: scale, codes
    F8_E4M3_ROW264  264 bytes for 256 weights: codes, then the scales of each 32; its rows are only looked up

The first two are layouts of our own for weights that are published as E4M3 with one scale per 128 x 128 or 32 x 32
weights: each row stores the scales of its blocks, so that it can be computed from its own bytes alone. The third one is
ds4's for Engram tables. E4M3FN has 4 exponent bits of bias 7 and 3
bits of fraction, subnormal numbers, no infinity, and NaN where all seven bits are set (Micikevicius et al. 2022,
arXiv:2209.05433). E8M0 is a power of two; 255 is NaN (OCP Microscaling Formats 1.0).
"""

from __future__ import annotations

import numpy as np

from .format import Listed, Numbers, PowerOfTwo, SmallFloat, block_format, plane

BLOCK_WEIGHTS = 128
BLOCK = np.dtype([("e", "u1"), ("codes", "u1", BLOCK_WEIGHTS)])

E4M3 = SmallFloat(exponent=4, fraction=3, bias=7, nan=True)
E8M0 = PowerOfTwo(0, bias=127, nan=True)

F8_E4M3 = block_format(
    "F8_E4M3", -1, BLOCK_WEIGHTS, BLOCK,
    codes=Numbers(plane(BLOCK, "codes", 8, run=BLOCK_WEIGHTS)),
    small=E4M3,
    scale=E8M0,
    loss=0.03,
)  # fmt: skip

SMALL_WEIGHTS = 32
_SMALL = np.dtype([("e", "u1"), ("codes", "u1", SMALL_WEIGHTS)])

F8_E4M3_32 = block_format(
    "F8_E4M3_32", -2, SMALL_WEIGHTS, _SMALL,
    codes=Numbers(plane(_SMALL, "codes", 8, run=SMALL_WEIGHTS)),
    small=E4M3,
    scale=E8M0,
    loss=0.03,
)  # fmt: skip

ROW_WEIGHTS = 256
_ROW = np.dtype([("codes", "u1", ROW_WEIGHTS), ("scales", "u1", ROW_WEIGHTS // SMALL_WEIGHTS)])

F8_E4M3_ROW264 = block_format(
    "F8_E4M3_ROW264", -3, ROW_WEIGHTS, _ROW,
    codes=Numbers(plane(_ROW, "codes", 8, run=ROW_WEIGHTS)),
    small=E4M3,
    group=SMALL_WEIGHTS,
    scales=Listed(E8M0.table, ROW_WEIGHTS, ROW_WEIGHTS // SMALL_WEIGHTS),
    lookup=True,
    loss=0.03,
)  # fmt: skip
