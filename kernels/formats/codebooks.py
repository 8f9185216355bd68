"""Formats whose blocks of 256 weights are stored as indices into a codebook (docs/explanation/model.md 2.3).

A codebook entry gives a group of 8 weights (an *octet*) or 4 weights (a *quad*).

The codebooks were found by clustering, so they are data (``codebooks.npz``), taken from gguf-py 0.19.0 and tested
against it: ``iq2_xxs`` (256, 8), ``iq2_xs`` (512, 8) and ``iq2_s`` (1024, 8): magnitudes 8, 25, 43; ``iq3_xxs`` (256,
4): 4 to 62; ``iq3_s`` (512, 4): 1 to 15; ``iq1`` (2048, 8): -1, 0, 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from .format import Codebook, Numbers, Plane, ScatteredHalf, block_format, half, plane

with np.load(Path(__file__).with_suffix(".npz")) as _tables:
    BOOKS: dict[str, np.ndarray] = dict(_tables)


def _fields(width: int, words: Iterable[int], shifts: Iterable[int]) -> Plane:
    """Declare numbers of ``width`` bits, which begin at each of the bits ``shifts`` of each word; ``words`` are the
    words' byte offsets in the block."""
    bits = tuple(shifts)
    return Plane(width, 1, tuple((word + bit // 8, bit % 8) for word in words for bit in bits))


# IQ2_XXS: 66 bytes, octets in 8 groups.
#
#     w = d * (0.5 + ls) / 4 * sign * magnitude        a group of 32 weights has a scale ls
#
# A group has the indices of four octets, one byte each, and a 32-bit word: four 7-bit sign numbers and, in its top four
# bits, ls. A sign number stands for eight signs with an even number of minuses: bit i set means weight i is negative,
# and the eighth bit is the parity of the seven stored ones.
_IQ2_XXS = np.dtype([("d", "<f2"), ("groups", [("index", "u1", 4), ("word", "<u4")], 8)])
_GROUPS = range(2, 66, 8)
_OCTETS = Codebook(
    BOOKS["iq2_xxs"],
    index=Numbers(Plane(8, 4, tuple((group, 0) for group in _GROUPS))),
    signs=Numbers(_fields(7, (group + 4 for group in _GROUPS), (0, 7, 14, 21))),
)

MAGNITUDES = (8, 25, 43)
GRID = _OCTETS.grid
"""The codebook of IQ2_XXS: the magnitudes of eight weights for each index, uint8 (256, 8)."""
SIGNS = _OCTETS.sign_table
"""The eight signs, +1 or -1, that each 7-bit sign number of IQ2_XXS stands for, int8 (128, 8)."""

IQ2_XXS = block_format(
    "IQ2_XXS", 16, 256, _IQ2_XXS,
    codes=_OCTETS,
    group=32,
    scale=half(_IQ2_XXS, "d", factor=0.125),
    scales=Numbers(_fields(4, (group + 4 for group in _GROUPS), (28,)), times=2, zero=-1),
    activation="q8k", quantizer="search", loss=0.45,
)  # fmt: skip


# IQ2_XS: 74 bytes, octets in 16 groups.
#
#     w = d * (0.5 + s_j) / 4 * sign * magnitude        j = group of 16 weights
#
# Word k of ``qs`` holds the index of octet k in its low 9 bits, and above them seven signs as in IQ2_XXS. Scale j is
# nibble j of ``scales``.
_IQ2_XS = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
_WORDS = range(2, 66, 2)

IQ2_XS = block_format(
    "IQ2_XS", 17, 256, _IQ2_XS,
    codes=Codebook(
        BOOKS["iq2_xs"],
        index=Numbers(_fields(8, _WORDS, (0,)), _fields(1, _WORDS, (8,))),
        signs=Numbers(_fields(7, _WORDS, (9,))),
    ),
    group=16,
    scale=half(_IQ2_XS, "d", factor=0.125),
    scales=Numbers(plane(_IQ2_XS, "scales", 4, run=1, shifts=(0, 4)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip


# IQ2_S: 82 bytes, octets in 16 groups, as IQ2_XS.
#
# Octet k has index ``qs[k]``, with bits 2 (k mod 4) and the next of ``qh[k / 4]`` above it; bit i of ``signs[k]`` is
# set if weight i is negative.
_IQ2_S = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)])

IQ2_S = block_format(
    "IQ2_S", 22, 256, _IQ2_S,
    codes=Codebook(
        BOOKS["iq2_s"],
        index=Numbers(plane(_IQ2_S, "qs", 8, run=32), plane(_IQ2_S, "qh", 2, run=1, shifts=(0, 2, 4, 6))),
        signs=Numbers(plane(_IQ2_S, "signs", 8, run=32)),
    ),
    group=16,
    scale=half(_IQ2_S, "d", factor=0.125),
    scales=Numbers(plane(_IQ2_S, "scales", 4, run=1, shifts=(0, 4)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip


# IQ3_XXS: 98 bytes, quads in 8 groups.
#
#     w = d * (0.5 + s_j) / 2 * sign * magnitude        j = group of 32 weights
#
# Word j of ``words`` is that of IQ2_XXS: four 7-bit numbers for signs, and the scale in its top four bits.
_IQ3_XXS = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("words", "<u4", 8)])

IQ3_XXS = block_format(
    "IQ3_XXS", 18, 256, _IQ3_XXS,
    codes=Codebook(
        BOOKS["iq3_xxs"],
        index=Numbers(plane(_IQ3_XXS, "qs", 8, run=64)),
        signs=Numbers(_fields(7, range(66, 98, 4), (0, 7, 14, 21))),
    ),
    group=32,
    scale=half(_IQ3_XXS, "d", factor=0.25),
    scales=Numbers(_fields(4, range(66, 98, 4), (28,)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip


# IQ3_S: 110 bytes, quads in 8 groups.
#
#     w = d * (1 + 2 s_j) * sign * magnitude        j = group of 32 weights
#
# Quad q has index ``qs[q]``, with bit q mod 8 of ``qh[q / 8]`` above it; the bits of ``signs`` are those of the
# weights, one after the other. Scale j is nibble j of ``scales``.
_IQ3_S = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])

IQ3_S = block_format(
    "IQ3_S", 21, 256, _IQ3_S,
    codes=Codebook(
        BOOKS["iq3_s"],
        index=Numbers(plane(_IQ3_S, "qs", 8, run=64), plane(_IQ3_S, "qh", 1, run=1, shifts=range(8))),
        signs=Numbers(plane(_IQ3_S, "signs", 8, run=32)),
    ),
    group=32,
    scale=half(_IQ3_S, "d"),
    scales=Numbers(plane(_IQ3_S, "scales", 4, run=1, shifts=(0, 4)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip


# IQ1_S: 50 bytes, octets of -1, 0 and 1 in 8 groups.
#
#     w = d * (2 s_j + 1) * (value +- 1/8)        j = group of 32 weights
#
# Word j of ``qh`` holds 3 more bits for the index of each of its four octets, the scale in bits 12 to 14, and in bit 15
# whether 1/8 is subtracted. The codebook here is eight times ggml's, so that values are integers, and the scale an
# eighth.
_IQ1_S = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
_WORDS = range(34, 50, 2)

IQ1_S = block_format(
    "IQ1_S", 19, 256, _IQ1_S,
    codes=Codebook(
        BOOKS["iq1"] * 8,
        index=Numbers(plane(_IQ1_S, "qs", 8, run=32), _fields(3, _WORDS, (0, 3, 6, 9))),
        shift=Numbers(_fields(1, _WORDS, (15, 15, 15, 15))),
    ),
    group=32,
    scale=half(_IQ1_S, "d", factor=0.125),
    scales=Numbers(_fields(3, _WORDS, (12,)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip


# IQ1_M: 56 bytes, the codebook of IQ1_S in 16 groups, without a field for d.
#
# Nibble k of ``qh`` holds 3 more bits for the index of octet k, and in its top bit whether 1/8 is subtracted. Word
# j / 4 of ``scales`` holds scale j at bit 3 (j mod 4); the top nibbles of the four words are d, lowest first.
_IQ1_M = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])

IQ1_M = block_format(
    "IQ1_M", 29, 256, _IQ1_M,
    codes=Codebook(
        BOOKS["iq1"] * 8,
        index=Numbers(plane(_IQ1_M, "qs", 8, run=32), plane(_IQ1_M, "qh", 3, run=1, shifts=(0, 4))),
        shift=Numbers(plane(_IQ1_M, "qh", 1, run=1, shifts=(3, 7))),
    ),
    group=16,
    scale=ScatteredHalf((49, 51, 53, 55), factor=0.125),
    scales=Numbers(_fields(3, range(48, 56, 2), (0, 3, 6, 9)), times=2, zero=-1),
    activation="q8k",
)  # fmt: skip
