"""Q6_K: 210 bytes for 256 weights, 6-bit codes around 32 in 16 groups with signed 8-bit scales.

    w = d * s_j * (code - 32)        j = group of 16 weights

Codes come in two halves of 128 weights = 4 runs of 32. Within a half the low four bits of runs 0 and 1 are the low
nibbles of 64 bytes of ``ql``, those of runs 2 and 3 the high nibbles; the high two bits of run k are bits 2k, 2k+1
of 32 bytes of ``qh``.
"""

from __future__ import annotations

import numpy as np

from .format import Numbers, block_format, half, plane

BLOCK = np.dtype([("ql", "u1", (2, 64)), ("qh", "u1", (2, 32)), ("scales", "i1", 16), ("d", "<f2")])

Q6_K = block_format(
    "Q6_K", 14, 256, BLOCK,
    codes=Numbers(
        plane(BLOCK, "ql", 4, run=64, shifts=(0, 4)), plane(BLOCK, "qh", 2, run=32, shifts=(0, 2, 4, 6)), zero=32
    ),
    group=16,
    scale=half(BLOCK, "d"), scales=Numbers(plane(BLOCK, "scales", 8, run=16), signed=True),
    activation="q8k", loss=0.02,
)  # fmt: skip
