"""Recordings of the CUDA backend: memory of places, joined chains, inputs and outputs, calls of the driver."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda.driver.arrays import DeviceArray
from ds4ref.kernels.cuda.driver.memory import ALIGNMENT, KEPT, Memory, _size_class
from ds4ref.kernels.cuda.graph.recording import share

from .. import reference
from ..test_cpu_ops import assert_close, matrix, normal
from .device import cuda

pytestmark = pytest.mark.cuda


@pytest.fixture
def ops() -> Any:
    return cuda.backend


def names(recording: Any) -> list[str]:
    return [launch.function.__name__ for launch in recording.launches]


@pytest.mark.parametrize("seed", range(5))
def test_places_in_use_at_a_time_do_not_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = {i: int(size) for i, size in enumerate(rng.choice([1, 256, 257, 700, 4096], 60))}
    first = rng.integers(0, 30, 60)
    spans = {i: (int(first[i]), int(first[i] + rng.integers(0, 8))) for i in range(60)}
    offsets, total = share(spans, sizes)
    assert offsets.keys() == spans.keys()
    for i, (from_i, to_i) in spans.items():
        assert offsets[i] % ALIGNMENT == 0 and offsets[i] + sizes[i] <= total
        for j, (from_j, to_j) in spans.items():
            if i < j and from_i <= to_j and from_j <= to_i:
                assert offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i], (i, j)
    assert total < sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes.values())


def test_one_after_the_other_share_a_place() -> None:
    offsets, total = share({0: (0, 1), 1: (1, 2), 2: (2, 3)}, {0: 100, 1: 300, 2: 100})
    assert offsets == {0: 0, 1: 256, 2: 0} and total == 768


def test_a_chain_of_stages_is_one_launch_with_the_same_bits(ops: Any) -> None:
    """A cached row: norm, rope, E4M3, binary16, into its ring."""
    x, weight = normal(1, 2, 192), normal(2, 192)
    angles = normal(3, 2, 32)
    ring, at = ops.array(5, 192, dtype=np.float16), np.array([9])

    def row(to: Any, x: Any, weight: Any, cos: Any, sin: Any, ring: Any, at: Any) -> None:
        y = to.rms_norm(x, weight, 1e-6)
        y = to.rope(y[:, None, :], cos, sin)[:, 0]
        to.store_rows(to.round_f16(to.round_e4m3(y, 128)), ring, at)

    operands = [ops.upload(each) for each in (x, weight, np.cos(angles), np.sin(angles))]
    ops.fill(ring, 0)
    row(ops, *operands, ring, ops.upload(at))
    wanted = ops.host(ring)
    mine = np.zeros((5, 192), np.float16)
    row(reference, x, weight, np.cos(angles), np.sin(angles), mine, at)
    np.testing.assert_allclose(wanted.astype(np.float32), mine.astype(np.float32), rtol=0.07, atol=1e-3)
    ops.fill(ring, 0)
    recording = ops.record()
    row(recording, *operands, ring, ops.upload(at))
    recording.seal()
    assert names(recording) == ["chain_store"]
    recording.replay()
    assert np.array_equal(ops.host(ring), wanted) and wanted.any()


def test_what_has_two_readers_is_not_joined_away(ops: Any) -> None:
    x = ops.upload(normal(1, 2, 64))
    recording = ops.record()
    y = recording.rms_norm(x, None, 1e-6)
    recording.seal(recording.round_f16(y), recording.add(y, y))
    assert names(recording).count("chain") == 2
    recording.replay()
    normed = reference.rms_norm(normal(1, 2, 64), None, 1e-6)
    assert_close(ops.host(recording.outputs[1]), 2 * normed, 1e-6)


def test_what_is_an_output_is_not_joined_away(ops: Any) -> None:
    x = ops.upload(normal(1, 2, 64))
    recording = ops.record()
    y = recording.rms_norm(x, None, 1e-6)
    recording.seal(y, recording.round_f16(y))
    recording.replay()
    normed, rounded = map(ops.host, recording.outputs)
    assert np.array_equal(rounded, normed.astype(np.float16).astype(np.float32)) and not np.array_equal(rounded, normed)


def test_stages_in_the_other_order_are_two_launches(ops: Any) -> None:
    x = ops.upload(normal(1, 1, 64))
    recording = ops.record()
    recording.seal(recording.rms_norm(recording.round_f16(x), None, 1e-6))
    assert names(recording) == ["chain", "chain"]


def test_a_chain_does_not_read_what_was_overwritten_meanwhile(ops: Any) -> None:
    """Its first part reads a ring's row that is stored anew before its second part."""
    ring, at = ops.upload(normal(1, 3, 512)), ops.upload(np.array([0]))
    before = ops.host(ring).copy()
    fresh = ops.upload(normal(2, 3, 512))
    recording = ops.record()
    y = recording.rms_norm(ring, None, 1e-6)
    recording.store_rows(fresh, ring, at)
    recording.seal(recording.round_f16(y))
    recording.replay()
    wanted = reference.rms_norm(before, None, 1e-6).astype(np.float16)
    assert_close(ops.host(recording.outputs[0]), wanted.astype(np.float32), 2e-3)


