"""Small launches that a recording folds into their neighbours: bits, and where they must stay apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ..test_cpu_ops import matrix, normal
from .device import cuda

pytestmark = pytest.mark.cuda


@pytest.fixture
def ops() -> Any:
    return cuda.backend


class Written:
    """Arrays that launches write, filled as they were before each of two runs of ``run``."""

    def __init__(self, ops: Any, **begin: np.ndarray):
        self.ops, self.begin = ops, begin
        self.arrays = {name: ops.array(*value.shape, dtype=value.dtype) for name, value in begin.items()}

    def same_bits(self, run: Callable[[Any], list[Any]]) -> list[str]:
        """Names of the launches of ``run``, recorded; results and arrays must be those of the same ops one by one."""
        ops, found = self.ops, []
        for recorded in (False, True):
            for name, value in self.begin.items():
                ops.fill(self.arrays[name], value)
            if recorded:
                recording = ops.record()
                recording.seal(*run(recording))
                recording.replay()
            results = recording.outputs if recorded else run(ops)
            found.append([ops.host(each).copy() for each in (*results, *self.arrays.values())])
        for want, got in zip(*found, strict=True):
            assert np.array_equal(got, want)
        return [launch.function.__name__ for launch in recording.launches]


# ---- experts, counted where they are chosen


@pytest.mark.parametrize("tokens", [1, 3])
def test_chosen_experts_are_counted_at_once(ops: Any, tokens: int) -> None:
    logits, bias = ops.upload(normal(1, tokens, 40)), ops.upload(normal(2, 40))
    written = Written(ops, counts=np.arange(80, dtype=np.int64).reshape(2, 40))

    def run(to: Any) -> list[Any]:
        probs, ids, weights = to.route(logits, bias, None, 6, 1.5, True)
        to.count(ids, written.arrays["counts"][1])
        return [probs, ids, weights]

    assert written.same_bits(run) == ["route_counted"]


def test_ids_that_come_from_a_table_are_counted_apart(ops: Any) -> None:
    logits, given = ops.upload(normal(1, 1, 40)), ops.upload(np.array([[7, 7, 0]], np.int32))
    written = Written(ops, counts=np.zeros(40, np.int64))

    def run(to: Any) -> list[Any]:
        _, ids, weights = to.route(logits, None, given, 3, 1.5, False)
        to.count(given, written.arrays["counts"])
        return [ids, weights]

    assert written.same_bits(run) == ["route", "count"]


def test_what_a_table_gave_is_counted_as_often_as_it_occurs(ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids that come out of routing are counted, each as often as it is there, when all threads add at once, too."""
    monkeypatch.setattr(ops.driver, "order", "interleaved", raising=False)
    logits, given = ops.upload(normal(1, 1, 40)), ops.upload(np.array([[7, 7, 0]], np.int32))
    written = Written(ops, counts=np.zeros(40, np.int64))

    def run(to: Any) -> list[Any]:
        _, ids, weights = to.route(logits, None, given, 3, 1.5, False)
        to.count(ids, written.arrays["counts"])
        return [weights]

    assert written.same_bits(run) == ["route_counted"]
    assert ops.host(written.arrays["counts"])[:8].tolist() == [1, 0, 0, 0, 0, 0, 0, 2]


def test_the_same_ids_are_counted_twice(ops: Any) -> None:
    logits = ops.upload(normal(1, 1, 8))
    written = Written(ops, counts=np.zeros(8, np.int64))

    def run(to: Any) -> list[Any]:
        _, ids, weights = to.route(logits, None, None, 2, 1.5, False)
        to.count(ids, written.arrays["counts"])
        to.count(ids, written.arrays["counts"])
        return [weights]

    assert written.same_bits(run) == ["route_counted", "count"]
    assert ops.host(written.arrays["counts"]).sum() == 4


