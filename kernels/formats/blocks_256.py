"""Formats whose blocks of 256 weights are divided into groups with small scales (docs/explanation/model.md 2.3)."""

from __future__ import annotations

import numpy as np

from .blocks_32 import LEVELS
from .format import Numbers, Trits, block_format, half, plane

# Q2_K: 84 bytes for 256 weights, 2-bit codes in 16 groups with 4-bit scales and minima (model.md 2.3).
#
#     w = d * s_j * code - dmin * m_j        j = group of 16 weights, s_j / m_j = low / high nibble of scales[j]
#
# Codes come in two halves of 128 weights. Weight 32 k + i of a half (k < 4, i < 32) is bits 2k, 2k+1 of byte i
# of that half's 32 bytes.
_Q2_K = np.dtype([("scales", "u1", 16), ("qs", "u1", (2, 32)), ("d", "<f2"), ("dmin", "<f2")])

Q2_K = block_format(
    "Q2_K", 10, 256, _Q2_K,
    codes=Numbers(plane(_Q2_K, "qs", 2, run=32, shifts=(0, 2, 4, 6))),
    group=16,
    scale=half(_Q2_K, "d"), scales=Numbers(plane(_Q2_K, "scales", 4, run=16)),
    minimum=half(_Q2_K, "dmin"), minima=Numbers(plane(_Q2_K, "scales", 4, run=16, shifts=(4,))),
    activation="q8k", quantizer="search", loss=0.33,
)  # fmt: skip


# Q3_K: 110 bytes for 256 weights, 3-bit codes around 4 in 16 groups with 6-bit scales around 32.
#
#     w = d * (s_j - 32) * (code - 4)        j = group of 16 weights
#
# The low two bits of the codes lie as in Q2_K. The third bit of weight 32 k + i is bit k of byte i of ``hmask``. The
# low four bits of the scales are the nibbles of the first eight bytes of ``packed``, all low nibbles first; the high
# two bits of scales 4 k .. 4 k + 3 are bits 2k, 2k+1 of its last four.
_Q3_K = np.dtype([("hmask", "u1", 32), ("qs", "u1", (2, 32)), ("packed", "u1", 12), ("d", "<f2")])

Q3_K = block_format(
    "Q3_K", 11, 256, _Q3_K,
    codes=Numbers(
        plane(_Q3_K, "qs", 2, run=32, shifts=(0, 2, 4, 6)), plane(_Q3_K, "hmask", 1, run=32, shifts=range(8)), zero=4
    ),
    group=16,
    scale=half(_Q3_K, "d"),
    scales=Numbers(
        plane(_Q3_K, "packed", 4, run=8, places=[(0, 0), (0, 4)]),
        plane(_Q3_K, "packed", 2, run=4, places=[(8, 0), (8, 2), (8, 4), (8, 6)]),
        zero=32,
    ),
    activation="q8k", loss=0.2,
)  # fmt: skip


# Q4_K: 144 bytes for 256 weights, 4-bit codes in 8 groups with 6-bit scales and minima (model.md 2.3).
#
#     w = d * s_j * code - dmin * m_j        j = group of 32 weights
#
# The 6-bit numbers of groups 0..3 lie in bytes 0..3 (scales) and 4..7 (minima); those of groups 4..7 take their low
# four bits from bytes 8..11 and their high two bits from the spare bits of the first eight bytes.
# Groups 2p and 2p+1 share 32 code bytes: low nibbles, then high nibbles.
_Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("qs", "u1", (4, 32))])


def packed_scales(layout: np.dtype) -> Numbers:
    """Declare the eight 6-bit scales in the 12-byte field ``packed``, which Q4_K and Q5_K have."""
    return Numbers(
        plane(layout, "packed", 4, run=4, places=[(0, 0), (8, 0)]),
        plane(layout, "packed", 2, run=4, places=[(0, 4), (0, 6)]),
    )


def packed_minima(layout: np.dtype) -> Numbers:
    """Declare the eight 6-bit minima in the 12-byte field ``packed``, which Q4_K and Q5_K have."""
    return Numbers(
        plane(layout, "packed", 4, run=4, places=[(4, 0), (8, 4)]),
        plane(layout, "packed", 2, run=4, places=[(4, 4), (4, 6)]),
    )


Q4_K = block_format(
    "Q4_K", 12, 256, _Q4_K,
    codes=Numbers(plane(_Q4_K, "qs", 4, run=32, shifts=(0, 4))),
    group=32,
    scale=half(_Q4_K, "d"), scales=packed_scales(_Q4_K),
    minimum=half(_Q4_K, "dmin"), minima=packed_minima(_Q4_K),
    activation="q8k", quantizer="search", loss=0.085,
)  # fmt: skip


