"""Activation rounding of the vector kernels: the same bits as the formulas of docs/explanation/model.md 10.2."""

import numpy as np
import pytest

from ds4ref.kernels.cpu.simd import quantize_a8, quantize_q8k
from tests.kernels import reference

from .simd_cases import round_a8, round_q8k


def a8(x):
    x = np.ascontiguousarray(x, np.float32)
    codes, d = np.zeros(x.size, np.int8), np.zeros(x.size // 32, np.float32)
    quantize_a8(x.ctypes.data, x.size, codes.ctypes.data, d.ctypes.data)
    return codes, d


def q8k(x):
    x = np.ascontiguousarray(x, np.float32)
    codes, d = np.zeros(x.size, np.int8), np.zeros(x.size // 256, np.float32)
    sums = np.zeros(x.size // 16, np.int16)
    quantize_q8k(x.ctypes.data, x.size, codes.ctypes.data, d.ctypes.data, sums.ctypes.data)
    return codes, d, sums


def inputs(kind, n=8192):
    rng = np.random.default_rng(11)
    if kind == "normal":
        return rng.standard_normal(n)
    if kind == "wide":
        return rng.standard_normal(n) * 10.0 ** rng.integers(-25, 25, n)
    if kind == "ties":  # products that land on .5, where half-even shows
        x = (rng.integers(-253, 254, n) / 2).astype(np.float64)
        x[::32] = 127
        return x
    if kind == "both signs reach the maximum":
        x = rng.choice([-2.0, 2.0, 0.5, -0.25], n)
        return x
    x = rng.standard_normal(n)
    x[512:1100] = 0
    return x


KINDS = ["normal", "wide", "ties", "both signs reach the maximum", "zeros"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ours, formula", [(a8, round_a8), (q8k, round_q8k)], ids=["a8", "q8k"])
def test_bit_for_bit(ours, formula, kind):
    x = inputs(kind)
    for got, wanted in zip(ours(x), formula(x), strict=True):
        assert got.dtype == wanted.dtype
        assert (got.view(np.uint8) == wanted.view(np.uint8)).all()


def test_golden():
    """Golden values: what ds4's own function gave."""
    x = (3 * np.sin(0.37 * np.arange(512))).astype(np.float32)
    codes, d = a8(x)
    assert list(codes[:8]) == [0, 46, 86, 114, 127, 123, 102, 67]
    assert d[:2] == pytest.approx([0.0235387944, 0.0235636141], rel=1e-8)
    codes, d, sums = q8k(x)
    assert list(codes[:8]) == [0, -46, -86, -114, -126, -122, -101, -67]
    assert d == pytest.approx([-0.0236219876, -0.0236205067], rel=1e-8)
    assert list(sums[:4]) == [-46, -84, -113, -125]


@pytest.mark.parametrize("ours", [a8, q8k])
@pytest.mark.parametrize("scale", [1e-38, 1e-42, 1.5e-45])
def test_vanishing_blocks_round_to_zero_products(ours, scale):
    """Where 1/d is not finite the codes are zeros, instead of the undefined conversion of infinity."""
    codes, d, *_ = ours(np.linspace(-1, 1, 256) * scale)
    assert np.isfinite(d).all()
    assert (np.abs(codes * float(d[0])) <= 1.01 * scale).all()


@pytest.mark.parametrize("ours", [a8, q8k])
@pytest.mark.parametrize(
    "bad", [[np.nan], [np.inf], [-np.inf], [-np.inf, np.inf], [np.inf, np.nan], [np.nan, 0, -np.inf]]
)
def test_bad_values_mark_their_block(ours, bad):
    x = np.ones(1024)
    x[300 : 300 + len(bad)] = bad
    d = ours(x)[1]
    assert np.isnan(d).sum() == 1


@pytest.mark.parametrize("ours, formula", [(a8, "quantize_a8"), (q8k, "quantize_q8k")], ids=["a8", "q8k"])
@pytest.mark.parametrize(
    "some", [[np.nan], [np.inf], [-np.inf, np.inf], [np.nan, -np.inf], [1e-42, -1e-45], [3.4e38, -3.4e38], [0.0, -0.0]]
)
@pytest.mark.parametrize("rest", [0.0, 1.0])
def test_the_reference_treats_what_is_hardly_a_number_alike(ours, formula, some, rest):
    x = np.full(1024, rest, np.float32)
    x[300 : 300 + len(some)] = some
    for got, want in zip(ours(x), getattr(reference, formula)(x[None]), strict=True):
        assert got.dtype == want.dtype and np.array_equal(got, want[0], equal_nan=got.dtype.kind == "f")