def test_a_replay_reads_inputs_and_caches_as_they_are_now(ops: Any) -> None:
    ring = ops.array(5, 3)
    recording = ops.record()
    x, position = ops.upload(normal(1, 2, 3)), ops.upload(np.array([0]))  # made while it records: inputs
    y = recording.scale(x, 2.0)
    recording.store_rows(y, ring, position)
    recording.seal(y)
    for start in (0, 1, 4, 12):
        new = normal(start, 2, 3)
        ops.fill(ring, 0)
        ops.fill(x, new)
        ops.fill(position, start)
        recording.replay()
        assert np.array_equal(ops.host(recording.outputs[0]), 2 * new)
        wanted = np.zeros((5, 3), np.float32)
        wanted[[start % 5, (start + 1) % 5]] = 2 * new
        assert np.array_equal(ops.host(ring), wanted)


def test_inputs_are_not_written_and_outputs_are_results(ops: Any) -> None:
    recording = ops.record()
    counts, ids = ops.upload(np.zeros(4, np.int64)), ops.upload(np.array([[1]], np.int32))
    with pytest.raises(ValueError, match="input"):
        recording.count(ids, counts)
    with pytest.raises(ValueError, match="result of its ops"):
        recording.seal(counts)


def test_a_recording_that_was_given_up_takes_no_more_inputs(ops: Any) -> None:
    recording = ops.record()
    inside = ops.upload(normal(1, 4))
    del recording
    outside = ops.upload(normal(2, 4))
    assert inside.buffer.slab is not None and outside.buffer.slab is None


def test_places_are_shared_along_a_long_chain(ops: Any) -> None:
    x = ops.upload(normal(1, 5000))
    recording, y = ops.record(), x
    for _ in range(40):
        y = recording.scale(y, 1.01)
    recording.seal(y)
    assert x.nbytes <= recording.nbytes < 4 * x.nbytes


def test_a_number_out_of_range_is_told_once(ops: Any) -> None:
    table = ops.upload(np.arange(12, dtype=np.int32).reshape(4, 3))
    recording = ops.record()
    ids = ops.upload(np.array([1, 2], np.int32))
    recording.seal(recording.take_rows(table, ids))
    ops.fill(ids, np.array([1, 4], np.int32))
    with pytest.raises(IndexError, match="0..3"):
        recording.replay()
    ops.fill(ids, np.array([3, 0], np.int32))
    recording.replay()
    assert ops.host(recording.outputs[0]).tolist() == [[9, 10, 11], [0, 1, 2]]


def test_products_with_room_of_their_own(ops: Any) -> None:
    """Packed inputs lie in memory that the next launch uses again."""
    x, one, two = normal(1, 1, 256), matrix("Q8_0", 9, 256), matrix("Q8_0", 5, 256, seed=2)
    placed = [ops.place(w) for w in (one, two)]
    recording = ops.record()
    results = [recording.linear(recording.scale(ops.upload(x), 2.0), w, "a8") for w in placed]
    recording.seal(*results)
    for _ in range(2):
        recording.replay()
        for got, w in zip(recording.outputs, (one, two), strict=True):
            assert_close(ops.host(got), reference.linear(2 * x, w, "a8"), 3e-6)


# ---- memory


