"""Formats whose blocks hold 32 weights and a half-precision scale (docs/explanation/model.md 2.3)."""

from __future__ import annotations

import numpy as np

from .format import Levels, Numbers, block_format, half, plane

# Q8_0: 34 bytes for 32 weights, a half-precision scale and signed bytes (docs/explanation/model.md 2.3).
#
# w = d * q
_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", 32)])

Q8_0 = block_format(
    "Q8_0", 8, 32, _Q8_0,
    codes=Numbers(plane(_Q8_0, "q", 8, run=32), signed=True),
    scale=half(_Q8_0, "d"),
    activation="a8", quantizer="blocks", loss=0.007,
)  # fmt: skip


# Q4_0: 18 bytes for 32 weights, a half-precision scale and 4-bit codes around 8.
#
#     w = d * (code - 8)
#
# Byte i of ``qs`` holds weight i in its low nibble and weight i + 16 in its high one.
_Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])

Q4_0 = block_format(
    "Q4_0", 2, 32, _Q4_0,
    codes=Numbers(plane(_Q4_0, "qs", 4, run=16, shifts=(0, 4)), zero=8),
    scale=half(_Q4_0, "d"),
    activation="a8", loss=0.1,
)  # fmt: skip


# Q4_1: 20 bytes for 32 weights, a half-precision scale and offset, and 4-bit codes.
#
#     w = d * code + m
#
# Codes lie as in Q4_0.
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])

Q4_1 = block_format(
    "Q4_1", 3, 32, _Q4_1,
    codes=Numbers(plane(_Q4_1, "qs", 4, run=16, shifts=(0, 4))),
    scale=half(_Q4_1, "d"), minimum=half(_Q4_1, "m", -1.0),
    activation="a8", loss=0.09,
)  # fmt: skip


# Q5_0: 22 bytes for 32 weights, a half-precision scale and 5-bit codes around 16.
#
#     w = d * (code - 16)
#
# The low four bits lie as in Q4_0; bit i of the four bytes ``qh`` is the fifth one of weight i.
_Q5_0 = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])

Q5_0 = block_format(
    "Q5_0", 6, 32, _Q5_0,
    codes=Numbers(plane(_Q5_0, "qs", 4, run=16, shifts=(0, 4)), plane(_Q5_0, "qh", 1, run=1, shifts=range(8)), zero=16),
    scale=half(_Q5_0, "d"),
    activation="a8", loss=0.05,
)  # fmt: skip


# Q5_1: 24 bytes for 32 weights, a half-precision scale and offset, and 5-bit codes.
#
#     w = d * code + m
#
# Codes lie as in Q5_0.
_Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])

Q5_1 = block_format(
    "Q5_1", 7, 32, _Q5_1,
    codes=Numbers(plane(_Q5_1, "qs", 4, run=16, shifts=(0, 4)), plane(_Q5_1, "qh", 1, run=1, shifts=range(8))),
    scale=half(_Q5_1, "d"), minimum=half(_Q5_1, "m", -1.0),
    activation="a8", loss=0.045,
)  # fmt: skip


# IQ4_NL: 18 bytes for 32 weights, a half-precision scale and 4-bit codes of sixteen uneven levels.
#
#     w = d * LEVELS[code]
#
# Codes lie as in Q4_0. The levels are denser around zero, where most weights are.
LEVELS = Levels((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))

_IQ4_NL = np.dtype([("d", "<f2"), ("qs", "u1", 16)])

IQ4_NL = block_format(
    "IQ4_NL", 20, 32, _IQ4_NL,
    codes=Numbers(plane(_IQ4_NL, "qs", 4, run=16, shifts=(0, 4))),
    small=LEVELS,
    scale=half(_IQ4_NL, "d"),
    activation="a8", loss=0.085,
)  # fmt: skip
