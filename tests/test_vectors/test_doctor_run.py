"""A whole examination: stages that fail, time limits, signals, the report."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from ds4ref.targets import Delta
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.doctor import command, limits, numbers, page, run
from ds4ref.test_vectors.doctor.case import ExamContext
from ds4ref.test_vectors.finding import Outcome, ShownToken

from .examined import diagnosis, examination
from .scripted import Scripted, step

pytestmark = pytest.mark.usefixtures("both")


# ----------------------------------------------------------------------------------------------- the whole run


@pytest.fixture
def quiet(monkeypatch):
    """Leave out the diagnosis, as these tests are about everything around it."""
    clean = diagnosis("exact")
    seen = SimpleNamespace(ids=np.arange(9), rows=np.arange(9), full=False, logprobs=np.zeros((9, 20)))
    monkeypatch.setattr(numbers, "elicit", lambda *args: seen)
    monkeypatch.setattr(numbers, "run_diagnosis", lambda *args, **options: clean)


def test_a_stage_that_breaks_leaves_the_others_alone(engine, quiet, monkeypatch, capsys) -> None:
    def broken(case, stage):
        stage.add("first", Outcome.OK, "kept")
        raise ZeroDivisionError("by accident")

    staged(monkeypatch, broken)
    case = ExamContext(Scripted([step(b"a", (b"b", -3.0))]), engine, quick=True)
    result = run.examine(case, only=["ways", "load", "determinism"])
    by_name = {s.name: s for s in result.stages}
    assert by_name["ways"].outcome is Outcome.FAILED and not by_name["ways"].done
    assert by_name["ways"].checks[0].says == "kept" and "ZeroDivisionError" in by_name["ways"].checks[1].says
    assert by_name["load"].outcome is Outcome.IMPOSSIBLE and by_name["determinism"].outcome is Outcome.OK
    assert not result.passed and "Load: not supported" in capsys.readouterr().err


def test_time_that_ran_out_is_told(engine, quiet, monkeypatch) -> None:
    monkeypatch.setattr(limits.Limit, "seconds_left", 0.0)
    case = ExamContext(Scripted([step(b"a", (b"b", -3.0))]), engine, long=True)
    result = run.examine(case, only=["numbers", "determinism"])
    checks = {c.name: c for _, c in result.checks()}
    assert checks["mixed"].outcome is Outcome.OK, "one prompt in any case"
    assert checks["long"].outcome is Outcome.SKIPPED and checks["long"].says == "out of time"
    assert "--prompt long" in checks["long"].next[0] and not result.complete


def doctored(monkeypatch, target) -> None:
    monkeypatch.setattr(command, "target_of", lambda args, spec: target)


# ------------------------------------------------------------------------------------------------- time and signals


def staged(monkeypatch, stage_run) -> None:
    """Replace the stage "ways" by ``stage_run``."""
    steps = [s if s.name != "ways" else run.StageSpec("ways", "W", "?", stage_run) for s in run.STEPS]
    monkeypatch.setattr(run, "STEPS", tuple(steps))


class Waits(Scripted):
    """A target whose answer to one request, after a number of others, comes only when it is cancelled."""

    def __init__(self, after: int):
        super().__init__([step(b"a", (b"b", -3.0))])
        self.after = after

    def stream(self, request):
        if len(self.asked) == self.after:
            self.asked.append(request)
            assert request.cancel.wait(60), "nobody ended this request"
            yield Delta("", (), 0.1, "cancelled")
        else:
            yield from super().stream(request)


def test_where_there_is_no_terminal_a_stage_says_what_it_is_at(engine, quiet, monkeypatch, capsys) -> None:
    def waits(case, stage):
        stage.add("first", Outcome.OK, "kept")
        case.progress("waiting for Godot")
        assert case.limit.wait(60)
        case.limit.check()

    monkeypatch.setattr(run, "BEAT", 0.0)
    staged(monkeypatch, waits)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    case = ExamContext(Scripted([step(b"a", (b"b", -3.0))]), engine, quick=True, budget=1.0)
    result = run.examine(case, only=["ways", "load"])
    ways, batch = (next(s for s in result.stages if s.name == name) for name in ("ways", "load"))
    assert [(c.name, c.outcome, c.says) for c in ways.checks] == [
        ("first", Outcome.OK, "kept"), ("rest of the stage", Outcome.SKIPPED, "out of time"),
    ]  # fmt: skip
    assert not ways.done and batch.done and not result.signum and "--budget" in ways.checks[1].next[0]
    assert " W: waiting for Godot\n" in capsys.readouterr().err
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_a_request_ends_when_the_time_of_its_stage_is_up(engine, quiet, monkeypatch) -> None:
    case = ExamContext(target := Waits(2), engine, quick=True, budget=1.0)
    result = run.examine(case, only=["determinism"])
    stage = next(s for s in result.stages if s.name == "determinism")
    assert len(target.asked) == 3 and [c.says for c in stage.checks] == ["out of time"]


def test_a_diagnosis_is_asked_to_end(engine, monkeypatch) -> None:
    """A diagnosis that is cancelled returns its best answer so far, and no other prompt is diagnosed."""

    def slow(engine, seen, cancel):
        assert cancel.wait(60) and cancel(), "nobody ended it"
        return diagnosis("unknown")

    seen = SimpleNamespace(ids=np.arange(9), rows=np.arange(9), full=False, logprobs=np.zeros((9, 20)))
    monkeypatch.setattr(numbers, "elicit", lambda *args: seen)
    monkeypatch.setattr(numbers, "run_diagnosis", slow)
    case = ExamContext(Scripted([step(b"a", (b"b", -3.0))]), engine, budget=1.0)
    result = run.examine(case, only=["numbers"])
    assert [(c.name, c.outcome.value) for s, c in result.checks() if s.name == "numbers"] == [
        ("mixed", "unexplained"), ("short", "skipped"), ("text", "skipped"),
    ]  # fmt: skip


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("polite", [True, False])
def test_signals_end_in_the_page(engine, quiet, monkeypatch, tmp_path, signum, code, polite) -> None:
    """The report is written whether the stage ends after the first signal or has to be interrupted by a second one."""

    def waits(case, stage):
        stage.add("first", Outcome.OK, "kept")
        os.kill(os.getpid(), signum)
        assert case.limit.wait(60)
        if not polite:
            os.kill(os.getpid(), signum)
            raise AssertionError("not ended")
        stage.add("second", Outcome.OK, "the best answer so far")

    staged(monkeypatch, waits)
    doctored(monkeypatch, Scripted([step(b"a", (b"b", -3.0))]))
    assert cli.main(["doctor", "local", "--only", "ways,load", "-o", str(tmp_path)]) == code
    whole = json.loads((tmp_path / "doctor.json").read_text())
    ways, batch = (next(s for s in whole["stages"] if s["name"] == name) for name in ("ways", "load"))
    last = "the best answer so far" if polite else "interrupted"
    assert whole["interrupted"] and [c["says"] for c in ways["checks"]] == ["kept", last] and not ways["done"]
    assert batch["checks"][0]["says"] == "interrupted before it began"


def test_usage_errors_that_teach(capsys, tmp_path) -> None:
    for argv, says in (
        ([], "no target given. Use http://HOST:PORT/v1"),
        (["local", "b"], "not a target: b"),
        (["local", "--only", "numbrs"], "choose from preflight, identify, tokenizer"),
        (["local", "--quick", "--long"], "cannot be combined"),
        (["what:ever"], "unknown target"),
        (["local", "--budget", "0"], "--budget"),
    ):
        assert cli.main(["doctor", *argv]) == 2
        assert says in capsys.readouterr().err
    (tmp_path / "file").write_text("x")
    assert cli.main(["doctor", "local", "-o", str(tmp_path / "file")]) == 1
    assert "cannot write" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- pages


def test_the_page_shows_all_of_it_and_no_key(tmp_path) -> None:
    secret = 's"e<c|r&e_t'
    figures, where = {"rms": 0.25, "names": [], "odd": {"a": True}}, [("theirs", [ShownToken("tok", 3, True)])]
    result = examination(Outcome.WRONG, figures=figures, notes=[f"key: {secret}"], next=["look there"],
                         limit="0.3 nats", where=where)  # fmt: skip
    result.stages[0].add("other", Outcome.SKIPPED, "out of time")
    page.write([result], str(tmp_path), secret)
    for name in page.FILES:
        text = (tmp_path / name).read_text()
        assert "***" in text and not any(form in text for form in (secret, "s&#34;e&lt;c|r&amp;e_t", 's\\"e<c|r&e_t'))
        for part in ("Something is wrong", "says 0", "look there", "0.3 nats", "tok", "0.25", "out of time"):
            assert part in text, (name, part)
    assert "a yes" in (tmp_path / "doctor.html").read_text()
