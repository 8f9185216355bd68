"""An endpoint under load: when requests are sent, what their answers say, and the picture of it."""

import json
import math
import threading
from pathlib import Path

import pytest

from ds4ref.cancellation import Cancellation
from ds4ref.errors import Cancelled, TargetError
from ds4ref.runs.results import read_rows
from ds4ref.speed_bench import cli, runner
from ds4ref.speed_bench.endpoint import StreamedAnswer
from ds4ref.speed_bench.load import Schedule, jain, level, level_name, levels
from ds4ref.speed_bench.plan import Load, RequestShape
from ds4ref.targets import Completion, Usage

from .server import Endpoint, served


def answer(begin, arrivals, prompt=100):
    usage = Usage(prompt, len(arrivals), 0)
    return StreamedAnswer(begin, Completion("", usage=usage, arrivals=arrivals, seconds=arrivals[-1]), prompt)


ANSWERS = [answer(10.0, (0.5, 0.6, 0.7)), answer(11.0, (0.2, 0.5, 0.8)), answer(12.0, (0.4,)), answer(13.0, (1.0, 1.5))]


def test_what_the_answers_of_a_level_say():
    found = level(
        ANSWERS, Load(4, rates=(1.0,), mix=(RequestShape(90, 3), RequestShape(130, 2, 0.5)), bounds={"ttft": 500})
    )
    assert (found["at"], found["seconds"], found["ctx_tokens"]) == (10.0, 4.5, 103)
    assert runner.seconds(found) == 4.5, "what counts towards the budget is the level, not a request"
    assert found["ttft_ms"] == pytest.approx(450) and found["e2e_ms"] == pytest.approx(750)
    assert found["tpots_s"] == pytest.approx([0.1, 0.3, 0.5]), "a single token has no time behind the first"
    assert found["ttfts_s"] == [0.5, 0.2, 0.4, 1.0] and found["e2es_s"] == [0.7, 0.8, 0.4, 1.5]
    assert sorted(found["steps_s"]) == pytest.approx([0.1, 0.1, 0.3, 0.3, 0.5])
    assert found["request_rps"] == pytest.approx(4 / 4.5) and found["goodput_rps"] == pytest.approx(3 / 4.5)
    assert found["total_tps"] == pytest.approx(9 / 4.5)
    assert jain([3.0, 3.0, 3.0]) == pytest.approx(1) and jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert level(ANSWERS, Load(4, rates=(1.0,)))["goodput_rps"] is None, "no bound, no goodput"


@pytest.mark.parametrize("bounds, good", [({"ttft": 400}, 2), ({"tpot": 100.001}, 2), ({"e2e": 700}, 2),
                                          ({"ttft": 400, "tpot": 200}, 1), ({"e2e": 2000}, 4)])  # fmt: skip
def test_goodput_keeps_every_bound(bounds, good):
    assert level(ANSWERS, Load(4, rates=(1.0,), bounds=bounds))["goodput_rps"] == pytest.approx(good / 4.5)


def test_arrivals_are_poisson_and_the_same_for_everyone():
    plan = Schedule.of(Load(4000, rates=(1.0,), mix=(RequestShape(10, 1), RequestShape(20, 2, 3.0))))
    gaps = [b - a for a, b in zip(plan.moments, plan.moments[1:], strict=False)]
    mean = sum(gaps) / len(gaps)
    assert plan.moments[0] == 0 and mean == pytest.approx(1, abs=0.05)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(1, abs=0.1), "exponential: sd = mean"
    assert sum(gap > 1 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.03)
    assert sum(shape.prompt == 20 for shape in plan.shapes) / 4000 == pytest.approx(0.75, abs=0.03)
    assert plan == Schedule.of(Load(4000, streams=(9,), mix=(RequestShape(10, 1), RequestShape(20, 2, 3.0))))
    assert plan != Schedule.of(Load(4000, rates=(1.0,), seed=2)) and plan.moments != Schedule.of(
        Load(4000, rates=(1.0,)), 1).moments  # fmt: skip