def test_memory_serves_again_what_was_given_back(ops: Any) -> None:
    memory = Memory(ops.driver)
    first = memory.buffer(1000)
    block = first.block
    del first
    assert memory.buffer(1001).block is block
    assert memory.taken == _size_class(1000)


def test_memory_keeps_to_its_limit(ops: Any) -> None:
    memory = Memory(ops.driver, limit=1 << 20)
    kept = memory.buffer(600 << 10)
    with pytest.raises(MemoryError, match="limit of 0.00 GiB"):
        memory.buffer(600 << 10)
    del kept
    big = memory.buffer(900 << 10)  # what is in reserve goes first
    assert memory.taken <= 1 << 20 and big.nbytes == 900 << 10


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000, 1 << 20, (1 << 20) + 1, KEPT + 1])
def test_sizes_of_blocks(size: int) -> None:
    found = _size_class(size)
    assert found >= size and found % ALIGNMENT == 0 and found <= max(2 * ALIGNMENT, 1.27 * size)


# ---- arrays


def test_views_are_those_of_numpy(ops: Any) -> None:
    values = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    array = ops.upload(values)
    for at in (
        1, (0, 2), slice(1, None), (slice(None), 1), (Ellipsis, 2), (slice(None), None, 1),
        (1, Ellipsis, slice(1, 4, 2)), (None, 1), (-1, -2), (slice(None), slice(None), slice(0, 4, 3)),
    ):  # fmt: skip
        view = array[at]
        assert view.shape == values[at].shape and np.array_equal(ops.host(view), values[at]), at
    assert np.array_equal(ops.host(array.reshape(6, -1)), values.reshape(6, -1))
    for bad in (5, (0, 0, 0, 0, 0), (0, 3)):
        with pytest.raises(IndexError):
            array[bad]
    with pytest.raises(ValueError, match="gaps"):
        array[:, :, 1].reshape(-1)
    with pytest.raises(TypeError, match="host"):
        np.asarray(array)


def test_filling_a_part(ops: Any) -> None:
    array, wanted = ops.upload(np.zeros((4, 6), np.float32)), np.zeros((4, 6), np.float32)
    for target in (array, wanted):
        if isinstance(target, DeviceArray):
            ops.fill(target[1:3], normal(1, 2, 6))
            ops.fill(target[:, 2], 7)
            ops.fill(target[0], ops.upload(normal(2, 6)))
        else:
            target[1:3], target[:, 2], target[0] = normal(1, 2, 6), 7, normal(2, 6)
    assert np.array_equal(ops.host(array), wanted)
    with pytest.raises(ValueError, match="does not fill"):
        ops.fill(array[0], ops.upload(normal(2, 5)))


@pytest.mark.parametrize("weighted", [True, False])
def test_the_steps_before_a_block_are_one_launch_with_the_same_bits(ops: Any, weighted: bool) -> None:
    X, mix, scale, base = normal(1, 2, 4, 40), normal(2, 2, 24), normal(3, 3), normal(4, 24)
    weight = ops.upload(normal(5, 40)) if weighted else None
    operands = [ops.upload(each) for each in (X, mix, scale, base)]

    def enter(to: Any, X: Any, mix: Any, scale: Any, base: Any) -> tuple[Any, ...]:
        pre, post, comb = to.hc_split(mix, scale, base, 20, 1e-6)
        return to.rms_norm(to.hc_reduce(X, pre), weight, 1e-5), post, comb

    wanted = [ops.host(each) for each in enter(ops, *operands)]
    recording = ops.record()
    recording.seal(*enter(recording, *operands))
    assert names(recording) == ["hc_enter"]
    recording.replay()
    for got, want in zip(recording.outputs, wanted, strict=True):
        assert np.array_equal(ops.host(got), want)


def test_the_steps_after_a_block_are_one_launch_with_the_same_bits(ops: Any) -> None:
    X, a, b = normal(1, 2, 4, 40), normal(2, 2, 40), normal(3, 2, 40)
    operands = [ops.upload(each) for each in (X, a, b, normal(4, 2, 4), normal(5, 2, 4, 4))]

    def leave(to: Any, X: Any, a: Any, b: Any, post: Any, comb: Any) -> Any:
        return to.hc_expand(X, to.add(a, b), post, comb)

    wanted = ops.host(leave(ops, *operands))
    recording = ops.record()
    recording.seal(leave(recording, *operands))
    assert names(recording) == ["hc_leave"]
    recording.replay()
    assert np.array_equal(ops.host(recording.outputs[0]), wanted)


