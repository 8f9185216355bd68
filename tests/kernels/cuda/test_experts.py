"""Models larger than the device: what has a slot, what kernels read from host memory, and that it changes no bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ds4ref.kernels.cuda import CUDA
from ds4ref.kernels.cuda.driver import experts as module
from ds4ref.kernels.cuda.driver.experts import ExpertCache

from .. import reference
from ..test_cpu_ops import assert_close, matrix, normal
from .host_driver import bytes_of

pytestmark = pytest.mark.cuda

E, R, N = 6, 3, 32
ON_A_DEVICE = os.environ.get("DS4_TEST_CUDA") == "device"
here = pytest.mark.skipif(ON_A_DEVICE, reason="reads device memory from this process")


def cached(slots: int, reachable: bool = True, fmt: str = "Q8_0", rows: int = R, n: int = N) -> SimpleNamespace:
    """A backend with a layer of three stacks of six experts, so many of which have slots: ``gate``, ``up``, ``down`` in
    host memory and ``there``, and ``counts`` of their use."""
    ops = CUDA(host_memory=None if reachable else 0)
    ops.share = slots / E
    host = [matrix(fmt, rows, n, E, seed=1), matrix(fmt, rows, n, E, seed=2), matrix(fmt, n, n, E, seed=3)]
    there = [ops.place(w) for w in host]
    counts = ops.array(1, E, dtype=np.int64)
    ops.fill(counts, 0)
    ops.follow(counts, [there])
    assert ops.experts is not None and ops.experts.reachable == reachable
    return SimpleNamespace(ops=ops, host=host, there=there, counts=counts, cache=ops.experts)


def held(cache: ExpertCache, layer: int = 0) -> list[int]:
    return sorted(int(e) for e in cache.residency.expert_in[layer] if e >= 0)


def test_all_fit_or_a_share_of_every_stack() -> None:
    ops = CUDA(limit=1 << 30)
    ops.prepare(800 << 20, 700 << 20)
    assert not ops.fetching and ops.record() is not None
    ops.recorded()
    ops.prepare(2000 << 20, 1800 << 20)
    assert ops.fetching and ops.record() is None, "nothing is known yet of what kernels reach"
    assert ops.share == pytest.approx((1024 * 7 / 8 - 200) / 1800, rel=1e-3)
    with pytest.raises(MemoryError, match=r"need 1\.95 GiB.* 2\.93 with all of them.* 1\.00 are free"):
        ops.prepare(3000 << 20, 1000 << 20)
    with pytest.raises(MemoryError, match="need"):
        ops.prepare(2000 << 20, 0)


def test_it_records_where_kernels_reach_all_experts() -> None:
    assert cached(2).ops.record() is not None
    assert cached(2, reachable=False).ops.record() is None


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.parametrize("slots", [1, 2, 4, 6])
def test_products_are_the_same(slots: int, reachable: bool) -> None:
    """Whether the chosen experts have slots or not, one twice in a token, more of them than slots; a chunk, too."""
    c = cached(slots, reachable)
    some = [[[0, 1], [1, 0], [0, 0]], [[5, 2], [3, 4], [0, 1]], [[5, 5], [5, 4], [4, 4]]]
    for ids in (*some, [[i % E, (5 * i + 1) % E] for i in range(20)]):
        chosen = np.array(ids, np.int32)
        x, mid = normal(1, len(ids), N), normal(2, len(ids), 2, N)
        on = c.ops.upload(chosen)
        for w in c.there:
            c.ops.advise(on, w)
        got = c.ops.host(c.ops.expert_linear(c.ops.upload(x), on, c.there[0], "float"))
        assert_close(got, reference.expert_linear(x, chosen, c.host[0], "float"), 3e-6)
        got = c.ops.host(c.ops.expert_sum(c.ops.upload(mid), on, c.there[2], "float"))
        assert_close(got, reference.expert_sum(mid, chosen, c.host[2], "float"), 3e-6)
        assert len(held(c.cache)) <= slots


ROUTES = {
    "all hit": [[0, 1]],
    "one misses": [[1, 4]],
    "all miss": [[5, 3]],
    "one twice": [[4, 4]],
    "two tokens": [[0, 5], [5, 2]],
}


@pytest.mark.parametrize("fmt", ["Q8_0", "F16"])
@pytest.mark.parametrize("ids", ROUTES.values(), ids=ROUTES.keys())
def test_a_recorded_token_has_the_bits_of_one_with_everything_there(ids: list[list[int]], fmt: str) -> None:
    """Recorded, op by op, and where all experts are on the device."""
    chosen, act = np.array(ids, np.int32), "a8" if fmt == "Q8_0" else "float"
    x, mid = normal(1, len(ids), 64), normal(2, len(ids), 2, 64)
    results = []
    for slots, recorded in ((2, True), (2, False), (None, False), (None, True)):
        c = cached(slots or E, fmt=fmt, rows=5, n=64)
        if slots is None:
            c.ops.share = None
            c.there = [c.ops.place(w) for w in c.host]
        where = c.ops.record() if recorded else c.ops
        on, inputs, middle = c.ops.upload(chosen), c.ops.upload(x), c.ops.upload(mid)
        outs = [where.expert_linear(inputs, on, w, act) for w in c.there[:2]]
        outs.append(where.expert_sum(middle, on, c.there[2], act))
        if recorded:
            where.seal(*outs)
            where.replay()
            outs = where.outputs
        results.append([c.ops.host(out).copy() for out in outs])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert np.array_equal(one, two)


def test_gate_and_up_share_a_launch() -> None:
    c = cached(2)
    recording = c.ops.record()
    on, x = c.ops.upload(np.array([[1, 4]], np.int32)), c.ops.upload(normal(1, 1, N))
    outs = [recording.expert_linear(x, on, w, "a8") for w in c.there[:2]]
    recording.seal(*outs)
    assert [len(launch.matrices) for launch in recording.launches if launch.matrices] == [2]


def test_stacks_of_different_layers_do_not() -> None:
    """Each has a map of its own."""
    ops = CUDA()
    ops.share = 0.5
    there = [ops.place(matrix("Q8_0", R, N, E, seed=seed)) for seed in (1, 2)]
    ops.follow(None, [[w] for w in there])
    recording = ops.record()
    on, x = ops.upload(np.array([[1, 4]], np.int32)), ops.upload(normal(1, 1, N))
    recording.seal(*[recording.expert_linear(x, on, w, "a8") for w in there])
    assert [len(launch.matrices) for launch in recording.launches if launch.matrices] == [1, 1]


@pytest.mark.parametrize("reachable", [True, False])
def test_ids_out_of_range_raise(reachable: bool) -> None:
    for bad in (-1, E, 1 << 30):
        c = cached(2, reachable)
        on = c.ops.upload(np.array([[bad]], np.int32))
        with pytest.raises(IndexError, match=f"0..{E - 1}"):
            c.ops.expert_linear(c.ops.upload(normal(1, 1, N)), on, c.there[0])
            c.ops.synchronize()


# --- what moves between tokens


class Token:
    """A recorded token that runs the experts it is told through a layer."""

    def __init__(self, c: SimpleNamespace, K: int = 2):
        self.c, self.recording = c, c.ops.record()
        self.ids = c.ops.upload(np.zeros((1, K), np.int32))
        self.x = normal(1, 1, N)
        x = c.ops.upload(self.x)
        self.recording.count(self.ids, c.counts[0])
        self.recording.seal(self.recording.expert_linear(x, self.ids, c.there[0], "float"))

    def run(self, *experts: int) -> None:
        """Choose ``experts``, and look at the products."""
        chosen = np.array([experts], np.int32)
        self.c.ops.fill(self.ids, chosen)
        self.recording.replay()
        got = self.c.ops.host(self.recording.outputs[0])
        assert_close(got, reference.expert_linear(self.x, chosen, self.c.host[0], "float"), 3e-6)


def test_who_is_wanted_more_gets_a_slot_between_two_tokens() -> None:
    c = cached(2)
    token = Token(c)
    assert held(c.cache) == [0, 1]
    for _ in range(8):
        token.run(4, 5)
    assert held(c.cache) == [4, 5]
    hits = c.cache.residency.hits
    token.run(4, 5)
    token.run(4, 5)
    assert c.cache.residency.hits == hits + 4


def test_nothing_moves_that_pays_nothing() -> None:
    """Two experts that are used in turn for one slot."""
    c = cached(1)
    token = Token(c, 1)
    counts = c.ops.driver.watch() if not ON_A_DEVICE else {}
    for turn in range(20):
        token.run((turn + 1) % 2)
    assert held(c.cache) == [0] and not counts.get("begin_copy", 0)


@contextmanager
def slow_copies(driver: Any) -> Iterator[list[Callable[[], None]]]:
    """Copies on the other stream happen when they are called; until then they are under way."""
    pending: list[Callable[[], None]] = []
    begin, done = driver.begin_copy, driver.copies_done

    def begin_copy(*args: Any) -> None:
        pending.append(lambda: begin(*args))

    driver.begin_copy, driver.copies_done = begin_copy, lambda: not pending
    try:
        yield pending
    finally:
        driver.begin_copy, driver.copies_done = begin, done


@here
def test_a_slot_is_nobodys_while_it_is_filled() -> None:
    """Tokens run meanwhile, with the expert that lost it and the one that will have it, both from host memory."""
    c = cached(2)
    token = Token(c)
    with slow_copies(c.ops.driver) as pending:
        for _ in range(6):
            token.run(4, 4)
        assert len(pending) == 3, "three matrices of one expert"
        assert len(held(c.cache)) == 1 and 4 not in held(c.cache)
        for victim in {0, 1} - set(held(c.cache)):
            for _ in range(3):
                token.run(4, victim)
        pending.pop()()
        token.run(4, 4)
        assert 4 not in held(c.cache), "two of its matrices are not there yet"
        while pending:
            pending.pop()()
        token.run(4, 4)
        assert 4 in held(c.cache)
        token.run(4, 0)


@here
def test_slots_hold_the_bytes_of_their_experts_at_all_times() -> None:
    """After any tokens, whatever moved: of every matrix."""
    rng = np.random.default_rng(5)
    c = cached(3)
    token = Token(c)
    moved = set()
    for turn in range(60):
        token.run(*rng.choice(E, 2, p=np.roll([0.5, 0.3, 0.08, 0.06, 0.03, 0.03], turn // 15 * 2), replace=False))
        if not c.cache._flying:
            check_bytes(c)
        moved |= set(held(c.cache))
    assert moved > {0, 1, 2}


def check_bytes(c: SimpleNamespace) -> None:
    residency = c.cache.residency
    for host, w in zip(c.host, c.there, strict=True):
        data: Any = w.data
        size = host.data[0].nbytes
        for expert, slot in enumerate(residency.slot_of[0]):
            if slot >= 0:
                start = data.buffer.start + int(slot) * size
                assert np.array_equal(bytes_of(data.buffer.block)[start : start + size], host.data[expert].ravel())
    table = bytes_of(c.cache.table.buffer.block).view(np.int32)[:E]
    assert np.array_equal(table, c.cache._shown[0])


@here
@pytest.mark.parametrize(("place", "calls"), [("_begin", 0), ("_show", 3), ("_land", 3)])
def test_a_replay_after_an_interrupt_is_right(place: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C wherever the cache is at work: later tokens are right, and slots are used again."""
    c = cached(2)
    token = Token(c)
    whole, left = getattr(ExpertCache, place), [calls]

    def interrupted(self: Any, *args: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        return whole(self, *args)

    monkeypatch.setattr(ExpertCache, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(20):
            token.run(4, 5)
    for chosen in ((4, 5), (3, 2)):
        for _ in range(30):
            token.run(*chosen)
    check_bytes(c)
    assert held(c.cache) == [2, 3]


def test_a_token_asks_for_no_more_than_a_launch_and_a_wait() -> None:
    if ON_A_DEVICE:
        pytest.skip("counts calls of the driver of tests")
    c = cached(2)
    token = Token(c)
    for _ in range(8):
        token.run(4, 5)
    counts = c.ops.driver.watch()
    c.ops.fill(token.ids, np.array([[3, 5]], np.int32))
    counts.clear()
    token.recording.replay()
    assert counts == {"launch": 1, "sync": 1}, "a miss is nothing that the host does anything for"


# --- chunks


def test_a_chunk_decides_who_has_slots() -> None:
    c = cached(2)
    ids = np.array([[3, 5]] * 18 + [[0, 1]] * 2, np.int32)
    c.ops.synchronize()
    c.ops.expert_linear(c.ops.upload(normal(1, 20, N)), c.ops.upload(ids), c.there[0], "float")
    assert held(c.cache) == [3, 5]
    residency = c.cache.residency
    assert residency.hot[0].tolist() == [3, 3, 0, 28, 0, 28], "as after many tokens of this rate"


@here
def test_experts_of_a_chunk_pass_through_two_pieces_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of which is copied to while the other one is read, and not before what read it has ended."""
    c = cached(1)
    monkeypatch.setattr(module, "STAGE_BYTES", c.host[0].data[0].nbytes)  # one expert at a time
    driver, asked = c.ops.driver, []

    def noting(patch: pytest.MonkeyPatch, name: str, letter: Callable[..., str]) -> None:
        call = getattr(driver, name)

        def noted(*args: Any) -> None:
            asked.append(letter(*args))
            call(*args)

        patch.setattr(driver, name, noted)

    places: list[int] = []

    def staged(block: Any, *args: Any) -> str:
        if block.pointer not in places:
            places.append(block.pointer)
        return str(places.index(block.pointer))

    ids = np.array([[i % E, (i + 1) % E] for i in range(24)], np.int32)
    x = normal(1, 24, N)
    on, inputs = c.ops.upload(ids), c.ops.upload(x)
    with lazy_copies(driver), monkeypatch.context() as patch:
        noting(patch, "hold_copies", lambda: "hold ")
        noting(patch, "await_copies", lambda: "await ")
        noting(patch, "begin_copy", staged)
        noting(patch, "run", lambda call: ".")
        got = c.ops.host(c.ops.expert_linear(inputs, on, c.there[0], "float"))
    assert_close(got, reference.expert_linear(x, ids, c.host[0], "float"), 3e-6)
    group = "await hold ..."
    assert "".join(asked) == "hold 0..." + "".join(group + place for place in "1010") + group


@contextmanager
def lazy_copies(driver: Any) -> Iterator[None]:
    """Copies on the other stream happen when something waits for them."""
    await_copies = driver.await_copies
    with slow_copies(driver) as pending:

        def now() -> None:
            await_copies()
            while pending:
                pending.pop(0)()

        driver.await_copies = now
        yield
        driver.await_copies = await_copies


@here
def test_what_is_brought_is_waited_for() -> None:
    c = cached(2, reachable=False)
    with lazy_copies(c.ops.driver):
        for experts in ([0, 5], [3, 5], [1, 2]):
            chosen, x = np.array([experts], np.int32), normal(1, 1, N)
            got = c.ops.host(c.ops.expert_linear(c.ops.upload(x), c.ops.upload(chosen), c.there[0], "float"))
            assert_close(got, reference.expert_linear(x, chosen, c.host[0], "float"), 3e-6)
            check_bytes(c)


# --- host memory


def test_a_driver_that_refuses_pages_gets_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    if ON_A_DEVICE:
        pytest.skip("the driver of tests refuses")
    driver = type(CUDA().driver)
    taken: list[int] = []
    dropped: list[int] = []

    def register(self: Any, start: int, nbytes: int) -> bool:
        taken.append(start)
        return len(taken) < 3

    monkeypatch.setattr(driver, "register", register)
    monkeypatch.setattr(driver, "unregister", lambda self, start: dropped.append(start))
    monkeypatch.setattr(module, "pages_of", lambda arrays: [(a.ctypes.data, a.nbytes) for a in arrays])
    c = cached(2)
    assert sorted(dropped) == sorted(taken[:2]), "pages registered before one was refused"
    data: Any = c.there[0].data
    assert data.far is not data.source and np.array_equal(data.far, data.source)
    Token(c).run(4, 5)


def test_all_pages_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    if ON_A_DEVICE:
        pytest.skip("counts calls of the driver of tests")
    c = cached(2)
    counts = c.ops.driver.watch()
    registered = len(c.cache._readable._starts)
    assert registered
    del c.cache
    c.ops.experts, c.there = None, []
    assert counts["unregister"] == registered


def test_a_host_with_too_little_memory_brings_experts_one_by_one() -> None:
    c = cached(2, reachable=False)
    for experts in ([0, 5], [3, 5], [1, 2]):
        on = c.ops.upload(np.array([experts], np.int32))
        c.ops.expert_linear(c.ops.upload(normal(1, 1, N)), on, c.there[0], "float")
        assert set(experts) <= set(held(c.cache))
        if not ON_A_DEVICE:
            check_bytes(c)
