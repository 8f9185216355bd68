"""Servers that miscount, or whose times cannot be true: none is published without a warning; and honest ones have none.

Every server is a script on a clock that only it moves (``server.scripted``)."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from ds4ref.reports import cli as reports
from ds4ref.runs import warnings
from ds4ref.runs.columns import summaries
from ds4ref.runs.results import read_rows
from ds4ref.speed_bench import cli, sweep, waiting
from ds4ref.speed_bench.sweep import with_warnings
from ds4ref.speed_bench.waiting import Lag

from .fake import EVAL_S, PICK_S, PREFILL_S, Clock, FakeSession
from .server import PREFILL, STEP, Server, scripted


def counting(count, streams=False, **options):
    """A server that says ``count(prompt, made, asked)`` of its answer's tokens."""
    return Server(says=lambda *counts: {"completion_tokens": count(*counts)}, streams=streams, **options)


def prompts(count, streams=False, **options):
    """A server that says ``count(prompt)`` of its prompt's tokens."""
    return Server(says=lambda prompt, made, asked: {"prompt_tokens": count(prompt)}, streams=streams, **options)


def cached(count, **options):
    def says(prompt, made, asked):
        return {"prompt_tokens_details": {"cached_tokens": count(prompt)}}

    return Server(says=says, streams=True, **options)


def reasoning(count, **options):
    def says(prompt, made, asked):
        return {"completion_tokens_details": {"reasoning_tokens": count(made)}}

    return Server(says=says, streams=True, **options)


def adding():
    """A count that never starts again."""
    counts = []
    return counting(lambda prompt, made, asked: counts.append(made) or sum(counts))


def in_threes(prompt, whole):
    for seconds, text in whole:
        yield from ((seconds * (n == 0) + 2e-4 * (n > 0), (text + "  ")[n]) for n in range(3))


def padded(prompt, whole):
    for seconds, text in whole:
        yield from ((seconds / 2, text), (seconds / 2, " "))


def hiding(count):
    """So many tokens at first are made and not streamed, but not of a single one."""
    return lambda prompt, whole: [(s, None if n < count and len(whole) > 1 else t) for n, (s, t) in enumerate(whole)]


def trailing(count):
    return lambda prompt, whole: [
        (s, None if len(whole) - n <= count and len(whole) > 1 else t) for n, (s, t) in enumerate(whole)
    ]


def before_its_prefill(prompt, whole):
    return [(s + PREFILL * prompt * (n == 1), t) for n, (s, t) in enumerate(whole)]


def kept_back(prompt, whole):
    """Something on the way keeps the answer until it is complete, then hands it out every 20 microseconds."""
    return [(2e-5 if n else STEP * len(whole), t) for n, (_, t) in enumerate(whole)]


