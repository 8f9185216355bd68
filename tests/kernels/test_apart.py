"""Weights whose codes and scales lie apart: the same as rows that hold both, at any address."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.formats import APART, ApartRows, Matrix
from ds4ref.kernels.formats.apart import FP4, FP8, FP8_32, FP8_ROWS, Apart
from ds4ref.kernels.formats.f8_e4m3 import E4M3, E8M0
from tests.kernels import cpu, reference

LAYOUTS = list(APART.values())
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
NAMES = [layout.name for layout in LAYOUTS]


def scattered(data: np.ndarray, at: int) -> np.ndarray:
    """The same bytes at an address that is ``at`` beyond a multiple of 64, the byte behind them NaN as scale and
    code."""
    room = np.full(data.nbytes + 256, 255, np.uint8)
    start = -room.ctypes.data % 64 + at
    placed = room[start : start + data.nbytes].reshape(data.shape)
    placed[:] = data
    return placed


def drawn(layout: Apart, rows: int, cols: int, experts: int = 0, seed: int = 1) -> ApartRows:
    """Random codes, no NaN among them, with ordinary scales, each matrix somewhere else."""
    rng = np.random.default_rng(seed)
    codes, scales = [], []
    for number in range(experts or 1):
        some = rng.integers(0, 256, (rows, cols // layout.codes.block_elems * layout.codes.block_bytes), dtype=np.uint8)
        if layout is not FP4:
            some[some % 128 == 127] = 5
        codes.append(scattered(some, 7 * number % 64 + 1))
        high = -(-rows // layout.high)
        several = rng.integers(112, 122, (high, cols // layout.codes.block_elems), dtype=np.uint8)
        scales.append(scattered(several, 13 * number % 64 + 3))
    return ApartRows(layout, codes, scales, experts > 0)


def weights(data: ApartRows) -> np.ndarray:
    """The values of one matrix, one by one, by the formats' own tables."""
    codes, scales = data.codes[0], data.scales[0]
    if data.layout is not FP4:
        high, wide = {FP8: (128, 128), FP8_32: (32, 32), FP8_ROWS: (1, 32)}[data.layout]
        return np.array([
            [E4M3.table[code] * E8M0.table[scales[r // high, c // wide]] for c, code in enumerate(row)]
            for r, row in enumerate(codes)
        ], np.float64)  # fmt: skip
    nibbles = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)
    return E2M1[nibbles] * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=1)


def pair(layout: Apart, rows: int, cols: int, experts: int = 0, seed: int = 1) -> tuple[Matrix, Matrix]:
    """A matrix or stack in place, and its copy in the joined format."""
    data = drawn(layout, rows, cols, experts, seed)
    name = layout.joined.name
    return Matrix(name, data, rows, cols), Matrix(name, np.asarray(data), rows, cols)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- the bytes


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
@pytest.mark.parametrize("rows", [1, 127, 129, 300])
def test_values_are_those_of_the_formats(layout: Apart, rows: int) -> None:
    data = drawn(layout, rows, 256)
    want = weights(data)
    np.testing.assert_array_equal(data.dequantize(), want)
    np.testing.assert_array_equal(layout.joined.dequantize(np.asarray(data)), want)


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_what_indexing_gives(layout: Apart) -> None:
    """It is an array of joined rows, except that one matrix of a stack stays where it is."""
    data = drawn(layout, 130, 256, experts=4)
    whole = np.asarray(data)
    assert data.shape == whole.shape == (4, 130, layout.joined.row_bytes(256)) and data.ndim == 3
    assert data.nbytes == sum(part.nbytes for part in (*data.codes, *data.scales)) <= whole.nbytes
    one = data[2]
    assert isinstance(one, ApartRows) and one.codes[0] is data.codes[2] and one.scales[0] is data.scales[2]
    np.testing.assert_array_equal(np.asarray(one), whole[2])
    np.testing.assert_array_equal(np.asarray(data[-1]), whole[3])
    with pytest.raises(IndexError):
        data[4]
    np.testing.assert_array_equal(data[[3, 1]], whole[[3, 1]])
    np.testing.assert_array_equal(one[126:129], whole[2, 126:129])
    ids = np.array([[129, 0], [128, 129]])
    np.testing.assert_array_equal(one.take(ids, axis=0), whole[2][ids])
    np.testing.assert_array_equal(one[ids[0]], whole[2][ids[0]])
    with pytest.raises(ValueError, match="rows of one matrix"):
        data.take(ids)


def test_what_does_not_fit_is_refused() -> None:
    data = drawn(FP8, 129, 256)
    for codes, scales in (
        (data.codes[0], data.scales[0][:1]), (data.codes[0], data.scales[0][:, :1]),
        (data.codes[0], data.scales[0].view(np.int8)), (data.codes[0][:, ::2], data.scales[0]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="contiguous bytes"):
            ApartRows(FP8, [codes], [scales], False)
    with pytest.raises(ValueError, match="weights are not MXFP4"):
        cpu.linear(normal(1, 1, 256), Matrix("MXFP4", data, 129, 256))
    with pytest.raises(ValueError, match="no F8_E4M3 weights of 128 x 256"):
        cpu.linear(normal(1, 1, 256), Matrix("F8_E4M3", data, 128, 256))


# ---- ops


@pytest.mark.parametrize("ops", [cpu, reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_ops_are_those_of_joined_rows(ops: Any, layout: Apart) -> None:
    """To the bit, by row kernels and by tiles, in parts of a tile, whatever the inputs are rounded to."""
    for rows, cols in ((37, 512), (259, 256), *(() if layout is FP8 else ((7, 96), (7, 160)))):
        apart, joined = pair(layout, rows, cols)
        for tokens in (1, 3, 8, 17):
            x = normal(tokens, tokens, cols)
            for act in ("float", "a8", *["q8k"] * (cols % 256 == 0)):
                np.testing.assert_array_equal(ops.linear(x, apart, act), ops.linear(x, joined, act))
    apart, joined = pair(layout, 3 * 130, 128)
    x, ids = normal(1, 2, 3, 128), np.array([389, 0, 128], np.int32)
    np.testing.assert_array_equal(ops.grouped_linear(x, apart), ops.grouped_linear(x, joined))
    np.testing.assert_array_equal(ops.embed(apart, ids), ops.embed(joined, ids))
    up, up_joined = pair(layout, 70, 256, experts=11)
    down, down_joined = pair(layout, 45, 128, experts=11, seed=2)
    for tokens in (1, 5, 24):  # not all experts: a used one's place is not its number
        ids = np.random.default_rng(tokens).choice(np.array([1, 2, 4, 5, 6, 8, 10], np.int32), (tokens, 6))
        x, mid = normal(5, tokens, 256), normal(6, tokens, 6, 128)
        np.testing.assert_array_equal(ops.expert_linear(x, ids, up), ops.expert_linear(x, ids, up_joined))
        np.testing.assert_array_equal(ops.expert_sum(mid, ids, down), ops.expert_sum(mid, ids, down_joined))
        ops.advise(ids, up)


def test_a_recording_reads_them_in_place() -> None:
    w, _ = pair(FP8, 260, 256)
    recording = CPU(2).record()
    ids, seen = np.array([7], np.int32), []
    recording.seal(recording.linear(recording.embed(w, ids), w, "float"))
    for _ in range(2):
        recording.replay()
        np.testing.assert_array_equal(recording.outputs[0], cpu.linear(cpu.embed(w, ids), w))
        seen.append(recording.outputs[0].copy())
        w.data.codes[0][7, 3] = w.data.codes[0][200, 9] = 0x7E  # the greatest
    assert (seen[0][0, [7, 200]] != seen[1][0, [7, 200]]).all()


@pytest.mark.parametrize("ops", [cpu, reference], ids=["cpu", "reference"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
@pytest.mark.parametrize("tokens", [1, 9])
def test_a_nan_scale_is_nan_and_no_other_row_s(ops: Any, layout: Apart, tokens: int) -> None:
    """255 in E8M0; the least scale is a number."""
    data = drawn(layout, 300, 256)
    data.scales[0][1, 1], data.scales[0][0, 0] = 255, 0
    out = ops.linear(normal(1, tokens, 256), Matrix(layout.joined.name, data, 300, 256))
    rows = np.arange(300) // layout.high == 1
    assert np.isnan(out[:, rows]).all() and np.isfinite(out[:, ~rows]).all()
    if layout is not FP4:
        data.scales[0][:] = 120
        data.codes[0][3, 200] = 0xFF
        out = ops.linear(normal(1, tokens, 256), Matrix(layout.joined.name, data, 300, 256))
        assert np.isnan(out[:, 3]).all() and np.isfinite(np.delete(out, 3, axis=1)).all()