def test_counts_of_fewer_experts_stay_apart(ops: Any) -> None:
    logits = ops.upload(np.linspace(0, 1, 12, dtype=np.float32)[None])
    written = Written(ops, counts=np.zeros(11, np.int64))

    def run(to: Any) -> list[Any]:
        _, ids, weights = to.route(logits, None, None, 2, 1.5, False)
        to.count(ids, written.arrays["counts"])
        return [weights]

    assert written.same_bits(run) == ["route", "count"]


# ---- rows, packed where they are made


def entered(to: Any, operands: list[Any], weight: Any) -> tuple[Any, ...]:
    X, mix, scale, base = operands
    pre, post, comb = to.hc_split(mix, scale, base, 20, 1e-6)
    return to.rms_norm(to.hc_reduce(X, pre), weight, 1e-5), post, comb


@pytest.mark.parametrize("acts", [("a8",), ("q8k",), ("a8", "q8k"), ("q8k", "a8")], ids="-".join)
@pytest.mark.parametrize(("tokens", "n"), [(1, 1024), (2, 256)])
def test_the_input_of_a_layer_is_packed_by_who_makes_it(ops: Any, acts: tuple[str, ...], tokens: int, n: int) -> None:
    operands = [
        ops.upload(each) for each in (normal(1, tokens, 4, n), normal(2, tokens, 24), normal(3, 3), normal(4, 24))
    ]
    weight = ops.upload(normal(5, n))
    of = {"a8": ops.place(matrix("Q8_0", 5, n)), "q8k": ops.place(matrix("Q2_K", 6, n, seed=2))}

    def run(to: Any) -> list[Any]:
        x, post, comb = entered(to, operands, weight)
        return [*(to.linear(x, of[act], act) for act in acts), x, post, comb]

    assert Written(ops).same_bits(run) == ["enter_packed", *["linear_packed"] * len(acts)]


def test_rows_shorter_than_the_share_of_a_warp_are_packed_once(ops: Any) -> None:
    """96 values are three blocks of A8, and part of a warp's share."""
    x, w = ops.upload(normal(1, 3, 96)), ops.place(matrix("Q8_0", 5, 96))
    wide = ops.place(matrix("Q8_0", 5, 288))

    def run(to: Any) -> list[Any]:
        y = to.rms_norm(x, None, 1e-6)
        return [to.linear(y, w, "a8"), to.linear(y.reshape(1, 288), wide, "a8")]

    names = Written(ops).same_bits(run)
    assert names == ["chain_packed", "linear_packed", "pack_a8", "linear_packed"]


def test_heads_are_packed_as_the_one_row_that_a_product_reads(ops: Any) -> None:
    x, angles = ops.upload(normal(1, 1, 4, 64)), normal(2, 1, 8)
    cos, sin = ops.upload(np.cos(angles)), ops.upload(np.sin(angles))
    w, k = ops.place(matrix("Q8_0", 6, 128)), ops.place(matrix("Q2_K", 3, 256))

    def run(to: Any) -> list[Any]:
        heads = to.rope(x, cos, sin, inverse=True)
        return [to.grouped_linear(heads.reshape(1, 2, 128), w, "a8"), to.linear(heads.reshape(1, 256), k, "q8k")]

    names = Written(ops).same_bits(run)  # blocks of 256 are no part of a head
    assert names == ["chain_packed", "linear_packed", "pack_q8k", "linear_packed"]


def test_a_part_of_a_row_is_packed_apart(ops: Any) -> None:
    x, w = ops.upload(normal(1, 2, 64)), ops.place(matrix("Q8_0", 5, 64))

    def run(to: Any) -> list[Any]:
        return [to.linear(to.rms_norm(x, None, 1e-6)[:1], w, "a8")]

    assert Written(ops).same_bits(run) == ["chain", "pack_a8", "linear_packed"]


