"""Recorded decode against the op-by-op pass: the same bits, in every mode, through every kind of change."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ds4ref import decode
from ds4ref.archs.deepseek4 import chunk
from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.engine import Engine
from ds4ref.session.session import Session
from tests.marking import sampled
from tests.oracle.modelgen import draw_shape, write_model

MODES = ["exact", "qat", "ds4"]


@pytest.fixture(scope="module", params=MODES)
def engine(request: pytest.FixtureRequest, nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics=request.param)


def pair(engine: Engine, ctx: int) -> tuple[Session, Session]:
    """A session that replays recordings, and one that does not because something listens."""
    fast, slow = engine.session(ctx), engine.session(ctx)
    slow.hooks = Recorder("result_norm")
    return fast, slow


def tokens(engine: Engine, count: int, seed: int = 11) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, engine.shape.vocab, count)]


def step(fast: Session, slow: Session, token: int) -> None:
    """One token in both: equal, and the fast one was replayed, the slow one not."""
    wanted = slow.eval(token)
    np.testing.assert_array_equal(fast.eval(token), wanted, err_msg=f"position {fast.pos - 1}")
    np.testing.assert_array_equal(fast.streams, slow.streams)
    recording = fast._decoder.last
    assert recording is not None and recording.length > 20 * fast.model.shape.n_layers
    assert slow._decoder.last is None


def test_same_bits_token_by_token(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first token until windows of both ratios have closed; where the indexer begins to select; and where it
    scores twice as many rows."""
    monkeypatch.setattr(chunk, "LASTING", 1)
    k = 4 * engine.shape.index_topk
    ids = tokens(engine, 2 * k + 20)
    for start, end in ((0, 140), (k - 6, k + 12), (2 * k - 6, 2 * k + 12)):
        fast, slow = pair(engine, 600)
        for session in (fast, slow):
            if start:
                session.sync(ids[:start])
        seen = set()
        for token in ids[start:end]:
            step(fast, slow, token)
            seen.add(id(fast._decoder.last))
        assert len(seen) >= 3