REFUSED = "refused"
FALSE = {
    "twice as many tokens": (counting(lambda p, n, asked: 2 * n), "count"),
    "three times as many, in streams alone, and stops early": (
        counting(lambda p, n, asked: 3 * n, True, stops=20, words=(" one", " two", " six")), REFUSED),
    "half as many": (counting(lambda p, n, asked: n // 2), "count"),
    "no tokens": (counting(lambda p, n, asked: 0), "count"),
    "one more than was asked for": (counting(lambda p, n, asked: asked + 1), "count"),
    "the prompt's tokens among the answer's": (counting(lambda p, n, asked: p + n), REFUSED),
    "all tokens since it was started": (adding(), REFUSED),
    "as many as were asked for, after a tenth": (counting(lambda p, n, asked: asked, stops=6), REFUSED),
    "a blank behind every token": (Server(pieces=padded), "split"),
    "all tokens but one, and calls it the limit": (Server(cap=63), "count"),
    "a token for every pass of four": (counting(lambda p, n, asked: (n + 3) // 4, group=4), "count"),
    "three events a token": (Server(pieces=in_threes), "split"),
    "three events a token, not counted": (Server(pieces=in_threes, says=lambda *_: None, streams=True), "count"),
    "stops early, not counted": (counting(lambda p, n, asked: None, True, stops=40), "count"),
    "a quarter of the tokens hidden before the others": (Server(pieces=hiding(16)), "count"),
    "a quarter of the tokens hidden behind the others": (Server(pieces=trailing(16)), "count"),
    "half an answer but one token": (Server(stops=31), "short"),
    "stops early, four tokens a piece": (Server(stops=22, group=4), "short"),
    "more cached tokens than the prompt has": (cached(lambda p: p + 20, depths="20,40"), "prompt"),
    "more reasoning than tokens": (reasoning(lambda n: 9 * n), REFUSED),
    "reasoning that is not streamed": (reasoning(lambda n: 30, pieces=hiding(30)), REFUSED),
    "tokens that are not streamed": (Server(pieces=hiding(40)), REFUSED),
    "a prompt without tokens": (prompts(lambda p: 0, True), "prompt"),
    "twice the prompt, in streams alone": (prompts(lambda p: 2 * p, True), REFUSED),
    "half the prompt, in streams alone": (prompts(lambda p: p // 2, True), REFUSED),
    "more prompt tokens than bytes": (prompts(lambda p: 8 * p), "prompt"),
    "a prompt token for a line": (prompts(lambda p: 1 + p // 6, depths="30,60"), "prompt"),
    "the same prompt always": (prompts(lambda p: 100), REFUSED),
    "a prompt that is less than not cached": (cached(lambda p: -p), "prompt"),
    "a prompt from a cache": (cached(lambda p: p * 9 // 10), REFUSED),
    "no prefill": (Server(prefill=0.0), "prefill"),
    "a first piece before the prefill": (Server(prefill=0.0, pieces=before_its_prefill), "prefill"),
    "an answer kept until it is complete": (Server(pieces=kept_back), "burst"),
    "an answer in one piece": (Server(group=64), "burst"),
}  # fmt: skip
TRUE = {
    "a token a piece": Server(),
    "seven tokens a piece": Server(group=7),
    "bursts of speculation": Server(steps=(0.02, 0.0, 0.0, 0.0, 0.0)),
    "stops at half of what was asked for": Server(stops=32),
    "stops a token early": Server(stops=63),
    "a far server": Server(prefill=1e-4, before=0.15),
    "20,000 tokens/s of prefill": Server(prefill=5e-5, before=0.004, steps=(0.005,)),
    "3,000 tokens/s": Server(prefill=2e-4, steps=(1 / 3000,)),
    "no count in streams": Server(says=lambda *_: {"prompt_tokens": None, "completion_tokens": None}, streams=True),
    "counts that are no numbers": counting(lambda p, n, asked: str(n)),
    "counts beyond all bounds": counting(lambda p, n, asked: 10**400),
    "spelled byte by byte": Server(group=4, words=("\U0001f9ff", "", "", "")),
}  # fmt: skip


@pytest.fixture
def swept(monkeypatch, tmp_path):
    """Sweep a server; return (exit code, rows)."""
    monkeypatch.chdir(tmp_path)

    def sweep(server, *more, depths=None, lag=0.0):
        scripted(monkeypatch, lag, fake=server)
        argv = ["--frontiers", depths or server.depths, "-n", "64", "--target", "http://fake/v1", "--api", "chat"]
        code = cli.main([*argv, "-r", "2", "--csv", "s.csv", "--no-store", *more])
        return code, read_rows("s.csv") if code == 0 else []

    return sweep


@pytest.mark.parametrize("name", FALSE)
def test_no_figure_that_cannot_be_true_is_published_without_a_warning(name, swept, capsys):
    server, expected = FALSE[name]
    code, rows = swept(server)
    said = capsys.readouterr()
    if expected == REFUSED:
        last = said.err.splitlines()[-1]
        assert code == 1 and last.startswith("ds4-bench: http://fake/v1 ") and "internal error" not in last
        return
    assert code == 0 and [expected in row["warnings"].split() for row in rows] == [True, True]
    assert f"warning ({expected}): {warnings.MEANINGS[expected]}" in said.out.replace("\n", " ")
    assert f"warning ({expected}) on 4 of 4 rows: " in said.err


@pytest.mark.parametrize("name", TRUE)
def test_a_true_figure_has_no_warning(name, swept, capsys):
    code, rows = swept(TRUE[name])
    assert code == 0 and [row["warnings"] for row in rows] == [None, None], capsys.readouterr().err
    assert "warning" not in capsys.readouterr().out


def test_too_low_a_count_is_replaced_by_what_came(swept):
    """Too high a one cannot be: which of the two is wrong is unknown."""
    for count, tokens in ((lambda p, n, asked: 0, 64), (lambda p, n, asked: n // 2, 64), (lambda p, n, asked: 99, 99)):
        _, rows = swept(counting(count))
        assert {row["gen_tokens"] for row in rows} == {tokens}
        assert {round(row["gen_tps"] * STEP, 2) for row in rows} == {
            1.0 if tokens == 64 else round((99 - 1.55) / 63, 2)
        }


@pytest.mark.parametrize("server", [Server(pieces=in_threes), Server(cap=10), Server(stops=3), Server(stops=63)])
def test_tokens_are_shown_where_they_are_not_those_asked_for(server, swept, capsys):
    """The number of events is no number of tokens where the length asked for is a better one."""
    code, rows = swept(server)
    tokens = server.stops or server.cap or 64
    assert code == 0 and {(row["gen_tokens"], row["asked_tokens"]) for row in rows} == {(tokens, 64)}
    assert {round(row["gen_tps"] * STEP, 1) for row in rows} == ({1.0} if tokens != 64 else {0.9})
    said = capsys.readouterr()
    assert bool(re.search(r"  tokens  .*  asked", said.out)) == (tokens != 64)
    assert ("answers ended early on 4 of 4 rows: after 63 of 64 tokens" in said.err) == (tokens == 63)


def test_a_cold_first_request_is_no_reason_to_doubt_the_others(swept):
    class Cold(Server):
        def events(self, path, body, sleep):
            sleep(0.8 if not self.bodies else 0.0)
            yield from super().events(path, body, sleep)

    code, rows = swept(Cold(prefill=2e-5, before=0.003), depths="900,2000")
    assert code == 0 and [row["warnings"] for row in rows] == [None, None]
    code, rows = swept(Cold(prefill=0.0, before=0.003), depths="900,2000")
    assert code == 0 and [row["warnings"] for row in rows] == ["prefill", "prefill"]


@pytest.mark.parametrize("lag, warned", [(0.0001, None), (0.0006, None), (0.0007, "busy"), (0.045, "busy")])
def test_a_client_that_wakes_too_late_has_warnings(lag, warned, swept, capsys):
    """From a quarter of the time between pieces on."""
    code, rows = swept(Server(), lag=lag)
    assert code == 0 and {row["warnings"] for row in rows} == {warned}
    assert all(row["lag_ms"] == pytest.approx(1e3 * lag) and row["load"] is not None for row in rows)
    assert ("this client woke 45 ms late, events came every 2.4 ms (load " in capsys.readouterr().err) == (lag > 0.04)


@pytest.mark.parametrize("counts, code", [
    ((49, 50, 50, False), None), ((48, 50, 50, False), "count"), ((48, 50, 48, True), "split"),
    ((None, 50, 49, True), None), ((None, 53, 50, True), "count"), ((None, 3, 50, False), "count"),
    ((0, 1, 5, False), "count"), ((0, 0, 5, False), None), ((6, 6, 5, True), "count"), ((4, 4, 5, True), "count"),
    ((4, 4, 5, False), None), ((5, 5, 5, True, 5), None), ((5, 5, 5, True, 6), "count"), ((5, 5, 5, True, -1), "count"),
])  # fmt: skip
def test_how_far_a_count_may_be_off(counts, code):
    """Tokens that a server counts, events, tokens asked for, whether it stopped there, tokens of reasoning."""
    assert next(iter(warnings.of_counts(*counts)), None) == code


def test_a_late_client_and_few_pieces():
    """The time to the first token has to be longer than the lag, too."""
    row = {"ttft_ms": 20.0, "gen_tokens": 1, "steps_s": [], "lag_ms": 1.9}
    assert not warnings.of_times(row) and list(warnings.of_times(row | {"lag_ms": 2.0})) == ["busy"]


def test_a_load_is_judged_as_well(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["--target", "http://fake/v1", "--api", "chat", "--requests", "6", "--mix", "300:16,900:24", "-r", "1"]
    for server, expected in ((counting(lambda p, n, asked: 2 * n), "count"), (Server(prefill=0.0), "prefill"),
                             (Server(), None)):  # fmt: skip
        scripted(monkeypatch, fake=server)
        assert cli.main([*argv, "--csv", "l.csv", "--no-store"]) == 0
        assert [row["warnings"] for row in read_rows("l.csv")] == [expected]


# --- where they are shown


def test_a_warning_is_in_row_table_plot_and_report(swept, capsys):
    code = "count"
    assert swept(counting(lambda p, n, asked: 2 * n), "--plot", "s.svg")[0] == 0
    facts = json.loads(Path("s.json").read_text())
    assert all(list(entry["warnings"]) == [code] for entry in facts["samples"])
    reason = facts["samples"][0]["warnings"][code]
    said = capsys.readouterr()
    assert f"warning ({code}): " in said.out and f"ds4-bench: warning ({code}) on 4 of 4 rows: {reason}" in said.err
    assert f"warnings: {code}" in Path("s.svg").read_text()
    assert reports.main(["build", "s.csv", "-o", "r.html"]) == 0
    for text in (Path("r.html").read_text(), Path("r.md").read_text(), capsys.readouterr().out):
        assert f"warning ({code}) on 4 of 4 rows: " in text
    assert f"warnings: {code}" in Path("r.svg").read_text()


def test_a_few_rows_with_warnings_are_left_out():
    rows = [{"ctx_tokens": 64 * n, "gen_tps": 10.0} for n in range(1, 9)]
    busy = {"warnings": {"busy": "load 30"}}
    for count, refused in ((2, ""), (3, "3 of 8 rows have warnings: busy")):
        some = [row | busy for row in rows[:count]] + rows[count:]
        assert warnings.refusal(some, "gen_tps") == refused and len(warnings.without(some, "gen_tps")) == 8 - count
    assert warnings.notes(some) == ["warning (busy) on 3 of 8 rows: load 30"]
    some = [{"warnings": {"busy": "first"}}, {"warnings": {"other": "x", "busy": "second", "count": "y"}}]
    order = [("count", "y"), ("busy", "first"), ("other", "x")]
    assert list(warnings.merged(map(warnings.of, some)).items()) == order and warnings.codes(some) == "count busy other"
    assert warnings.of({"warnings": "busy count"}) == {code: warnings.MEANINGS[code] for code in ("busy", "count")}


# --- this machine


def test_lag_is_what_a_sleeping_thread_overshoots(monkeypatch):
    with Lag() as lag:
        pass
    monkeypatch.setattr(lag, "_overshoots", [0.0, 0.0, 0.0, 0.044])
    assert lag.seconds == pytest.approx(0.044 * 0.046 / 0.052), "weighted by the time that each sleep took"
    monkeypatch.setattr(lag, "_overshoots", [])
    assert lag.seconds == 0 and set(lag.facts()) == {"lag_ms", "load"}


def test_a_local_row_that_waited_for_a_processor_has_a_warning():
    row = {"steps_s": [0.01], "gen_tokens": 1, "wait_share": 0.099, "load": 7.5}
    assert not warnings.of_times(row) and not warnings.of_times(row | {"wait_share": None})
    reason = {"busy": "a thread waited for a CPU for 10% of the time (load 7.5)"}
    assert warnings.of_times(row | {"wait_share": 0.1}) == reason


def test_only_the_timed_windows_count(monkeypatch):
    """A snapshot between them, and restoring it, do not."""
    waited = iter([{"1": 5.0, "2": 1.0}, {"1": 5.5, "2": 1.0}, {"1": 99.0, "2": 1.0}, {"1": 99.25, "2": 1.5, "3": 0.5}])
    monkeypatch.setattr(waiting, "threads_waited", lambda: next(waited))
    used, passed = itertools.count(0.0, 0.8), itertools.count(0.0, 1.0)
    time = SimpleNamespace(process_time=lambda: next(used), monotonic=lambda: next(passed))
    monkeypatch.setattr(waiting, "time", time)
    monkeypatch.setattr(waiting, "usable_cores", lambda: 1)
    clock = Clock()
    monkeypatch.setattr(sweep.time, "perf_counter", clock)
    monkeypatch.setattr(sweep, "load", lambda: 3.5)
    (row,) = sweep.sweep(FakeSession(clock, 64), list(range(2, 42)), (10,), 2, 1)
    window = 10 * PREFILL_S + 2 * (EVAL_S + PICK_S)
    assert row["wait_share"] == pytest.approx(0.75 / window) and row["load"] == 3.5, "of the thread that waited longest"
    entry = with_warnings(row)
    assert entry["warnings"] == {"busy": "a thread waited for a CPU for 20% of the time (load 3.5)"}
    assert summaries([entry])[0]["warnings"] == "busy"
    waits = itertools.count(0.0, 0.5)
    monkeypatch.setattr(waiting, "threads_waited", lambda: {"1": next(waits)})
    for share in (0.85, 0.95):
        time.process_time = itertools.count(0.0, share).__next__
        (row,) = sweep.sweep(FakeSession(clock, 64), list(range(2, 42)), (10,), 2, 1)
        assert (row["wait_share"] == 0) == (share > 0.9), "more threads than cores wait for each other"
    waits = itertools.count(0.0, 99.0)
    time.process_time = itertools.count(0.0, 0.1).__next__
    (row,) = sweep.sweep(FakeSession(clock, 64), list(range(2, 42)), (10,), 2, 1)
    assert row["wait_share"] == 1, "a wait counts when it ends, though it began before the window"
    monkeypatch.setattr(waiting, "threads_waited", lambda: None)
    (row,) = sweep.sweep(FakeSession(clock, 64), list(range(2, 42)), (10,), 2, 1)
    assert not {"wait_share", "warnings"} & with_warnings(row).keys()
