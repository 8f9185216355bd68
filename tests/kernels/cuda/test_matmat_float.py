"""Products of many float inputs on tensor cores: every format, tiles that are not full, what is no number, errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda.products import dispatch, grouping, limbs
from ds4ref.kernels.cuda.products.decoding import straight
from ds4ref.kernels.cuda.products.plain import VALUE_BYTES
from ds4ref.kernels.cuda.products.units import UNITS
from ds4ref.kernels.formats import FORMATS, Matrix
from tests.marking import sampled

from .test_products import (
    FAILURE,
    REFERENCE,
    _nothing_is_kept,  # noqa: F401
    close,
    drawn,
    host,
    normal,
    placed,
    scratch,
    stream,
    unwritten,
    uploaded,
)

pytestmark = pytest.mark.cuda

ALL = [*UNITS, *VALUE_BYTES]
TOKENS = dispatch.MANY_TOKENS + 2


def length(fmt: str) -> int:
    """Inputs of a vector: an odd number of units where a format may have one."""
    return 256 if FORMATS[fmt].block_elems == 256 else 160


def multiplied(x: np.ndarray, w: Matrix) -> np.ndarray:
    """``linear`` of x (tokens, n) with float inputs."""
    out = unwritten(len(x) * w.rows)
    dispatch.linear(stream(), out, uploaded(x), placed(w), len(x), 1, "float", scratch=scratch)
    return host(out).reshape(len(x), w.rows)


@pytest.mark.parametrize("fmt", sampled(ALL, 3, pytest.mark.slow))
def test_tiles_that_are_not_full(fmt: str) -> None:
    """18 inputs of 64, 133 rows of 128 and 7 of the next, groups whose rows begin inside a tile."""
    n = length(fmt)
    w, x = drawn(fmt, 2 * 133, n), normal(TOKENS, 2, n)
    out = unwritten(2 * 133 * TOKENS)
    dispatch.linear(stream(), out, uploaded(x), placed(w), TOKENS, 2, "float", scratch=scratch)
    close(out, REFERENCE.grouped_linear(x, w))


@pytest.mark.parametrize("fmt", ["Q8_0", "BF16"])
def test_more_inputs_than_a_tile(fmt: str) -> None:
    w, x = drawn(fmt, 9, 96), normal(grouping.TILE + 17, 96)
    np.testing.assert_allclose(multiplied(x, w), REFERENCE.linear(x, w), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("fmt", list(VALUE_BYTES))
@pytest.mark.parametrize("n", [13, 75, 104])
def test_plain_weights_from_any_place(fmt: str, n: int) -> None:
    """Rows that start anywhere, and rows at multiples of 16 bytes that end inside a unit. What follows a row, and
    inputs that follow a vector, are the next one's."""
    w, x = drawn(fmt, 5, n), normal(TOKENS, n)
    np.testing.assert_allclose(multiplied(x, w), REFERENCE.linear(x, w), rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("fmt", sampled(["Q8_0", "Q2_K", "IQ2_XXS", "Q3_K", "F16", "F32"], 2, pytest.mark.slow))
def test_experts_by_tiles(fmt: str) -> None:
    """Expert 1 of 3 is wanted by nobody, expert 2 by more than a tile holds."""
    n, tokens, slots, experts = 256, 36, 2, 3
    w, mid = drawn(fmt, 3, n, experts), normal(tokens, slots, n)
    ids = np.full((tokens, slots), 2, np.int32)
    ids[::9, 0] = 0
    assert dispatch.worth_sorting(ids.size, experts)
    out, error = unwritten(3 * tokens), uploaded(np.zeros(1, np.int32))
    args = placed(w), tokens, slots, experts, "float", FAILURE
    dispatch.expert_sum(stream(), out, error, uploaded(mid), uploaded(ids), *args, scratch=scratch)
    close(out, REFERENCE.expert_sum(mid, ids, w))
    out = unwritten(3 * tokens * slots)
    dispatch.expert_linear(stream(), out, error, uploaded(mid[:, 0]), uploaded(ids), *args, scratch=scratch)
    close(out, REFERENCE.expert_linear(np.ascontiguousarray(mid[:, 0]), ids, w))
    assert host(error)[0] == 0
    ids[3, 1] = 3
    dispatch.expert_linear(stream(), out, error, uploaded(mid[:, 0]), uploaded(ids), *args, scratch=scratch)
    assert host(error)[0] == FAILURE


@pytest.mark.parametrize("fmt", ["Q8_0", "Q2_K", "F16", "BF16", "F32"])
def test_what_is_no_number_stays_with_its_vector(fmt: str) -> None:
    """An infinity, a NaN, and one whose upper half looks like an infinity; vectors beside them keep their bits."""
    n = length(fmt)
    w, x = drawn(fmt, 3, n), normal(TOKENS, n)
    clean = multiplied(x, w)
    x[1, 77], x[4, 3] = np.inf, np.nan
    x[9, 70] = np.array(0x7F800001, np.uint32).view(np.float32)
    got = multiplied(x, w)
    assert not np.isfinite(got[[1, 4, 9]]).any()
    others = np.setdiff1d(np.arange(TOKENS), [1, 4, 9])
    np.testing.assert_array_equal(got[others], clean[others])


@pytest.mark.parametrize("fmt", list(VALUE_BYTES))
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_weight_that_is_no_number_stays_in_its_row(fmt: str, value: float) -> None:
    w, x = drawn(fmt, 20, 96), normal(TOKENS, 96)
    values = w.data.view(FORMATS[fmt].layout)
    bits = np.array(value, np.float32)
    values[11, 40] = bits.view(np.uint32) >> 16 if fmt == "BF16" else bits
    got = multiplied(x, w)
    assert not np.isfinite(got[:, 11]).any()
    assert np.isfinite(np.delete(got, 11, axis=1)).all()


@pytest.mark.parametrize("fmt", ["Q4_K", "F16", "F32"])
@pytest.mark.parametrize("size", [3e35, 1e-33])
def test_inputs_near_both_ends_of_float32(fmt: str, size: float) -> None:
    w, x = drawn(fmt, 3, 256), normal(TOKENS, 256)
    x /= np.abs(x).max()
    x[2] = 0
    got = multiplied(x * np.float32(size), w)
    assert not got[2].any()
    want = w.dequantize().astype(np.float64) @ x.T.astype(np.float64)
    np.testing.assert_allclose(got.T / size, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [limbs.HALVES, limbs.BFLOATS])
def test_limbs_are_the_number(kind: limbs.Kind) -> None:
    """Added up they give it: within 2^-23 of it and 2^-39 of the largest for halves, exactly for bfloats."""
    n, count = 160, 3
    x = np.ldexp(normal(count, n), np.random.default_rng(0).integers(-30, 1, (count, n)))
    x[1] *= np.float32(1e30)
    x[2, 5] = 0
    flat, scales = limbs.pack(stream(), uploaded(x), count, n, kind, straight, 1, scratch)
    units = limbs.even_units(n)
    words = host(flat).view(np.uint16).reshape(count, units, kind.limbs, 4, 2, 4)
    if kind.scaled:
        values = words.view(np.float16).astype(np.float64)
    else:
        values = (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    whole = values.transpose(0, 1, 2, 4, 3, 5).reshape(count, units, kind.limbs, 32).sum(axis=2).reshape(count, -1)
    assert not whole[:, n:].any()
    if kind.scaled:
        up, down = host(scales).reshape(count, 2).T.astype(np.float64)
        np.testing.assert_array_equal(up * down, 1)
        largest = np.abs(whole).max(axis=1)
        assert (largest >= 2**14).all() and (largest <= 2**15).all()
        error = np.abs(whole[:, :n] * down[:, None] - x)
        assert (error <= np.maximum(np.abs(x) * 2.0**-23, np.abs(x).max(axis=1, keepdims=True) * 2.0**-39)).all()
    else:
        np.testing.assert_array_equal(whole[:, :n], x)


def errors(x: np.ndarray, w: Matrix) -> tuple[float, float, float]:
    """Differences to float64 over the sum of magnitudes: the largest and the rms of tiles, the rms of mat-vecs."""
    weights = w.dequantize().astype(np.float64)
    want, size = x.astype(np.float64) @ weights.T, np.abs(x).astype(np.float64) @ np.abs(weights).T
    tiles, one = (
        np.abs(values - want) / size
        for values in (multiplied(x, w), np.concatenate([multiplied(x[i : i + 1], w) for i in range(len(x))]))
    )
    return float(tiles.max()), float(np.sqrt((tiles**2).mean())), float(np.sqrt((one**2).mean()))


@contextlib.contextmanager
def cutting() -> Iterator[None]:
    """Matrix products lose low bits of their terms and cut their sums, as tensor cores may do."""
    from .lowering import fibers

    fibers.STATE[fibers.CUTTING] = 1
    yield
    fibers.STATE[fibers.CUTTING] = 0


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("fmt", ["Q8_0", "Q2_K", "Q6_K", "F16", "BF16", "F32"])
def test_errors_are_those_of_float32(fmt: str, cut: bool, cuda_driver: Any) -> None:
    """As those of the mat-vecs for one vector; also where tensor cores cut off and do not round."""
    if cut and cuda_driver is None:
        pytest.skip("the tensor cores of a GPU add in their own way")
    with cutting() if cut else contextlib.nullcontext():
        largest, rms, rms_one = errors(normal(TOKENS, 768), drawn(fmt, 4, 768))
    assert rms <= 2 * rms_one
    assert largest < 1e-7
