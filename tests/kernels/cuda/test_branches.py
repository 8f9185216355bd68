"""Launches side by side: what waits for what, memory that is shared meanwhile, and how a graph of branches is captured.

The driver of a GPU is asked by a stand-in for its library, which keeps what streams, events and the capture would make
of the calls: what each captured piece of work comes after.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.binding import F32
from ds4ref.kernels.cuda.driver import gpu
from ds4ref.kernels.cuda.driver.arrays import DeviceArray
from ds4ref.kernels.cuda.driver.launch import Launch
from ds4ref.kernels.cuda.driver.memory import Buffer
from ds4ref.kernels.cuda.graph.branches import Schedule, needs
from ds4ref.kernels.cuda.graph.recording import share

from .. import reference
from ..test_cpu_ops import assert_close, matrix, normal
from .device import cuda


def array() -> DeviceArray:
    return DeviceArray(Buffer(None, 4), (1,), F32)


def drawn(seed: int, count: int = 60) -> tuple[list[Launch], set[int]]:
    """Launches over a few arrays, some written again and again; one that any may write."""
    rng = np.random.default_rng(seed)
    arrays, flag = [array() for _ in range(25)], array()

    def some(most: int) -> list[DeviceArray]:
        return [arrays[i] for i in rng.permutation(25)[: rng.integers(1, most)]]

    def nothing(*ignored: Any) -> None:
        """Is never called."""

    return [Launch(nothing, [*some(3), flag], some(4), ()) for _ in range(count)], {id(flag.buffer)}


def conflicts(launches: list[Launch], shared: set[int]) -> list[tuple[int, int]]:
    """Pairs that must not change places: one writes what the other one reads or writes."""
    reads = [{id(a.buffer) for a in launch.reads} - shared for launch in launches]
    writes = [{id(a.buffer) for a in launch.writes} - shared for launch in launches]
    return [
        (m, n)
        for n in range(len(launches))
        for m in range(n)
        if writes[m] & (reads[n] | writes[n]) or reads[m] & writes[n]
    ]


def reached(order: Schedule) -> list[set[int]]:
    """What has ended whenever a launch begins, step by step: those before it in its branch, those it waits for."""
    last: dict[int, int] = {}
    found: list[set[int]] = []
    for number, turn in enumerate(order.turns):
        direct = {*turn.waits} | ({last[turn.branch]} if turn.branch in last else set())
        found.append(direct.union(*(found[m] for m in direct)))
        last[turn.branch] = number
    return found


@pytest.mark.parametrize("branches", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_what_depends_on_something_comes_after_it(seed: int, branches: int) -> None:
    launches, shared = drawn(seed)
    order = Schedule(needs(launches, shared), branches)
    over = reached(order)
    assert all(m in over[n] for m, n in conflicts(launches, shared))
    assert [{m for m in range(60) if mask >> m & 1} for mask in order.before] == over
    assert {turn.branch for turn in order.turns} <= set(range(branches)) and order.length <= len(launches)
    for turn in order.turns:
        assert all(order.turns[m].branch != turn.branch for m in turn.waits)


@pytest.mark.parametrize("seed", range(4))
def test_the_other_order_is_another_one_and_allowed(seed: int) -> None:
    launches, shared = drawn(seed)
    order = Schedule(needs(launches, shared), 3)
    sequence = order.sequence()
    assert sorted(sequence) == list(range(60)) != sequence
    place = {number: at for at, number in enumerate(sequence)}
    assert all(place[m] < place[n] for m, n in conflicts(launches, shared))


@pytest.mark.parametrize("branches", [1, 3])
def test_memory_is_shared_by_those_who_never_meet(branches: int) -> None:
    launches, shared = drawn(9)
    order = Schedule(needs(launches, shared), branches)
    rng = np.random.default_rng(2)
    uses = {key: sorted(rng.integers(0, 60, rng.integers(1, 5)).tolist()) for key in range(40)}
    offsets, _ = share(order.spans(uses), dict.fromkeys(uses, 256))
    over = reached(order)
    for a in uses:
        for b in uses:
            if a < b and offsets[a] == offsets[b]:
                assert all(m in over[n] for m in uses[a] for n in uses[b]) or all(
                    m in over[n] for m in uses[b] for n in uses[a]
                ), (a, b)


def test_two_that_only_read_the_same_are_side_by_side() -> None:
    x, y, z, out = (array() for _ in range(4))
    launches = [Launch(print, [y], [x], ()), Launch(print, [z], [x], ()), Launch(print, [out], [y, z], ())]
    order = Schedule(needs(launches, set()), 2)
    assert order.length == 2 and order.turns[0].branch != order.turns[1].branch
    assert Schedule(needs(launches, set()), 1).length == 3


@pytest.mark.cuda
def test_a_recording_in_branches_computes_the_same_bits() -> None:
    """Two branches with room of their own for packed inputs, which come together again; replays go another way than the
    ops were called."""
    ops = cuda.backend
    x, one, two = normal(1, 1, 256), matrix("Q8_0", 64, 256), matrix("Q8_0", 64, 256, seed=2)
    placed = [ops.place(w) for w in (one, two)]
    found, orders = [], []
    for branches in (1, 3):
        ops.branches = branches
        try:
            recording = ops.record()
            given = ops.upload(x)
            left = recording.linear(recording.scale(given, 2.0), placed[0], "a8")
            right = recording.linear(recording.scale(given, 3.0), placed[1], "a8")
            recording.seal(recording.add(recording.scale(left, 0.5), right), left)
        finally:
            del ops.branches
        for _ in range(2):
            recording.replay()
        found.append([ops.host(out) for out in recording.outputs])
        orders.append(recording.order)
    assert orders[0].length == len(recording.launches) > orders[1].length
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a, b)
    wanted = 0.5 * reference.linear(2 * x, one, "a8") + reference.linear(3 * x, two, "a8")
    assert_close(found[1][0], wanted, 3e-6)


class Library:
    """The CUDA driver's C interface as far as a capture needs it. ``after``: for every captured piece of work, all that
    it comes after."""

    def __init__(self) -> None:
        self.done: dict[int, frozenset[str]] = {}
        self.events: dict[int, frozenset[str]] = {}
        self.after: dict[str, frozenset[str]] = {}
        self.origin: int | None = None
        self.destroyed = self.streams = 0

    def work(self, stream: int, name: str) -> None:
        assert stream in self.done, f"{name}: stream {stream} takes no part in the capture"
        self.after[name] = self.done[stream]
        self.done[stream] |= {name}

    def cuStreamBeginCapture_v2(self, stream: Any, mode: Any) -> int:
        self.origin, self.done = stream.value, {stream.value: frozenset()}
        return 0

    def cuStreamEndCapture(self, stream: Any, graph: Any) -> int:
        assert stream.value == self.origin
        everything = frozenset().union(*self.done.values())
        assert self.done[stream.value] == everything, "a stream was not joined again"
        return 0

    def cuEventCreate(self, event: Any, flags: Any) -> int:
        event._obj.value = len(self.events) + 1
        self.events[event._obj.value] = frozenset()
        return 0

    def cuStreamCreate(self, stream: Any, flags: Any) -> int:
        self.streams += 1
        stream._obj.value = 7 + self.streams
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        self.destroyed += 1
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self.events[event.value] = self.done[stream.value]
        return 0

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: Any) -> int:
        self.done[stream.value] = self.done.get(stream.value, frozenset()) | self.events[event.value]
        return 0

    def cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        self.work(stream.value, "refresh")
        return 0

    def cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        self.work(stream.value, "fetch")
        return 0

    def cuGraphGetNodes(self, graph: Any, nodes: Any, count: Any) -> int:
        count._obj.value = len(self.after)
        return 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *ignored: 0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> gpu.Device:
    """A device of that library, whose streams are numbers."""
    made: Any = gpu.Device.__new__(gpu.Device)
    gpu.Driver.__init__(made)
    made._lib, made._entered, made._others = Library(), threading.local(), []
    made._entered.done, made.stream, made._handle = True, 7, ctypes.c_void_p(7)
    made.raises, made._handles = RuntimeError, []
    monkeypatch.setattr(gpu.cuda, "external_stream", lambda handle: handle)
    return made


@pytest.mark.parametrize("branches", [1, 2, 4])
def test_a_captured_graph_keeps_the_order_and_is_whole(device: Any, branches: int) -> None:
    launches, shared = drawn(3)
    order = Schedule(needs(launches, shared), branches)
    library = device._lib

    def call(number: int) -> Callable[[], None]:
        return lambda: library.work(device.stream_of(order.turns[number].branch), str(number))

    refresh = [(gpu.Block(1, 4), np.zeros(4, np.uint8))]
    fetch = [(np.zeros(4, np.uint8), gpu.Block(1, 4))]
    graph = device.capture(refresh, [call(n) for n in range(60)], fetch, order)
    assert graph.nodes == 62 and library.destroyed == len(library.events)
    assert all(str(m) in library.after[str(n)] for m, n in conflicts(launches, shared))
    assert all("refresh" in library.after[str(n)] for n in range(60))
    assert library.after["fetch"] == {"refresh", *map(str, range(60))}
    if branches == 1:
        assert not library.events
    else:
        beside = [n for n in range(1, 60) if str(n - 1) not in library.after[str(n)]]
        assert beside, "nothing runs beside anything"


def test_a_plain_capture_is_one_branch(device: Any) -> None:
    library = device._lib
    graph = device.capture([], [lambda: library.work(7, "a"), lambda: library.work(7, "b")], [])
    assert graph.nodes == 2 and library.after["b"] == {"a"} and not library.events


@pytest.mark.cuda
def test_room_of_a_launch_is_its_branch_s_own() -> None:
    """Launches of one branch follow each other and may have the same; those of two branches may run at a time."""
    recording = cuda.backend.record()
    for branch in (0, 1, 0):
        recording._used, recording._branch = 0, branch
        recording._room(100)
    places = {branch: [array.buffer for array in arrays] for branch, arrays in recording._scratch.items()}
    assert [len(buffers) for buffers in places.values()] == [1, 1]
    one, two = places[0][0], places[1][0]
    assert one is not two and (one.block is not two.block or abs(one.start - two.start) >= 400)
