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
from .server import Endpoint, scripted

PREFILL, STEP = 1e-3, 2.45e-3
WORDS = ("The", " old", " mill", " stood", " by", " a", " river", " and", " ground", " its", " corn", ",", " slow", ".")


class Server(Endpoint):
    """A server that makes as many tokens as it is asked for, and tells the truth.

    prefill   seconds a prompt token takes
    before    seconds before anything else
    steps     seconds before each token, in turn
    group     tokens in a piece
    stops     tokens after which it stops by itself
    """

    depths = "300,900"

    def __init__(self, prefill=PREFILL, before=0.0, steps=(STEP,), group=1, stops=None, words=WORDS):
        super().__init__()
        self.prefill, self.before, self.steps, self.group = prefill, before, steps, group
        self.stops, self.words = stops, words

    def says(self, prompt, made, body):
        """Return what it says about an answer."""
        return {"prompt_tokens": prompt, "completion_tokens": made}

    def pieces(self, prompt, made):
        """Yield (seconds before a piece, its fields)."""
        words = itertools.islice(itertools.cycle(self.words), made)
        steps = itertools.islice(itertools.cycle(self.steps), made)
        tokens = list(zip(steps, words, strict=True))
        for start in range(0, made, self.group):
            group = tokens[start : start + self.group]
            yield sum(step for step, _ in group), {"content": "".join(word for _, word in group)}

    def events(self, path, body, sleep):
        with self.lock:
            self.bodies.append((path, body))
        prompt, asked = self.tokens(body), body["max_tokens"]
        made = asked if self.stops is None else min(asked, self.stops)
        sleep(self.before + self.prefill * prompt)
        for seconds, fields in self.pieces(prompt, made):
            sleep(seconds)
            yield {"model": "fake", "choices": [{"delta": fields}]}
        finish = "length" if made == asked else "stop"
        yield {"model": "fake", "choices": [{"delta": {}, "finish_reason": finish}]}
        if (usage := self.says(prompt, made, body)) is not None:
            yield {"model": "fake", "choices": [], "usage": usage}

    def whole(self, path, body, sleep):
        for _ in self.events(path, body, sleep):
            pass
        prompt = self.tokens(body)
        usage = self.says(prompt, 1, body) or {"prompt_tokens": prompt, "completion_tokens": 1}
        choice = {"message": {"content": "The"}, "finish_reason": "length"}
        return {"model": "fake", "choices": [choice], "usage": usage}


class Miscounts(Server):
    """Counts with ``count(prompt, made, asked)``, which returns other fields; ``streams``: in streams alone."""

    def __init__(self, count, streams=False, **options):
        super().__init__(**options)
        self.count, self.streams = count, streams

    def says(self, prompt, made, body):
        usage = super().says(prompt, made, body)
        return usage if self.streams and not body["stream"] else usage | self.count(prompt, made, body["max_tokens"])


class Capped(Server):
    """Makes at most ``cap`` tokens, whatever it was asked for, and calls that the limit."""

    def __init__(self, cap, **options):
        super().__init__(**options)
        self.cap = cap

    def events(self, path, body, sleep):
        yield from super().events(path, body | {"max_tokens": min(self.cap, body["max_tokens"])}, sleep)


class Splits(Server):
    """Sends every token in three events, and counts tokens if ``tells``."""

    def __init__(self, tells=True, **options):
        super().__init__(**options)
        self.tells = tells

    def pieces(self, prompt, made):
        for seconds, fields in super().pieces(prompt, made):
            text = (fields["content"] + "  ")[:3]
            yield from (
                (seconds * (number == 0) + 2e-4 * (number > 0), {"content": text[number]}) for number in range(3)
            )

    def says(self, prompt, made, body):
        return super().says(prompt, made, body) if self.tells or not body["stream"] else None


class Adds(Server):
    """Its count never starts again."""

    total = 0

    def says(self, prompt, made, body):
        self.total += made
        return {"prompt_tokens": prompt, "completion_tokens": self.total}


