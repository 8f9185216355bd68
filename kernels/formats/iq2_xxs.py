"""IQ2_XXS: 66 bytes for 256 weights, 2.06 bits each (docs/explanation/model.md 2.3).

Eight groups of 32 weights. A group has four one-byte indices into a codebook of 256 octets of magnitudes
(8, 25 or 43) and one 32-bit word: four 7-bit sign indices and, in its top four bits, the group's scale ls.

    w = d * (0.5 + ls) * 0.25 * sign * magnitude

A sign index stands for eight signs with an even number of minuses: bit i set means weight i is negative, and the
eighth bit is the parity of the seven stored ones.
"""

from __future__ import annotations

import numpy as np

from .format import Codebook, Numbers, Plane, block_format, half

BLOCK = np.dtype([("d", "<f2"), ("groups", [("index", "u1", 4), ("word", "<u4")], 8)])

MAGNITUDES = (8, 25, 43)

# The codebook: entry e as a hexadecimal word whose bits 2i, 2i+1 select the magnitude of weight i.
_CODEBOOK = """
    0000 0002 0005 0008 000a 0011 0014 0020 0022 0028 002a 0041 0044 0050 0058 0061
    0064 0080 0082 008a 00a2 0101 0104 0110 0115 0140 0184 0198 0200 0202 0222 0282
    0401 0404 0410 0421 0424 0440 0442 0448 0460 0481 0484 0490 04a4 0500 0502 0508
    0520 0546 0569 0580 0591 0609 0610 0640 0684 06a4 0800 0805 0808 0814 0828 0841
    0844 0850 0852 0888 0904 0940 0a02 0a14 1001 1004 1010 1021 1040 1060 1084 1090
    1095 1100 1108 1120 1150 115a 1180 1224 1245 1400 1408 1420 1425 1449 1480 1518
    1562 1600 1616 1801 1804 1810 1840 1881 1900 1905 19a0 1a51 2000 2002 200a 2044
    2061 2080 2082 2129 2148 2200 2202 2401 2404 2410 2440 2456 2500 2541 2564 2690
    2808 2820 2894 2a44 4001 4004 4010 4018 4021 4024 4040 4048 4056 4060 4081 4084
    4090 4100 4120 4161 4180 4185 4201 4210 4248 4256 4268 4400 4408 4420 4480 4499
    4512 4524 4600 4801 4804 4810 4840 4845 4900 4958 4961 4982 4a45 4a90 5000 5008
    5011 5019 5020 5080 5088 5104 5142 51a4 5291 5490 5492 550a 5601 5654 5800 5811
    5819 5864 5940 5a08 6004 6010 6040 6068 6100 6155 6218 6260 6400 6405 6510 6512
    6584 6842 8000 8002 800a 8041 8082 8104 8118 8140 8211 8401 8404 8410 8415 8440
    8460 8500 8546 8594 8609 8640 8660 8802 8904 8a11 9004 9010 9024 9040 90a1 9116
    9180 9245 9400 9422 9444 9551 9881 9920 a002 a050 a085 a109 a200 a418 a850 a904
"""


def _grid() -> np.ndarray:
    words = np.array([int(word, 16) for word in _CODEBOOK.split()], np.uint16)
    return np.array(MAGNITUDES, np.uint8)[(words[:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3]


CODEBOOK = Codebook(
    grid=_grid(),
    index=Numbers(Plane(8, 4, tuple((2 + 8 * group, 0) for group in range(8)))),
    signs=Numbers(
        Plane(7, 1, tuple((6 + 8 * group + bit // 8, bit % 8) for group in range(8) for bit in (0, 7, 14, 21)))
    ),
)
GRID = CODEBOOK.grid  # uint8 (256, 8): magnitudes of a codebook entry
SIGNS = CODEBOOK.sign_table  # int8 (128, 8): +1 or -1

IQ2_XXS = block_format(
    "IQ2_XXS", 16, 256, BLOCK,
    codes=CODEBOOK,
    group=32,
    scale=half(BLOCK, "d", factor=0.125),
    scales=Numbers(Plane(4, 1, tuple((9 + 8 * group, 4) for group in range(8))), times=2, zero=-1),
    activation="q8k", quantizer="search", loss=0.45,
)  # fmt: skip
