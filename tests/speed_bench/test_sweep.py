"""What is inside the timed windows, what is not, and how a sweep ends."""

import hashlib
import struct
from contextlib import ExitStack

import numpy as np
import pytest

from ds4ref import decode
from ds4ref.costs import PREFILL_CHUNK
from ds4ref.engine import Engine
from ds4ref.errors import Cancelled, ContextError
from ds4ref.speed_bench import sweep as module
from ds4ref.speed_bench.plan import Lane, Plan
from ds4ref.speed_bench.probes import parse_probes
from ds4ref.speed_bench.prompt import prose_tokens
from ds4ref.speed_bench.runner import Measurement
from ds4ref.speed_bench.sweep import SweepError, SweepRow, sweep, warm_up
from ds4ref.targets import Cancellation

from .fake import EVAL_S, PICK_S, PREFILL_S, READY_S, Clock, FakeSession

TOKENS = list(range(2, 42))
EOS = 1


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", clock)
    return clock


def run(session, depths=(10, 25, 40), gen=3, **options):
    return list(sweep(session, TOKENS, depths, gen, EOS, **options))


def test_windows_hold_prefill_and_decode_and_nothing_else(clock):
    rows = run(FakeSession(clock, ctx=44))
    assert [(r.ctx_tokens, r.prefill_tokens, r.gen_tokens) for r in rows] == [(10, 10, 3), (25, 15, 3), (40, 15, 3)]
    for row in rows:  # snapshot and restore take thousands of seconds on this clock
        assert row.prefill_s == PREFILL_S * row.prefill_tokens
        assert row.prefill_tps == 1 / PREFILL_S
        assert row.steps_s == (PICK_S + EVAL_S,) * 3
        assert row.gen_tps == pytest.approx(1 / (PICK_S + EVAL_S))
        assert row.gen_first_ms == 1000 * (READY_S + PICK_S + EVAL_S), "what its user would wait for"
    assert [row.kvcache_bytes for row in rows] == [1100, 1250, 1400], "the size at the frontier, before decode"


def test_order_of_operations(clock):
    session = FakeSession(clock, ctx=44)
    run(session, depths=(10, 25), gen=2)
    names = [entry[0] for entry in session.log]
    assert names == ["sync", "snapshot", "prepare", "append", "append", "restore"] * 2
    assert [entry[1:] for entry in session.log if entry[0] == "sync"] == [(0, 10), (10, 25)]
    assert session.tokens == TOKENS[:25]


def test_decode_is_greedy_and_never_ends_the_text(clock):
    row = run(FakeSession(clock, ctx=44), depths=(10,), gen=4)[0]
    assert row.ids == tuple(2 + (3 * pos) % 48 for pos in (10, 11, 12, 13))
    assert row.gen_digest == hashlib.sha256(struct.pack("<4I", *row.ids)).hexdigest()[:12]


def test_rows_come_as_soon_as_they_are_measured(clock):
    session = FakeSession(clock, ctx=44)
    walk = sweep(session, TOKENS, (10, 25, 40), 3, EOS)
    assert next(walk).ctx_tokens == 10
    assert session.pos == 10


def test_cancel_keeps_what_was_measured(clock):
    session, rows = FakeSession(clock, ctx=44), []
    with pytest.raises(Cancelled):
        for row in sweep(session, TOKENS, (10, 25, 40), 3, EOS, cancel=lambda: session.pos > 26):
            rows.append(row)
    assert [row.ctx_tokens for row in rows] == [10]


def test_progress_counts_towards_the_last_depth(clock):
    calls = []
    run(FakeSession(clock, ctx=44), progress=lambda done, total: calls.append((done, total)))
    assert calls == [(10, 40), (25, 40), (40, 40)]


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("sync", "prefill to 10 failed: broken"),
        ("snapshot", "snapshot at 10 failed: broken"),
        ("prepare", "decode at depth 10 failed: broken"),
        ("append", "decode at depth 10 failed: broken"),
        ("restore", "restore at 10 failed: broken"),
    ],
)
def test_failures_name_the_frontier(clock, operation, message):
    session = FakeSession(clock, ctx=44)
    session.fail[operation] = ContextError("broken")
    with pytest.raises(SweepError) as error:
        run(session)
    assert str(error.value) == message


def test_out_of_memory_is_a_failure_not_a_bug(clock):
    session = FakeSession(clock, ctx=44)
    session.fail["snapshot"] = MemoryError()
    with pytest.raises(SweepError, match="snapshot at 10 failed: not enough memory"):
        run(session)


def test_bugs_are_not_dressed_up(clock):
    session = FakeSession(clock, ctx=44)
    session.fail["append"] = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        run(session)


def test_decode_stays_inside_the_context(clock):
    assert len(run(FakeSession(clock, ctx=44), depths=(40,), gen=3)) == 1
    with pytest.raises(SweepError, match="generation would exceed allocated context at depth 40"):
        run(FakeSession(clock, ctx=43), depths=(40,), gen=3)


def test_broken_logits_are_noticed(clock):
    session = FakeSession(clock, ctx=44)
    session.dead = True
    with pytest.raises(SweepError, match="failed to choose non-EOS token at depth 10"):
        run(session)


