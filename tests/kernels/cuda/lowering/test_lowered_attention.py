"""Attention on tensor cores: how far it is from float64, and tiles of GPUs with less shared memory."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from ds4ref.kernels.cuda import CUDA
from ds4ref.kernels.cuda.rows import attending

from ... import reference

pytestmark = pytest.mark.cuda

FLOAT_RMS = {"normal": 2.2e-7, "peaked": 5.5e-7, "spread": 4.6e-7}
"""Differences to float64, as shares of the result's rms, of the kernel before, which added float32 products in float32
(f13a09b, these operands with 64 heads)."""


@pytest.fixture(scope="module")
def cuda(cuda_driver: Any) -> Any:
    return CUDA()


def operands(kind: str, heads: int = 16, dim: int = 512, window: int = 128, rows: int = 700, picks: int = 512) -> list:
    """A token of Flash's dimensions. ``peaked``: few rows have all the weight. ``spread``: rows of very different
    lengths, and channels of different sizes in them. ``negative``: every score is far below zero."""
    rng = np.random.default_rng(1)
    q, raw, comp = (rng.standard_normal(shape) for shape in ((1, heads, dim), (window, dim), (rows, dim)))
    if kind == "peaked":
        q *= 4
    if kind == "spread":
        raw, comp = (x * np.exp(2 * rng.standard_normal(x.shape)) for x in (raw, comp))
        q *= 0.02
    if kind == "negative":
        q, raw, comp = q / 8 - 20 * dim**0.5, raw / 8 + 1, comp / 8 + 1
    chosen = rng.permutation(rows)[None, :picks].astype(np.int32)
    sinks = (rng.standard_normal(heads) - 1e30 * (kind == "negative")).astype(np.float32)
    q, raw, comp = (x.astype(np.float32) for x in (q, raw, comp))
    counts = [np.array([n], np.int32) for n in (5, window, rows)]
    return [q, raw, *counts[:2], comp, counts[2], chosen, sinks, dim**-0.5]


def attend(ops: Any, args: list) -> np.ndarray:
    placed = [ops.upload(each) if isinstance(each, np.ndarray) else each for each in args]
    return np.asarray(ops.host(ops.attention(*placed)))


@pytest.mark.parametrize("kind", list(FLOAT_RMS))
def test_distance_from_float64(kind: str, cuda: Any) -> None:
    """Bar: twice the distance of float32 sums."""
    args = operands(kind)
    q, raw, _, _, comp, _, chosen, sinks, scale = args
    every = np.concatenate([raw, comp[chosen[0]]]).astype(np.float64)
    scores = q[0].astype(np.float64) @ every.T * scale
    top = np.maximum(scores.max(axis=1), sinks)
    weights = np.exp(scores - top[:, None])
    exact = weights @ every / (weights.sum(axis=1) + np.exp(sinks - top))[:, None]
    error = attend(cuda, args)[0] - exact
    assert np.sqrt(np.mean(error**2)) < 2 * FLOAT_RMS[kind] * np.sqrt(np.mean(exact**2))


@pytest.mark.parametrize("kind", ["peaked", "negative"])
@pytest.mark.parametrize(("dim", "rows"), [(512, 16), (512, 32), (96, 32)])
def test_tiles_of_a_gpu(dim: int, rows: int, kind: str, cuda: Any) -> None:
    """A GPU with 99 KB for a block takes 16 rows of 512 channels at a time, where two warps share eight rows."""
    limit = {16: 99 << 10, 32: 227 << 10}[rows]
    args = operands(kind, heads=20, dim=dim, rows=80, picks=70)
    with mock.patch.object(attending, "shared_limit", lambda: limit):
        assert attending.tile_rows(dim) == rows
        found = attend(cuda, args)
    np.testing.assert_allclose(found, reference.attention(*args), rtol=0, atol=1e-5)


def test_heads_that_no_tile_fits() -> None:
    with mock.patch.object(attending, "shared_limit", lambda: 48 << 10):
        assert attending.tile_rows(256) == 16
        with pytest.raises(ValueError, match="heads of 512 channels"):
            attending.tile_rows(512)
