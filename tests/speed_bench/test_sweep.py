"""What is inside the timed windows, what is not, how a sweep ends, and the rows that it makes."""

import hashlib
import struct
from contextlib import ExitStack

import numpy as np
import pytest

from ds4ref import decode
from ds4ref.archs.deepseek4.costs import Costs
from ds4ref.costs import PREFILL_CHUNK, Peaks
from ds4ref.engine import Engine
from ds4ref.errors import Cancelled, ContextError
from ds4ref.nano.recipe import NANO
from ds4ref.speed_bench import sweep as module
from ds4ref.speed_bench.plan import BenchTarget, Plan, Probe
from ds4ref.speed_bench.prompt import prose_tokens
from ds4ref.speed_bench.runner import Measurement
from ds4ref.speed_bench.sweep import SweepError, bounds, measured, run_probes, sweep, warm_up
from ds4ref.targets import Cancellation

from .fake import EVAL_S, PICK_S, PREFILL_S, READY_S, FakeSession

TOKENS = list(range(2, 42))
EOS = 1
STEP = PICK_S + EVAL_S


def run(session, depths=(10, 25, 40), gen=3, **options):
    return list(sweep(session, TOKENS, depths, gen, EOS, **options))


def test_windows_hold_prefill_and_decode_and_nothing_else(clock):
    """Snapshot and restore take thousands of seconds on this clock."""
    session = FakeSession(clock, ctx=44)
    rows = run(session)
    names = [entry[0] for entry in session.log]
    assert names == ["sync", "snapshot", "prepare", "append", "append", "append", "restore"] * 3
    assert session.tokens == TOKENS[:40]
    assert [(r["ctx_tokens"], r["prefill_tokens"], r["gen_tokens"]) for r in rows] == [
        (10, 10, 3),
        (25, 15, 3),
        (40, 15, 3),
    ]
    assert {r["prefill_tps"] for r in rows} == {1 / PREFILL_S} and rows[1]["at"] > 10 * PREFILL_S
    assert all(r["steps_s"] == [STEP] * 3 and r["gen_tps"] == pytest.approx(1 / STEP) for r in rows)
    assert {r["gen_first_ms"] for r in rows} == {1000 * (READY_S + STEP)}, "what its user would wait for"
    assert [r["kvcache_bytes"] for r in rows] == [1100, 1250, 1400], "the size at the depth, before decode"


def test_decode_is_greedy_and_never_ends_the_text(clock):
    (row,) = run(FakeSession(clock, ctx=44), depths=(10,), gen=4)
    ids = [2 + (3 * pos) % 48 for pos in (10, 11, 12, 13)]
    assert row["gen_digest"] == hashlib.sha256(struct.pack("<4I", *ids)).hexdigest()[:12]


def test_rows_come_as_soon_as_they_are_measured_and_cancel_keeps_them(clock):
    session, rows = FakeSession(clock, ctx=44), []
    with pytest.raises(Cancelled):
        for row in sweep(session, TOKENS, (10, 25, 40), 3, EOS, cancel=lambda: session.pos > 26):
            assert session.pos == 10
            rows.append(row)
    assert [row["ctx_tokens"] for row in rows] == [10]


@pytest.mark.parametrize("operation, error, message", [
    ("sync", ContextError("broken"), "prefill to 10 failed: broken"),
    ("snapshot", ContextError("broken"), "snapshot at 10 failed: broken"),
    ("snapshot", MemoryError(), "snapshot at 10 failed: not enough memory"),
    ("prepare", ContextError("broken"), "decode at depth 10 failed: broken"),
    ("append", ContextError("broken"), "decode at depth 10 failed: broken"),
    ("restore", ContextError("broken"), "restore at 10 failed: broken"),
])  # fmt: skip
def test_failures_name_the_depth(clock, operation, error, message):
    session = FakeSession(clock, ctx=44)
    session.fail[operation] = error
    with pytest.raises(SweepError) as caught:
        run(session)
    assert str(caught.value) == message


