"""Q4_K: 144 bytes for 256 weights, 4-bit codes in 8 groups with 6-bit scales and minima (model.md 2.3).

    w = d * s_j * code - dmin * m_j        j = group of 32 weights

The 6-bit numbers of groups 0..3 lie in bytes 0..3 (scales) and 4..7 (minima); those of groups 4..7 take their low
four bits from bytes 8..11 and their high two bits from the spare bits of the first eight bytes.
Groups 2p and 2p+1 share 32 code bytes: low nibbles, then high nibbles.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("qs", "u1", (4, 32))])


def packed_scales(layout: np.dtype) -> Numbers:
    """Declare the eight 6-bit scales in the twelve bytes of the field ``packed``, which Q5_K has, too."""
    return Numbers(
        plane(layout, "packed", 4, run=4, places=[(0, 0), (8, 0)]),
        plane(layout, "packed", 2, run=4, places=[(0, 4), (0, 6)]),
    )


def packed_minima(layout: np.dtype) -> Numbers:
    """Declare the eight 6-bit minima in the twelve bytes of the field ``packed``."""
    return Numbers(
        plane(layout, "packed", 4, run=4, places=[(4, 0), (8, 4)]),
        plane(layout, "packed", 2, run=4, places=[(4, 4), (4, 6)]),
    )


Q4_K = block_format(
    "Q4_K", 12, 256, BLOCK,
    codes=Numbers(plane(BLOCK, "qs", 4, run=32, shifts=(0, 4))),
    group=32,
    scale=half(BLOCK, "d"), scales=packed_scales(BLOCK),
    minimum=half(BLOCK, "dmin"), minima=packed_minima(BLOCK),
    activation="q8k", quantizer="search", loss=0.085,
)  # fmt: skip
