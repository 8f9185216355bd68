"""What products of a recording share: packed inputs, launches, SwiGLU while packing. Bits are those of single ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda.products import dispatch

from ..test_cpu_ops import matrix, normal
from .device import cuda

pytestmark = pytest.mark.cuda

IDS = np.array([[2, 0, 1]], np.int32)


@pytest.fixture
def ops() -> Any:
    return cuda.backend


def same_bits(ops: Any, run: Callable[[Any], list[Any]]) -> list[str]:
    """Names of the launches of ``run``, recorded; its results must be those of the same ops one by one."""
    wanted = [ops.host(out) for out in run(ops)]
    recording = ops.record()
    recording.seal(*run(recording))
    recording.replay()
    for got, want in zip(recording.outputs, wanted, strict=True):
        assert np.array_equal(ops.host(got), want)
    return [launch.function.__name__ for launch in recording.launches]


@pytest.mark.parametrize(("fmt", "act"), [("Q8_0", "a8"), ("Q4_K", "q8k"), ("Q4_K", "float"), ("Q8_0", "float")])
def test_an_expert_for_every_token(ops: Any, fmt: str, act: str) -> None:
    x, n = ops.upload(normal(1, 1, 256)), 512
    gate, up, down = (
        ops.place(w) for w in (matrix(fmt, n, 256), matrix(fmt, n, 256, seed=2), matrix(fmt, 9, n, seed=3))
    )

    def run(to: Any) -> list[Any]:
        mid = to.swiglu(to.linear(x, gate, act), to.linear(x, up, act), 1.0, None)
        return [to.linear(mid, down, act)]

    pack = {"a8": "pack_a8", "q8k": "pack_q8k", "float": "pack_sums"}[act]
    wanted = [pack, "linear_both", f"pack_swiglu_{act}", "linear_packed"]
    if act == "float":  # SwiGLU's result is read as it is
        wanted = [pack, "linear_both", "swiglu", pack, "linear_packed"]
        wanted = [name for name in wanted if name != pack or fmt == "Q4_K"]
    assert same_bits(ops, run) == wanted


@pytest.mark.parametrize("weighted", [False, True])
def test_chosen_experts(ops: Any, weighted: bool) -> None:
    x, ids = ops.upload(normal(1, 1, 256)), ops.upload(IDS)
    weights = ops.upload(normal(2, 1, 3)) if weighted else None
    gate, up = (ops.place(matrix("IQ2_XXS", 256, 256, 4, seed)) for seed in (1, 2))
    down = ops.place(matrix("Q2_K", 7, 256, 4, 3))

    def run(to: Any) -> list[Any]:
        sides = to.expert_linear(x, ids, gate, "q8k"), to.expert_linear(x, ids, up, "q8k")
        return [to.expert_sum(to.swiglu(*sides, 0.5, weights), ids, down, "q8k")]

    assert same_bits(ops, run) == ["pack_q8k", "expert_linear_both", "pack_swiglu_q8k", "expert_sum_packed"]


def test_an_id_out_of_range_is_told_by_both(ops: Any) -> None:
    x = ops.upload(normal(1, 1, 64))
    one, two = (ops.place(matrix("Q8_0", 5, 64, 4, seed)) for seed in (1, 2))
    recording = ops.record()
    here = ops.upload(IDS)
    recording.seal(*(recording.expert_linear(x, here, w, "a8") for w in (one, two)))
    assert [launch.function.__name__ for launch in recording.launches] == ["pack_a8", "expert_linear_both"]
    recording.replay()
    ops.fill(here, np.array([[2, 4, 1]], np.int32))
    with pytest.raises(IndexError, match="0..3"):
        recording.replay()


def test_formats_that_differ_share_inputs_and_no_launch(ops: Any) -> None:
    x = ops.upload(normal(1, 1, 256))
    one, two = ops.place(matrix("Q4_K", 5, 256)), ops.place(matrix("Q2_K", 6, 256))
    names = same_bits(ops, lambda to: [to.linear(x, one, "q8k"), to.linear(x, two, "q8k")])
    assert names == ["pack_q8k", "linear_packed", "linear_packed"]


def test_plain_numbers_of_as_many_warps_a_row(ops: Any) -> None:
    x = ops.upload(normal(1, 2, 64))
    placed = [ops.place(matrix("F16", rows, 64, seed=rows)) for rows in (5, 3)]
    assert same_bits(ops, lambda to: [to.linear(x, w) for w in placed]) == ["linear_both_plain"]
    placed.append(ops.place(matrix("BF16", 5, 64)))
    assert same_bits(ops, lambda to: [to.linear(x, w) for w in placed]) == ["linear_both_plain", "linear"]
    many = ops.place(matrix("F16", 40, 64))
    assert same_bits(ops, lambda to: [to.linear(x, w) for w in (placed[0], many)]) == ["linear", "linear"]


def test_three_products_are_two_launches(ops: Any) -> None:
    x = ops.upload(normal(1, 1, 64))
    placed = [ops.place(matrix("Q8_0", rows, 64, seed=rows)) for rows in (5, 3, 8)]
    names = same_bits(ops, lambda to: [to.linear(x, w, "a8") for w in placed])
    assert names == ["pack_a8", "linear_both", "linear_packed"]


def test_rows_that_are_stored_between_are_packed_again(ops: Any) -> None:
    ring, at = ops.upload(normal(1, 1, 64)), ops.upload(np.array([0]))
    fresh, first = ops.upload(normal(2, 1, 64)), normal(1, 1, 64)
    w = ops.place(matrix("Q8_0", 5, 64))

    def run(to: Any) -> list[Any]:
        ops.fill(ring, first)
        before = to.linear(ring, w, "a8")
        to.store_rows(fresh, ring, at)
        return [before, to.linear(ring, w, "a8")]

    names = same_bits(ops, run)
    assert names.count("pack_a8") == 2 and names.count("linear_packed") == 2


def test_what_is_an_output_or_has_two_readers_is_computed(ops: Any) -> None:
    a, b = ops.upload(normal(1, 1, 256)), ops.upload(normal(2, 1, 256))
    w = ops.place(matrix("Q8_0", 5, 256))

    def kept(to: Any) -> list[Any]:
        mid = to.swiglu(a, b, 1.0, None)
        return [mid, to.linear(mid, w, "a8")]

    def twice(to: Any) -> list[Any]:
        mid = to.swiglu(a, b, 1.0, None)
        return [to.add(mid, mid), to.linear(mid, w, "a8")]

    assert "swiglu" in same_bits(ops, kept) and "swiglu" in same_bits(ops, twice)


def test_many_tokens_go_to_tiles_one_by_one(ops: Any) -> None:
    tokens = dispatch.MANY_TOKENS
    x = ops.upload(normal(1, tokens, 64))
    placed = [ops.place(matrix("Q8_0", 5, 64, seed=seed)) for seed in (1, 2)]
    names = same_bits(ops, lambda to: [to.linear(x, w, "a8") for w in placed])
    assert names == ["pack_a8", "linear_packed", "linear_packed"]
    placed = [ops.place(matrix("F16", 5, 64, seed=seed)) for seed in (1, 2)]
    assert same_bits(ops, lambda to: [to.linear(x, w, "float") for w in placed]) == ["linear", "linear"]
