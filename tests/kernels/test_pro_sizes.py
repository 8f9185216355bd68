"""Ops at DeepSeek V4 Pro's sizes, which no power of two divides as it does Flash's: 384 experts of 3072 inputs, 7168
channels, 28672 in all streams, 128 heads in 16 groups, 1024 selected rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import PRO
from ds4ref.kernels.formats import FORMATS
from tests.kernels import cpu, reference
from tests.kernels.cuda.device import cuda

from .test_cpu_ops import assert_close, attention_case, matrix, normal

compiled = pytest.mark.parametrize("ops", [cpu, cuda], ids=["cpu", "cuda"])
every_backend = pytest.mark.parametrize("ops", [reference, cpu, cuda], ids=["reference", "cpu", "cuda"])
E, K, LAST = PRO.n_experts, PRO.n_used, PRO.n_experts - 1


@compiled
@pytest.mark.parametrize("tokens", [1, 9])
@pytest.mark.parametrize(
    ("fmt", "act", "cols"),
    [
        ("Q8_0", "a8", PRO.dim),
        ("Q8_0", "float", PRO.q_rank),
        ("Q8_0", "a8", PRO.o_groups * PRO.o_rank),
        ("F16", "float", PRO.dim),
        ("Q4_K", "q8k", PRO.dim),
        ("Q4_K", "float", PRO.expert_ff),
        ("IQ2_XXS", "q8k", PRO.dim),
        ("IQ2_XXS", "float", PRO.dim),
        ("Q2_K", "q8k", PRO.expert_ff),
    ],
)
def test_linear(fmt: str, act: str, cols: int, tokens: int, ops: Any) -> None:
    x, w = normal(3, tokens, cols), matrix(fmt, 19, cols)
    assert_close(ops.linear(x, w, act), reference.linear(x, w, act), 4e-6)


@compiled
def test_streams_are_mixed(ops: Any) -> None:
    x, fn = normal(1, 3, PRO.hc, PRO.dim), matrix("F16", PRO.mix, PRO.hc * PRO.dim)
    assert_close(ops.hc_mix(x, fn, 1e-6), reference.hc_mix(x, fn, 1e-6), 4e-6)


@compiled
def test_output_groups(ops: Any) -> None:
    """16 groups of 8 heads; fewer outputs each than the model has."""
    x = normal(1, 2, PRO.o_groups, PRO.n_heads * PRO.head_dim // PRO.o_groups)
    w = matrix("Q8_0", PRO.o_groups * 3, x.shape[-1])
    assert_close(ops.grouped_linear(x, w, "a8"), reference.grouped_linear(x, w, "a8"), 4e-6)


@every_backend
@pytest.mark.parametrize("tokens", [1, 5])
def test_the_last_experts_can_be_chosen(tokens: int, ops: Any) -> None:
    """Against the formula in float64: 6 of 384, numbers beyond 255 among them, by score and bias and by token id."""
    logits, bias = normal(1, tokens, E), normal(2, E) * 0.01
    logits[:, [LAST, 0, 256, 255]] += np.float32([9, 8, 7, 6])
    probs = np.sqrt(np.logaddexp(0, logits.astype(np.float64)))
    want = np.argsort(-(probs + bias), axis=1)[:, :K]
    assert {LAST, 256} <= set(want[0])
    forced = np.tile(np.int32([LAST, 0, 257, 128, 300, 256]), (tokens, 1))
    for hashed, ids in ((None, want), (forced, forced)):
        weights = np.take_along_axis(probs, ids.astype(np.int64), axis=1)
        weights *= PRO.route_scale / weights.sum(axis=1, keepdims=True)
        _, got_ids, got = ops.route(logits, bias, hashed, K, PRO.route_scale, True)
        assert np.array_equal(got_ids, ids)
        np.testing.assert_allclose(got, weights, rtol=2e-6)
    counts = np.zeros(E, np.int64)
    ops.count(forced, counts)
    assert counts.sum() == tokens * K and counts[LAST] == counts[0] == tokens


@every_backend
@pytest.mark.parametrize("tokens", [1, 12])
@pytest.mark.parametrize("fmt", ["Q4_K", "IQ2_XXS"])
def test_products_of_the_last_experts(fmt: str, tokens: int, ops: Any) -> None:
    """Each pair is its expert's own matrix times the input, also where many tokens are sorted by expert."""
    up = matrix(fmt, 5, 256, experts=E)
    down = matrix(fmt, 7, 256, experts=E, seed=2)
    ids = np.random.default_rng(tokens).permuted(np.tile(np.arange(E, dtype=np.int32), (tokens, 1)), axis=1)[:, :K]
    ids[0, :2], ids = [LAST, 256], np.ascontiguousarray(ids)
    x, mid = normal(5, tokens, 256), normal(6, tokens, K, 256)
    a, b = (FORMATS[fmt].dequantize(w.data).reshape(E, -1, 256).astype(np.float64) for w in (up, down))
    assert_close(ops.expert_linear(x, ids, up, "float"), np.einsum("tn,tkrn->tkr", x, a[ids]).astype(np.float32), 4e-6)
    assert_close(
        ops.expert_sum(mid, ids, down, "float"), np.einsum("tkn,tkrn->tr", mid, b[ids]).astype(np.float32), 4e-6
    )


@every_backend
@pytest.mark.parametrize("visible", [1023, 1024, 1025, 2100])
def test_1024_rows_are_selected(visible: int, ops: Any) -> None:
    scores, k = normal(visible, 2, 2100), PRO.index_topk
    scores[1, :1500] = 1.0  # ties go to the lower row
    out = ops.select_rows(scores, np.full(2, visible, np.int32), k)
    for row, got in zip(scores, out, strict=True):
        want = np.sort(np.argsort(-row[:visible], kind="stable")[:k])
        assert np.array_equal(got[: len(want)], want) and (got[len(want) :] == -1).all()


@compiled
def test_attention_of_128_heads_over_1024_selected_rows(ops: Any) -> None:
    q, raw, first, count, rows, visible, sinks, scale = attention_case(
        3, 2, PRO.n_heads, PRO.head_dim, PRO.window, 1500
    )
    selected = reference.select_rows(normal(4, 2, 1500), visible, PRO.index_topk)
    args = (q, raw, first, count, rows, visible, selected, sinks, scale)
    assert_close(ops.attention(*args), reference.attention(*args), 4e-6)


@compiled
def test_index_scores(ops: Any) -> None:
    iq, rows, w = normal(1, 2, PRO.index_heads, PRO.index_dim), normal(2, 1030, PRO.index_dim), normal(3, 2, 64)
    count = np.array([1030], np.int32)
    assert_close(ops.index_scores(iq, rows, w, count), reference.index_scores(iq, rows, w, count), 4e-6)