def test_bugs_broken_logits_and_a_full_context_are_noticed(clock):
    session = FakeSession(clock, ctx=44)
    session.fail["append"] = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        run(session)
    session = FakeSession(clock, ctx=44)
    session.dead = True
    with pytest.raises(SweepError, match="failed to choose non-EOS token at depth 10"):
        run(session)
    assert len(run(FakeSession(clock, ctx=44), depths=(40,), gen=3)) == 1
    with pytest.raises(SweepError, match="generation would exceed allocated context at depth 40"):
        run(FakeSession(clock, ctx=43), depths=(40,), gen=3)


@pytest.mark.parametrize("ctx", [6, 20, 3000])
def test_warm_up_is_a_whole_chunk_where_it_fits(clock, ctx):
    """A shorter one would leave the buffers of the chunk, and its code, to the first row."""
    session = FakeSession(clock, ctx)
    warm_up(session, [2] * 2048, EOS)
    names = [entry[0] for entry in session.log]
    assert session.log[0] == ("sync", 0, min(PREFILL_CHUNK, ctx - 5)) and names.count("append") == 4
    assert names[-1] == "restore"


def test_what_was_prepared_before_costs_the_first_step_nothing(clock):
    session = FakeSession(clock, ctx=44)
    session.prepared = set(range(25, 28))
    assert [row["gen_first_ms"] for row in run(session, depths=(10, 25))] == [1000 * (READY_S + STEP), 1000 * STEP]


def test_progress_is_drawn_while_the_window_stands_still(clock):
    """A terminal may take as long as it likes, and a chunk is never remembered for the sake of stopping inside it."""
    session, asked, calls = FakeSession(clock, ctx=44), [], []
    real = session.sync

    def sync(tokens, progress=None, cancel=None):
        asked.append(cancel)
        real(tokens, progress, cancel)

    def slow_terminal(done, total):
        calls.append((done, total))
        clock.now += 77.0

    session.sync = sync
    assert {row["prefill_tps"] for row in run(session, progress=slow_terminal)} == {1 / PREFILL_S}
    assert asked == [None] * 3 and calls == [(10, 40), (25, 40), (40, 40)]


def test_depths_that_are_known_are_walked_and_not_measured(clock):
    session = FakeSession(clock, ctx=44)
    (row,) = run(session, done=2)
    assert (row["ctx_tokens"], row["prefill_tokens"], row["prefill_tps"]) == (40, 15, 1 / PREFILL_S)
    assert [entry[1:] for entry in session.log if entry[0] == "sync"] == [(0, 25), (25, 40)]
    assert sum(entry[0] == "append" for entry in session.log) == 3


def test_only_a_tests_own_part_is_timed(clock):
    sessions, told = [], []

    def fresh():
        sessions.append(FakeSession(clock, 60))
        return sessions[-1]

    probes = [Probe(10, 0, 0), Probe(10, 0, 20), Probe(0, 4, 0), Probe(0, 4, 20)]
    rows = list(run_probes(fresh, TOKENS, probes, EOS, progress=lambda *pair: told.append(pair)))
    assert [row["test"] for row in rows] == [probe.name for probe in probes] and told == [(i, 4) for i in range(4)]
    assert [(row["ctx_tokens"], row["prefill_tokens"], row["gen_tokens"]) for row in rows] == [
        (10, 10, 0), (30, 10, 0), (1, 0, 4), (20, 0, 4)
    ]  # fmt: skip
    assert [row["prefill_tps"] for row in rows] == [1 / PREFILL_S, 1 / PREFILL_S, 0, 0]
    assert all(row["steps_s"] == [STEP] * 4 for row in rows[2:]) and len(sessions) == 4, "each on a session of its own"
    assert [session.log[0][1:] for session in sessions] == [(0, 10), (0, 20), (0, 1), (0, 20)], "a token to start from"
    assert [row["test"] for row in run_probes(fresh, TOKENS, probes, EOS, done=3)] == ["tg4 @ d20"]


def test_on_the_real_engine(nano_path):
    """The sweep leaves no trace: rows decode what a plain session decodes at that depth, and the end state agrees."""
    with Engine.open(nano_path, backend="reference", numerics="exact") as engine:
        tokens, eos = prose_tokens(engine.tokenizer, 20), engine.tokenizer.eos
        session = engine.session(ctx=24)
        rows = list(sweep(session, tokens, (8, 20), 3, eos))
        assert session.tokens == tokens
        fresh = engine.session(ctx=24)
        fresh.sync(tokens[:8])
        fresh.sync(tokens)
        np.testing.assert_array_equal(session.logits, fresh.logits)
        ids = []
        for _ in range(3):
            ids.append(fresh.argmax(exclude=eos))
            fresh.eval(ids[-1])
        assert rows[1]["gen_digest"] == hashlib.sha256(struct.pack("<3I", *ids)).hexdigest()[:12]
        assert [row["kvcache_bytes"] for row in rows] == [engine.shape.payload_bytes(8), engine.shape.payload_bytes(20)]


@pytest.mark.parametrize("what", [{"depths": (250, 380)}, {"probes": (Probe(0, 12, 250), Probe(0, 12, 380))}])
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
    plan = Plan((BenchTarget(f"local:{nano_path}"),), gen_tokens=12, reps=2, **what)
    measurement = Measurement(plan)
    with ExitStack() as stack:
        (source,) = measurement.open(stack)
        assert len(made) == 6 and not timed, "every kind there is"
        monkeypatch.setattr(decode, "record", lambda *_: pytest.fail("recorded in a measured session"))
        for rep in (0, 1):
            assert [row["ctx_tokens"] for row in source.walk(rep, 0, None, Cancellation())] == [250, 380]
    assert not any(inside) and len(made) > 6


# --- rows


def test_a_row_has_the_rates_of_its_times():
    row = measured(96, 32, 0.5, (0.25, 0.125, 0.125), (4, 5, 6), 7000, at=7.5)
    assert row["at"] == 7.5 and row["steps_s"] == [0.25, 0.125, 0.125] and row["rss_bytes"] > 0
    assert (row["prefill_tps"], row["gen_tps"], row["gen_steady_tps"], row["gen_first_ms"]) == (64, 6, 8, 250)
    assert not {"wait_share", "drafted", "decode_share"} & row.keys()
    row = measured(10, 10, 0.0, (), (), 1)
    assert (row["prefill_tps"], row["gen_tps"], row["gen_first_ms"], row["gen_steady_tps"]) == (0, 0, 0, 0)


def test_shares_are_bounds_over_what_was_measured():
    """Decode is judged in the middle of its tokens, prefill over its own interval."""
    costs, peaks = Costs.of_recipe(NANO, "q2"), Peaks(read_gbs=10, int8_gops=100, f32_gflops=50)
    row = measured(96, 32, 0.5, (0.125,) * 512, range(512), 7000)
    found = bounds(row, costs, peaks)
    decode, prefill = costs.decode(96 + 256), costs.prefill(64, 96)
    assert decode.bytes != costs.decode(96).bytes
    assert found["decode_bytes"] == round(decode.bytes) and found["decode_gbs"] == decode.bytes * 8 / 1e9
    assert found["decode_share"] == pytest.approx(decode.bound(peaks).seconds / 0.125)
    assert found["prefill_share"] == pytest.approx(prefill.bound(peaks).seconds / 0.5)
    binds = found["decode_binds"], found["prefill_binds"]
    assert binds == (decode.bound(peaks).binds, prefill.bound(peaks).binds)
    assert found["cache_bytes_per_token"] == NANO.kv_bytes(96) / 96
    assert "decode_share" not in bounds(row, costs, None) and bounds(row, costs, None)["decode_gbs"] > 0
    alone = bounds(measured(96, 32, 0.5, (), (), 1), costs, peaks)
    assert "decode_share" not in alone and "decode_bytes" not in alone and alone["prefill_share"] > 0
    assert "prefill_share" not in bounds(measured(96, 0, 0.0, (0.5,), (1,), 1), costs, peaks)
