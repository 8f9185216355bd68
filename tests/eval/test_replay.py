"""A run is shown again as it was: what came, when, in which order, at any speed; nothing is asked or written."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from ds4ref.cancellation import Cancellation
from ds4ref.eval import log as logs
from ds4ref.eval.plan import Key
from ds4ref.eval.replay import FASTEST, SLOWEST, Replay, asked
from ds4ref.eval.runner import Abandoned, Finished, Started, Streamed, regrade
from ds4ref.eval.scores import summary
from ds4ref.eval.tui.app import EvalApp
from ds4ref.targets import Ability

from . import logs as made
from .staged import settled, until

FAST = 2000.0


def played(log, speed=FAST):
    events = []
    runner = Replay(log, speed, events.append)
    runner.run()
    return runner, events


def test_answers_come_as_they_were_in_the_order_of_the_log(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["rwamfs"], output=" a\n\n b \tc é漢字 \x1b[2J\n")
    log.samples.reverse()
    runner, events = played(log)
    assert [e.sample for e in events if isinstance(e, Finished)] == log.samples
    assert list(runner.log.samples) == [s.key for s in log.samples] and sum(isinstance(e, Started) for e in events) == 6
    for sample in log.samples:
        pieces = [e for e in events if isinstance(e, Streamed) and e.key == sample.key]
        assert "".join(e.text for e in pieces if e.thinking) == sample.reasoning
        assert "".join(e.text for e in pieces if not e.thinking) == sample.output
        if sample.tokens and pieces:
            assert pieces[-1].tokens == sample.tokens and [e.tokens for e in pieces] == sorted(e.tokens for e in pieces)
            assert pieces[0].seconds == sample.ttft and pieces[-1].seconds == pytest.approx(sample.seconds)


@pytest.mark.parametrize("speed", [SLOWEST, 10.0, FASTEST])
def test_it_takes_as_long_as_the_run_by_the_speed(tmp_path, speed, monkeypatch):
    """Two answers of a second each, one of them without a text."""
    log = made.write(tmp_path / "run.jsonl", ["rr"], seconds=1.0, ttft=0.5)
    log.samples[1] = msgspec.structs.replace(log.samples[1], output="", reasoning="")
    naps: list[float] = []
    monkeypatch.setattr(Cancellation, "wait", lambda self, seconds: naps.append(seconds))
    played(log, speed)
    assert sum(naps) == pytest.approx(2 / speed)


def test_speed_changes_and_its_clock_does_not_jump(tmp_path):
    runner = Replay(made.write(tmp_path / "run.jsonl", ["r"]), 1000.0)
    time.sleep(0.01)
    before = runner.clock()
    runner.speed = SLOWEST / 2
    assert runner.speed == SLOWEST and before <= runner.clock() < before + 100 and before >= 10
    runner.speed = FASTEST * 2
    assert runner.speed == FASTEST


def test_a_stop_leaves_the_rest_unplayed_and_an_unanswered_question_cannot_be_asked(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["rr r"])
    events = []

    def listen(event):
        events.append(event)
        if isinstance(event, Started) and len(runner.log.samples) == 1:
            runner.stop()

    runner = Replay(log, FAST, listen)
    runner.run()
    assert len(runner.log.samples) == 1 and isinstance(events[-1], Abandoned)
    assert logs.read(log.path).samples == log.samples, "and the log is as it was"
    runner, events = played(log)
    missing = Key(1, log.header.questions[2].id)
    runner.run_now(missing)
    runner.run()
    assert events[-1] == Abandoned(missing) and missing not in runner.log.samples
    runner.run_now(log.samples[0].key)
    runner.run()
    assert events[-1] == Finished(log.samples[0])


def test_questions_and_limits_are_those_of_the_run(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["r" + " " * 8])
    assert len(asked(log)) == 9, "unanswered ones are there"
    log.header.facts["selection"] = {"only": "science", "limit": 2}
    assert [q.id for q in asked(log)] == ["maths-000", "science-001", "science-004"]
    log.header.target["kind"] = "http"
    assert not Replay(log).target.can(Ability.GUIDE)


# --- the command


def test_lines_report_and_logs_that_are_torn_resumed_or_empty(tmp_path, call):
    path = tmp_path / "run.jsonl"
    log = made.write(path, ["ww f"])
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(made.sample(log.header.questions[0], "right")) + b'\n{"id": "maths-0')
    before = path.read_bytes()
    code, out, err = call("--replay", path, "--speed", FAST)
    lines = [line.split(":")[0] for line in out.splitlines() if line.startswith("[")]
    assert code == 0 and "the last line is incomplete" in err and path.read_bytes() == before
    assert lines == ["[1/3] science-001", "[2/3] maths-003", "[3/3] maths-000"], "what was asked again is played last"
    assert "score: 50.0 %" in out and "asked: 3 of the 4 questions" in out
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    assert call("--replay", path)[0] == 1


@pytest.mark.parametrize("argv", [["--speed", "2"], ["--replay", "none.jsonl", "--json"], ["--replay", "none.jsonl"]])
def test_usage(call, argv):
    code, out, err = call(*argv)
    assert (
        code in (1, 2) and out == "" and "replay" in err + "replay" * ("No such file" in err) and err.count("\n") == 1
    )


def test_on_the_screen(tmp_path):
    """Faster, slower, paused, now, and left; in the end it is as the run was, on the run's own clock."""
    log = made.write(tmp_path / "run.jsonl", ["rwa "], seconds=100.0)
    app = EvalApp(lambda listen: Replay(log, 1.0, listen), asked(log), 1, Replay(log).log, title="again", pause_s=0.0)

    def text():
        return "\n".join(strip.text for strip in app.screen._compositor.render_strips())

    async def play():
        async with app.run_test(size=(100, 30)) as pilot:
            runner = app.work.runner
            await until(pilot, lambda: app.board.live and "REPLAY 1×" in text() and "Faster" in text())
            await pilot.press("plus", "plus", "plus", "minus", "p")
            await until(pilot, lambda: runner.speed == 4 and "PAUSED" in text())
            await pilot.press("p", "end", "enter")
            await until(pilot, lambda: "REPLAY 4×" in text())
            runner.speed = FASTEST
            await until(pilot, lambda: len(runner.log.samples) == 3 and "DONE" in text())
            states = [app.board.state(Key(1, q.id)).value for q in log.header.questions]
            assert states == ["PASS", "FAIL", "AMBIG", "PEND"], "the last one was never answered"
            await until(pilot, lambda: "score 1/3 = 33.3 %" in text())
            await pilot.press("q")
            assert app.work.stopping

    with patch("textual.app.wait_for_idle", settled), patch("textual.pilot.wait_for_idle", settled):
        asyncio.run(play())


@pytest.mark.parametrize(("name", "counts"), [
    ("right", {"right": 12}), ("broken", {"right": 3, "wrong": 4, "ambiguous": 1, "missing": 4}),
])  # fmt: skip
def test_the_logs_of_the_readme_s_picture_are_graded_as_it_shows(name, counts):
    log = logs.read(Path(__file__).parents[1] / "data" / "replay" / f"{name}.jsonl")
    grades = [sample.grade for sample in log.samples]
    for sample in log.samples:
        regrade(sample, log.questions[sample.id])
    assert [sample.grade for sample in log.samples] == grades
    assert {word: n for word, n in summary(log).items() if word in made.LETTERS.values() and n} == counts
