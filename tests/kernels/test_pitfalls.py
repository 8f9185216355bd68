"""Known mistakes of engines like this one (model.md 14), tried on every backend, and golden values: what ds4's
own functions gave."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.kernels import cpu, reference
from tests.kernels.cuda.device import cuda

from .test_cpu_ops import normal


@pytest.fixture(params=[reference, cpu, cuda], ids=["reference", "cpu", "cuda"])
def ops(request: pytest.FixtureRequest) -> Any:
    return request.param


def one(value: int) -> np.ndarray:
    return np.array([value], np.int32)


def attend(ops: Any, q, raw, sink: float, comp=None, comp_count=0, selected=None, scale=1.0) -> np.ndarray:
    """One token, one head, all raw rows visible."""
    sinks = np.float32([sink])
    out = ops.attention(q[None, None], raw, one(0), one(len(raw)), comp, one(comp_count), selected, sinks, scale)
    return out[0, 0]


def rows_with_scores(scores: list[float], dim: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """A query and rows whose products are ``scores``; the other channels of the rows are random."""
    rows = normal(1, len(scores), dim)
    rows[:, 0] = scores
    q = np.zeros(dim, np.float32)
    q[0] = 1
    return q, rows


# ---- softmax and sinks ----


def test_softmax_does_not_overflow(ops):
    scores = [1000.0, 1001.0, -1e30, 1e4]
    q, rows = rows_with_scores(scores)
    out = attend(ops, q, rows, -1e30)
    np.testing.assert_allclose(out, rows[3], rtol=1e-6)
    q, rows = rows_with_scores([1000.0, 1001.0, 999.0])
    shifted = rows.copy()
    shifted[:, 0] -= 990
    np.testing.assert_allclose(attend(ops, q, rows, -1e30)[1:], attend(ops, q, shifted, -1e30)[1:], rtol=1e-5)


def test_only_the_sink_is_left(ops):
    nothing = np.full((1, 4), -1, np.int32)
    out = attend(ops, normal(1, 64), np.zeros((0, 64), np.float32), 0.5, normal(2, 9, 64), 9, nothing)
    assert np.array_equal(out, np.zeros(64))


def test_the_sink_joins_the_denominator_only(ops):
    q, rows = rows_with_scores([-10.0, -10.0, -10.0])
    weight = math.exp(-15) / (1 + 3 * math.exp(-15))
    np.testing.assert_allclose(attend(ops, q, rows, 5.0), weight * rows.sum(axis=0), rtol=2e-5, atol=1e-12)
    np.testing.assert_allclose(attend(ops, q, rows, -1e30), rows.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_more_rows_than_a_buffer_of_scores_holds(ops):
    """9,000 of them, where a fixed one ended at 8,192: each has its share."""
    q, rows, scale = normal(1, 64), normal(2, 9000, 64), 0.125
    scores = rows.astype(np.float64) @ q * scale
    weights = np.exp(scores - scores.max())
    out = attend(ops, q, np.zeros((0, 64), np.float32), -1e30, rows, len(rows), scale=scale)
    np.testing.assert_allclose(out, weights @ rows / weights.sum(), rtol=2e-5, atol=2e-6)


def test_the_order_of_selected_rows_does_not_matter(ops):
    q, rows = normal(1, 64), normal(2, 700, 64)
    chosen = np.random.default_rng(3).permutation(700)[None, :512].astype(np.int32)
    drawn, sorted_ = (
        attend(ops, q, normal(4, 3, 64), 0.5, rows, 700, selected, 0.125) for selected in (chosen, np.sort(chosen))
    )
    np.testing.assert_allclose(drawn, sorted_, rtol=1e-5, atol=1e-6)


# ---- norms ----


def test_a_norm_of_many_values_is_that_of_float64(ops):
    """Ones, of which a sum in float32 loses every further one beside the large first; eps is under the root."""
    x = np.ones((1, 16384), np.float32)
    x[0, 0] = 2.0**13  # its square is 2^26: 1 is less than half a unit of the sum
    for eps in (1e-6, 100.0):
        want = x / np.sqrt(np.mean(np.square(x, dtype=np.float64)) + eps)
        np.testing.assert_allclose(ops.rms_norm(x, None, eps), want, rtol=1e-6)


# ---- nonlinearities ----


def test_softplus_neither_overflows_nor_vanishes(ops):
    logits = np.float32([[-100, -20.5, -20, 0, 10, 20, 20.5, 100]])
    probs = ops.route(logits, None, None, 1, 1.0, True)[0][0]
    want = np.sqrt(np.logaddexp(0, logits[0].astype(np.float64)))
    np.testing.assert_allclose(probs, want, rtol=3e-6, atol=2e-24)  # e^-100 is a subnormal float32
    assert probs[4] / probs[3] == pytest.approx(3.80, abs=0.005)


def test_the_gate_is_clamped_above_only(ops):
    gate = np.float32([-1000, -12, 11, 10, 1])
    up = np.float32([3, -11, -11, 11, 2])
    kept = np.float64([-1000, -12, 10, 10, 1])
    want = kept * (0.5 + 0.5 * np.tanh(kept / 2)) * [3, -10, -10, 10, 2]
    np.testing.assert_allclose(ops.swiglu(gate[None], up[None], 10.0)[0], want, rtol=2e-6, atol=1e-9)


# ---- Sinkhorn ----


def test_comb_is_doubly_stochastic(ops):
    mix, base = normal(1, 6, 24) * 2, normal(2, 24)
    comb = ops.hc_split(mix, np.ones(3, np.float32), base, 20, 1e-6)[2]
    np.testing.assert_allclose(comb.sum(axis=1), 1, atol=1e-3)
    np.testing.assert_allclose(comb.sum(axis=2), 1, atol=1e-3)
    order = [2, 0, 3, 1]  # permuting rows and columns of the logits permutes the result
    moved, moved_base = mix.copy(), base.copy()
    for array in (moved.T, moved_base):
        array[8:] = array[8:].reshape(4, 4, -1)[order][:, order].reshape(array[8:].shape)
    permuted = ops.hc_split(moved, np.ones(3, np.float32), moved_base, 20, 1e-6)[2]
    np.testing.assert_allclose(permuted, comb[:, order][:, :, order], rtol=1e-5, atol=1e-7)


def test_comb_is_summed_over_its_first_index(ops):
    X, y = normal(1, 1, 4, 8), normal(2, 1, 8)
    comb = np.zeros((1, 4, 4), np.float32)
    comb[0, 1, 3] = 2  # source 1 to target 3
    out = ops.hc_expand(X, y, np.zeros((1, 4), np.float32), comb)
    assert np.array_equal(out[0, 3], 2 * X[0, 1]) and not out[0, :3].any()
    same = ops.hc_expand(X, y, np.zeros((1, 4), np.float32), np.eye(4, dtype=np.float32)[None])
    assert np.array_equal(same, X)


# ---- selection and routing ----


@pytest.mark.parametrize(("seed", "ops"), [*((s, cpu) for s in range(20)), *((s, cuda) for s in range(4))])
def test_selection_equals_a_stable_sort(seed: int, ops: Any):
    """Coarse scores, so that every boundary is a tie; all signs and magnitudes."""
    rng = np.random.default_rng(seed)
    most = 3000
    n, k = int(rng.integers(2, most)), int(rng.integers(1, most // 5))
    scores = np.round(rng.standard_normal((3, n)) * rng.choice([0.5, 3, 1e6])).astype(np.float32)
    scores[1] *= np.float32(1e-38)
    visible = rng.integers(0, n + 1, 3).astype(np.int32)
    assert np.array_equal(ops.select_rows(scores, visible, k), reference.select_rows(scores, visible, k))


def test_bias_selects_and_does_not_weigh(ops):
    logits, bias = normal(1, 1, 16), np.zeros(16, np.float32)
    bias[9] = 100
    probs, ids, weights = ops.route(logits, bias, None, 3, 1.5, True)
    assert ids[0, 0] == 9
    np.testing.assert_allclose(weights[0], probs[0, ids[0]] / probs[0, ids[0]].sum() * 1.5, rtol=1e-6)


# ---- golden values: what ds4's own functions gave ----

X = (3 * np.sin(0.37 * np.arange(512))).astype(np.float32)
Z = np.cos(0.21 * np.arange(128)).astype(np.float32)


def test_golden_e4m3(ops):
    y = ops.round_e4m3(X[:448])
    for index, value in {1: 1.125, 2: 2, 3: 2.75, 63: -3, 64: -3, 100: -1.875, 447: 2.75}.items():
        assert y[index] == value
    for value, want in {
        0.0009: 0, 0.001: 0.001953125, 0.0029296875: 0.00390625, 0.0175: 0.017578125, 1.0625: 1, 1.1875: 1.25,
        17: 16, 19: 20, 449: 448, -3.3: -3.25, 3.14159: 3.25,
    }.items():  # fmt: skip
        block = np.zeros(64, np.float32)
        block[0], block[1] = 448, value  # scale 1
        assert ops.round_e4m3(block)[1] == np.float32(want)


def test_golden_e2m1(ops):
    values = {0.25: 0, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5: 4, 7: 8, -0.3: -0.5}
    for value, want in values.items():
        block = np.zeros(32, np.float32)
        block[0], block[1] = 6, value
        assert ops.round_e2m1(block)[1] == want
    assert ops.round_e2m1(np.full(32, 7, np.float32))[0] == 8  # the scale doubles instead of clipping


def test_golden_hadamard(ops):
    y = ops.hadamard(Z)
    golden = {0: 0.46478906, 1: 0.047367167, 2: 0.095798329, 5: -0.021874491, 31: -0.045876719, 32: 0.099755898,
              127: 0.0047540418}  # fmt: skip
    for index, value in golden.items():
        assert y[index] == pytest.approx(value, rel=1e-6)
    z = ops.round_e2m1(y)
    assert [z[i] for i in (0, 1, 2, 32, 127)] == [0.5, 0, 0, 0.125, 0]


def test_golden_activation_codes(ops):
    codes, scales = ops.quantize_a8(X[None])
    assert scales[0, 0] == np.float32(0.0235387944) and scales[0, 1] == np.float32(0.0235636141)
    assert codes[0, :8].tolist() == [0, 46, 86, 114, 127, 123, 102, 67]
    codes, scales, sums = ops.quantize_q8k(X[None])
    assert scales[0].tolist() == np.float32([-0.0236219876, -0.0236205067]).tolist()
    assert codes[0, :8].tolist() == [0, -46, -86, -114, -126, -122, -101, -67]
    assert sums[0, :4].tolist() == [-46, -84, -113, -125]


def test_golden_hyper_connection_split(ops):
    mix, base = np.sin(np.arange(24) + 1.0), 0.1 * np.cos(np.arange(24.0))
    scale = np.float32([1.1, 0.9, 1.4])
    pre, post, comb = ops.hc_split(mix.astype(np.float32)[None], scale, base.astype(np.float32), 20, 1e-6)
    np.testing.assert_allclose(pre[0], [0.7360665, 0.7415926, 0.5283749, 0.2826252], rtol=2e-6)
    np.testing.assert_allclose(post[0], [0.5665004, 0.8889066, 1.330734, 1.448568], rtol=2e-6)
    np.testing.assert_allclose(
        comb[0],
        [
            [0.39693, 0.2058878, 0.1664162, 0.230765],
            [0.09405443, 0.4492469, 0.392431, 0.06426676],
            [0.01713447, 0.0525957, 0.3097249, 0.620544],
            [0.4918801, 0.2922687, 0.1314269, 0.08442333],
        ],
        rtol=2e-6,
    )


def test_ties_go_to_the_lower_expert(ops):
    """256 experts with few different scores: a sort that is not stable gets nearly every row wrong."""
    logits = np.round(normal(5, 50, 256))
    logits[0] = 0
    bias = np.round(normal(6, 256))
    for added in (None, bias):
        probs, ids, weights = ops.route(logits, added, None, 8, 1.5, True)
        score = probs if added is None else probs + added
        for t in range(50):
            wanted = sorted(range(256), key=lambda e, t=t: (-score[t, e], e))[:8]
            assert ids[t].tolist() == wanted
            chosen = probs[t, wanted].astype(np.float64)
            np.testing.assert_allclose(weights[t], chosen / chosen.sum() * 1.5, rtol=2e-6)


@pytest.mark.parametrize("logit", [-40.0, -80.0])
def test_experts_that_are_all_unlikely(ops, logit: float):
    """The guard of the sum: at least 2^-14, or 1e-20 more. Neither may turn a weight around."""
    logits = np.full((1, 8), logit, np.float32)
    prob = math.exp(logit / 2)
    for floor, total in ((True, 2.0**-14), (False, 4 * prob + 1e-20)):
        probs, _, weights = ops.route(logits, None, None, 4, 1.5, floor)
        np.testing.assert_allclose(probs, prob, rtol=1e-5)
        np.testing.assert_allclose(weights, 1.5 * prob / total, rtol=1e-5)


# ---- pooling


@pytest.mark.parametrize("absent", [-1e30, -np.inf])
def test_a_channel_without_candidates_gives_zero(ops, absent: float):
    kv, score = normal(1, 2, 4, 5), normal(2, 2, 4, 5)
    score[1, :, 3] = absent
    out = ops.pool(kv, score)
    assert out[1, 3] == 0
    assert np.count_nonzero(out) == out.size - 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_overflow_in_a_score_is_seen(ops, bad: float):
    """It came out as a row of zeros, which nothing downstream can tell from a row."""
    for candidates in (1, 4):
        kv, score = normal(1, 2, candidates, 5), normal(2, 2, candidates, 5)
        score[1, -1, 3] = bad
        with np.errstate(invalid="ignore"):
            out = ops.pool(kv, score)
        assert np.isnan(out[1, 3]) and np.isnan(out).sum() == 1


# ---- grouped-query attention


def grouped(heads: int, shared: int, rows: int, dim: int, kind: type = np.float32, seed: int = 0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((2, heads, dim)).astype(np.float32)
    keys, values = (rng.standard_normal((rows, shared, dim)).astype(kind) for _ in range(2))
    return q, keys, values


def test_heads_read_their_own_keys_and_values(ops: Any) -> None:
    """Six heads on three: 0, 0, 1, 1, 2, 2, and not 0, 1, 2, 0, 1, 2."""
    q, keys, values = grouped(6, 3, 1, 4)
    values[0] = np.arange(3)[:, None]
    out = ops.attend(q, keys, values, np.zeros(2, np.int32), np.ones(2, np.int32), 0.5)
    assert out[0, :, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_no_rows_are_no_number(ops: Any) -> None:
    q, keys, values = grouped(2, 1, 3, 4)
    out = ops.attend(q, keys, values, np.zeros(2, np.int32), np.array([0, 3], np.int32), 1.0)
    assert np.isnan(out[0]).all() and np.isfinite(out[1]).all()


@pytest.mark.parametrize("halves", [False, True])
def test_rope_gives_relative_positions_in_either_pairing(ops: Any, halves: bool) -> None:
    rng = np.random.default_rng(4)
    q, k = rng.standard_normal((2, 1, 1, 16)).astype(np.float32)
    freqs = 10000.0 ** (-np.arange(8) / 8)

    def turned(x: np.ndarray, pos: int) -> np.ndarray:
        cos, sin = (part(pos * freqs)[None].astype(np.float32) for part in (np.cos, np.sin))
        return ops.rope(x, cos, sin, False, halves).reshape(-1)

    dots = [turned(q, m) @ turned(k, n) for m, n in ((7, 2), (105, 100), (5, 0))]
    assert np.ptp(dots) < 1e-5 * np.abs(q).sum() and np.array_equal(turned(q, 0), q.reshape(-1))
    moved = turned(np.eye(16, dtype=np.float32)[:1, None], 1)  # channel 0 goes to its partner
    assert np.flatnonzero(moved).tolist() == [0, 8 if halves else 1]