@pytest.mark.thorough
def test_thread_count_may_change(engine: Engine) -> None:
    ids, ops = tokens(engine, 50), engine.model.ops
    before = ops.threads
    fast, slow = pair(engine, 60)
    try:
        for at, token in enumerate(ids):
            ops.threads = (1, 2, 3, 8, 2)[at // 10]
            step(fast, slow, token)
            assert fast._decoder.last.workers.threads == ops.threads
    finally:
        ops.threads = before


def test_another_engine_keeps_its_threads(nano_path: str) -> None:
    with Engine.open(nano_path, threads=1) as one, Engine.open(nano_path, threads=3) as three:
        assert (one.threads, three.threads) == (1, 3)
        one.model.ops.threads = 2
        assert (one.threads, three.threads) == (2, 3)


@pytest.mark.thorough
@pytest.mark.parametrize(("seed", "mode"), [(seed, MODES[seed % 3]) for seed in range(6)])
def test_same_bits_on_drawn_shapes(mode: str, seed: int, tmp_path: Path) -> None:
    """Shapes as the oracle tests draw them: other widths, heads, ratios and formats than the embedded model's."""
    rng = np.random.default_rng(seed)
    path = tmp_path / "drawn.gguf"
    write_model(path, draw_shape(seed), seed)
    with Engine.open(path, numerics=mode) as engine:
        ids = tokens(engine, 300, seed)
        fast, slow = pair(engine, 320)
        start = int(rng.integers(0, 200))
        if start:
            fast.sync(ids[:start])
            slow.sync(ids[:start])
        for token in ids[start : start + 40]:
            step(fast, slow, token)


def test_sessions_with_a_common_past_in_two_threads(engine: Engine) -> None:
    """Forks of one snapshot that go on at the same time, on shared rows."""
    ids = tokens(engine, 260)
    first = engine.session(400)
    first.sync(ids[:200])
    snapshot = first.snapshot()
    ways = [ids[200:230], ids[:229:-1]]

    def goes_on(way: list[int]) -> list[np.ndarray]:
        session = engine.session(400)
        session.restore(snapshot)
        return [session.eval(token).copy() for token in way]

    wanted = list(map(goes_on, ways))
    with ThreadPoolExecutor(2) as pool:
        np.testing.assert_array_equal(list(pool.map(goes_on, ways)), wanted)


def test_prompts_of_any_length_share_recordings(nano_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache has room for a whole chunk from the start; one that grew with prompts would differ from session to
    session."""
    with Engine.open(nano_path, numerics="ds4") as engine:
        ids = tokens(engine, 512)
        first = engine.session(600)
        assert first.prepare(range(599)) == 6 == first.prepare(range(599)) + 6
        monkeypatch.setattr(decode, "record", lambda *_: pytest.fail("recorded again"))
        for length in (1, 62, 193, 254, 511):
            fast, slow = pair(engine, 600)
            for session in (fast, slow):
                session.sync(ids[:length])
            assert fast.prepare(range(length, length + 6)) >= 2
            for token in ids[:6]:
                step(fast, slow, token)
            assert fast.prepare(range(length, length + 6)) == 0


def test_a_replayed_token_takes_next_to_no_memory(nano_path: str) -> None:
    with Engine.open(nano_path, numerics="ds4") as engine:
        session, ids = engine.session(600), tokens(engine, 364)
        session.sync(ids[:300])
        session.prepare(range(300, 364))
        tracemalloc.start()
        try:
            for token in ids[300:]:
                session.append(token)
            now, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert now < 200_000 and peak < 250_000, "of 64 tokens"


@pytest.mark.parametrize("engine", sampled(MODES, ["ds4"]), indirect=True)
def test_a_dropped_cache_is_given_back(engine: Engine) -> None:
    """Recordings hold a cache's buffers, so they must go with it (twice the memory otherwise)."""
    import gc
    import weakref

    session = engine.session(100)
    session.eval(5)
    for forget in (session.invalidate, lambda: session.sync([1, 2, 3])):
        session.eval(7)
        gone = weakref.ref(session._cache)
        recording = weakref.ref(session._decoder.last)
        forget()
        gc.collect()
        assert gone() is None and recording() is None
        session.eval(5)


def test_recordings_take_no_more_than_their_share_of_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those used longest ago go first, but the newest few stay; a token after one was dropped is the same."""
    session = engine.session(600)
    ids = tokens(engine, 40)
    decoder = session._decoder
    assert decoder is not None
    plain = engine.session(600)
    wanted = [plain.eval(token).copy() for token in ids]
    session.append(ids[0])
    one = decoder.last.nbytes
    monkeypatch.setattr(decode, "MOST_BYTES", 6 * one)
    monkeypatch.setattr(decode, "LEAST", 2)
    at, kept = 1, set()
    for count in (1, 2, 3, 4, 1, 5, 6, 7, 8, 1):
        decoder.run(ids[at : at + count])
        session._cache_ahead.rewind(at)
        kept.add(len(decoder._recordings))
        assert len(decoder._recordings) == 2 or decoder._nbytes() <= 6 * one
        assert decoder.last in [recording for recording, _ in decoder._recordings.values()]
    assert 2 in kept and max(kept) == 3, "of nine kinds"
    for place, token in enumerate(ids[1:], 1):
        np.testing.assert_array_equal(session.eval(token), wanted[place])


FORKED = """
import os
from ds4ref.kernels.binding import APART, Binding
values = Binding().array(APART)
values[:] = 1
if not (child := os.fork()):
    values[:] = 2
    os._exit(0)
os.waitpid(child, 0)
print(values.min(), values.max())
"""


def test_a_forked_process_has_caches_of_its_own():
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert done.stdout == "1.0 1.0\n"
