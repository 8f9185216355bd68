"""Experts read from disk when they are chosen: the same bits as from a mapped file, whatever fits into memory."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.dense.families import QWEN3_MOE
from ds4ref.archs.experts import dense_bytes
from ds4ref.engine import Engine
from ds4ref.engine_options import Drafting
from ds4ref.errors import BackendError, DataError, ModelFileError, UsageError
from ds4ref.nano import random_path
from ds4ref.nano.diagnostic import diagnostic_path
from ds4ref.residency import readers, resident
from ds4ref.residency.contents import Fading
from ds4ref.residency.hotlist import beside, write_hot_list
from ds4ref.residency.readers import NOW, SOMETIME, SOON, Job, Readers
from tests.archs.dense import draw_shape, draw_tensors, with_experts, write

PROMPT = [5, 6, 7, 8, 9, 3, 2, 11] * 3
LEAST = 700_000
"""Bytes that do for a token of the random model, of 96 experts of 78 KB."""


def open_cached(path: str | Path, budget: int | str, **options) -> Engine:
    return Engine.open(path, numerics="ds4", expert_cache=budget, **options)


def outputs(engine: Engine) -> list[np.ndarray]:
    """Logits of a prompt, of tokens one by one, of another session in between, and of a chunk after them."""
    first, second = engine.session(128), engine.session(64)
    first.sync(PROMPT)
    found = [first.logits.copy()]
    for token in range(20, 26):
        found.append(first.eval(token).copy())
        if token == 22:
            second.sync([9, 8, 7])
            found.append(second.eval(4).copy())
    return [*found, first.extend([4, 5, 6, 7, 8, 9, 10, 11, 12])]


def settled(cache: resident.ResidentExperts) -> None:
    while cache._jobs:
        time.sleep(0.001)


def reader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ds4ref-reader-")]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def wanted() -> list[np.ndarray]:
    with open_cached(random_path(), "off") as engine:
        assert engine.model.experts.resident is None
        return outputs(engine)


@pytest.mark.parametrize(("budget", "threads"), [(LEAST, 1), (320_000, 2), (1_500_000, 2), (10**9, 2)])
def test_results_do_not_depend_on_what_is_in_memory(wanted: list[np.ndarray], budget: int, threads: int) -> None:
    with open_cached(random_path(), budget, threads=threads) as engine:
        assert same(outputs(engine), wanted)
        found = engine.expert_use()["cache"]
        experts = engine.model.experts.resident
        assert found["places"] == min(96, budget // 77824) == experts.places
        assert found["bytes"] <= budget and 0 <= found["locked"] <= found["bytes"]
        assert 0 <= found["hits"] < found["uses"] and found["bytes_read"] > 0
        assert same(outputs(engine), wanted), "with a cache that is warm"
        if budget == 10**9:
            assert engine.expert_use()["cache"]["bytes_read"] == found["bytes_read"] <= 96 * 77824, "each is read once"


def test_layers_of_mixed_precision_have_places_of_their_sizes() -> None:
    path = diagnostic_path()
    with open_cached(path, "off") as engine:
        expected = engine.session(64).extend(PROMPT), engine.session(64).extend(PROMPT[:6], one_by_one=True)
        everything = sum(info.nbytes for name, info in engine.source.tensors.items() if "_exps." in name)
    with open_cached(path, int(0.7 * everything)) as engine:
        cache = engine.model.experts.resident
        assert len(cache.contents.pools) == 2
        assert all(0 < pool.places < len(pool.layers) * engine.shape.n_experts for pool in cache.contents.pools)
        for _ in range(2):
            found = engine.session(64).extend(PROMPT), engine.session(64).extend(PROMPT[:6], one_by_one=True)
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_decoded_tokens_count_as_such_and_a_prompt_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[object] = []
    monkeypatch.setattr(Fading, "decoded", lambda order, tokens: noted.append(tokens))
    monkeypatch.setattr(Fading, "new_prompt", lambda order: noted.append("prompt"))
    with open_cached(random_path(), LEAST) as engine:
        session = engine.session(64)
        session.sync(PROMPT)
        session.eval(4)
        session.sync([*PROMPT, 4, 5, 6])
        session.sync([1, 2, 3])
        assert noted == ["prompt", 0, 1, 0, "prompt", 0]
        other = engine.session(64)
        other.sync([9, 8])
        noted.clear()
        engine.together().look_ahead([(session, 4), (other, 5)])
        assert noted == [1], "a pass is one token, of however many sessions"


def test_a_family_of_decoders_with_experts_reads_them_as_well(tmp_path: Path) -> None:
    shape = with_experts(draw_shape(3, QWEN3_MOE.family), 3)
    path = tmp_path / "moe.gguf"
    write(path, shape, draw_tensors(shape, 3, False))
    with open_cached(path, "off") as engine:
        expected = engine.session(32).extend([1, 2, 3, 1])
    with open_cached(path, 10**6) as engine:
        assert engine.model.experts.resident is not None
        assert np.array_equal(engine.session(32).extend([1, 2, 3, 1], one_by_one=True)[:1], expected[:1])
        assert np.array_equal(engine.session(32).extend([1, 2, 3, 1]), expected)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_file_that_ends_early_ends_the_pass_with_one_line(monkeypatch: pytest.MonkeyPatch, recorded: bool) -> None:
    with open_cached(random_path(), LEAST) as engine:
        session = engine.session(64)
        session.sync(PROMPT)
        session.eval(3)
        end = engine.source.tensors["blk.5.ffn_gate_exps.weight"].offset
        real = os.readv

        def short(handle: int, buffers: list[memoryview]) -> int:
            return 0 if os.lseek(handle, 0, os.SEEK_CUR) >= end else real(handle, buffers)

        monkeypatch.setattr(readers.os, "readv", short)
        with pytest.raises(ModelFileError, match="gguf: the file ends here, though it was longer") as raised:
            for token in range(30, 60):
                session.eval(token) if recorded else session.extend([token])
        assert "\n" not in str(raised.value) and not session.valid
        monkeypatch.undo()
        session.sync(PROMPT)  # what could not be read is read again
        again = session.logits.copy()
    with open_cached(random_path(), "off") as engine:
        other = engine.session(64)
        other.sync(PROMPT)
        assert np.array_equal(again, other.logits)


def test_what_cannot_be_cached_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="a cache of 300000 bytes is too small for a token's experts: at least 311297"):
        open_cached(random_path(), 300_000)
    with pytest.raises(BackendError, match="backend reference has no cache of experts"):
        open_cached(random_path(), LEAST, backend="reference")
    with pytest.raises(BackendError, match="no memory for"):
        monkeypatch.setattr(resident, "anonymous_memory", lambda size: (_ for _ in ()).throw(OSError(12, "no")))
        open_cached(random_path(), LEAST)


def test_a_hot_list_beside_the_file_is_read_first(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(random_path(), path)
    counts = np.zeros((6, 16), int)
    counts[2, 3], counts[5, 15], counts[0, 0] = 3, 2, 1
    write_hot_list(beside(path), counts)
    with open_cached(path, 10**6) as engine:
        contents = engine.model.experts.resident.contents
        assert np.argwhere(contents.place >= 0).tolist() == [[0, 0], [2, 3], [5, 15]]
        assert outputs(engine)


def test_a_file_larger_than_memory_gets_a_cache_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from ds4ref import engine as module

    monkeypatch.setattr(module, "memory_bytes", lambda: 1 << 20)
    with Engine.open(random_path(), expert_cache="off") as engine:
        dense = dense_bytes(engine.source)
    for wanted, places in ((0, None), (3, None), (4, 4), (38, 38), (10_000, 96)):
        free = None if not wanted else (dense + 77824 * (wanted + 0.5)) / 0.8
        monkeypatch.setattr(module, "available_bytes", lambda free=free: free)
        with Engine.open(random_path()) as engine:
            cache, use = engine.model.experts.resident, engine.model.experts
            assert use.advise == (cache is None)
            assert (cache and cache.places) == places


def test_experts_of_the_layer_under_way_stay_however_cold() -> None:
    with open_cached(random_path(), LEAST) as engine:
        cache = engine.model.experts.resident  # 8 places
        with cache.passing(0):
            cache.need(4, np.array([[1, 2, 3]]))
            cache.wait(4, (0, 1, 2))
            cache.need(3, np.array([[5, 6, 7]]))
            cache.wait(3, (0, 1, 2))
        cache.order.hotness[4], cache.order.hotness[3] = -5, 100  # whatever layer 4 has is worth least
        with cache.passing(0):
            cache.need(4, np.array([[1, 2, 3, 8]]))
            cache.wait(4, (0, 1, 2))
            cache.ask(5, np.array([[0, 1, 2, 3, 4, 5, 6, 7]]))
            place = cache.contents.place
            assert (place[4, [1, 2, 3, 8]] >= 0).all() and (place[5] >= 0).sum() == 4
            cache.need(5, np.array([[0, 1, 2, 8]]))
            assert (place[5, [0, 1, 2, 8]] >= 0).all()
            cache.wait(5, (0, 1, 2))
        settled(cache)
        assert not cache._kept.any() and not cache._unread.any()


def test_more_than_is_free_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "available_bytes", lambda: 1_000_000)
    with pytest.raises(UsageError, match="a cache of 1011712 bytes of experts does not fit into the 1000000 that are"):
        open_cached(random_path(), 13 * 77824 + 5)
    with open_cached(random_path(), 12 * 77824) as engine:
        assert engine.model.experts.resident.places == 12


def test_a_child_of_the_process_says_why_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_cached(random_path(), LEAST) as engine:
        cache = engine.model.experts.resident
        with monkeypatch.context() as child, cache._turn:  # another thread of the parent computed at the fork
            child.setattr(readers.os, "getpid", lambda: -1)
            with pytest.raises(BackendError, match="opened before the process was forked"):
                engine.session(64).sync(PROMPT)
            with pytest.raises(BackendError, match="opened before the process was forked"):
                cache.preload([(0, 0)])
            held, free = threading.Event(), threading.Event()

            def hold() -> None:
                with cache._readers.lock:
                    held.set()
                    free.wait(10)

            holding = threading.Thread(target=hold)
            holding.start()
            held.wait()
            cache.close()
            assert holding.is_alive() and not cache._readers._handles
            free.set()
            holding.join()


def test_readers_take_the_most_urgent_first_and_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 40)
    reading = Readers([str(path)], 10240, 1)
    order: list[str] = []
    gate = threading.Event()
    first = Job(lambda handle: gate.wait() and None, NOW)
    reading.submit([first])
    while not first.begun:
        pass
    jobs = {name: Job(lambda handle, name=name: order.append(name), urgency)
            for name, urgency in (("c", SOMETIME), ("b", SOON), ("d", SOMETIME), ("a", NOW))}  # fmt: skip
    reading.submit(jobs.values())
    jobs["d"].urgency = NOW
    reading.submit([jobs["d"]])
    gate.set()
    reading.wait([first, *jobs.values()])
    assert order == ["a", "d", "b", "c"]
    bad = Job(lambda handle: 1 / 0, NOW)
    reading.submit([bad])
    with pytest.raises(ZeroDivisionError):
        reading.wait([bad])
    reading.close()
    reading.close()
    with pytest.raises(ModelFileError, match="the file has changed since it was opened"):
        Readers([str(path)], 10241, 1)
    with pytest.raises(ModelFileError, match="cannot open: No such file"):
        Readers(str(tmp_path / "none"), 1, 1)


def test_an_address_is_that_of_the_file_until_its_part_has_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate, real = threading.Semaphore(0), threading.Event(), resident.read_pages
    monkeypatch.setattr(resident, "read_pages", lambda *args: begun.release() or (gate.wait(10) and real(*args)))
    with open_cached(random_path(), LEAST) as engine:
        cache = engine.model.experts.resident
        mapped = [table.copy() for table in cache.tables[4]]
        (memory,) = cache._memory
        with cache.passing(0):
            cache.need(4, np.array([[3, 5]]))
            assert all(begun.acquire(timeout=10) for _ in range(resident.READERS))
            assert all(map(np.array_equal, cache.tables[4], mapped))
            gate.set()
            cache.wait(4, (0, 1, 2))
            for table, before in zip(cache.tables[4], mapped, strict=True):
                assert np.flatnonzero(table != before).tolist() == [3, 5]
                assert (memory.address <= table[[3, 5]]).all() and (table[[3, 5]] < memory.address + LEAST).all()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interruption_halfway_leaves_nothing_half_made(
    wanted: list[np.ndarray], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    real, calls = resident.ResidentExperts._jobs_of, iter(range(100))

    def interrupted(*args: Any) -> list[Job]:
        if next(calls) == 12:  # places have had other experts, and some of a layer's moves are made
            raise error
        return real(*args)

    with open_cached(random_path(), LEAST) as engine:
        cache, session = engine.model.experts.resident, engine.session(64)
        mapped = [[table.copy() for table in tables] for tables in cache.tables]
        session.sync([5])
        with monkeypatch.context() as patch, pytest.raises(error):
            patch.setattr(resident.ResidentExperts, "_jobs_of", interrupted)
            for token in range(6, 20):
                session.eval(token)
        assert (cache.contents.place == -1).all() and not cache._jobs and not cache._unread.any()
        assert all(map(np.array_equal, sum(cache.tables, []), sum(mapped, [])))
        assert same(outputs(engine), wanted)


def test_experts_that_could_not_be_read_ahead_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(handle: int, buffers: list) -> int:
        raise OSError(5, "Input/output error")

    with open_cached(random_path(), LEAST) as engine:
        cache = engine.model.experts.resident
        with monkeypatch.context() as patch:
            patch.setattr(readers.os, "readv", broken)
            cache.preload([(0, 1), (2, 3)])
            while not all(job.done for jobs in list(cache._jobs.values()) for job in jobs):
                time.sleep(0.001)
        assert engine.expert_use()["cache"]["failed"] == 2
        with cache.passing(0):
            pass
        assert (cache.contents.place == -1).all() and not cache._jobs
        cache.preload([(0, 1)])
        settled(cache)
        assert cache.contents.place[0, 1] >= 0 and cache.summary()["failed"] == 2


@pytest.mark.parametrize("options", [{"drafts": Drafting("mtp")}, {}])
def test_an_open_that_fails_leaves_no_thread(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "m.gguf"
    path.symlink_to(random_path())
    before = reader_threads()
    if not options:
        beside(path).write_text("{}")
    with pytest.raises((DataError, UsageError), match="not a hot list|--mtp FILE"):
        open_cached(path, 10**6, **options)
    assert reader_threads() == before


def test_an_automatic_cache_that_cannot_be_is_none_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from ds4ref import engine as module

    monkeypatch.setattr(module, "memory_bytes", lambda: 1 << 20)
    with Engine.open(random_path(), backend="reference") as engine:
        assert engine.expert_use()["cache"]["off"].endswith("backend reference has no cache of experts")
    with Engine.open(random_path(), expert_cache="off") as engine:
        assert "cache" not in engine.expert_use()
    monkeypatch.setattr(module, "available_bytes", lambda: 10**8)
    monkeypatch.setattr(resident, "anonymous_memory", lambda size: (_ for _ in ()).throw(OSError(12, "no")))
    with Engine.open(random_path()) as engine:
        assert engine.model.experts.advise and engine.model.experts.resident is None
        assert "no memory for" in engine.expert_use()["cache"]["off"]


def test_experts_in_several_files(tmp_path):
    """The same bits from a split model, whose stacks lie in different parts."""
    from ds4ref.cli.quantize import main as quantize

    assert quantize([str(random_path()), "-o", str(tmp_path / "s.gguf"), "--split-max-size", "1MB"]) == 0
    first = min(tmp_path.glob("s-00001-of-*.gguf"))
    with Engine.open(random_path(), numerics="ds4", expert_cache="off") as whole, open_cached(first, LEAST) as parts:
        assert len({info.part for name, info in parts.source.tensors.items() if "_exps" in name}) > 5
        assert same(outputs(parts), outputs(whole)) and parts.expert_use()["cache"]["bytes_read"] > 0