def test_values_that_are_not_finite_are_packed_alike(ops: Any) -> None:
    values = normal(1, 2, 512)
    values[0, 5], values[1, 300], values[1, :32] = np.nan, np.inf, 0
    x, w, k = ops.upload(values), ops.place(matrix("Q8_0", 5, 512)), ops.place(matrix("Q2_K", 3, 512))

    def run(to: Any) -> list[Any]:
        y = to.round_f16(x)
        return [to.linear(y, w, "a8"), to.linear(y, k, "q8k")]

    recording = ops.record()
    recording.seal(*run(recording))
    assert [launch.function.__name__ for launch in recording.launches][0] == "chain_packed"
    recording.replay()
    for got, want in zip(recording.outputs, run(ops), strict=True):
        np.testing.assert_array_equal(ops.host(got), ops.host(want))


# ---- rows that are stored together


def rows_of(ops: Any, slots: int, n: int) -> Written:
    return Written(ops, kv=normal(8, slots, n), score=normal(9, slots, n))


@pytest.mark.parametrize("fmt", ["F16", "BF16", "F32"])
@pytest.mark.parametrize(("tokens", "slots", "start"), [(1, 8, 21), (3, 4, 6)])
def test_projections_go_straight_into_their_rings(ops: Any, fmt: str, tokens: int, slots: int, start: int) -> None:
    x, at, ape = ops.upload(normal(1, tokens, 64)), ops.upload(np.array([start])), ops.upload(normal(2, 4, 24))
    placed = [ops.place(matrix(fmt, 24, 64, seed=seed)) for seed in (1, 2)]
    written = rows_of(ops, slots, 24)

    def run(to: Any) -> list[Any]:
        kv, gate = (to.linear(x, w, "float") for w in placed)
        score = to.position_bias(gate, ape, at)
        to.store_rows(kv, written.arrays["kv"], at)
        to.store_rows(score, written.arrays["score"], at)
        return []

    assert written.same_bits(run) == ["linear_both_stored"]


def test_more_rows_than_a_ring_has_are_stored_by_a_launch_of_their_own(ops: Any) -> None:
    x, at, ape = ops.upload(normal(1, 5, 64)), ops.upload(np.array([6])), ops.upload(normal(2, 4, 24))
    placed = [ops.place(matrix("F16", 24, 64, seed=seed)) for seed in (1, 2)]
    written = rows_of(ops, 4, 24)

    def run(to: Any) -> list[Any]:
        kv, gate = (to.linear(x, w, "float") for w in placed)
        score = to.position_bias(gate, ape, at)
        to.store_rows(kv, written.arrays["kv"], at)
        to.store_rows(score, written.arrays["score"], at)
        return []

    assert written.same_bits(run) == ["linear_both_plain", "store_both"]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("tokens", "start", "slots"), [(1, 11, 8), (3, 21, 8), (9, 6, 12)])
def test_a_window_that_closes_is_pooled_from_both_rings(
    ops: Any, overlap: bool, tokens: int, start: int, slots: int
) -> None:
    """Its candidates come from the rings as they were before, and from the new rows."""
    x, at, ape = ops.upload(normal(1, tokens, 64)), ops.upload(np.array([start])), ops.upload(normal(2, 4, 24))
    placed = [ops.place(matrix("F16", 24, 64, seed=seed)) for seed in (1, 2)]
    written, count = rows_of(ops, slots, 24), (start + tokens) // 4 - start // 4

    def run(to: Any) -> list[Any]:
        kv, gate = (to.linear(x, w, "float") for w in placed)
        score = to.position_bias(gate, ape, at)
        parts = [
            to.windows(written.arrays["kv"], kv, at, count, 4, overlap),
            to.windows(written.arrays["score"], score, at, count, 4, overlap),
        ]
        row = to.pool(*parts)
        to.store_rows(kv, written.arrays["kv"], at)
        to.store_rows(score, written.arrays["score"], at)
        return [row]

    assert written.same_bits(run) == ["linear_both_plain", "position_bias", "pool_windows", "store_both"]


