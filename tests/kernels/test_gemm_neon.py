"""The int8 tiles of tier N on any processor: their instruction written out in plain vector operations.

With the instruction itself they run under emulation (``make arm``).
"""

import numpy as np
import pytest

from ds4ref.kernels.cpu.simd import neon
from ds4ref.kernels.cpu.simd.gemm import neon_gemm
from ds4ref.kernels.cpu.simd.vec import Vec
from ds4ref.kernels.formats import FORMATS

from .simd_cases import random_rows, rounded
from .test_simd_gemm import inputs, product


def plain_dots_16(k, total, a, b):
    products = a.sext(Vec("i32", 16)) * b.sext(Vec("i32", 16))
    for i in range(4):
        total = total + products.shuffle(range(i, 16, 4))
    return total


@pytest.mark.thorough
@pytest.mark.parametrize("fmt", ["Q8_0", "Q2_K", "Q4_K", "IQ2_XXS"])
def test_tiles_of_tier_n(monkeypatch, fmt):
    """Odd sizes against float64, largest sums of a block, and an input that is no number spoils its own token alone."""
    monkeypatch.setattr(neon, "dots_16", plain_dots_16)
    kind, rng = FORMATS[fmt], np.random.default_rng(4)
    gemm = neon_gemm(kind)

    def multiplied(raw, x):
        weights = kind.dequantize(raw).astype(np.float64)
        values = np.stack([rounded(kind.activation, row) for row in x])
        bound = 3e-7 * np.abs(values).sum(axis=1)[:, None] * np.abs(weights).max(axis=1) + 1e-37
        got = product(gemm, raw, x)
        assert (np.abs(got - values @ weights.T) <= 2 * bound).all()
        return got

    for blocks, tokens, rows in ((1, 1, 1), (2, 2, 12), (3, 7, 13), (9, 132, 25)):
        n = blocks * kind.block_elems
        raw, x = np.ascontiguousarray(random_rows(fmt, rows, n, rng)), inputs(tokens, n, rng)
        got = multiplied(raw, x)
    for some in (slice(0, 1), slice(5, 8), slice(127, 130)):
        assert (product(gemm, raw, np.ascontiguousarray(x[some])) == got[some]).all()
    part = product(gemm, raw, x[:3], 4, 23)
    assert np.isnan(part[:, [*range(4), 23, 24]]).all() and (part[:, 4:23] == got[:3, 4:23]).all()
    for codes in (0x00, 0x7F, 0x80, 0xFF):
        raw = np.ascontiguousarray(random_rows(fmt, 4, 768, rng, codes))
        x = np.stack([np.ones(768), -np.ones(768), np.where(np.arange(768) % 2, 1, -1)]).astype(np.float32)
        multiplied(raw, x)
    x[2, 300] = np.nan
    out = product(gemm, raw, x)
    assert np.isnan(out[2]).all() and np.isfinite(out[:2]).all()