def test_rates_of_degenerate_rows():
    row = SweepRow(10, 10, 0.0, (), 1, ())
    assert (row.prefill_tps, row.gen_tps, row.gen_first_ms, row.gen_steady_tps) == (0, 0, 0, 0)
    assert SweepRow(1, 1, 1.0, (3.0, 0.5, 0.5), 1, (7, 8, 9)).gen_steady_tps == 2.0


@pytest.mark.parametrize("ctx", [6, 20, 1000])
def test_warm_up_fits_any_context(clock, ctx):
    session = FakeSession(clock, ctx)
    warm_up(session, TOKENS, EOS)
    names = [entry[0] for entry in session.log]
    assert names[0] == "sync" and names.count("append") == 4 and names[-1] == "restore"


def test_what_was_prepared_before_costs_the_first_step_nothing(clock):
    session = FakeSession(clock, ctx=44)
    session.prepared = set(range(25, 28))
    assert [row.gen_first_ms for row in run(session, depths=(10, 25))] == [
        1000 * (READY_S + PICK_S + EVAL_S), 1000 * (PICK_S + EVAL_S)
    ]  # fmt: skip


def test_warm_up_is_a_whole_chunk_and_says_what_it_took(clock):
    """A shorter one would leave the buffers of the chunk, and its code, to the first row."""
    session = FakeSession(clock, 3000)
    found = warm_up(session, [2] * 2048, EOS)
    assert session.log[0] == ("sync", 0, PREFILL_CHUNK)
    assert found.prefill_s == PREFILL_S and found.step_s == PICK_S + EVAL_S
    assert found.walk(100, 10) == 100 * PREFILL_S + 10 * (PICK_S + EVAL_S)


def test_progress_is_drawn_while_the_window_stands_still(clock):
    """A terminal may take as long as it likes, and a chunk is never remembered for the sake of stopping inside it."""
    session, asked = FakeSession(clock, ctx=44), []
    real = session.sync

    def sync(tokens, progress=None, cancel=None):
        asked.append(cancel)
        real(tokens, progress, cancel)

    session.sync = sync

    def slow_terminal(done, total):
        clock.now += 77.0

    rows = run(session, progress=slow_terminal)
    assert [row.prefill_s for row in rows] == [PREFILL_S * row.prefill_tokens for row in rows]
    assert asked == [None] * 3


def test_depths_that_are_known_are_walked_and_not_measured(clock):
    session = FakeSession(clock, ctx=44)
    (row,) = run(session, done=2)
    assert (row.ctx_tokens, row.prefill_tokens, row.prefill_s) == (40, 15, PREFILL_S * 15)
    assert [entry[1:] for entry in session.log if entry[0] == "sync"] == [(0, 25), (25, 40)]
    assert sum(entry[0] == "append" for entry in session.log) == 3


def test_on_the_real_engine(nano_path):
    """The sweep leaves no trace: rows decode what a plain session decodes at that depth, and the end state agrees."""
    with Engine.open(nano_path, backend="reference", numerics="exact") as engine:
        tokens = prose_tokens(engine.tokenizer, 20)
        eos = engine.tokenizer.eos
        session = engine.session(ctx=24)
        rows = list(sweep(session, tokens, (8, 20), 3, eos))
        assert session.tokens == tokens
        fresh = engine.session(ctx=24)
        fresh.sync(tokens)
        np.testing.assert_allclose(session.logits, fresh.logits, rtol=0, atol=1e-4)
        ids = []
        for _ in range(3):
            ids.append(fresh.argmax(exclude=eos))
            fresh.eval(ids[-1])
        assert rows[1].ids == tuple(ids)
        assert [row.kvcache_bytes for row in rows] == [engine.shape.payload_bytes(8), engine.shape.payload_bytes(20)]
        assert all(0 < row.prefill_tps < 1e5 and 0 < row.gen_tps < 1e5 for row in rows)


@pytest.mark.parametrize("what", [{"depths": (250, 380)}, {"probes": tuple(parse_probes("tg12 @ d250, tg12 @ d380"))}])
def test_a_measured_window_records_nothing(nano_path, monkeypatch, what):
    """From 250 to 262 windows of 4 close and the indexer begins to choose; at 255 and 383 windows of 128 close.

    A recording takes ten tokens' time: sessions get theirs before the window, as copies of what the warm-up made.
    """
    made, inside = [], []
    recorded, steps = decode.recorded, module.decode

    def counted(*args):
        made.append(recorded(*args))
        inside.append(bool(timed))
        return made[-1]

    def window(*args):
        timed.append(True)
        found = steps(*args)
        timed.clear()
        return found

    timed: list[bool] = []
    monkeypatch.setattr(decode, "recorded", counted)
    monkeypatch.setattr(module, "decode", window)
    plan = Plan((Lane(f"local:{nano_path}"),), gen_tokens=12, reps=2, roofline=False, **what)
    measurement = Measurement(plan)
    with ExitStack() as stack:
        (source,) = measurement.open(stack)
        assert len(made) == 6 and not timed, "every kind there is"
        monkeypatch.setattr(decode, "record", lambda *_: pytest.fail("recorded in a measured session"))
        for rep in (0, 1):
            rows = list(source.walk(rep, 0, start=0.0, progress=None, cancel=Cancellation()))
            assert [row["ctx_tokens"] for row in rows] == [250, 380]
    assert not any(inside) and len(made) > 6
