"""Repetitions, arms in turn, and what becomes of their samples."""

import contextlib
import json
import re
import shlex
import sqlite3
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

import ds4ref.reports.cli
from ds4ref.engine import Engine
from ds4ref.errors import SessionError
from ds4ref.nano.recipe import NANO
from ds4ref.runs.columns import HEADER, summaries, summary
from ds4ref.runs.results import read_rows
from ds4ref.runs.store import Store
from ds4ref.speed_bench import cli, runner
from ds4ref.speed_bench import sources as sources_module
from ds4ref.speed_bench import sweep as sweep_module
from ds4ref.speed_bench.formats import FORMATS, render, sql
from ds4ref.speed_bench.local import LocalSource
from ds4ref.speed_bench.output import verdict
from ds4ref.speed_bench.peaks import known_peaks, machine_peaks
from ds4ref.speed_bench.plan import Lane, Plan
from ds4ref.speed_bench.runner import MeasuredLane, Measurement, turn_order
from ds4ref.speed_bench.samples import sample
from ds4ref.speed_bench.sweep import SweepRow

from .conftest import PEAKS
from .fake import EVAL_S, PICK_S, Clock, FakeEngine, FakeSession

SMALL = ["--ctx-start", "8", "--ctx-max", "24", "--step-incr", "8", "-n", "2"]
TOKENS = list(range(2, 42))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(sweep_module.time, "perf_counter", clock)
    return clock


class Bare:
    """An engine of fake sessions; the log is shared by all of them."""

    backend, shape, prefill_chunk = "cpu", NANO, 512

    def __init__(self, name, clock, log):
        self.name, self.clock, self.log = name, clock, log

    def session(self, ctx):
        session = FakeSession(self.clock, ctx)
        called = session._called

        def logged(what, *details, seconds):
            self.log.append((self.name, what, *details[-1:]))
            called(what, *details, seconds=seconds)

        session._called = logged
        return session


class Text:
    """What is walked, without a tokenizer."""

    eos = 1

    def tokens(self, count):
        return TOKENS[:count]

    def facts(self):
        return {"prompt_sha256": "same"}


FACTS = {"model": {"name": "M", "file": "m.gguf", "sha256": "s"}, "backend": "cpu", "numerics": "ds4", "threads": 1}


@pytest.fixture
def bare(monkeypatch, clock):
    """A run of fake engines A, B, ..., one a lane: makes it from a plan's fields; the log of all sessions."""
    log = []

    def make(names="A", store=None, say=lambda line: None, **fields):
        plan = Plan(tuple(Lane(name=name if len(names) > 1 else "") for name in names), warmup=False, **fields)
        sources = iter([LocalSource(Bare(name, clock, log), plan, Text(), dict(FACTS)) for name in names])
        monkeypatch.setattr(runner, "open_source", lambda opening, lane: next(sources))
        monkeypatch.setattr(sources_module.Opening, "__post_init__", lambda self: setattr(self, "prompt", Text()))
        return Measurement(plan, store, say=say)

    make.log = log
    return make


def order(run):
    return [lane.name for lane, _ in sorted(((lane, entry["at"]) for lane in run.lanes for entry in lane.samples),
                                            key=lambda pair: pair[1])]  # fmt: skip


def test_two_lanes_take_turns(bare):
    run = bare("AB", depths=(10, 20, 30), gen_tokens=1, reps=2)
    run.execute()
    assert "".join(entry[0] for entry in bare.log if entry[1] == "sync") == "ABBAABBAABBA"
    assert "".join(order(run)) == "ABBAABBAABBA"
    for lane in run.lanes:
        assert [(e["rep"], e["ctx_tokens"]) for e in lane.samples] == [(r, d) for r in (0, 1) for d in (10, 20, 30)]


def test_orders():
    assert [turn_order(2, turn) for turn in range(4)] == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert turn_order(1, 3) == [0]


def test_every_repetition_is_a_walk_from_nothing(bare):
    run = bare(depths=(10, 20), gen_tokens=1, reps=3)
    run.execute()
    assert [(e["rep"], e["prefill_tokens"]) for e in run.lanes[0].samples] == [(r, 10) for r in (0, 0, 1, 1, 2, 2)]
    assert [entry[2] for entry in bare.log if entry[1] == "sync"] == [10, 20] * 3


