"""Roundings of values that are not finite, or hardly: the compiled ops give the reference's bits, NaN for NaN."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.kernels.formats import Matrix
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
    "halves of codes": [127.0, *np.arange(-3.5, 4)],
    "equal magnitudes": [7.5, -7.5, 7.5, 2.0],
}
WIDE = np.random.default_rng(2).standard_normal(512) * 10.0 ** np.random.default_rng(3).integers(-25, 25, 512)


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, signs of zeros too; a NaN equals any NaN."""
    assert got.shape == want.shape and got.dtype == want.dtype
    if got.dtype.kind == "f":
        assert np.array_equal(np.isnan(got), np.isnan(want))
        got, want = (np.where(np.isnan(want), 0, each).view(np.uint32) for each in (got, want))
    assert np.array_equal(got, want)


def rows(values: list[float], n: int = 128) -> np.ndarray:
    """Rows of blocks around ``values``: alone among ones, alone among zeros, in the last block, filling."""
    x = np.zeros((4, n), np.float32)
    x[0] = np.random.default_rng(1).standard_normal(n)
    x[0, 5 : 5 + len(values)] = x[1, 17 : 17 + len(values)] = x[2, n - len(values) :] = values
    x[3] = np.resize(np.float32(values), n)
    return x


NAMES = ["round_e4m3", "round_e2m1", "round_f16", "round_i8", "hadamard", "quantize_a8", "quantize_q8k"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [*SPECIAL, *FINITE, "wide"])
def test_parity(name: str, kind: str):
    x = WIDE.astype(np.float32)[None] if kind == "wide" else rows((SPECIAL | FINITE)[kind], 512)
    with np.errstate(all="ignore"):
        found, wanted = (
            (out if isinstance(out, tuple) else (out,))
            for out in (getattr(ops, name)(x[:, :128] if name == "hadamard" else x) for ops in (cpu, reference))
        )
    for got, want in zip(found, wanted, strict=True):
        assert_same_bits(got, want)


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


def test_every_half_and_what_lies_between():
    """In instructions where the processor has them, in integers where not (tier C, ``test_simd_tiers``)."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    edges = np.float32([65504, 65519.99, 65520, 65536, 3e38, INF, 2.0**-24, 2.0**-25, 1e-45])
    with np.errstate(all="ignore"):
        x = np.concatenate([halves, (halves[:-1] + halves[1:]) / 2, edges, -edges])
        x = np.concatenate([x, np.nextafter(x, np.float32(INF)), np.nextafter(x, np.float32(-INF))])
        assert_same_bits(cpu.round_f16(x), x.astype(np.float16).astype(np.float32))
        stored, one = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2), np.ones((1, 1), np.float32)
        assert_same_bits(cpu.linear(one, Matrix("F16", stored, len(halves), 1))[0] + 0, halves + 0)