def test_weights_of_streams_that_another_op_reads_are_kept(ops: Any) -> None:
    operands = [ops.upload(each) for each in (normal(1, 2, 4, 40), normal(2, 2, 24), normal(3, 3), normal(4, 24))]
    recording = ops.record()
    pre, _, _ = recording.hc_split(*operands[1:], 20, 1e-6)
    y = recording.rms_norm(recording.hc_reduce(operands[0], pre), None, 1e-6)
    recording.seal(y, recording.scale(pre, 2.0))
    assert sorted(names(recording)) == ["chain", "hc_reduce", "hc_split", "scale"]
    recording.replay()
    assert_close(ops.host(recording.outputs[1]), 2 * ops.host(ops.hc_split(*operands[1:], 20, 1e-6)[0]), 1e-6)


def test_a_norm_that_more_follows_stays_apart(ops: Any) -> None:
    """The launch before a block ends with a norm: what a chain does after it would be lost."""
    operands = [ops.upload(each) for each in (normal(1, 2, 4, 40), normal(2, 2, 24), normal(3, 3), normal(4, 24))]

    def rounded(to: Any, X: Any, mix: Any, scale: Any, base: Any) -> Any:
        pre, _, _ = to.hc_split(mix, scale, base, 20, 1e-6)
        return to.round_f16(to.rms_norm(to.hc_reduce(X, pre), None, 1e-6))

    wanted = ops.host(rounded(ops, *operands))
    recording = ops.record()
    recording.seal(rounded(recording, *operands))
    recording.replay()
    assert np.array_equal(ops.host(recording.outputs[0]), wanted)


@pytest.mark.parametrize("part", ["before", "after"])
def test_steps_around_a_block_do_not_read_what_was_overwritten_meanwhile(ops: Any, part: str) -> None:
    """Streams before a block, or an addend after it, that are stored anew between the ops that would be one launch."""
    X, fresh, at = normal(1, 2, 4, 40), normal(9, 2, 160), np.array([0])
    mixing = [ops.upload(each) for each in (normal(2, 2, 24), normal(3, 3), normal(4, 24))]
    b, post, comb = (ops.upload(each) for each in (normal(5, 2, 40), normal(6, 2, 4), normal(7, 2, 4, 4)))
    streams, a = ops.upload(X), ops.upload(X[:, 0])
    given, start = ops.upload(fresh if part == "before" else fresh[:, :40]), ops.upload(at)

    def steps(to: Any) -> Any:
        if part == "before":
            pre, _, _ = to.hc_split(*mixing, 20, 1e-6)
            y = to.hc_reduce(streams, pre)
            to.store_rows(given, streams.reshape(2, 160), start)
            return to.rms_norm(y, None, 1e-6)
        y = to.add(a, b)
        to.store_rows(given, a, start)
        return to.hc_expand(streams, y, post, comb)

    wanted = ops.host(steps(ops))
    ops.fill(streams, X)
    ops.fill(a, X[:, 0])
    recording = ops.record()
    recording.seal(steps(recording))
    recording.replay()
    assert np.array_equal(ops.host(recording.outputs[0]), wanted)
    assert not np.array_equal(ops.host(streams if part == "before" else a), X if part == "before" else X[:, 0])


def test_what_is_kept_is_fetched_once_a_replay_when_it_is_asked_for(ops: Any) -> None:
    """And an output that shares its place with nothing kept comes with the replay."""
    x = ops.upload(normal(1, 2, 64))
    recording = ops.record()
    doubled, tripled, more = (recording.scale(x, factor) for factor in (2.0, 3.0, 4.0))
    recording.seal(doubled, kept=(tripled, more, doubled))
    counts = ops.driver.watch()
    for seed in (2, 3, 4):
        new = normal(seed, 2, 64)
        ops.fill(x, new)
        recording.replay()
        counts.clear()
        (out,) = (ops.host(each) for each in recording.outputs)
        assert np.array_equal(out, 2 * new) and not counts
        three, four, two = recording.kept
        for _ in range(2):
            assert np.array_equal(ops.host(two), 2 * new) and counts["to_host"] == 0
        for number, (kept, factor) in enumerate(((four, 4), (three, 3)), 1):
            for _ in range(2):
                assert np.array_equal(ops.host(kept), factor * new) and counts["to_host"] == number
    ops.driver.watched = None


