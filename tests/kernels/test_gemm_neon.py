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

DAILY = ("Q2_K", 8), ("Q4_K", 4)
PAIRS = [
    pytest.param(fmt, piece, marks=() if (fmt, piece) in DAILY else pytest.mark.thorough)
    for fmt in ("Q8_0", "Q2_K", "Q4_K", "IQ2_XXS")
    for piece in (4, 8)
]
"""Formats and bytes of a piece; those of every day have sub-scales in codes and apart, minima, both instructions."""


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


@pytest.mark.thorough
@pytest.mark.parametrize("fmt, piece", PAIRS)
def test_product(plain, fmt, piece):
    rng, gemm = np.random.default_rng(piece), neon_gemm(FORMATS[fmt], piece)
    block = FORMATS[fmt].block_elems
    for blocks, tokens, rows in ((1, 1, 1), (2, 2, 12), (3, 7, 13), (9, 132, 25)):
        raw, x = np.ascontiguousarray(random_rows(fmt, rows, blocks * block, rng)), inputs(tokens, blocks * block, rng)
        wanted, bound = exact(fmt, raw, x)
        got = product(gemm, raw, x)
        error = np.abs(got - wanted)
        assert (error <= bound).all(), f"{blocks, tokens, rows}: worst {np.max(error / bound):.2f} of the bound"
    for some in (slice(0, 1), slice(5, 8), slice(127, 130), slice(131, 132)):
        assert (product(gemm, raw, np.ascontiguousarray(x[some])) == got[some]).all()
    part = product(gemm, raw, x[:3], 4, 23)
    assert np.isnan(part[:, [*range(4), 23, 24]]).all() and (part[:, 4:23] == got[:3, 4:23]).all()


@pytest.mark.thorough
@pytest.mark.parametrize("fmt, piece", PAIRS)
def test_extreme_codes(plain, fmt, piece):
    """Sums of a block that reach their largest values are still exact."""
    for codes in (0x00, 0x7F, 0x80, 0xFF):
        raw = np.ascontiguousarray(random_rows(fmt, 4, 768, np.random.default_rng(codes), codes))
        x = np.stack([np.ones(768), -np.ones(768), np.where(np.arange(768) % 2, 1, -1)]).astype(np.float32)
        wanted, bound = exact(fmt, raw, x)
        assert (np.abs(product(neon_gemm(FORMATS[fmt], piece), raw, x) - wanted) <= 2 * bound).all()


def test_an_input_that_is_no_number_spoils_its_own_token_alone(plain):
    raw, x = np.ascontiguousarray(random_rows("Q2_K", 5, 512, np.random.default_rng(1))), np.ones((5, 512), np.float32)
    x[2, 300] = np.nan
    out = product(neon_gemm(FORMATS["Q2_K"], 8), raw, x)
    assert np.isnan(out[2]).all() and np.isfinite(np.delete(out, 2, axis=0)).all()
