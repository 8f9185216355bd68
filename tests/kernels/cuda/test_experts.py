"""Stacks of experts that do not all fit: what is resident, and that it changes no result."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda import CUDA
from ds4ref.kernels.cuda.driver.experts import CachedStack, groups
from ds4ref.kernels.formats import Matrix

from .. import reference
from ..test_cpu_ops import assert_close, matrix, normal
from .device import cuda
from .host_driver import bytes_of

pytestmark = pytest.mark.cuda

E, R, N = 6, 3, 32


def cached(slots: int, seed: int = 1) -> tuple[Any, Matrix, Matrix]:
    """A backend that keeps so many of six experts, a stack, and the same one placed there."""
    ops = CUDA()
    ops.share = slots / E
    stack = matrix("Q8_0", R, N, E, seed=seed)
    return ops, stack, ops.place(stack)


def held(w: Matrix) -> list[int]:
    data: Any = w.data
    return sorted(int(e) for e in data.expert_in if e >= 0)


def test_all_fit_or_a_share_of_every_stack() -> None:
    ops = CUDA(limit=1 << 30)
    ops.prepare(800 << 20, 700 << 20)
    assert not ops.fetching and ops.record() is not None
    ops.prepare(2000 << 20, 1800 << 20)
    assert ops.fetching and ops.record() is None
    assert ops.share == pytest.approx((1024 * 7 / 8 - 200) / 1800, rel=1e-3)
    with pytest.raises(MemoryError, match=r"need 1\.95 GiB.* 2\.93 with all of them.* 1\.00 are free"):
        ops.prepare(3000 << 20, 1000 << 20)
    with pytest.raises(MemoryError, match="need"):
        ops.prepare(2000 << 20, 0)


@pytest.mark.parametrize("slots", [2, 4, 6])
def test_products_are_the_same(slots: int) -> None:
    """Whether the chosen experts fit at a time or not, and again when they are there."""
    ops, up, there = cached(slots)
    x, mid = normal(1, 3, N), normal(2, 3, 2, N)
    for ids in ([[0, 1], [1, 0], [0, 0]], [[5, 2], [3, 4], [0, 1]], [[5, 5], [5, 4], [4, 4]]):
        chosen = np.array(ids, np.int32)
        on = ops.upload(chosen)
        ops.advise(on, there)
        got = ops.host(ops.expert_linear(ops.upload(x), on, there, "float"))
        assert_close(got, reference.expert_linear(x, chosen, up, "float"), 3e-6)
        got = ops.host(ops.expert_sum(ops.upload(mid), on, there, "float"))
        assert_close(got, reference.expert_sum(mid, chosen, up, "float"), 3e-6)
        assert len(held(there)) <= slots


def test_a_cached_stack_has_the_shape_of_the_whole_and_the_memory_of_its_slots() -> None:
    _, up, there = cached(2)
    data: Any = there.data
    assert isinstance(data, CachedStack) and data.shape == up.data.shape and there.experts == E
    assert data.buffer.nbytes == 2 * up.data[0].nbytes


def test_what_was_wanted_least_of_late_goes() -> None:
    ops, _, there = cached(3)
    data: Any = there.data

    def want(*experts: int) -> None:
        ops.make_resident(data, np.array(sorted(experts)), wait=False)

    for _ in range(5):
        want(0)
    want(1)
    want(2)
    assert held(there) == [0, 1, 2] and (data.misses, data.hits) == (3, 4)
    want(3)  # 1 was wanted before 2
    assert held(there) == [0, 2, 3]
    for _ in range(8):
        want(2, 3)
    want(4)
    assert held(there) == [2, 3, 4], "what was wanted often, but long ago, is forgotten"
    want(1, 2)
    assert {1, 2} <= set(held(there)), "what is wanted now stays"


def test_use_fades_and_what_is_wanted_now_stays() -> None:
    """Five times long ago count less than three times of late; the least used of all stays if it is wanted now."""
    ops, _, there = cached(3)
    data: Any = there.data
    for expert in (*[0] * 5, *[2] * 60, *[1] * 3, 3):
        ops.make_resident(data, np.array([expert]), wait=False)
    assert held(there) == [1, 2, 3]
    ops, _, there = cached(2)
    for experts in ([0], *[[1]] * 5, [0, 2]):
        ops.make_resident(there.data, np.array(experts), wait=False)
    assert held(there) == [0, 2]


@pytest.mark.skipif(os.environ.get("DS4_TEST_CUDA") == "device", reason="reads device memory from this process")
def test_slots_hold_the_bytes_of_their_experts() -> None:
    ops, up, there = cached(2)
    data: Any = there.data
    for experts in ([0, 5], [3], [5], [1, 2]):
        ops.make_resident(data, np.array(experts), wait=False)
        block = data.buffer.block
        for expert in experts:
            size = up.data[0].nbytes
            start = int(data.slot_of[expert]) * size
            assert np.array_equal(bytes_of(block)[start : start + size], up.data[expert].ravel())


def test_ids_out_of_range_raise() -> None:
    ops, _, there = cached(2)
    for bad in (-1, E):
        with pytest.raises(IndexError, match=f"0..{E - 1}"):
            ops.expert_linear(ops.upload(normal(1, 1, N)), ops.upload(np.array([[bad]], np.int32)), there)


def test_groups_name_each_expert_once() -> None:
    found = groups(np.array([[5, 1, 1], [0, 5, 3]]), 3)
    assert [part.tolist() for part in found] == [[0, 1, 3], [5]]


def test_a_recording_says_that_it_cannot() -> None:
    recording, (_, _, there) = cuda.backend.record(), cached(2)
    with pytest.raises(ValueError, match="recording"):
        recording.advise(cuda.backend.upload(np.array([[1]], np.int32)), there)