def test_a_resumed_run_goes_on_in_its_own_time(bare, private_store, monkeypatch):
    """``at`` is seconds since the run began, in all its parts: drift is found by it."""
    monkeypatch.setattr(runner.time, "time", lambda: 1795255200.0)  # 2026-11-21T10:00:00Z
    ats = []
    with Store.open(private_store) as store:
        number = store.begin("bench", {"created": "2026-11-21T09:58:30Z"})
        for part in range(2):
            run = bare(depths=(10, 20), gen_tokens=1, reps=1, store=store)
            if part:
                run.resume(number)
                assert run._before == 90
            run.execute()
            ats.append([entry["at"] for entry in run.lanes[0].samples])
    assert ats[0][0] == 0 and ats[1] == [at + 90 for at in ats[0]]


def test_rest_before_further_repetitions(bare, monkeypatch):
    rested = []
    monkeypatch.setattr(runner, "sleep_between", lambda seconds, cancel: rested.append(seconds))
    bare(depths=(10,), gen_tokens=1, reps=3, delay=2.5).execute()
    assert rested == [2.5, 2.5]


def test_progress_counts_all_walks(bare):
    seen = []
    run = bare("AB", depths=(10, 20), gen_tokens=1, reps=2)
    run.progress = lambda what: contextlib.nullcontext(lambda *args: seen.append(args))
    run.execute()
    assert {total for _, total in seen} == {80} and max(done for done, _ in seen) == 80


# --- samples and summaries


def row(rep=0, prefill_s=4.0, steps=(0.5, 0.25), ids=(1, 2), depth=2048):
    return SweepRow(depth, 2048, prefill_s, tuple(steps), 1000, ids, rep, 10.0 + rep, 500 + rep)


def test_a_summary_is_the_median_with_its_middle_half():
    group = [sample(row(rep, prefill_s=2048 / tps), start=10.0) for rep, tps in enumerate((100, 300, 200, 500, 400))]
    found = summary(group)
    assert found["prefill_tps"] == pytest.approx(300) and found["reps"] == 5
    assert (found["prefill_tps_low"], found["prefill_tps_high"]) == pytest.approx((200, 400))
    assert found["rss_bytes"] == 504, "memory: the largest"
    assert found["itl_p50_ms"] == 375 and "itl_p95_ms" not in found, "ten steps have no 95th percentile"
    assert [entry["at"] for entry in group] == [0, 1, 2, 3, 4]


def test_slow_machines_have_bands_and_depths_their_order():
    slow = [sample(row(rep, prefill_s=2048 / tps, depth=depth)) for depth in (4096, 2048)
            for rep, tps in enumerate((0.25, 0.75))]  # fmt: skip
    first, second = summaries(slow)
    assert (first["ctx_tokens"], second["ctx_tokens"]) == (2048, 4096) and second["reps"] == 2
    assert (first["prefill_tps_low"], first["prefill_tps"], first["prefill_tps_high"]) == pytest.approx(
        (0.25, 0.5, 0.75)
    )
    tests = [sample(SweepRow(512, 512, 1.0, (), 1, (), test=name)) for name in ("pp512", "pp256 @ d256", "pp512")]
    assert [(entry["test"], entry["reps"]) for entry in summaries(tests)] == [("pp512", 2), ("pp256 @ d256", 1)]


def test_percentiles_where_there_are_enough_steps():
    steps = list(np.random.default_rng(1).exponential(size=64))
    found = summary([sample(row(steps=steps))])
    assert found["itl_p95_ms"] == pytest.approx(1e3 * np.quantile(np.round(steps, 9), 0.95))
    assert not {"gen_tps_low", "gen_tps_high"} & found.keys(), "one repetition has no spread"


def test_repetitions_that_decoded_other_tokens_are_marked():
    assert summary([sample(row(0)), sample(row(1, ids=(1, 3)))])["gen_digest"] == "differs"
    (entry,) = summaries([sample(row(0)), sample(row(1))])
    assert entry["gen_digest"] == row().gen_digest


