"""Cached rows stored as binary16 give what their float32 values give, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels import cpu, reference


@pytest.mark.parametrize(("heads", "dim"), [(1, 64), (8, 256), (64, 512), (5, 320)])
def test_attention_over_half_rows(heads: int, dim: int) -> None:
    rng = np.random.default_rng(heads)
    tokens, n_raw, n_comp = 3, 150, 90
    q = rng.standard_normal((tokens, heads, dim)).astype(np.float32)
    raw = rng.standard_normal((n_raw, dim)).astype(np.float32)
    comp = rng.standard_normal((n_comp, dim)).astype(np.float16)
    first, count = np.array([0, 5, 20], np.int32), np.array([1, 128, 130], np.int32)
    visible, sinks = np.array([0, 64, 90], np.int32), rng.standard_normal(heads).astype(np.float32)
    selected = np.sort(rng.permuted(np.tile(np.arange(90), (tokens, 1)), axis=1)[:, :17], axis=1).astype(np.int32)
    selected[0, 3:] = -1
    for picks in (None, selected):
        half = cpu.attention(q, raw, first, count, comp, visible, picks, sinks, dim**-0.5)
        wide = cpu.attention(q, raw, first, count, comp.astype(np.float32), visible, picks, sinks, dim**-0.5)
        np.testing.assert_array_equal(half, wide)
        wanted = reference.attention(q, raw, first, count, comp, visible, picks, sinks, dim**-0.5)
        np.testing.assert_allclose(half, wanted, atol=2e-5)


@pytest.mark.parametrize("n", [1, 3, 4, 255, 256, 257, 1030])
def test_index_scores_over_half_rows(n: int) -> None:
    rng = np.random.default_rng(n)
    iq, w = rng.standard_normal((2, 64, 128)).astype(np.float32), rng.standard_normal((2, 64)).astype(np.float32)
    rows = rng.standard_normal((n, 128)).astype(np.float16)
    count = np.array([n], np.int32)
    half = cpu.index_scores(iq, rows, w, count)
    np.testing.assert_array_equal(half, cpu.index_scores(iq, rows.astype(np.float32), w, count))
    np.testing.assert_allclose(half, reference.index_scores(iq, rows, w, count), atol=2e-2)
