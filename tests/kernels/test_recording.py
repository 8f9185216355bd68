"""Recordings: the memory of places, and that a replay is what the ops would do now (order: ``test_schedule``)."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from ds4ref.kernels.cpu import CPU, schedule
from ds4ref.kernels.cpu import recording as recording_module
from ds4ref.kernels.cpu.recording import ALIGNMENT, _share

from . import cpu
from .test_cpu_ops import matrix, normal, waits


def at(position: int) -> np.ndarray:
    return np.array([position])


# ---- laying out


@pytest.mark.parametrize("seed", range(5))
def test_places_in_use_at_a_time_do_not_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.choice([1, 128, 129, 700, 4096], 60)]
    first = [int(level) for level in rng.integers(0, 30, 60)]
    spans = {i: (first[i], first[i] + int(rng.integers(0, 8))) for i in range(60)}
    offsets, total = _share(spans, sizes)
    assert offsets.keys() == spans.keys()
    for i, (from_i, to_i) in spans.items():
        assert offsets[i] % ALIGNMENT == 0 and offsets[i] + sizes[i] <= total
        for j, (from_j, to_j) in spans.items():
            if i < j and from_i <= to_j and from_j <= to_i:
                assert offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i], (i, j)
    rounded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    wanted = 0
    for size in set(rounded):  # as many as are in use at a time, of each size
        same = [spans[i] for i in range(60) if rounded[i] == size]
        wanted += size * max(sum(a <= level <= b for a, b in same) for level in range(40))
    assert total == wanted


# ---- behaviour


def test_a_long_chain_takes_the_memory_of_two_results_and_of_those_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MOST_STEPS", 1)
    long = cpu.record()
    y = x = normal(1, 5000)
    for _ in range(3 * recording_module.REST):
        y = long.scale(y, 1.01)
    long.seal(y)
    assert long.nbytes < (recording_module.REST + 3) * x.nbytes + long.length * 1024
    monkeypatch.setattr(recording_module, "REST", 0)
    recording, y = cpu.record(), x
    for _ in range(40):
        y = recording.scale(y, 1.01)
    recording.seal(y)
    assert 2 * x.nbytes <= recording.nbytes < 3 * x.nbytes + 40 * 1024
    recording.replay()
    wanted = x
    for _ in range(40):
        wanted = cpu.scale(wanted, 1.01)
    assert np.array_equal(recording.outputs[0], wanted)
    assert recording.length == 40 and recording.tasks == ["scale"] * 40
    assert waits(recording).tolist() == list(range(1, 41))  # each after those before it


def test_outputs_stay_to_the_end() -> None:
    """An early result that nothing reads again must not be written over."""
    x, recording = normal(1, 3000), cpu.record()
    early = recording.scale(x, 2.0)
    y = early
    for _ in range(6):
        y = recording.scale(y, 0.5)
    recording.seal(early, y)
    recording.replay()
    assert np.array_equal(recording.outputs[0], 2 * x)
    assert np.array_equal(recording.outputs[1], x / 32)


def test_an_output_is_a_result() -> None:
    x, recording = normal(1, 8), cpu.record()
    recording.scale(x, 2.0)
    with pytest.raises(ValueError, match="result of its ops"):
        recording.seal(x)


def test_a_replay_reads_what_is_there_now() -> None:
    """Inputs and caches by address, positions when the steps run."""
    x, ring, position = normal(1, 2, 3), np.zeros((5, 3), np.float32), at(0)
    recording = cpu.record()
    y = recording.scale(x, 2.0)
    recording.store_rows(y, ring, position)
    recording.seal(y)
    assert not ring.any()
    for start in (0, 1, 4, 12):
        x[...] = normal(start, 2, 3)
        ring[...], position[0] = 0, start
        recording.replay()
        assert np.array_equal(recording.outputs[0], 2 * x)
        wanted = np.zeros_like(ring)
        wanted[[start % 5, (start + 1) % 5]] = 2 * x
        assert np.array_equal(ring, wanted)


@pytest.mark.parametrize("threads", [1, 3])
def test_caches_are_read_and_written_in_order(threads: int) -> None:
    """Rows stored, seen through a view of part of them, and stored again: each reader gets what stood there then."""
    rng = np.random.default_rng(threads)
    ops = CPU(threads)
    for _ in range(20):
        ring, count = normal(1, 64, 128), np.array([40], np.int32)
        iq, w = normal(2, 1, 8, 128), normal(3, 1, 8)
        moves = [(int(rng.integers(64)), normal(int(rng.integers(99)), 3, 128)) for _ in range(6)]
        wanted, mine = [], ring.copy()
        for start, rows in moves:
            ops.store_rows(rows, mine, at(start))
            wanted.append(ops.index_scores(iq, mine[:40], w, count)[:, :40])
        recording, mine = ops.record(), ring.copy()
        results = []
        for start, rows in moves:
            recording.store_rows(rows, mine, at(start))
            results.append(recording.index_scores(iq, mine[:40], w, count))
        recording.seal(*results)
        recording.replay()
        for got, want in zip(recording.outputs, wanted, strict=True):
            assert np.array_equal(got[:, :40], want)


def test_packed_inputs_and_groups_are_made_once() -> None:
    x, ids = normal(1, 1, 256), np.array([[2, 0, 1]], np.int32)
    one, two, other = matrix("Q8_0", 40, 256), matrix("Q8_0", 24, 256), matrix("F16", 24, 256)
    stack, next_stack = matrix("Q8_0", 16, 256, experts=3), matrix("Q8_0", 32, 256, experts=3)
    recording = cpu.record()
    results = [recording.linear(x, one, "a8"), recording.linear(x, two, "a8"), recording.linear(x, two, "float")]
    results += [recording.linear(x, other, "float")]
    results += [recording.expert_linear(x, ids, w, "a8") for w in (stack, next_stack)]
    recording.seal(*results)
    assert recording.tasks.count("pack_inputs") == 3  # Q8_0 rounded, Q8_0 not, F16
    assert recording.tasks.count("group_pairs") == 1
    recording.replay()
    wanted = [cpu.linear(x, one, "a8"), cpu.linear(x, two, "a8"), cpu.linear(x, two, "float"), cpu.linear(x, other)]
    wanted += [cpu.expert_linear(x, ids, w, "a8") for w in (stack, next_stack)]
    for got, want in zip(recording.outputs, wanted, strict=True):
        assert np.array_equal(got, want)


def test_advice_names_whole_experts_and_no_more_than_is_used() -> None:
    """More than half a gigabyte at once would push itself out of memory."""
    w, recording = matrix("Q8_0", 40, 256, experts=5), cpu.record()
    recording.advise(np.array([[3, 1]], np.int32), w)
    *_, size, codes, scales, page, most = recording._steps[-1].values
    assert size * w.experts == w.nbytes and page == mmap.PAGESIZE and (codes, scales) == (size, 0)
    assert most * size <= 512 << 20 < (most + 1) * size
