"""Repetitions, targets in turn, and what becomes of their rows."""

import contextlib
import json
import re
import shlex
import statistics
from pathlib import Path

import numpy as np
import pytest

import ds4ref.reports.cli
from ds4ref.nano.recipe import NANO
from ds4ref.reports.sources import read_csv
from ds4ref.runs.columns import HEADER, summaries, summary
from ds4ref.runs.compare import compare
from ds4ref.runs.results import read_rows
from ds4ref.runs.stats import SAME
from ds4ref.runs.store import Measured, Store
from ds4ref.speed_bench import cli, runner, sources
from ds4ref.speed_bench.formats import FORMATS, render
from ds4ref.speed_bench.output import verdict
from ds4ref.speed_bench.peaks import machine_peaks
from ds4ref.speed_bench.plan import BenchTarget, Plan
from ds4ref.speed_bench.runner import MeasuredTarget, Measurement, turns
from ds4ref.speed_bench.sources import LocalSource
from ds4ref.speed_bench.sweep import measured

from .conftest import PEAKS
from .fake import EVAL_S, PICK_S, FakeSession

SMALL = ["--ctx-start", "8", "--ctx-max", "24", "--step-incr", "8", "-n", "2"]
TWO = ["--target", "local?threads=1", "--target", "local?backend=reference&threads=2"]
TOKENS = list(range(2, 42))


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
    """A run of fake engines A, B, ..., one a target: makes it from a plan's fields; the log of all sessions."""
    log = []

    def make(names="A", store=None, say=lambda line: None, **fields):
        plan = Plan(tuple(BenchTarget(name=name if len(names) > 1 else "") for name in names), warmup=False, **fields)
        opened = iter([LocalSource(Bare(name, clock, log), plan, Text(), dict(FACTS)) for name in names])
        monkeypatch.setattr(runner, "open_source", lambda opening, target: next(opened))
        monkeypatch.setattr(sources.Opening, "__post_init__", lambda self: setattr(self, "prompt", Text()))
        return Measurement(plan, store, say=say)

    make.log = log
    return make


def test_two_targets_take_turns(bare):
    run = bare("AB", depths=(10, 20, 30), gen_tokens=1, reps=2)
    run.execute()
    assert "".join(entry[0] for entry in bare.log if entry[1] == "sync") == "ABBAABBAABBA"
    assert [entry[2] for entry in bare.log if entry[1] == "sync" and entry[0] == "A"] == [10, 20, 30] * 2
    for target in run.targets:
        assert [(e["rep"], e["ctx_tokens"]) for e in target.rows] == [(r, d) for r in (0, 1) for d in (10, 20, 30)]


@pytest.mark.parametrize("arguments, order", [
    ((2, 3, 0, [0, 0]), "ABBAAB"), ((2, 3, 1, [0, 0]), "BAABBA"), ((2, 3, 0, [2, 1]), "BAB"), ((1, 2, 3, [0]), "AA"),
])  # fmt: skip
def test_turns_of_rows(arguments, order):
    assert "".join("AB"[index] for index in turns(*arguments)) == order


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
            ats.append([entry["at"] for entry in run.targets[0].rows])
    assert ats[0][0] == 0 and ats[1] == [at + 90 for at in ats[0]]


def test_progress_counts_all_walks(bare):
    seen = []
    run = bare("AB", depths=(10, 20), gen_tokens=1, reps=2)
    run.progress = lambda what: contextlib.nullcontext(lambda *args: seen.append(args))
    run.execute()
    assert {total for _, total in seen} == {80} and max(done for done, _ in seen) == 80


# --- rows and summaries


def row(rep=0, prefill_s=4.0, steps=(0.5, 0.25), ids=(1, 2), depth=2048, **more):
    return measured(depth, 2048, prefill_s, steps, ids, 1000) | {"rep": rep, "rss_bytes": 500 + rep, **more}


def test_a_summary_is_the_median_with_its_middle_half():
    found = summary([row(rep, prefill_s=2048 / tps) for rep, tps in enumerate((100, 300, 200, 500, 400))])
    assert found["prefill_tps"] == pytest.approx(300) and found["reps"] == 5
    assert (found["prefill_tps_low"], found["prefill_tps_high"]) == pytest.approx((200, 400))
    assert found["rss_bytes"] == 504, "memory: the largest"
    assert found["itl_p50_ms"] == 375 and "itl_p95_ms" not in found, "ten steps have no 95th percentile"
    steps = list(np.random.default_rng(1).exponential(size=64))
    assert summary([row(steps=steps)])["itl_p95_ms"] == pytest.approx(1e3 * np.quantile(np.round(steps, 9), 0.95))
    assert not {"gen_tps_low", "gen_tps_high"} & summary([row()]).keys(), "one repetition has no spread"
    assert summary([row(0), row(1, ids=(1, 3))])["gen_digest"] == "differs"