class Hides(Server):
    """Makes ``hidden`` tokens that it counts and does not stream, as reasoning if ``thinks``."""

    def __init__(self, hidden, thinks=False):
        super().__init__()
        self.hidden, self.thinks = hidden, thinks

    def pieces(self, prompt, made):
        for number, (seconds, fields) in enumerate(super().pieces(prompt, made)):
            if number >= self.hidden * (made > 1):
                yield seconds + (self.hidden * seconds if number == self.hidden else 0), fields

    def says(self, prompt, made, body):
        details = {"completion_tokens_details": {"reasoning_tokens": self.hidden}} if self.thinks else {}
        return super().says(prompt, made, body) | (details if body["stream"] else {})


class Trails(Server):
    """Makes ``last`` tokens at the end that it counts and does not stream, as those behind the end of a text."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def events(self, path, body, sleep):
        for event in super().events(path, body, sleep):
            if (event["choices"] or [{}])[0].get("finish_reason") and body["max_tokens"] > 1:
                sleep(STEP * self.last)
            yield event

    def pieces(self, prompt, made):
        return itertools.islice(super().pieces(prompt, made), made - self.last if made > 1 else made)


class Early(Server):
    """Its first piece comes before the prefill."""

    def pieces(self, prompt, made):
        for number, (seconds, fields) in enumerate(super().pieces(prompt, made)):
            yield seconds + (PREFILL * prompt if number == 1 else 0), fields


class Buffered(Server):
    """Something on the way keeps the answer until it is complete, then hands it out every ``seconds``."""

    def __init__(self, seconds, **options):
        super().__init__(**options)
        self.seconds = seconds

    def pieces(self, prompt, made):
        made_in, pieces = STEP * made, list(super().pieces(prompt, made))
        yield made_in, pieces[0][1]
        for _, fields in pieces[1:]:
            yield self.seconds, fields


class Pads(Server):
    """Sends a blank after every token."""

    def pieces(self, prompt, made):
        for seconds, fields in super().pieces(prompt, made):
            yield seconds / 2, fields
            yield seconds / 2, {"content": " "}


def completion(count, streams=False, **options):
    return Miscounts(lambda prompt, made, asked: {"completion_tokens": count(prompt, made, asked)}, streams, **options)


def prompts(count, streams=False, depths=Server.depths):
    server = Miscounts(lambda prompt, made, asked: {"prompt_tokens": count(prompt)}, streams)
    server.depths = depths
    return server


def cached(count, depths=Server.depths):
    server = Miscounts(lambda prompt, made, asked: {"prompt_tokens_details": {"cached_tokens": count(prompt)}}, True)
    server.depths = depths
    return server


REFUSED = "refused"
FALSE = {
    "twice as many tokens": (completion(lambda p, n, asked: 2 * n), "count"),
    "three times as many, in streams alone, and stops early": (
        completion(lambda p, n, asked: 3 * n, True, stops=20, words=(" one", " two", " six")), REFUSED),
    "half as many": (completion(lambda p, n, asked: n // 2), "count"),
    "no tokens": (completion(lambda p, n, asked: 0), "count"),
    "one more than was asked for": (completion(lambda p, n, asked: asked + 1), "count"),
    "the prompt's tokens among the answer's": (completion(lambda p, n, asked: p + n), REFUSED),
    "all tokens since it was started": (Adds(), REFUSED),
    "as many as were asked for, after a tenth": (completion(lambda p, n, asked: asked, stops=6), REFUSED),
    "a blank behind every token": (Pads(), "split"),
    "ten tokens, and calls it the limit": (Capped(10), "count"),
    "all tokens but one, and calls it the limit": (Capped(63), "count"),
    "a token for every pass of four": (completion(lambda p, n, asked: (n + 3) // 4, group=4), "count"),
    "three events a token": (Splits(), "split"),
    "three events a token, not counted": (Splits(tells=False), "count"),
    "stops early, not counted": (
        Miscounts(lambda p, n, asked: {"completion_tokens": None}, True, stops=40), "count"),
    "a quarter of the tokens hidden before the others": (Hides(16), "count"),
    "a quarter of the tokens hidden behind the others": (Trails(16), "count"),
    "three tokens of an answer": (Server(stops=3), "short"),
    "half an answer but one token": (Server(stops=31), "short"),
    "stops early, four tokens a piece": (Server(stops=22, group=4), "short"),
    "more cached tokens than the prompt has": (cached(lambda p: p + 20, "20,40"), "prompt"),
    "more reasoning than tokens": (
        Miscounts(lambda p, n, asked: {"completion_tokens_details": {"reasoning_tokens": 9 * n}}, True), REFUSED),
    "reasoning that is not streamed": (Hides(30, thinks=True), REFUSED),
    "tokens that are not streamed": (Hides(40), REFUSED),
    "a prompt without tokens": (prompts(lambda p: 0, True), "prompt"),
    "twice the prompt, in streams alone": (prompts(lambda p: 2 * p, True), REFUSED),
    "half the prompt, in streams alone": (prompts(lambda p: p // 2, True), REFUSED),
    "more prompt tokens than bytes": (prompts(lambda p: 8 * p), "prompt"),
    "a prompt token for a line": (prompts(lambda p: 1 + p // 6, depths="30,60"), "prompt"),
    "the same prompt always": (prompts(lambda p: 100), REFUSED),
    "a prompt that is less than not cached": (cached(lambda p: -p), "prompt"),
    "a prompt from a cache": (cached(lambda p: p * 9 // 10), REFUSED),
    "no prefill": (Server(prefill=0.0), "prefill"),
    "a first piece before the prefill": (Early(prefill=0.0), "prefill"),
    "an answer kept until it is complete": (Buffered(2e-5), "burst"),
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
    "no count in streams": Miscounts(lambda p, n, asked: {"prompt_tokens": None, "completion_tokens": None}, True),
    "counts that are no numbers": completion(lambda p, n, asked: str(n)),
    "counts beyond all bounds": completion(lambda p, n, asked: 10**400),
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
        _, rows = swept(completion(count))
        assert {row["gen_tokens"] for row in rows} == {tokens}
        assert {round(row["gen_tps"] * STEP, 2) for row in rows} == {
            1.0 if tokens == 64 else round((99 - 1.55) / 63, 2)
        }


@pytest.mark.parametrize("server", [Splits(), Splits(tells=False), Capped(10), Server(stops=3), Server(stops=63)])
def test_tokens_are_shown_where_they_are_not_those_asked_for(server, swept, capsys):
    """The number of events is no number of tokens where the length asked for is a better one."""
    code, rows = swept(server)
    tokens = server.stops or getattr(server, "cap", 64)
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


def test_a_late_client_and_few_pieces():
    """The time to the first token has to be longer than the lag, too."""
    row = {"ttft_ms": 20.0, "gen_tokens": 1, "steps_s": [], "lag_ms": 1.9}
    assert not warnings.of_times(row) and list(warnings.of_times(row | {"lag_ms": 2.0})) == ["busy"]


def test_a_load_is_judged_as_well(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["--target", "http://fake/v1", "--api", "chat", "--requests", "6", "--mix", "300:16,900:24", "-r", "1"]
    for server, expected in ((completion(lambda p, n, asked: 2 * n), "count"), (Server(prefill=0.0), "prefill"),
                             (Server(), None)):  # fmt: skip
        scripted(monkeypatch, fake=server)
        assert cli.main([*argv, "--csv", "l.csv", "--no-store"]) == 0
        assert [row["warnings"] for row in read_rows("l.csv")] == [expected]


# --- where they are shown


def test_a_warning_is_in_row_table_plot_and_report(swept, capsys):
    code = "count"
    assert swept(completion(lambda p, n, asked: 2 * n), "--plot", "s.svg")[0] == 0
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