def test_windows_that_are_not_alike_or_read_twice_are_gathered(ops: Any) -> None:
    kv, score, at, other = (
        ops.upload(each) for each in (normal(1, 1, 24), normal(2, 1, 24), np.array([7]), np.array([3]))
    )
    written = rows_of(ops, 8, 24)

    def run(to: Any, at2: Any, keep: bool) -> list[Any]:
        a = to.windows(written.arrays["kv"], kv, at, 1, 4, True)
        b = to.windows(written.arrays["score"], score, at2, 1, 4, True)
        return [to.pool(a, b), *([b] if keep else [])]

    assert written.same_bits(lambda to: run(to, at, False)) == ["pool_windows"]
    assert written.same_bits(lambda to: run(to, other, False)) == ["windows", "windows", "pool"]
    assert written.same_bits(lambda to: run(to, at, True)) == ["windows", "windows", "pool"]


def test_windows_of_a_ring_that_is_stored_before_they_are_pooled_are_gathered_first(ops: Any) -> None:
    kv, score, at = ops.upload(normal(1, 1, 24)), ops.upload(normal(2, 1, 24)), ops.upload(np.array([7]))
    written = rows_of(ops, 8, 24)

    def run(to: Any) -> list[Any]:
        a = to.windows(written.arrays["kv"], kv, at, 1, 4, True)
        b = to.windows(written.arrays["score"], score, at, 1, 4, True)
        to.store_rows(kv, written.arrays["kv"], ops.upload(np.array([1])))
        return [to.pool(a, b)]

    assert written.same_bits(run) == ["windows", "windows", "store_rows", "pool"]


def test_projections_that_are_kept_are_made(ops: Any) -> None:
    x, at, ape = ops.upload(normal(1, 1, 64)), ops.upload(np.array([7])), ops.upload(normal(2, 4, 24))
    placed = [ops.place(matrix("F16", 24, 64, seed=seed)) for seed in (1, 2)]
    written = rows_of(ops, 8, 24)

    def run(to: Any) -> list[Any]:
        kv, gate = (to.linear(x, w, "float") for w in placed)
        score = to.position_bias(gate, ape, at)
        to.store_rows(kv, written.arrays["kv"], at)
        to.store_rows(score, written.arrays["score"], at)
        return [kv]

    assert written.same_bits(run) == ["linear_both_plain", "store_both"]


def test_a_ring_that_is_read_between_is_stored_after_that(ops: Any) -> None:
    """Only the second ring is read: what a launch writes besides its first result counts, too."""
    x, at, ape = ops.upload(normal(1, 1, 64)), ops.upload(np.array([7])), ops.upload(normal(2, 4, 24))
    placed = [ops.place(matrix("F16", 24, 64, seed=seed)) for seed in (1, 2)]
    written = rows_of(ops, 8, 24)

    def run(to: Any) -> list[Any]:
        kv, gate = (to.linear(x, w, "float") for w in placed)
        before = to.scale(written.arrays["score"], 2.0)
        score = to.position_bias(gate, ape, at)
        to.store_rows(kv, written.arrays["kv"], at)
        to.store_rows(score, written.arrays["score"], at)
        return [before]

    assert written.same_bits(run) == ["linear_both_plain", "scale", "store_both"]


def test_biased_rows_that_are_kept_are_made(ops: Any) -> None:
    kv, gate, ape = ops.upload(normal(1, 1, 24)), ops.upload(normal(3, 1, 24)), ops.upload(normal(2, 4, 24))
    at, later = ops.upload(np.array([7])), ops.upload(np.array([6]))
    written = rows_of(ops, 8, 24)

    def run(to: Any, bias_at: Any, keep: bool) -> list[Any]:
        score = to.position_bias(gate, ape, bias_at)
        to.store_rows(kv, written.arrays["kv"], at)
        to.store_rows(score, written.arrays["score"], at)
        return [score] if keep else []

    assert written.same_bits(lambda to: run(to, at, False)) == ["store_both"]
    assert written.same_bits(lambda to: run(to, at, True)) == ["position_bias", "store_both"]
    assert written.same_bits(lambda to: run(to, later, False)) == ["position_bias", "store_both"]