def test_few_repetitions_have_a_range_and_rows_their_order():
    slow = [row(rep, prefill_s=2048 / tps, depth=d) for d in (4096, 2048) for rep, tps in enumerate((0.25, 0.75))]
    first, second = summaries(slow)
    assert (first["ctx_tokens"], second["ctx_tokens"]) == (2048, 4096) and second["reps"] == 2
    bands = first["prefill_tps_low"], first["prefill_tps"], first["prefill_tps_high"]
    assert bands == pytest.approx((0.25, 0.5, 0.75))
    tests = [row(test=name) for name in ("pp512", "pp256 @ d256", "pp512")]
    assert [(entry["test"], entry["reps"]) for entry in summaries(tests)] == [("pp512", 2), ("pp256 @ d256", 1)]


# --- the command


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


def test_every_run_is_kept_unless_told_otherwise(engines, private_store, capsys):
    assert cli.main([*SMALL, "--no-store"]) == 0
    assert not private_store.exists()
    assert cli.main([*SMALL, "--label", "first", "-r", "1"]) == 0
    err = capsys.readouterr().err
    with Store.open(private_store, create=False) as store:
        run = store.find("first")
        assert err.endswith(f"saved as run {run.id}; ds4-report show {run.id}\n")
        assert run.kind == "bench" and run.status == "complete" and run.fact("walk", "reps") == 1
        assert run.facts["seed"] and run.fact("model", "sha256") and run.fact("machine", "cpu")
        rows = store.rows(run.id)
        assert [(r["rep"], r["ctx_tokens"], r["prefill_tps"]) for r in rows] == [
            (0, depth, 4.0) for depth in (8, 16, 24)
        ]
        assert rows[0]["steps_s"] == [PICK_S + EVAL_S] * 2
        peaks = store.find("latest:peaks")
        assert store.rows(peaks.id) == [PEAKS] and run.fact("peaks", "run") == peaks.id
    assert cli.main(SMALL) == 0
    with Store.open(private_store) as store:
        assert len(store.runs(kind="peaks")) == 1, "this machine is measured once"


def test_shares_of_the_bound_unless_weights_stay_in_the_cache(engines, private_store, monkeypatch, capsys):
    """The memory's bandwidth, measured over more than any cache holds, is no bound for those."""
    from ds4ref.archs.deepseek4.costs import Costs
    from ds4ref.weights.gguf import GGUFFile

    assert cli.main([*SMALL, "--no-store"]) == 0
    with GGUFFile.open(engines[0].path) as gguf:
        needed = Costs.of_file(gguf, engines[0].shape).weight_bytes()
    for cache, shares in ((needed, False), (needed - 1, True), (None, True)):
        monkeypatch.setattr("ds4ref.speed_bench.peaks.cache_bytes", lambda cache=cache: cache)
        capsys.readouterr()
        assert cli.main([*SMALL, "--csv", "r.csv"]) == 0
        assert ("no shares of the bound" in capsys.readouterr().err) != shares
        row = read_rows("r.csv")[0]
        assert (row.get("decode_share") is not None) == (row.get("prefill_share") is not None) == shares


def test_peaks_are_those_of_this_machine_its_kernels_and_threads_and_not_old(private_store, monkeypatch):
    from ds4ref.peaks import peaks_key
    from ds4ref.speed_bench import peaks

    with Store.open(private_store) as store:
        key = {**peaks_key(1), "created": "2026-01-02T03:04:05Z"}
        number = store.add("peaks", key, [{**PEAKS, "read_gbs": 20.0}])
        for wrong in ({"host": "another"}, {"kernels": "older"}, {"threads": 7}, {"created": "some day"}):
            store.add("peaks", {**key, **wrong}, [PEAKS])  # newer, and so looked at first
        monkeypatch.setattr(peaks, "now", lambda: "2026-02-01T03:04:04Z")
        known = {**PEAKS, "read_gbs": 20.0, "threads": 1, "run": number, "measured": "2026-01-02T03:04:05Z"}
        assert machine_peaks(store, 1) == known
        monkeypatch.setattr(peaks, "now", lambda: "2026-02-01T03:04:05Z")
        assert machine_peaks(store, 1)["run"] > number, "thirty days old"