def doubling(ops: Any) -> tuple[Any, Any, Any, Any]:
    """A recording that stores twice its input, plus a constant of its slab, into a ring; with ring, input, position."""
    ring, recording = ops.array(5, 3), ops.record()
    x, position, constant = (ops.upload(each) for each in (normal(1, 2, 3), np.array([0]), np.ones((2, 3), np.float32)))
    y = recording.scale(x, 2.0)
    recording.store_rows(recording.add(y, constant), ring, position)
    recording.seal(y, kept=(recording.scale(x[1:], 3.0),))
    return recording, ring, x, position


def test_a_recording_on_other_arrays_has_inputs_of_its_own(ops: Any) -> None:
    """What is filled from then on is copied by the replay; the first recording goes on; constants come along."""
    recording, ring, x, position = doubling(ops)
    template = recording.template([ring, x, position])
    values = normal(7, 2, 3)
    other = [ops.array(5, 3), ops.moved(values), ops.moved(np.array([3]))]
    ops.scale(other[1], 1.0)
    made = template.on(other)
    third = template.on([ops.array(5, 3), ops.moved(values), ops.moved(np.array([3]))])
    for each in (ring, other[0]):
        ops.fill(each, 0)
    counts = ops.driver.watch()
    made.replay()
    assert counts["launch"] == 1 and not counts["to_device"]
    assert np.array_equal(ops.host(made.outputs[0]), 2 * values)
    assert np.array_equal(ops.host(made.kept[0]), np.float32(3) * values[1:])
    wanted = np.zeros((5, 3), np.float32)
    wanted[[3, 4]] = 2 * values + 1
    assert np.array_equal(ops.host(other[0]), wanted) and not ops.host(ring).any()
    counts.clear()
    more = normal(8, 2, 3)
    ops.fill(other[1], more)
    assert not counts, "written to the slab only"
    assert np.array_equal(ops.host(ops.scale(other[1], 1.0)), more)
    third.replay()
    made.replay()
    assert np.array_equal(ops.host(made.outputs[0]), 2 * more)
    recording.replay()
    assert np.array_equal(ops.host(recording.outputs[0]), 2 * normal(1, 2, 3))
    assert np.array_equal(ops.host(made.outputs[0]), 2 * more), "results of one are not the other's"
    ops.driver.watched = None


def test_a_template_keeps_no_memory_of_the_device(ops: Any) -> None:
    def pooled() -> int:
        gc.collect()  # a graph of the host's driver keeps its calls, and they their recording
        return sum(map(len, ops.memory._free.values()))

    first = doubling(ops)
    template = first[0].template(list(first[1:]))
    before = pooled()
    del first
    blocks = pooled() - before
    assert blocks >= 4  # ring, slab, results, flags
    made = template.on([ops.array(5, 3), ops.moved(normal(7, 2, 3)), ops.moved(np.array([3]))])
    made.replay()
    before = pooled()
    del made
    assert pooled() - before >= 3


def test_a_view_cannot_be_replaced(ops: Any) -> None:
    recording, ring, x, position = doubling(ops)
    for part in (ring[1:], ring[:4]):
        with pytest.raises(ValueError, match="all of its buffer"):
            recording.template([part, x, position])


def test_a_recording_on_other_arrays_tells_of_numbers_out_of_range(ops: Any) -> None:
    table, ids = ops.upload(np.arange(12, dtype=np.int32).reshape(4, 3)), np.array([[1], [3]], np.int32)
    recording = ops.record()
    at = ops.upload(ids[:, 0].copy())
    recording.seal(recording.take_rows(table, at))
    other = ops.moved(np.array([0, 4], np.int32))
    made = recording.template([at]).on([other])
    with pytest.raises(IndexError):
        made.replay()
    recording.replay()
    ops.fill(other, np.array([0, 2], np.int32))
    made.replay()
    assert np.array_equal(ops.host(made.outputs[0]), [[0, 1, 2], [6, 7, 8]])
