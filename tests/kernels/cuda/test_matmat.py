"""Products of many integer inputs on tensor cores: edges of tiles, of rows and of steps, the largest sums, what is no
number."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.kernels.cuda.products import dispatch, grouping, matmat
from ds4ref.kernels.cuda.products.staging import ROWS
from ds4ref.kernels.cuda.products.units import UNITS
from ds4ref.kernels.formats import FORMATS, Matrix

from .test_products import (
    FAILURE,
    REFERENCE,
    TILED,
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

TOKENS = dispatch.MANY_TOKENS + 2
QUICK = "Q8_0", "Q2_K", "Q3_K", "IQ2_XXS"
"""One format of each way to multiply, and the one with tables."""
EACH = [fmt if fmt in QUICK else pytest.param(fmt, marks=pytest.mark.slow) for fmt in TILED]
SIZES = (1, 0, 7, 8, 9, 63, 64, 65)
"""Pairs of each expert: none, fewer and more than a group of eight, and than a tile."""


def length(fmt: str) -> int:
    """Inputs of a vector: of blocks of 32 not a multiple of a step; of others two blocks, of which the second one's
    bytes begin elsewhere in a piece of 16."""
    return 160 if UNITS[fmt].per_block == 1 else 512


def multiplied(x: np.ndarray, w: Matrix) -> np.ndarray:
    """``linear`` of x (tokens, n) with the format's own rounding."""
    out = unwritten(len(x) * w.rows)
    dispatch.linear(stream(), out, uploaded(x), placed(w), len(x), 1, UNITS[w.fmt].activation, scratch=scratch)
    return host(out).reshape(len(x), w.rows).copy()


@pytest.mark.parametrize("fmt", EACH)
def test_tiles_of_every_size(fmt: str) -> None:
    """Experts of 19 rows, whose bytes begin anywhere, with as many pairs as fill no, some and all groups of a tile."""
    n, act, pairs = length(fmt), UNITS[fmt].activation, sum(SIZES)
    w, x = drawn(fmt, 19, n, len(SIZES)), normal(pairs, n)
    ids = np.random.default_rng(1).permutation(np.repeat(np.arange(len(SIZES), dtype=np.int32), SIZES))[:, None]
    assert dispatch.worth_sorting(pairs, len(SIZES)) and max(SIZES) > grouping.TILE
    out, error = unwritten(19 * pairs), uploaded(np.zeros(1, np.int32))
    args = placed(w), pairs, 1, len(SIZES), act, FAILURE
    dispatch.expert_linear(stream(), out, error, uploaded(x), uploaded(ids), *args, scratch=scratch)
    close(out, REFERENCE.expert_linear(x, ids, w, act))


@pytest.mark.parametrize("fmt", EACH)
def test_more_rows_than_a_block_and_more_inputs_than_a_tile(fmt: str) -> None:
    """The last block has five rows, the last wide tile one input."""
    w, x = drawn(fmt, ROWS + 5, length(fmt)), normal(matmat.WIDE_TILE + 1, length(fmt))
    wide = grouping.TILE if UNITS[fmt].halves else matmat.WIDE_TILE
    assert matmat.tile_for(fmt, w.rows, len(x), 1) == wide
    want = REFERENCE.linear(x, w, UNITS[fmt].activation)
    got = multiplied(x, w)
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


def test_wide_tiles_are_for_those_that_keep_the_gpu_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmat, "multiprocessors", lambda: 132)
    monkeypatch.setattr(matmat, "shared_limit", lambda: 227 << 10)
    assert matmat.tile_for("IQ2_XXS", 4096, 512, 1) == matmat.WIDE_TILE
    assert matmat.tile_for("Q8_0", 2048, 512, 1) == grouping.TILE
    assert matmat.tile_for("Q8_0", 2048, 2048, 1) == matmat.WIDE_TILE
    assert matmat.tile_for("Q8_0", 1 << 20, 64, 1) == grouping.TILE
    assert matmat.tile_for("Q6_K", 4096, 512, 1) == grouping.TILE
    assert matmat.registers_for("Q8_0", grouping.TILE) == matmat.REGISTERS < matmat.registers_for("Q6_K", grouping.TILE)
    monkeypatch.setattr(matmat, "shared_limit", lambda: 99 << 10)
    assert matmat.tile_for("IQ2_XXS", 4096, 512, 1) == grouping.TILE
    assert matmat.registers_for("Q8_0", matmat.WIDE_TILE) == matmat.REGISTERS
    assert matmat.registers_for("Q8_0", grouping.TILE) == matmat.MORE_REGISTERS


@pytest.mark.parametrize("fmt", TILED)
def test_every_gpu_has_what_a_block_needs(fmt: str) -> None:
    """99 KB are what the smaller ones give a block; the copies give each row of it as many threads as another."""
    assert matmat.shared_bytes(fmt, grouping.TILE) <= 99 << 10
    for tile in (grouping.TILE, matmat.WIDE_TILE):
        plan = matmat.layout(fmt, tile)
        assert plan.threads * matmat.registers_for(fmt, tile) <= 65536
        assert plan.threads % ROWS == 0 and 2 * tile <= plan.threads


@pytest.mark.parametrize("fmt", EACH)
def test_the_largest_sums_are_exact(fmt: str) -> None:
    """Blocks whose codes, scales and minima have all bits set, or all but one; inputs of one size, with signs that add
    everything up or half of it. In float64 the same products are within a float32's precision."""
    f, act, n = FORMATS[fmt], UNITS[fmt].activation, 256
    raw = np.full((4, f.row_bytes(n)), 255, np.uint8)
    raw[1], raw[2] = 0x7F, 0x80
    blocks = raw.reshape(-1).view(f.layout)
    for name in f.scale_fields:
        blocks[name] = 1
    w, x = Matrix(fmt, raw, 4, n), np.ones((TOKENS, n), np.float32)
    x[1] = -1
    x[2] = np.where(np.arange(n) % 2, 1, -1)
    x[3, n // 2 :] = -1
    weights = w.dequantize().astype(np.float64)
    got = multiplied(x, w)
    size = np.abs(x.astype(np.float64)) @ np.abs(weights).T
    assert (np.abs(got - x.astype(np.float64) @ weights.T) <= 4e-7 * size).all()
    want = REFERENCE.linear(x, w, act)
    assert (np.abs(got - want) <= 4e-7 * size).all()


@pytest.mark.parametrize("fmt", ["Q8_0", "Q2_K", "Q4_K"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_no_number_stays_where_it_is(fmt: str, value: float) -> None:
    """An input in its vector, a scale in its row; all else keeps its bits."""
    n = length(fmt)
    w, x = drawn(fmt, 20, n), normal(TOKENS, n)
    clean = multiplied(x, w)
    blocks = w.data.reshape(-1).view(FORMATS[fmt].layout).reshape(20, -1)
    blocks[FORMATS[fmt].scale_fields[0]][11, 1] = value
    x[4, 3] = value
    got = multiplied(x, w)
    assert not np.isfinite(got[4]).any() and not np.isfinite(got[:, 11]).any()
    others = np.ix_(np.delete(np.arange(TOKENS), 4), np.delete(np.arange(20), 11))
    np.testing.assert_array_equal(got[others], clean[others])
