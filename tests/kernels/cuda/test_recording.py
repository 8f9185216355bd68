"""Recordings of the CUDA backend: the bits of the ops one by one, inputs and outputs, memory, other arrays."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.binding import F32
from ds4ref.kernels.cuda.driver.memory import ALIGNMENT, Memory
from ds4ref.kernels.cuda.graph.recording import share

from ..test_cpu_ops import matrix, normal
from .device import cuda

N = 256


@pytest.fixture
def ops() -> Any:
    return cuda.backend


# --- what is shared and joined keeps its bits


class Program:
    """Random ops on rows (2, N) and two rings: ``run`` makes the same calls on a backend and on a recording."""

    def __init__(self, ops: Any, seed: int):
        self.ops, self.seed = ops, seed
        self.begin = {"kv": normal(8, 8, N), "score": normal(9, 8, N)}
        self.arrays = {name: ops.array(*value.shape, dtype=value.dtype) for name, value in self.begin.items()}
        self.weight, self.rows = ops.upload(normal(3, N)), [normal(1, 2, N), normal(4, 2, N)]
        angles = normal(5, 2, 16)
        self.angles = [ops.upload(np.cos(angles)), ops.upload(np.sin(angles))]
        kinds = ("Q8_0", "a8"), ("Q8_0", "a8"), ("Q2_K", "q8k"), ("F16", "float"), ("F16", "float")
        self.wide = ops.place(matrix("Q8_0", 5, 2 * N))
        self.products = [(ops.place(matrix(fmt, N, N, seed=i)), act) for i, (fmt, act) in enumerate(kinds)]

    def run(self, to: Any, at: list[Any], rows: list[Any]) -> list[Any]:
        rng, kept = np.random.default_rng(self.seed), []
        ring = [self.arrays["kv"], self.arrays["score"]]
        rows = [to.scale(row, 1.0) for row in rows]
        for _ in range(14):
            x, y = rows[-1 - rng.integers(0, 2)], rows[-1 - rng.integers(0, 3) % len(rows)]
            place, any_ring = at[rng.integers(0, 2)], ring[rng.integers(0, 2)]
            what = rng.integers(0, 13)
            if what == 0:
                rows.append(to.rms_norm(x, self.weight if rng.integers(0, 2) else None, 1e-6))
            elif what == 1:
                rows.append(to.rope(x[:, None, :], *self.angles)[:, 0])
            elif what == 2:
                rows.append(to.round_e4m3(x, 128))
            elif what == 3:
                rows.append(to.round_f16(to.hadamard(x)))
            elif what == 4:
                to.store_rows(x, any_ring, place)
            elif what in (5, 6):
                a, b = (self.products[i] for i in ((0, 1), (3, 4), (0, 2), (2, 3))[rng.integers(0, 4)])
                rows += [to.linear(x, a[0], a[1]), to.linear(x, b[0], b[1])]
            elif what == 7:
                kept.append(x)
            elif what == 8:  # rows that are read whole, as one, and in part
                rows.append(to.rms_norm(x, None, 1e-6))
                wholes = [rows[-1], rows[-1].reshape(1, 2 * N)] if rng.integers(0, 2) else [rows[-1][1:]]
                kept += [to.linear(w, self.wide if w.shape[1] > N else self.products[0][0], "a8") for w in wholes]
            elif what == 9:  # the second one reads what the first one wrote
                to.store_rows(x, ring[0], at[1])
                to.store_rows(ring[0][4:6], ring[1], at[1])
            elif what == 10:  # stored anew between two stages
                y = to.rms_norm(ring[0][6:8], None, 1e-6)
                to.store_rows(x, ring[0], at[0])
                rows.append(to.round_f16(y))
            elif what == 11:  # stored anew between two products
                kept.append(to.linear(ring[0][6:8], *self.products[0]))
                to.store_rows(x, ring[0], at[0])
                kept.append(to.linear(ring[0][6:8], *self.products[0]))
            else:
                rows.append(to.add(y, to.scale(any_ring[2:4], 0.5)))
        return [*rows[-2:], *kept]

    def compare(self) -> set[str]:
        """Results and arrays must be those of the same ops one by one; return the names of the recording's
        launches."""
        ops, found = self.ops, []
        for recorded in (False, True):
            for name, value in self.begin.items():
                ops.fill(self.arrays[name], value)
            recording = ops.record() if recorded else None
            at, rows = [ops.upload(np.array([n])) for n in (6, 3)], [ops.upload(row) for row in self.rows]
            results = self.run(recording or ops, at, rows)
            if recording:
                recording.seal(*results)
                recording.replay()
                results = recording.outputs
            found.append([ops.host(each).copy() for each in (*results, *self.arrays.values())])
        for number, (want, got) in enumerate(zip(*found, strict=True)):
            assert np.array_equal(got, want), number
        return {launch.function.__name__ for launch in recording.launches}


@pytest.mark.cuda
@pytest.mark.parametrize("seeds", [range(at, at + 10) for at in range(0, 40, 10)], ids=str)
def test_a_recording_of_any_ops_has_their_bits(seeds: range, ops: Any) -> None:
    names = set().union(*(Program(ops, seed).compare() for seed in seeds))
    assert names >= {"multiply", "multiply_both", "chain", "chain_store"}


# --- inputs, outputs, errors


@pytest.mark.cuda
def test_a_replay_reads_inputs_and_caches_as_they_are_now(ops: Any) -> None:
    ring, recording = ops.array(5, 3), ops.record()
    x, position = ops.upload(normal(1, 2, 3)), ops.upload(np.array([0]))  # made while it records: inputs
    y = recording.scale(x, 2.0)
    recording.store_rows(y, ring, position)
    recording.seal(y)
    for start in (0, 4, 12):
        new = normal(start, 2, 3)
        ops.fill(ring, 0)
        ops.fill(x, new)
        ops.fill(position, start)
        recording.replay()
        assert np.array_equal(ops.host(recording.outputs[0]), 2 * new)
        wanted = np.zeros((5, 3), np.float32)
        wanted[[start % 5, (start + 1) % 5]] = 2 * new
        assert np.array_equal(ops.host(ring), wanted)


@pytest.mark.cuda
def test_inputs_are_not_written_and_outputs_are_results(ops: Any) -> None:
    recording = ops.record()
    counts, ids = ops.upload(np.zeros(4, np.int64)), ops.upload(np.array([[1]], np.int32))
    with pytest.raises(ValueError, match="input"):
        recording.count(ids, counts)
    with pytest.raises(ValueError, match="result of its ops"):
        recording.seal(counts)
    del recording  # given up: what is uploaded from now on is no input
    assert counts.buffer.slab is not None and ops.upload(normal(2, 4)).buffer.slab is None


@pytest.mark.cuda
def test_what_is_kept_is_fetched_once_a_replay_when_it_is_asked_for(ops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an output comes with the replay."""
    x, asked, fetch = ops.upload(normal(1, 2, 64)), [], ops.driver.to_host
    recording = ops.record()
    doubled, tripled = (recording.scale(x, factor) for factor in (2.0, 3.0))
    recording.seal(doubled, kept=(tripled, doubled))
    monkeypatch.setattr(ops.driver, "to_host", lambda *args: (asked.append(args), fetch(*args))[1])
    for seed in (2, 3):
        new = normal(seed, 2, 64)
        ops.fill(x, new)
        recording.replay()
        asked.clear()
        three, two = recording.kept
        for out in (recording.outputs[0], two):
            assert np.array_equal(ops.host(out), 2 * new) and not asked
        for _ in range(2):
            assert np.array_equal(ops.host(three), 3 * new) and len(asked) == 1


