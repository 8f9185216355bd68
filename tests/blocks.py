"""Random blocks of storage formats whose scales are no floating-point fields."""

from __future__ import annotations

import numpy as np


def set_scales(fmt: str, blocks: np.ndarray, rng: np.random.Generator, exponents: tuple[int, int] = (112, 122)) -> None:
    """Give blocks of a record dtype scales that real weights have; codes of F8_E4M3 that are NaN become numbers."""
    if fmt == "IQ1_M":  # top nibbles of the four words are d, 2^-7 to 2^-6
        blocks["scales"] = blocks["scales"] & 0x0FFF | np.array([0x3000, 0x9000, 0x0000, 0x2000], np.uint16)
    elif fmt == "NVFP4":
        blocks["scales"] = rng.integers(0x08, 0x20, blocks["scales"].shape)
    elif fmt.startswith("F8_E4M3_ROW"):
        blocks["scales"] = rng.integers(*exponents, blocks["scales"].shape)
    else:
        blocks["e"] = rng.integers(*exponents, blocks.shape)
    if fmt.startswith("F8_E4M3"):
        blocks["codes"][blocks["codes"] % 128 == 127] = 5