def test_rows_for_different_places_or_rings_are_stored_apart(ops: Any) -> None:
    a, b, wide = (ops.upload(normal(seed, 1, n)) for seed, n in ((1, 24), (2, 24), (3, 40)))
    at, later = ops.upload(np.array([7])), ops.upload(np.array([2]))
    written = Written(
        ops, kv=normal(8, 8, 24), score=normal(9, 8, 24), other=normal(9, 8, 40), half=np.zeros((8, 24), np.float16)
    )
    rings = written.arrays

    def stored(*what: tuple[Any, str, Any]) -> list[str]:
        def run(to: Any) -> list[Any]:
            for x, ring, place in what:
                to.store_rows(x, rings[ring], place)
            return []

        return written.same_bits(run)

    assert stored((a, "kv", at), (b, "score", at)) == ["store_both"]
    assert stored((a, "kv", at), (b, "score", later)) == ["store_rows"] * 2
    assert stored((a, "kv", at), (b, "kv", at)) == ["store_rows"] * 2
    assert stored((a, "kv", at), (wide, "other", at)) == ["store_rows"] * 2
    assert stored((a, "kv", at), (b, "half", at)) == ["store_rows"] * 2
    assert stored((a, "kv", at), (rings["kv"][7:], "score", at)) == ["store_rows"] * 2  # the row stored just now
    assert stored((rings["score"][7:], "kv", at), (b, "score", at)) == ["store_rows"] * 2  # read while it is stored


# ---- chains side by side


def test_heads_beside_a_row_that_is_cached(ops: Any) -> None:
    heads, row, weight = ops.upload(normal(1, 1, 3, 64)), ops.upload(normal(2, 1, 64)), ops.upload(normal(3, 64))
    angles, at = normal(4, 1, 8), ops.upload(np.array([9]))
    cos, sin = ops.upload(np.cos(angles)), ops.upload(np.sin(angles))
    written = Written(ops, ring=np.zeros((5, 64), np.float32))

    def run(to: Any, width: int = 64) -> list[Any]:
        q = to.rope(to.rms_norm(heads, None, 1e-5), cos, sin)
        kv = to.rope(to.rms_norm(row, weight, 1e-6)[:, None, :], cos, sin, inverse=True)[:, 0]
        to.store_rows(to.round_f16(to.round_e4m3(kv, 64)), written.arrays["ring"], at)
        return [q]

    assert written.same_bits(run) == ["chain_beside"]


def test_chains_of_which_one_reads_the_other_follow_each_other(ops: Any) -> None:
    x, at = ops.upload(normal(1, 2, 64)), ops.upload(np.array([3]))
    written = Written(ops, ring=normal(2, 5, 64))

    def run(to: Any) -> list[Any]:
        y = to.rms_norm(x, None, 1e-5)
        to.store_rows(to.round_f16(y), written.arrays["ring"], at)
        return [y]

    assert written.same_bits(run) == ["chain", "chain_store"]


def test_a_chain_of_the_ring_runs_before_the_ring_is_written(ops: Any) -> None:
    x, at = ops.upload(normal(1, 2, 64)), ops.upload(np.array([3]))
    written = Written(ops, ring=normal(2, 5, 64))

    def run(to: Any) -> list[Any]:
        y = to.rms_norm(written.arrays["ring"], None, 1e-5)
        to.store_rows(to.round_f16(x), written.arrays["ring"], at)
        return [y]

    assert written.same_bits(run) == ["chain", "chain_store"]


def test_chains_of_rows_of_different_lengths_stay_apart(ops: Any) -> None:
    """The threads of a block decide the order of a norm's sum."""
    x, y, at = ops.upload(normal(1, 2, 1024)), ops.upload(normal(3, 1, 64)), ops.upload(np.array([3]))
    written = Written(ops, ring=normal(2, 5, 64))

    def run(to: Any) -> list[Any]:
        out = to.rms_norm(x, None, 1e-5)
        to.store_rows(to.rms_norm(y, None, 1e-5), written.arrays["ring"], at)
        return [out]

    assert written.same_bits(run) == ["chain", "chain_store"]