# --- the command


@pytest.fixture
def engines(monkeypatch, tmp_path, clock):
    opened = []
    monkeypatch.chdir(tmp_path)

    def open_fake(path, **options):
        opened.append(FakeEngine(path, clock, **options))
        return opened[-1]

    monkeypatch.setattr(Engine, "open", open_fake)
    monkeypatch.setattr("ds4ref.backends.load_backend", lambda name, count=None: None)
    return opened


def test_a_run_in_another_store_is_announced_with_it(engines, private_store, tmp_path, capsys):
    """The user's own store has a run of that number, too, and it is another one."""
    path = str(tmp_path / "my runs.sqlite")
    assert cli.main([*SMALL, "--label", "mine"]) == 0
    assert cli.main([*SMALL, "--label", "other", "--store", path]) == 0
    command = capsys.readouterr().err.splitlines()[-1].partition("; ")[2]
    with Store.open(path, create=False) as store:
        number = store.find("other").id
    assert command == f"ds4-report show {number} --store {shlex.quote(path)}"
    assert ds4ref.reports.cli.main(shlex.split(command)[1:]) == 0
    assert "other" in capsys.readouterr().out
    assert cli.main([*SMALL, "--csv", str(tmp_path / "r.csv"), "--store", path]) == 0
    assert f"ds4-report show {number + 1} --store {shlex.quote(path)}" in capsys.readouterr().err


def test_every_run_is_kept(engines, private_store, capsys):
    assert cli.main([*SMALL, "--label", "first", "-r", "1"]) == 0
    err = capsys.readouterr().err
    with Store.open(private_store, create=False) as store:
        run = store.find("first")
        assert err.endswith(f"saved as run {run.id}; ds4-report show {run.id}\n")
        assert run.kind == "bench" and run.status == "complete" and run.fact("walk", "reps") == 1
        assert run.facts["seed"] and run.fact("model", "sha256") and run.fact("machine", "cpu")
        rows = store.rows(run.id)
        assert [(r["rep"], r["ctx_tokens"], r["prefill_tps"]) for r in rows] == [
            (0, 8, 4.0),
            (0, 16, 4.0),
            (0, 24, 4.0),
        ]
        assert rows[0]["steps_s"] == [PICK_S + EVAL_S] * 2
        peaks = store.find("latest:peaks")
        assert store.rows(peaks.id) == [PEAKS] and run.fact("peaks", "run") == peaks.id
    assert cli.main(SMALL) == 0
    with Store.open(private_store) as store:
        assert len(store.runs(kind="peaks")) == 1, "this machine is measured once"


@pytest.mark.parametrize(
    "machine, terminal, asked",
    [("arm64", True, True), ("aarch64", True, True), ("x86_64", True, False), ("arm64", False, False)],
)
def test_users_of_aarch64_are_asked_for_figures(engines, private_store, capsys, monkeypatch, machine, terminal, asked):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("ds4ref.speed_bench.output.is_tty", lambda stream: terminal and stream is sys.stderr)
    assert cli.main([*SMALL, "-r", "1", "--no-store"]) == 0
    last = capsys.readouterr().err.splitlines()[-1:]
    assert ("`python -m benchmarks.cpu --quick` measures them" in "".join(last)) is asked


def test_no_record_if_none_is_wanted(engines, private_store):
    assert cli.main([*SMALL, "--no-store", "--no-roofline"]) == 0
    assert not private_store.exists()


def test_another_store(engines, tmp_path, private_store):
    assert cli.main([*SMALL, "--store", "mine.sqlite"]) == 0
    assert (tmp_path / "mine.sqlite").exists() and not private_store.exists()


