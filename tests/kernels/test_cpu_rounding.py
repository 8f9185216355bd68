"""Roundings of values that are not finite, or hardly: the compiled ops give the reference's bits, NaN for NaN."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels import cpu, reference

INF, NAN = np.inf, np.nan
SPECIAL = {
    "infinity": [INF],
    "minus infinity": [-INF],
    "NaN": [NAN],
    "both infinities": [INF, -INF],
    "infinity and NaN": [INF, NAN],
    "NaN and infinity": [NAN, -INF],
    "everything": [INF, 0.0, -0.0, 1e-45, -NAN, -INF, 3e38, 1.0],
}
FINITE = {
    "zeros": [0.0, -0.0],
    "subnormals": [1e-45, -3e-45, 1.1e-38, -1e-39, 0.0],
    "the largest": [3.4028235e38, -3.4028235e38, 1.0],
    "mixed sizes": [3e38, 1.0, -1e-38, 1e-45, -0.0],
    "near binary16": [65504.0, 65519.9, 65520.0, -65536.0, 6e-8, 2.9e-8, 3e-8, -6.1e-5],
}


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, signs of zeros too; a NaN equals any NaN."""
    assert got.shape == want.shape and got.dtype == want.dtype
    assert np.array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    assert np.array_equal(got[numbers].view(np.uint32), want[numbers].view(np.uint32))


def rows(values: list[float]) -> np.ndarray:
    """Rows of two blocks of 64 around ``values``: alone among ones, alone among zeros, in the second block, filling."""
    x = np.zeros((4, 128), np.float32)
    x[0] = np.random.default_rng(1).standard_normal(128)
    x[0, 5 : 5 + len(values)] = x[1, 17 : 17 + len(values)] = x[2, 128 - len(values) :] = values
    x[3] = np.resize(np.float32(values), 128)
    return x


@pytest.mark.parametrize("name", ["round_e4m3", "round_e2m1", "round_f16", "round_i8", "hadamard"])
@pytest.mark.parametrize("kind", SPECIAL | FINITE)
def test_parity(name: str, kind: str):
    x = rows((SPECIAL | FINITE)[kind])
    with np.errstate(all="ignore"):
        want = getattr(reference, name)(x)
    assert_same_bits(getattr(cpu, name)(x), want)


@pytest.mark.parametrize("ops", [cpu, reference], ids=["cpu", "reference"])
@pytest.mark.parametrize(("name", "block"), [("round_e4m3", 64), ("round_e2m1", 32), ("round_i8", 64)])
@pytest.mark.parametrize("kind", SPECIAL)
def test_a_block_that_is_not_finite_becomes_nan_and_its_neighbours_do_not(ops, name: str, block: int, kind: str):
    x = rows(SPECIAL[kind])
    got = getattr(ops, name)(x).reshape(4, -1, block)
    bad = ~np.isfinite(x).reshape(4, -1, block).all(axis=-1)
    assert bad.any() and not bad.all()
    assert np.isnan(got[bad]).all() and np.isfinite(got[~bad]).all()


@pytest.mark.parametrize("ops", [cpu, reference], ids=["cpu", "reference"])
def test_int8_in_groups_is_that_of_runq(ops):
    """Its quantize(): the scale is amax / 127, C's round takes halves away from zero; a group of zeros stays."""
    x = np.zeros((1, 24), np.float32)
    x[0, :8] = [127, 0.5, -0.5, 1.5, -2.5, 2.49, -126.5, 0.49999997]
    x[0, 16:20] = [-254, 1, 3, -1]
    wanted = [127, 1, -1, 2, -3, 2, -127, 0, *[0] * 8, -254, 2, 4, -2, *[0] * 4]
    assert ops.round_i8(x, 8).tolist() == [wanted]
    assert not np.signbit(ops.round_i8(x, 8)[0, 7:16]).any()


def test_of_equal_magnitudes_the_first_decides_the_sign_of_a_scale():
    x = np.random.default_rng(3).standard_normal((7, 1024)).astype(np.float32)
    x[2, :256] = 0
    x[3, 40:60] = np.float32([7.5, -7.5] * 10)
    for name in ("quantize_a8", "quantize_q8k"):
        for got, want in zip(getattr(cpu, name)(x), getattr(reference, name)(x), strict=True):
            assert np.array_equal(got, want), name