@pytest.mark.cuda
def test_a_recording_on_other_arrays_has_inputs_of_its_own(ops: Any) -> None:
    """The first recording goes on; constants come along; the template holds no memory of the device."""

    def pooled() -> int:
        gc.collect()  # a graph of the tests' driver keeps its calls, and they their recording
        return sum(map(len, ops.memory._free.values()))

    ring, recording = ops.array(5, 3), ops.record()
    x, position, constant = (ops.upload(each) for each in (normal(1, 2, 3), np.array([0]), np.ones((2, 3), F32)))
    y = recording.scale(x, 2.0)
    recording.store_rows(recording.add(y, constant), ring, position)
    recording.seal(y, kept=(recording.scale(x[1:], 3.0),))
    template, values, more = recording.template([ring, x, position]), normal(7, 2, 3), normal(8, 2, 3)
    for part in (ring[1:], ring[:4]):
        with pytest.raises(ValueError, match="all of its buffer"):
            recording.template([part, x, position])
    other = [ops.array(5, 3), ops.moved(values), ops.moved(np.array([3]))]
    made = template.on(other)
    for each in (ring, other[0]):
        ops.fill(each, 0)
    made.replay()
    assert np.array_equal(ops.host(made.outputs[0]), 2 * values)
    assert np.array_equal(ops.host(made.kept[0]), np.float32(3) * values[1:])
    wanted = np.zeros((5, 3), np.float32)
    wanted[[3, 4]] = 2 * values + 1
    assert np.array_equal(ops.host(other[0]), wanted) and not ops.host(ring).any()
    ops.fill(other[1], more)
    made.replay()
    recording.replay()
    assert np.array_equal(ops.host(made.outputs[0]), 2 * more)
    assert np.array_equal(ops.host(recording.outputs[0]), 2 * normal(1, 2, 3))
    before = pooled()
    del recording, ring, x, position, y, part, each
    assert pooled() - before >= 3  # ring, slab, results, flags


