"""IQ2_XS: 74 bytes for 256 weights, octets of a codebook of 512 in 16 groups (docs/explanation/model.md 2.3).

    w = d * (0.5 + s_j) / 4 * sign * magnitude        j = group of 16 weights

Word k of ``qs`` holds the index of octet k in its low 9 bits, and above them seven signs as in IQ2_XXS. Scale j is
nibble j of ``scales``.
"""

from __future__ import annotations

import numpy as np

from .codebooks import BOOKS
from .format import Codebook, Numbers, Plane, block_format, half, plane

BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
_LOW, _HIGH = ([(2 + 2 * octet + byte, 0) for octet in range(32)] for byte in (0, 1))

IQ2_XS = block_format(
    "IQ2_XS", 17, 256, BLOCK,
    codes=Codebook(
        BOOKS["iq2_xs"],
        index=Numbers(Plane(8, 1, tuple(_LOW)), Plane(1, 1, tuple(_HIGH))),
        signs=Numbers(Plane(7, 1, tuple((byte, 1) for byte, _ in _HIGH))),
    ),
    group=16,
    scale=half(BLOCK, "d", factor=0.125),
    scales=Numbers(plane(BLOCK, "scales", 4, run=1, shifts=(0, 4)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip
