"""The page of an examination: answers by cause, the time said before, continuing, several targets, what changed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.doctor_time import Throttle
from ds4ref.runs.store import Store
from ds4ref.targets import Delta, Usage
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.doctor import changes, command, pace, plan, run, saved
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.doctor.pace import Cost, Pace
from ds4ref.test_vectors.finding import CAUSES, Finding, Outcome

from .endpoint import Endpoint
from .examined import examination
from .scripted import Scripted, step

QUICK = ["--quick", "--only", "tokenizer,determinism,ways"]


def answered(*checks: tuple[str, str, Outcome]) -> dict[str, str]:
    """The answers by cause from (stage, cause, outcome)."""
    made = [examination(outcome, stage=stage, cause=cause).stages[0] for stage, cause, outcome in checks]
    result = examination()
    result.stages = made
    return {a.cause: a.answer for a in result.answers}


@pytest.mark.parametrize(
    ("checks", "wrong", "clear"),
    [
        ([("template", "template", Outcome.WRONG), ("numbers", "engine", Outcome.OK)], {"template"},
         {"engine", "checkpoint", "quantization"}),
        ([("numbers", "checkpoint", Outcome.WRONG)], {"checkpoint"}, set()),
        ([("numbers", "engine", Outcome.WRONG), ("preflight", "checkpoint", Outcome.OK)], {"engine"}, {"checkpoint"}),
        # unexplained logits leave open what is wrong, whatever else was in order
        ([("numbers", "engine", Outcome.UNEXPLAINED), ("preflight", "checkpoint", Outcome.OK),
          ("ways", "engine", Outcome.OK)], set(), set()),
        ([("load", "load", Outcome.DEPENDS)], set(), {"load"}),
        ([("ways", "engine", Outcome.OK), ("determinism", "engine", Outcome.UNSURE)], set(), {"engine"}),
        ([("ways", "engine", Outcome.UNSURE), ("load", "load", Outcome.FAILED)], set(), set()),
    ],
)  # fmt: skip
def test_one_answer_for_each_cause(checks, wrong, clear) -> None:
    answers = answered(*checks)
    assert list(answers) == list(CAUSES)
    assert {c for c, a in answers.items() if a == "wrong"} == wrong
    assert {c for c, a in answers.items() if a == "nothing wrong found"} == clear


# ------------------------------------------------------------------------------------------------------------ time


class Slow(Scripted):
    """A server of known speeds on a clock of its own: 0.2 s a request, 4000 prompt tokens and 50 tokens a second."""

    kind = "http"

    def __init__(self) -> None:
        super().__init__([step(b"a")])
        self.clock = 0.0

    def stream(self, request):
        prompt = len(request.prompt.user) // 4
        self.clock += 0.2 + prompt / 4000 + request.max_tokens / 50
        yield Delta("x", (), 0.1, "length", Usage(prompt, request.max_tokens), "scripted-1")


def test_the_pace_of_a_slow_server_is_measured(engine, monkeypatch) -> None:
    target = Slow()
    case = ExamContext(target, engine)
    case.kinds = {"chat"}
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: target.clock))
    measured = plan.measure(case)
    assert measured.seconds(Cost(10, 3000, 500)) == pytest.approx(10 * 0.2 + 3000 / 4000 + 500 / 50, rel=0.01)
    assert replace(case, same_model=True).meter is case.meter, "copies count in one place"
    assert case.meter.usage(1)["requests"] == 2 and case.meter.usage()["tokens"] == 35


def test_what_does_not_fit_is_left_out_and_no_stage_takes_the_time_of_a_later_one(engine, monkeypatch) -> None:
    costs = {"a": Cost(10), "b": Cost(100), "c": Cost(20)}
    monkeypatch.setattr(plan, "COSTS", {name: (cost, cost, cost) for name, cost in costs.items()})
    case = ExamContext(Scripted([step(b"a")]), engine, quick=True)
    made = plan.Plan.make(case, Pace(1.0, 0.0, 0.0), ["a", "b", "c"], 100.0, 5.0)
    assert made.left_out == ["b"] and made.runs == ["a", "c"] and made.seconds(made.runs) == 30
    assert made.limit("a", 300.0) == pytest.approx(95 - 5 - 20, abs=1) and made.limit("a", 15.0) == 15
    assert any("no time for b (2 min)" in line for line in made.lines())
    assert made.leaves_out("b") and not made.leaves_out("a")
    made.begun += 31  # what came before took less
    assert not made.leaves_out("b") and made.limit("b", 300.0) == pytest.approx(101, abs=1)


def test_the_time_is_said_before_the_stages_run(engine, capsys) -> None:
    with Endpoint(engine) as server, Throttle(server.url, 0.1, 4000.0, 50.0) as slow:
        cli.main(["doctor", slow.url, *QUICK, "--total", "4", "--json"])
    err = capsys.readouterr().err
    assert "limit 4 s" in err and err.index("estimated time") < err.index("no time for")


def test_every_stage_has_its_cost(engine) -> None:
    assert {s.name for s in run.STEPS} - {"preflight"} <= plan.COSTS.keys()


# ------------------------------------------------------------------------------------------------------ continuing


class Killed(BaseException):
    """Ends the process as a kill does: nothing is written after it."""


def test_an_examination_that_was_killed_is_continued(engine, monkeypatch, tmp_path, capsys) -> None:
    """Finished stages are kept with all their findings, what they left for later ones is restored, the rest runs."""
    argv = ["doctor", "", *QUICK, "-o", str(tmp_path)]
    seen = []

    def killed(case, stage):
        case.offset, case.mode = 7, "qat"
        case.served.add("bos", {"1": 0.99}, "evidence")
        raise Killed

    def after(case, stage):
        seen.append((case.offset, case.tokenizer_wrong, case.kinds))
        stage.add("went on", Outcome.OK, "here")

    def with_stage(function):
        return tuple(s if s.name != "ways" else run.StageSpec("ways", "B", "?", function) for s in run.STEPS)

    with Endpoint(engine) as server:
        argv[1] = server.url
        monkeypatch.setattr(run, "STEPS", with_stage(killed))
        with pytest.raises(Killed):
            cli.main(argv)
        before = json.loads((tmp_path / "doctor.json").read_text())
        count = server.requests
        monkeypatch.setattr(run, "STEPS", with_stage(after))
        assert cli.main(argv) == 0
        fewer = server.requests - count
        both = json.loads((tmp_path / "doctor.json").read_text())
        assert not before["finished"] and both["finished"] and fewer < count
        kept = {s["name"]: s for s in before["stages"] if s["name"] != "preflight"}
        assert {s["name"]: s for s in both["stages"] if s["name"] in kept} == kept and kept["tokenizer"]["done"]
        assert seen == [(0, False, {"chat", "text"})] and "stages are done" in capsys.readouterr().err
        # a finished one is examined again, and so is one with other options
        cli.main(argv)
        assert len(seen) == 2 and "is finished: examining" in capsys.readouterr().err
        cli.main([*argv[:-2], "--long", "-o", str(tmp_path)] if "--quick" not in argv else [*argv, "--only", "ways"])
        assert len(seen) == 3 and "other target or options" in capsys.readouterr().err


def test_a_server_that_is_gone_does_not_cost_the_report(engine, monkeypatch, tmp_path, capsys) -> None:
    def killed(case, stage):
        raise Killed

    steps = tuple(s if s.name != "ways" else run.StageSpec("ways", "W", "?", killed) for s in run.STEPS)
    monkeypatch.setattr(run, "STEPS", steps)
    with Endpoint(engine) as server:
        argv = ["doctor", server.url, *QUICK, "-o", str(tmp_path), "--attempts", "1"]
        with pytest.raises(Killed):
            cli.main(argv)
    before = (tmp_path / "doctor.json").read_bytes()
    assert cli.main(argv) == 1 and "the unfinished report is kept" in capsys.readouterr().err
    assert (tmp_path / "doctor.json").read_bytes() == before


def test_what_stages_leave_for_later_ones_comes_back(engine) -> None:
    case, again = (ExamContext(Scripted([step(b"a")]), engine) for _ in range(2))
    case.kinds, case.same_model, case.mode, case.offset = {"text", "ids"}, True, "ds4", 2
    case.served.add("bos", {"1": 0.99, "0": 0.01}, "counted")
    context = saved.context_of(case)
    saved.restore(again, json.loads(json.dumps(context)))
    assert saved.context_of(again) == context and again.served.value("bos") == "1" and again.kinds == case.kinds


def test_a_damaged_report_is_not_continued(tmp_path) -> None:
    for text in ("", "{", "[]", '{"schema": "ds4-doctor-v1"}', '{"schema": "ds4-doctor-servers-v1", "servers": 3}'):
        (tmp_path / "doctor.json").write_text(text)
        assert saved.load(str(tmp_path)) == []


# --------------------------------------------------------------------------------------------------------- several


def test_servers_side_by_side(engine, tmp_path, capsys) -> None:
    """Differences are marked, every link has its place, and a server that is gone loses nothing of the others."""
    with Endpoint(engine) as right, Endpoint(engine, "fork") as wrong:
        gone = "http://127.0.0.1:9/v1"
        argv = ["doctor", right.url, wrong.url, gone, *QUICK, "--attempts", "1", "-o", str(tmp_path), "--json"]
        assert cli.main(argv) == 1
    out = json.loads(capsys.readouterr().out)
    assert [s["passed"] for s in out["servers"]] == [True, False, False]
    whole = json.loads((tmp_path / "doctor.json").read_text())
    rows = {row["check"]: row for row in whole["checks"]}
    assert rows["Tokenizer: counts"]["results"] == ["ok", "ok", ""] and not rows["Tokenizer: counts"]["differ"]
    assert any(row["differ"] and "wrong" in row["results"] for row in rows.values())
    html = (tmp_path / "doctor.html").read_text()
    ids, links = re.findall(r' id="([^"]*)"', html), re.findall(r'href="#([^"]*)"', html)
    assert len(ids) == len(set(ids)) and links and set(links) <= set(ids)
    markdown = (tmp_path / "doctor.md").read_text()
    assert set(re.findall(r"\]\(#([^)]*)\)", markdown)) <= set(re.findall(r'<a id="([^"]*)">', markdown))


def test_targets_on_several_machines_make_one_report(engine, tmp_path, capsys) -> None:
    with Endpoint(engine) as one, Endpoint(engine) as two, Endpoint(engine, "chatless") as three:
        urls = [one.url, two.url, three.url]
        argv = ["doctor", *urls, "--quick", "--only", "tokenizer", "-o", str(tmp_path / "out")]
        for number in (2, 1):
            cli.main([*argv, "--shard", f"{number}/2"])
        counts = [server.requests for server in (one, two, three)]
        cli.main([*argv, "--shard", "1/2"])
        assert all(counts) and counts == [server.requests for server in (one, two, three)], "it was done already"
    cli.main(["merge", str(tmp_path / "out"), "-o", str(tmp_path / "report")])
    whole = json.loads((tmp_path / "report/doctor.json").read_text())
    assert [server["target"] for server in whole["servers"]] == urls and (tmp_path / "report/doctor.html").exists()


# --------------------------------------------------------------------------------------------------- what changed


def test_what_changed_since_last_week(tmp_path) -> None:
    """Outcomes and names from one earlier run, measured values only beyond the noise of three."""
    noisy, steady = np.random.default_rng(1).lognormal(0, 0.1, 6), "0731"
    form = {"target": "x", "model": "m", "quick": True, "long": False}

    def week(rms: float, name: str = steady, outcome: Outcome = Outcome.OK, **other):
        result = examination(outcome, figures={"rms": rms, "checkpoint": name, "text": f"{rms} of it"})
        result.form, result.finished = form | other, True
        return result

    with Store.open(tmp_path / "runs.sqlite") as store:

        def fields(result) -> list[tuple[str, str]]:
            return [(c["field"], c["now"]) for c in changes.since(store, result).get("checks", ())]

        assert changes.since(store, week(1.0)) == {}
        number = changes.keep(store, week(noisy[0]), ["x", "key-1"], "", "key-1")
        assert store.run(number).facts["command"] == ["x", "***"]
        assert fields(week(50.0)) == [] and fields(week(1.0, "may")) == [("checkpoint", "may")]
        assert fields(week(1.0, outcome=Outcome.WRONG)) == [("outcome", "wrong")]
        assert fields(week(1.0, outcome=Outcome.SKIPPED)) == [], "what did not run has not changed"
        for rms in noisy[1:5]:
            changes.keep(store, week(rms), ["x"], "")
        assert ("rms", noisy[5]) not in fields(week(noisy[5])) and ("rms", 50.0) in fields(week(50.0))
        assert changes.since(store, week(1.0, target="y")) == {}


def test_a_finding_comes_back_as_it_was() -> None:
    (stage,) = examination(Outcome.WRONG, positions=(1, 2), figures={"a": [1, 2.5]}, next=["x"], cause="load").stages
    (check,) = stage.checks
    assert Finding.from_json(json.loads(json.dumps(check.to_json()))) == check
    with pytest.raises(ValueError, match="unknown cause"):
        Finding("a", "b", Outcome.OK, cause="weather")


def test_text_in_80_columns(monkeypatch) -> None:
    monkeypatch.setattr(command, "stdout_width", lambda: 80)
    result = examination(Outcome.WRONG, cause="engine")
    result.stages[0].checks[0].says = "a long sentence " * 20
    result.stages[0].checks[0].next = ["look at it"]
    text = command._shown(result)
    assert max(map(len, text.splitlines())) <= 80 and text.startswith("Something is wrong")
    assert text.index("engine") < text.index("next") < text.index("Numbers")
