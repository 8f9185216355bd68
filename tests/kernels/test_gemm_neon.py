"""The int8 tiles of tiers N and I on any processor: their two instructions written out in plain vector operations.

With the instructions themselves they run under emulation (``make arm``); the machine code: ``test_neon_code``.
"""

import numpy as np
import pytest

from ds4ref.kernels.cpu.simd import neon
from ds4ref.kernels.cpu.simd.gemm import neon_gemm
from ds4ref.kernels.cpu.simd.vec import I32x4, Vec
from ds4ref.kernels.formats import FORMATS

from .simd_cases import random_rows, rounded
from .test_simd_gemm import inputs, product

PAIRS = [(fmt, piece) for fmt in ("Q8_0", "Q2_K", "Q4_K", "IQ2_XXS") for piece in (4, 8)]


def sums_of_eight(k, a, b, first, second):
    """The sum of the products of eight bytes of each vector, from ``first`` and ``second`` on."""
    wide = (v.shuffle(range(at, at + 8)).sext(Vec("i32", 8)) for v, at in ((a, first), (b, second)))
    return k.fold(next(wide) * next(wide), lambda x, y: x + y)


def plain_dots_16(k, total, a, b):
    products = a.sext(Vec("i32", 16)) * b.sext(Vec("i32", 16))
    for i in range(4):
        total = total + products.shuffle(range(i, 16, 4))
    return total


def plain_dots_2x2(k, total, a, b):
    sums = [sums_of_eight(k, a, b, first, second) for first in (0, 8) for second in (0, 8)]
    return total + k.gather(I32x4, sums)


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(neon, "dots_16", plain_dots_16)
    monkeypatch.setattr(neon, "dots_2x2", plain_dots_2x2)


def exact(fmt, raw, x):
    """Products in float64 of rounded inputs, and the bound of their errors."""
    kind = FORMATS[fmt]
    weights = kind.dequantize(raw).astype(np.float64)
    values = np.stack([rounded(kind.activation, row) for row in x])
    return values @ weights.T, 3e-7 * np.abs(values).sum(axis=1)[:, None] * np.abs(weights).max(axis=1) + 1e-37


@pytest.mark.parametrize("fmt, piece", PAIRS)
def test_product(plain, fmt, piece):
    rng = np.random.default_rng(piece)
    block = max(FORMATS[fmt].block_elems, 32)
    for blocks, tokens, rows in ((1, 1, 1), (2, 2, 12), (3, 7, 13), (9, 132, 25)):
        raw, x = np.ascontiguousarray(random_rows(fmt, rows, blocks * block, rng)), inputs(tokens, blocks * block, rng)
        wanted, bound = exact(fmt, raw, x)
        got = product(neon_gemm(FORMATS[fmt], piece), raw, x)
        error = np.abs(got - wanted)
        assert (error <= bound).all(), f"{blocks, tokens, rows}: worst {np.max(error / bound):.2f} of the bound"