def test_two_targets_are_two_runs_of_one_group_with_a_verdict(engines, private_store, capsys):
    assert cli.main([*SMALL, *TWO, "--csv", "t.csv", "--plot", "t.svg", "--json"]) == 0
    assert [(e.options["threads"], e.options["backend"]) for e in engines] == [(1, "cpu"), (2, "reference")]
    assert (
        HEADER
        == Path("t-threads-1.csv").read_text().splitlines()[0]
        == Path("t-backend-reference-threads-2.csv").read_text().splitlines()[0]
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [t["name"] for t in found["targets"]] == ["threads=1", "backend=reference&threads=2"]
    assert [(t["backend"], t["threads"]) for t in found["targets"]] == [("cpu", 1), ("reference", 2)]
    assert not {"backend", "threads"} & found.keys() and found["numerics"] == "qat", "what is common is said once"
    assert found["verdict"]["a"] == "threads=1" and found["verdict"]["decode"]["rounds"] == 5
    with Store.open(private_store) as store:
        a, b = (store.run(target["run"]) for target in found["targets"])
        assert (a.label, b.label) == ("t: threads=1", "t: backend=reference&threads=2")
        assert a.fact("arms", "group") == b.fact("arms", "group") and len(store.rows(a.id)) == 15
        assert compare(*(Measured(run, store.rows(run.id)) for run in (a, b))).verdict == SAME
    files = compare(read_csv("t-threads-1.csv"), read_csv("t-backend-reference-threads-2.csv"))
    assert (files.verdict, files.design) == (SAME, "in turn"), "the files tell as much as the store"
    assert cli.main([*SMALL, *TWO, "-r", "3", "--no-store"]) == 0  # neither a file nor the store
    out = capsys.readouterr().out
    assert "decode: backend=reference&threads=2 is 1.0000 x (1.0000 to 1.0000) as fast as threads=1: same" in out
    assert out.count("thread(s) on") == 2


def test_lists_are_targets_in_turn(engines, capsys, private_store, tmp_path):
    assert cli.main(["-p", "8", "-t", "1-2", "--numerics", "ds4,exact"]) == 0
    assert [line.split(" | ")[2] for line in capsys.readouterr().out.splitlines()[2:]] == ["1", "2", "1", "2"]
    with Store.open(private_store) as store:
        assert [run.fact("arms", "options") for run in reversed(store.runs(kind="bench"))] == [
            "numerics=ds4,threads=1", "numerics=ds4,threads=2", "numerics=exact,threads=1", "numerics=exact,threads=2"
        ]  # fmt: skip
    assert cli.main(["--frontiers", "24,8-16+8", "-n", "2", "-t", "1,2", "--csv", "l.csv", "--no-store"]) == 0
    assert [row["ctx_tokens"] for row in read_rows("l-threads-2.csv")] == [8, 16, 24]
    assert json.loads((tmp_path / "l-threads-1.json").read_text())["threads"] == 1


@pytest.mark.parametrize("kind", FORMATS)
def test_formats_on_stdout(engines, kind, capsys):
    assert cli.main([*SMALL, "-r", "2", "-o", kind, "--no-store"]) == 0
    out = capsys.readouterr().out
    if kind == "csv":
        assert out.splitlines()[0] == HEADER and len(out.splitlines()) == 4
    elif kind == "md":
        for test in ("| 2 | pp8 | 4.00 ± 0.00 |", "| pp8 @ d8 | 4.00 ± 0.00 |", "| tg2 @ d24 | 1.60 ± 0.00 |"):
            assert test in out


def test_llama_benchs_table_of_tests_that_may_end_at_one_depth(engines, capsys, private_store):
    argv = ["-p", "8,16", "-n", "4", "-d", "0,8", "-r", "2"]
    assert cli.main(argv) == 0 and cli.main([*argv, "--csv", "t.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:8]
    assert [line.split(" | ")[3] for line in lines] == ["pp8", "pp16", "tg4", "pp8 @ d8", "pp16 @ d8", "tg4 @ d8"]
    assert "4.00 ± 0.00" in lines[0] and "1.60 ± 0.00" in lines[2]
    assert {(row["ctx_tokens"], row["test"]) for row in read_rows("t.csv")} >= {(16, "pp16"), (16, "pp8 @ d8")}
    with Store.open(private_store) as store:
        found = compare(*(Measured(run, store.rows(run.id)) for run in store.runs(kind="bench")))
    assert found.verdict == "same" and len(found.depths) == 6 and not any("left out" in note for note in found.notes)


def test_markdown_shows_the_spread():
    rows = [row(rep, prefill_s=2048 / tps) for rep, tps in enumerate((100.0, 110.0, 120.0))]
    facts = {"model": {"name": "a|b", "file": "f"}, "backend": "cpu", "numerics": "ds4", "threads": 1, "created": ""}
    text = render("md", [MeasuredTarget(BenchTarget(), facts, rows)])
    assert f"pp2048 | {statistics.fmean((100, 110, 120)):.2f} ± 10.00 |" in text and "a\\|b" in text


def test_a_slower_target_is_called_worse(bare):
    """5 to 6 % slower from round to round."""
    run = bare("AB", depths=(10, 20, 30), gen_tokens=2, reps=8)
    run.execute()
    for entry in run.targets[1].rows:
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
    assert [row["ctx_tokens"] for row in space["result"].targets[0].summary()] == [64, 128]
    with Store.open(private_store) as store:
        assert len(store.rows(store.find("api").id)) == 6