# Q5_K: 176 bytes for 256 weights, 5-bit codes in 8 groups with 6-bit scales and minima.
#
#     w = d * s_j * code - dmin * m_j        j = group of 32 weights
#
# As Q4_K, with a fifth bit: that of weight 32 j + i is bit j of byte i of ``qh``.
_Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("qh", "u1", 32), ("qs", "u1", (4, 32))])

Q5_K = block_format(
    "Q5_K", 13, 256, _Q5_K,
    codes=Numbers(plane(_Q5_K, "qs", 4, run=32, shifts=(0, 4)), plane(_Q5_K, "qh", 1, run=32, shifts=range(8))),
    group=32,
    scale=half(_Q5_K, "d"), scales=packed_scales(_Q5_K),
    minimum=half(_Q5_K, "dmin"), minima=packed_minima(_Q5_K),
    activation="q8k", loss=0.045,
)  # fmt: skip


# Q6_K: 210 bytes for 256 weights, 6-bit codes around 32 in 16 groups with signed 8-bit scales.
#
#     w = d * s_j * (code - 32)        j = group of 16 weights
#
# Codes come in two halves of 128 weights = 4 runs of 32. Within a half the low four bits of runs 0 and 1 are the low
# nibbles of 64 bytes of ``ql``, those of runs 2 and 3 the high nibbles; the high two bits of run k are bits 2k, 2k+1
# of 32 bytes of ``qh``.
_Q6_K = np.dtype([("ql", "u1", (2, 64)), ("qh", "u1", (2, 32)), ("scales", "i1", 16), ("d", "<f2")])

Q6_K = block_format(
    "Q6_K", 14, 256, _Q6_K,
    codes=Numbers(
        plane(_Q6_K, "ql", 4, run=64, shifts=(0, 4)), plane(_Q6_K, "qh", 2, run=32, shifts=(0, 2, 4, 6)), zero=32
    ),
    group=16,
    scale=half(_Q6_K, "d"), scales=Numbers(plane(_Q6_K, "scales", 8, run=16), signed=True),
    activation="q8k", loss=0.02,
)  # fmt: skip


# IQ4_XS: 136 bytes for 256 weights, the levels of IQ4_NL in 8 groups with 6-bit scales around 32.
#
#     w = d * (s_j - 32) * LEVELS[code]        j = group of 32 weights
#
# The low four bits of scale j are nibble j of ``low``, its high two bits are bits 2j, 2j+1 of the 16-bit ``high``. The
# codes of a group lie as in Q4_0.
_IQ4_XS = np.dtype([("d", "<f2"), ("high", "u1", 2), ("low", "u1", 4), ("qs", "u1", (8, 16))])

IQ4_XS = block_format(
    "IQ4_XS", 23, 256, _IQ4_XS,
    codes=Numbers(plane(_IQ4_XS, "qs", 4, run=16, shifts=(0, 4))),
    small=LEVELS,
    group=32,
    scale=half(_IQ4_XS, "d"),
    scales=Numbers(
        plane(_IQ4_XS, "low", 4, run=1, shifts=(0, 4)), plane(_IQ4_XS, "high", 2, run=1, shifts=(0, 2, 4, 6)), zero=32
    ),
    activation="q8k", loss=0.09,
)  # fmt: skip


# TQ1_0: 54 bytes for 256 ternary weights, five base-3 digits a byte.
#
#     w = d * digit        digits -1, 0, 1
_TQ1_0 = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])

TQ1_0 = block_format(
    "TQ1_0", 34, 256, _TQ1_0,
    codes=Trits(((0, 32, 5), (32, 16, 5), (48, 4, 4))),
    scale=half(_TQ1_0, "d"),
    activation="q8k",
)  # fmt: skip


# TQ2_0: 66 bytes for 256 ternary weights, two bits each, which lie as in Q2_K.
#
#     w = d * (code - 1)
_TQ2_0 = np.dtype([("qs", "u1", (2, 32)), ("d", "<f2")])

TQ2_0 = block_format(
    "TQ2_0", 35, 256, _TQ2_0,
    codes=Numbers(plane(_TQ2_0, "qs", 2, run=32, shifts=(0, 2, 4, 6)), zero=1),
    scale=half(_TQ2_0, "d"),
    activation="q8k",
)  # fmt: skip
