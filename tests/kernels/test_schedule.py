"""Groups of steps: nothing runs before what it needs, whatever the threads do, and few phases are left."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.cpu import tasktable as t
from ds4ref.kernels.cpu.abi import Step, Task
from ds4ref.kernels.cpu.schedule import Access, Group, plan

from . import cpu
from .test_cpu_ops import matrix, normal, waits

Steps = list[Step]
Accesses = list[list[Access]]


def reads(owner: int, field: int = 0) -> Access:
    return Access(owner, False, field)


def writes(owner: int, field: int = 0) -> Access:
    return Access(owner, True, field)


# ---- what runs together


def norm(x: int, out: int, rows: int, n: int, chunk: int = 1) -> tuple[Step, list[Access]]:
    return Step(t.RMS_NORM, rows, chunk, (x, 0, out, n, 1e-6)), [reads(x, 0), writes(out, 2)]


def rotated(x: int, out: int, rows: int, n: int, chunk: int = 1) -> tuple[Step, list[Access]]:
    return Step(t.ROPE, rows, chunk, (x, 0, 0, out, 1, n, 4, 0, 0)), [reads(x, 0), writes(out, 3)]


def taken(x: int, out: int, rows: int, chunk: int = 1) -> tuple[Step, list[Access]]:
    """A step of which any item may read all of ``x``."""
    return Step(t.TAKE_ROWS, rows, chunk, (x, 0, out, 5, 5)), [reads(x, 0), writes(out, 2)]


def expanded(x: int, out: int, tokens: int, C: int, D: int) -> tuple[Step, list[Access]]:
    return Step(t.HC_EXPAND, tokens * C, 1, (x, 90, 91, 92, out, C, D)), [reads(x, 0), writes(out, 4)]


def added(a: int, b: int, out: int, count: int, chunk: int) -> tuple[Step, list[Access]]:
    return Step(t.ADD, count, chunk, (a, b, out)), [reads(a, 0), reads(b, 1), writes(out, 2)]


def groups_of(*pairs: tuple[Step, list[Access]], threads: int = 2) -> list[Group]:
    steps, accesses = [step for step, _ in pairs], [touched for _, touched in pairs]
    groups = plan(steps, accesses, threads)
    assert broken(steps, accesses, groups) == []
    return groups


def shape_of(groups: list[Group]) -> list[tuple]:
    """(phase, steps, units) of groups that threads claim, (phase, steps, needed groups by their first steps) of
    tails."""
    return [
        (group.phase, group.steps, [needed.steps[0] for needed in group.needs] if group.needs else group.units)
        for group in groups
    ]


def test_a_tail_waits_for_all_that_it_needs_and_chains_pass_each_other() -> None:
    groups = groups_of(
        taken(1, 10, 8), taken(1, 11, 8), taken(1, 12, 8),
        added(10, 11, 20, 4, 4),  # needs the first two
        taken(12, 21, 1), taken(21, 22, 1),  # the third alone
        taken(22, 30, 8),
    )  # fmt: skip
    assert shape_of(groups) == [
        (0, [0], 8), (0, [1], 8), (0, [2], 8), (0, [3], [0, 1]), (0, [4, 5], [2]), (1, [6], 8),
    ]  # fmt: skip


def test_steps_are_fused_where_a_unit_needs_its_own_unit_alone() -> None:
    wide = norm(1, 2, 64, 512, 16)
    assert shape_of(groups_of(wide, rotated(2, 3, 64, 512, 16))) == [(0, [0, 1], 64)]
    assert shape_of(groups_of(wide, rotated(2, 3, 32, 1024, 8))) == [(0, [0, 1], 32)]  # two rows a unit
    assert shape_of(groups_of(wide, rotated(2, 3, 64, 511, 16))) == [(0, [0], 64), (1, [1], 64)]  # other rows
    assert shape_of(groups_of(wide, taken(2, 3, 64, 16))) == [(0, [0], 64), (1, [1], 64)]  # any of them
    inside = Step(t.ROPE, 64, 16, (2 + 512, 0, 0, 3, 1, 512, 4, 0, 0)), [reads(2, 0), writes(3, 3)]
    assert shape_of(groups_of(wide, inside)) == [(0, [0], 64), (1, [1], 64)]  # the same buffer, from elsewhere on


@pytest.mark.parametrize(("tokens", "threads", "fused"), [(1, 2, False), (2, 2, True), (2, 8, False), (8, 8, True)])
def test_tokens_go_through_chains_each_on_its_thread_if_there_are_enough(
    tokens: int, threads: int, fused: bool
) -> None:
    """Streams of one token are a unit: a norm needs them all."""
    C, D = 4, 4096
    groups = groups_of(expanded(1, 2, tokens, C, D), norm(2, 3, tokens, C * D), threads=threads)
    assert (len(groups) == 1 and groups[0].units == tokens) is fused
    if tokens == 1:
        assert shape_of(groups) == [(0, [0], 4), (0, [1], [0])]


def test_pieces_of_an_array() -> None:
    task = Task("pieces for this test", "<a[4*n:k] <b[8*(n<3)] >c n k *work")
    try:
        assert task.pieces((1, 2, 3, 2, 5)) == {0: (8, 5), 1: (8, 1)}
        assert task.pieces((1, 2, 3, 3, 5)) == {0: (12, 5)}  # 0 bytes: no pieces
        assert (task.reads, task.writes, task.fields[0]) == ((0, 1), (2,), ("a", False))
    finally:
        del Task.registry[task.name]


# ---- order, checked by brute force


def broken(steps: Sequence[Step], accesses: Sequence[Sequence[Access]], groups: list[Group]) -> list[tuple[int, int]]:
    """Pairs of steps that touch the same array, one of them writing, which nothing keeps in recorded order."""
    of = {i: group for group in groups for i in group.steps}
    assert sorted(of) == list(range(len(steps)))
    wrong = []
    for a, b in itertools.combinations(range(len(steps)), 2):
        shared = [(x, y) for x in accesses[a] for y in accesses[b] if x.owner == y.owner and (x.written or y.written)]
        first, second = of[a], of[b]
        if first is second:
            kept = all(separate(steps[a], x.field, steps[b], y.field, first.units) for x, y in shared)
        else:
            kept = first.phase < second.phase or (first.phase == second.phase and first in second.needs)
        if shared and not kept:
            wrong.append((a, b))
    return wrong


def separate(a: Step, a_field: int, b: Step, b_field: int, units: int) -> bool:
    """Whether no two different units of a group touch the same bytes."""
    return units == 1 or all(
        touched(a, a_field, u, units).isdisjoint(touched(b, b_field, v, units))
        for u, v in itertools.permutations(range(units), 2)
    )


def touched(step: Step, field: int, unit: int, units: int) -> set[int]:
    """Parts of 128 bytes that a unit may touch, of all buffers: addresses of this test are 2^20 apart."""
    place = step.values[field] << 20
    pair = step.task.pieces(step.values).get(field)
    if pair is None:
        return set(range(place, place + (1 << 19)))
    size, items = pair
    per = step.items // units
    return {place + size * (item // items) + i for item in range(unit * per, (unit + 1) * per) for i in range(size)}


def drawn(rng: np.random.Generator, count: int) -> tuple[Steps, Accesses]:
    steps, accesses = [], []
    for _ in range(count):
        x, y, out = (int(i) for i in rng.choice(6, 3, replace=False))
        rows = int(rng.choice([1, 2, 4, 8]))
        chunk = int(rng.choice([1, 2, 8]))
        made = [
            norm(x, out, rows, 16 // rows, chunk),
            rotated(x, out, rows, 16 // rows, chunk),
            taken(x, out, rows, chunk),
            added(x, y, out, 16, 4 * chunk),
            expanded(x, out, max(1, rows // 2), 2, 8 // max(1, rows // 2)),
        ][int(rng.integers(5))]
        steps.append(made[0])
        accesses.append(made[1])
    return steps, accesses


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_drawn_steps_keep_their_order(threads: int) -> None:
    kinds = set()
    for seed in range(60):
        steps, accesses = drawn(np.random.default_rng(seed), 25)
        groups = plan(steps, accesses, threads)
        assert broken(steps, accesses, groups) == [], seed
        kinds |= {(bool(group.needs), len(group.steps) > 1, group.units > 1) for group in groups}
    assert {(True, True, False), (True, False, False), (False, True, True), (False, False, True)} <= kinds


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("T", [1, 2, 5])
def test_recorded_equals_op_by_op(T: int, threads: int) -> None:
    """Small steps, chains that meet, and steps that fuse."""
    weights = [matrix("Q8_0", 1024, 1024), matrix("F16", 64, 1024), matrix("Q8_0", 1024, 1024, seed=2)]
    cos, sin = normal(4, T, 16), normal(5, T, 16)

    def program(ops: Any) -> list[np.ndarray]:
        x, ring, results = normal(1, T, 1024), np.zeros((8, 64), np.float32), []
        for _ in range(2):
            h = ops.rms_norm(x, None, 1e-6)
            row = ops.round_e4m3(ops.rms_norm(ops.linear(h, weights[1], "float"), None, 1e-6))
            ops.store_rows(row, ring, np.array([3]))
            heads = ops.rms_norm(ops.linear(h, weights[0], "a8").reshape(T, 16, 64), None, 1e-6)
            heads = ops.rope(ops.rope(heads, cos, sin), cos, sin, inverse=True).reshape(T, 1024)
            x = ops.add(ops.linear(ops.swiglu(h, heads, 10.0, None), weights[2], "a8"), heads)
            results += [row, x]
        return results

    wanted, recording = program(cpu), CPU(threads).record()
    recording.seal(*program(recording))
    assert np.count_nonzero(waits(recording)) < recording.length / 2
    for _ in range(20):
        recording.replay()
        for got, want in zip(recording.outputs, wanted, strict=True):
            assert np.array_equal(got, want)