def test_shares_of_the_bound(engines, private_store):
    assert cli.main([*SMALL, "--csv", "r.csv"]) == 0
    from ds4ref.archs.deepseek4.costs import Costs
    from ds4ref.costs import Peaks
    from ds4ref.weights.gguf import GGUFFile

    with GGUFFile.open(engines[0].path) as gguf:
        costs = Costs.of_file(gguf, engines[0].shape, act_quant=False)
    for entry in read_rows("r.csv"):
        depth = entry["ctx_tokens"]
        work = costs.decode(depth + 1)
        assert entry["decode_bytes"] == work.bytes
        assert entry["decode_gbs"] == pytest.approx(work.bytes * 1.6 / 1e9, abs=1e-3)
        assert entry["decode_share"] == pytest.approx(work.bound(Peaks(**PEAKS)).seconds * 1.6, abs=1e-4)
        expected = costs.prefill(depth - 8, depth).bound(Peaks(**PEAKS))
        assert entry["prefill_share"] == pytest.approx(expected.seconds / 8 * 4, abs=1e-4)
        assert entry["prefill_binds"] == expected.binds
        assert entry["cache_bytes_per_token"] == pytest.approx(engines[0].shape.kv_bytes(depth) / depth, abs=0.1)


def test_no_shares_of_weights_that_stay_in_the_cache(engines, monkeypatch, capsys):
    """The memory's bandwidth, measured over more than any cache holds, is no bound for them."""
    from ds4ref.archs.deepseek4.costs import Costs
    from ds4ref.weights.gguf import GGUFFile

    monkeypatch.setattr("ds4ref.speed_bench.peaks.cache_bytes", lambda: 1 << 40)
    assert cli.main([*SMALL, "--csv", "r.csv"]) == 0
    captured = capsys.readouterr()
    assert "no shares of the bound" in captured.err and "share" not in captured.out.partition("\n{")[0]
    rows = read_rows("r.csv")
    assert all(row["decode_bytes"] and row.get("decode_share") is row.get("prefill_share") is None for row in rows)
    with GGUFFile.open(engines[0].path) as gguf:
        needed = Costs.of_file(gguf, engines[0].shape).weight_bytes()
    for cache, shares in ((needed, False), (needed - 1, True), (None, True)):
        monkeypatch.setattr("ds4ref.speed_bench.peaks.cache_bytes", lambda cache=cache: cache)
        assert cli.main([*SMALL, "--csv", "r.csv"]) == 0
        assert (read_rows("r.csv")[0].get("decode_share") is not None) == shares


def test_peaks_are_those_of_this_machine_its_kernels_and_threads_and_tell_their_age(engines, private_store, capsys):
    from ds4ref.peaks import peaks_key

    threads = 1
    with Store.open(private_store) as store:
        key = peaks_key(threads)
        assert known_peaks(store, threads) is None
        for wrong in ({"host": "another"}, {"kernels": "older"}, {"threads": 7}):
            store.add("peaks", {**key, **wrong}, [PEAKS])
        assert known_peaks(store, threads) is None
        number = store.add("peaks", {**key, "created": "2026-01-02T03:04:05Z"}, [{**PEAKS, "read_gbs": 20.0}])
        found = known_peaks(store, threads)
        assert found == {**PEAKS, "read_gbs": 20.0, "threads": 1, "run": number, "measured": "2026-01-02T03:04:05Z"}
        assert machine_peaks(store, threads) == found
    assert cli.main([*SMALL, "-t", "1", "--label", "aged"]) == 0
    assert f"old (run {number}): ds4-bench peaks measures them anew" in capsys.readouterr().err
    assert cli.main(["peaks", "-t", "1"]) == 0
    capsys.readouterr()
    assert cli.main([*SMALL, "-t", "1"]) == 0
    assert "measures them anew" not in capsys.readouterr().err, "measured just now"


def test_repetitions_in_every_place(engines, private_store, capsys, tmp_path):
    assert cli.main([*SMALL, "-r", "3", "--csv", "r.csv"]) == 0
    assert len(engines[0].sessions) == 4, "one to warm up"
    assert "medians of 3 repetitions" in capsys.readouterr().out
    rows = read_rows("r.csv")
    assert [(row["ctx_tokens"], row["reps"], row["gen_tps"]) for row in rows] == [
        (8, 3, 1.6),
        (16, 3, 1.6),
        (24, 3, 1.6),
    ]
    facts = json.loads(Path("r.json").read_text())
    assert len(facts["samples"]) == 9 and facts["walk"]["reps"] == 3
    with Store.open(private_store) as store:
        assert len(store.rows(store.find("r").id)) == 9


def test_two_arms_are_two_runs_of_one_group(engines, private_store, capsys):
    arms = ["--arm", "threads=1", "--arm", "backend=reference,threads=2"]
    assert cli.main([*SMALL, *arms, "--csv", "t.csv", "--plot", "t.svg", "--json"]) == 0
    assert [engine.options["threads"] for engine in engines] == [1, 2]
    assert [engine.options["backend"] for engine in engines] == ["cpu", "reference"]
    assert HEADER == Path("t-a.csv").read_text().splitlines()[0] == Path("t-b.csv").read_text().splitlines()[0]
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    with Store.open(private_store) as store:
        a, b = (store.run(lane["run"]) for lane in last["lanes"])
        assert (a.label, b.label) == ("t: threads=1", "t: backend=reference,threads=2")
        assert a.fact("arms", "group") == b.fact("arms", "group") and len(store.rows(a.id)) == 15
        from ds4ref.reports.sources import read_csv
        from ds4ref.runs.compare import SAME, compare
        from ds4ref.runs.store import Measured

        assert compare(*(Measured(run, store.rows(run.id)) for run in (a, b))).verdict == SAME
        found = compare(read_csv("t-a.csv"), read_csv("t-b.csv"))
        assert (found.verdict, found.design) == (SAME, "in turn"), "the files tell as much as the store"


def test_a_failure_keeps_the_run_as_failed(engines, private_store, monkeypatch):
    real = FakeSession.append

    def append(self, token):
        if self.pos > 16:
            raise SessionError("badgers")
        return real(self, token)

    monkeypatch.setattr(FakeSession, "append", append)
    assert cli.main([*SMALL, "--no-warmup", "-r", "2", "--csv", "r.csv"]) == 1
    with Store.open(private_store) as store:
        run = store.find("r")
        assert run.status == "failed" and [row["ctx_tokens"] for row in store.rows(run.id)] == [8]


@pytest.mark.parametrize("kind", FORMATS)
def test_formats_on_stdout(engines, kind, capsys):
    assert cli.main([*SMALL, "-r", "2", "-o", kind, "--no-store"]) == 0
    out = capsys.readouterr().out
    if kind == "csv":
        assert out.splitlines()[0] == HEADER and len(out.splitlines()) == 4
    elif kind == "md":
        assert "| ds4ref nano | cpu | 2 | pp8 | 4.00 \u00b1 0.00 |" in out
        assert (
            "| ds4ref nano | cpu | 2 | pp8 @ d8 | 4.00 \u00b1 0.00 |" in out
            and "| tg2 @ d24 | 1.60 \u00b1 0.00 |" in out
        )
    elif kind == "json":
        assert [entry["ctx_tokens"] for entry in json.loads(out)] == [8, 16, 24]
    elif kind == "jsonl":
        entries = [json.loads(line) for line in out.splitlines()]
        assert len(entries) == 6 and entries[5]["rep"] == 1 and entries[0]["model"] == "ds4ref nano"
    else:
        db = sqlite3.connect(":memory:")
        db.executescript(out)
        assert db.execute("SELECT ctx_tokens, gen_tps, reps, itl_p95_ms, model FROM ds4_bench").fetchall() == [
            (depth, 1.6, 2, None, "ds4ref nano") for depth in (8, 16, 24)
        ]
        db.close()


def test_markdown_shows_the_spread():
    samples = [sample(row(rep, prefill_s=2048 / tps)) for rep, tps in enumerate((100.0, 110.0, 120.0))]
    facts = {"model": {"name": "a|b", "file": "f"}, "backend": "cpu", "numerics": "ds4", "threads": 1, "created": ""}
    text = render("md", [MeasuredLane(Lane(), facts, samples)])
    assert f"pp2048 | {statistics.fmean((100, 110, 120)):.2f} \u00b1 10.00 |" in text and "a\\|b" in text


def test_sql_quotes():
    assert "'it''s'" in sql([{"model": "it's", "ctx_tokens": 1}])