class Scripted:
    """An endpoint that answers at once, or fails; knows how many requests it had at a time."""

    def __init__(self, hold=0.0, fails=()):
        self.hold, self.fails, self.lock = hold, set(fails), threading.Lock()
        self.now, self.most, self.shapes = 0, 0, []

    def request(self, depth, tokens, cancel, learn=False):
        with self.lock:
            number = len(self.shapes)
            self.shapes.append((depth, tokens))
            self.now += 1
            self.most = max(self.most, self.now)
        cancel.wait(self.hold)
        with self.lock:
            self.now -= 1
        if cancel():
            raise Cancelled("stopped")
        if number in self.fails:
            raise TargetError("badgers")
        return answer(float(number), (0.1, 0.2, 0.3), depth)


def test_streams_always_have_one_request():
    endpoint, told = Scripted(hold=0.02), []
    plan = Load(12, streams=(1, 4), mix=(RequestShape(8, 2), RequestShape(16, 4)))
    rows = list(levels(endpoint, plan, rep=3, progress=lambda *pair: told.append(pair)))
    assert [(row["test"], row["streams"]) for row in rows] == [("1 stream", 1), ("4 streams", 4)]
    assert endpoint.most == 4 and endpoint.shapes[:12] == [(s.prompt, s.answer) for s in Schedule.of(plan, 3).shapes]
    assert told[-1] == (24, 24) and "offered_rps" not in rows[0]


def test_rates_do_not_wait_for_answers(monkeypatch):
    """A rate at which many requests arrive while one is served."""
    endpoint = Scripted(hold=0.2)
    (row,) = levels(endpoint, Load(8, rates=(1000.0,)))
    assert endpoint.most > 4 and (row["test"], row["offered_rps"]) == ("1000 req/s", 1000.0) and "streams" not in row
    (row,) = levels(Scripted(), Load(8, rates=(math.inf,)))
    assert row["test"] == level_name(math.inf, 8) == "all at once" and "offered_rps" not in row


def test_what_fails_is_counted_and_levels_go_on():
    first, second = levels(Scripted(fails={1, 2, 7}), Load(6, streams=(2, 3)))
    assert (first["failed"], second["failed"], first["requests"]) == (2, 1, 6)
    with pytest.raises(TargetError, match="badgers"):
        list(levels(Scripted(fails=range(6)), Load(6, streams=(2,))))


def test_levels_that_are_done_are_not_asked_again():
    """Progress of a resumed load goes on where it stopped."""
    endpoint, told = Scripted(), []
    rows = levels(endpoint, Load(3, streams=(1, 2)), done=1, progress=lambda *pair: told.append(pair))
    assert [row["test"] for row in rows] == ["2 streams"]
    assert len(endpoint.shapes) == 3 and told == [(4, 6), (5, 6), (6, 6)]


@pytest.mark.parametrize("level", [{"streams": (2,)}, {"rates": (0.001,)}])
def test_a_wish_to_stop_does_not_wait_for_answers(level):
    cancel = Cancellation()
    threading.Timer(0.1, cancel.press).start()
    with pytest.raises(Cancelled):
        list(levels(Scripted(hold=3600), Load(9, **level), cancel=cancel))


@pytest.mark.thorough
def test_a_served_load_in_every_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with served(Endpoint(delay=0.001)) as base:
        argv = ["--target", base, "--requests", "20", "--request-rate", "100,200", "--mix", "64:4,128:8*0.5",
                "--goodput", "ttft:10000,tpot:10000", "-r", "1", "--csv", "l.csv", "--plot", "l.svg"]  # fmt: skip
        assert cli.main(argv) == 0
    rows = read_rows("l.csv")
    assert sorted(row["test"] for row in rows) == ["100 req/s", "200 req/s"]
    for row in rows:
        assert row["requests"] == 20 and row["failed"] == 0 and row["goodput_rps"] == row["request_rps"] > 0
        assert row["ttft_ms"] > 0 and row["ttft_p95_ms"] >= row["ttft_ms"] and row["tpot_p50_ms"] > 0
    out = capsys.readouterr().out
    assert "goodput" in out and "TTFT ms" in out and Path("l.svg").stat().st_size > 5000
    facts = json.loads(Path("l.json").read_text())
    assert facts["walk"]["load"]["bounds"] == {"ttft": 10000, "tpot": 10000} and "steps_s" not in facts["samples"][0]