@pytest.mark.cuda
def test_a_number_out_of_range_is_told_once_by_every_recording(ops: Any) -> None:
    table = ops.upload(np.arange(12, dtype=np.int32).reshape(4, 3))
    recording = ops.record()
    ids = ops.upload(np.array([1, 2], np.int32))
    recording.seal(recording.take_rows(table, ids))
    other = ops.moved(np.array([0, 1], np.int32))
    for each, at in ((recording, ids), (recording.template([ids]).on([other]), other)):
        ops.fill(at, np.array([1, 4], np.int32))
        with pytest.raises(IndexError, match="0..3"):
            each.replay()
        ops.fill(at, np.array([3, 0], np.int32))
        each.replay()
        assert ops.host(each.outputs[0]).tolist() == [[9, 10, 11], [0, 1, 2]]


# --- memory


@pytest.mark.parametrize("seed", range(3))
def test_what_is_in_use_at_a_time_shares_no_memory(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spans = {key: tuple(sorted(rng.integers(0, 60, 2).tolist())) for key in range(40)}
    sizes = {key: int(rng.choice([1, 256, 257, 4096])) for key in spans}
    offsets, total = share(spans, sizes)
    for a in spans:
        assert offsets[a] % ALIGNMENT == 0 and offsets[a] + sizes[a] <= total
        for b in range(a):
            if offsets[a] < offsets[b] + sizes[b] and offsets[b] < offsets[a] + sizes[a]:
                assert spans[a][1] < spans[b][0] or spans[b][1] < spans[a][0], (a, b)
    assert total < sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values())


@pytest.mark.cuda
def test_memory_serves_again_what_was_given_back_within_its_limit(ops: Any) -> None:
    memory = Memory(ops.driver, limit=1 << 20)
    kept = memory.buffer(600 << 10)
    block = kept.block
    with pytest.raises(MemoryError, match="limit of 0.00 GiB"):
        memory.buffer(600 << 10)
    del kept
    assert memory.buffer((600 << 10) - 1).block is block
    big = memory.buffer(900 << 10)  # what is in reserve goes first
    assert memory.taken <= 1 << 20 and big.nbytes == 900 << 10


@pytest.mark.cuda
def test_views_and_fills_are_those_of_numpy(ops: Any) -> None:
    values = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    array = ops.upload(values)
    for at in (
        1, (0, 2), slice(1, None), (slice(None), 1), (Ellipsis, 2), (slice(None), None, 1),
        (1, Ellipsis, slice(1, 4, 2)), (None, 1), (-1, -2), (slice(None), slice(None), slice(0, 4, 3)),
    ):  # fmt: skip
        assert array[at].shape == values[at].shape and np.array_equal(ops.host(array[at]), values[at]), at
        ops.fill(array[at], 7)
        ops.fill(array[at], ops.upload(np.ascontiguousarray(values[at])))
        assert np.array_equal(ops.host(array), values)
    assert np.array_equal(ops.host(array.reshape(6, -1)), values.reshape(6, -1))
    refused: list[tuple[type[Exception], Callable[[], Any]]] = [
        (IndexError, lambda: array[5]), (IndexError, lambda: array[0, 0, 0, 0, 0]), (IndexError, lambda: array[0, 3]),
        (ValueError, lambda: array[:, :, 1].reshape(-1)), (TypeError, lambda: np.asarray(array)),
        (ValueError, lambda: ops.fill(array[0, 0, 0], ops.upload(normal(2, 4)))),
    ]  # fmt: skip
    for error, call in refused:
        with pytest.raises(error):
            call()