def served(streams):
    entry = {"rep": 0, "at": 0.0, "ctx_tokens": 64, "prefill_tokens": 64, "prefill_tps": 100.0, "gen_tokens": 8,
             "gen_tps": 20.0, "ttft_ms": 12.5 * streams, "total_tps": 19.0 * streams, "streams": streams}  # fmt: skip
    facts = {"model": {"name": "m", "file": "f"}, "backend": "http", "numerics": None, "threads": None, "created": ""}
    return MeasuredLane(Lane(name=f"{streams} streams"), facts, [entry, {**entry, "rep": 1}])


def test_markdown_of_endpoints_tells_their_streams_apart():
    lines = render("md", [served(2), served(4)]).splitlines()
    heads = [cell.strip() for cell in lines[0].strip("|").split("|")]
    assert heads == ["model", "backend", "threads", "lane", "test", "streams", "TTFT ms", "all t/s", "t/s, mean ± SD"]
    assert len({line.count("|") for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[3:9] for row in cells] == [
        ["2 streams", "pp64", "2", "25.0", "38.0", "100.00 \u00b1 0.00"],
        ["2 streams", "tg8 @ d64", "2", "25.0", "38.0", "20.00 \u00b1 0.00"],
        ["4 streams", "pp64", "4", "50.0", "76.0", "100.00 \u00b1 0.00"],
        ["4 streams", "tg8 @ d64", "4", "50.0", "76.0", "20.00 \u00b1 0.00"],
    ]


def test_arms_end_with_a_verdict_and_facts_of_both(engines, capsys):
    arms = ["--arm", "threads=1", "--arm", "backend=reference,threads=2"]
    assert cli.main([*SMALL, *arms, "--json", "-r", "6"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [lane["name"] for lane in found["lanes"]] == ["threads=1", "backend=reference,threads=2"]
    assert [(lane["backend"], lane["threads"]) for lane in found["lanes"]] == [("cpu", 1), ("reference", 2)]
    assert not {"backend", "threads"} & found.keys() and found["numerics"] == "qat", "what is common is said once"
    assert found["verdict"]["a"] == "threads=1" and found["verdict"]["decode"]["rounds"] == 6
    assert cli.main([*SMALL, *arms, "-r", "6", "--csv", "t.csv"]) == 0
    assert (
        "decode: backend=reference,threads=2 is 1.0000 x (1.0000 to 1.0000) as fast as threads=1: same"
        in capsys.readouterr().out
    )
    assert cli.main([*SMALL, *arms, "-r", "3", "--no-store"]) == 0  # neither a file nor the store
    out = capsys.readouterr().out
    assert (
        "backend=reference,threads=2 is 1.0000 x (1.0000 to 1.0000) as fast as threads=1: same" in out
        and out.count("thread(s) on") == 2
    )


def test_a_slower_lane_is_called_worse(bare, monkeypatch):
    """5 to 6 % slower from round to round."""
    run = bare("AB", depths=(10, 20, 30), gen_tokens=2, reps=8)
    run.execute()
    for entry in run.lanes[1].samples:
        entry["gen_tps"] *= 0.94 + 0.001 * entry["rep"]
    document, sentences = verdict(run)
    decode = document["decode"]
    assert decode["verdict"] == "worse" and -6.1 < decode["low_percent"] <= decode["high_percent"] < -5
    (line,) = (line for line in sentences if line.startswith("decode"))
    assert re.fullmatch(r"decode: B is 0\.94\d x \(0\.9[34]\d to 0\.9[45]\d\) as fast as A: slower", line), line
    assert verdict(bare(depths=(10,), gen_tokens=1, reps=1)) == ({}, [])


def test_the_python_api(engines, nano_path, private_store):
    """The example of docs/reference/bench.md."""
    text = (Path(__file__).resolve().parents[2] / "docs/reference/bench.md").read_text()
    (example,) = (part.partition("```")[0] for part in text.split("```python\n")[1:])
    space = {}
    exec(example, space)
    assert [row["ctx_tokens"] for row in space["result"].lanes[0].summary()] == [64, 128]
    with Store.open(private_store) as store:
        assert len(store.rows(store.find("api").id)) == 6
