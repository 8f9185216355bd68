"""A run is shown again as it was: what came, when, in which order, at any speed; nothing is asked or written."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree

import msgspec
import pytest

from ds4ref.eval import cli
from ds4ref.eval import log as logs
from ds4ref.eval.plan import Key
from ds4ref.eval.regrade import regrade_log
from ds4ref.eval.replay import FASTEST, SLOWEST, Replay, _pieces, asked
from ds4ref.eval.runner import Abandoned, Finished, Started, Streamed
from ds4ref.eval.tui.app import EvalApp
from ds4ref.targets import Ability

from . import animation
from . import logs as made
from .staged import settled, until

FAST = 2000.0


def call(capsys, *argv):
    code = cli.main([str(arg) for arg in argv])
    out = capsys.readouterr()
    return code, out.out, out.err


def played(log, speed=FAST):
    events = []
    runner = Replay(log, speed, events.append)
    runner.run()
    return runner, events


# --- what is played


def test_answers_come_as_they_were_in_the_order_of_the_log(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["rwamfs"])
    log.samples.reverse()
    runner, events = played(log)
    finished = [e.sample for e in events if isinstance(e, Finished)]
    assert finished == log.samples and list(runner.log.samples) == [s.key for s in log.samples]
    for sample in log.samples:
        pieces = [e for e in events if isinstance(e, Streamed) and e.key == sample.key]
        assert "".join(e.text for e in pieces if e.thinking) == sample.reasoning
        assert "".join(e.text for e in pieces if not e.thinking) == sample.output
        if sample.tokens and pieces:
            assert pieces[-1].tokens == sample.tokens and [e.tokens for e in pieces] == sorted(e.tokens for e in pieces)
            assert pieces[0].seconds == sample.ttft and pieces[-1].seconds == pytest.approx(sample.seconds)
    assert sum(isinstance(e, Started) for e in events) == 6


@pytest.mark.parametrize("text", ["", "one", " a\n\n b  ", "\n", "ab\tc é漢字 \x1b[2J"])
def test_pieces_are_the_whole_text(text):
    assert "".join(_pieces(text)) == text


@pytest.mark.parametrize(("speed", "least", "most"), [(10.0, 0.2, 0.6), (100.0, 0.01, 0.2), (FASTEST, 0.0, 0.1)])
def test_it_takes_as_long_as_the_run_by_the_speed(tmp_path, speed, least, most):
    """Two answers of a second each, one of them without a text."""
    log = made.write(tmp_path / "run.jsonl", ["rr"], seconds=1.0, ttft=0.5)
    log.samples[1] = msgspec.structs.replace(log.samples[1], output="", reasoning="")
    start = time.monotonic()
    played(log, speed)
    assert least <= time.monotonic() - start < most + 1


def test_speed_changes_and_its_clock_does_not_jump(tmp_path):
    runner = Replay(made.write(tmp_path / "run.jsonl", ["r"]), 1000.0)
    time.sleep(0.01)
    before = runner.clock()
    runner.speed = SLOWEST / 2
    assert runner.speed == SLOWEST and before <= runner.clock() < before + 100 and before >= 10
    runner.speed = FASTEST * 2
    assert runner.speed == FASTEST


def test_a_stop_leaves_the_rest_unplayed(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["rrr"])
    events = []

    def listen(event):
        events.append(event)
        if isinstance(event, Started) and len(runner.log.samples) == 1:
            runner.stop()

    runner = Replay(log, FAST, listen)
    runner.run()
    assert len(runner.log.samples) == 1 and isinstance(events[-1], Abandoned)
    assert logs.read(log.path).samples == log.samples, "and the log is as it was"


def test_an_unanswered_question_cannot_be_asked(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["r r"])
    runner, events = played(log)
    missing = Key(1, log.header.questions[1].id)
    runner.run_now(missing)
    runner.run()
    assert events[-1] == Abandoned(missing) and missing not in runner.log.samples
    again = log.samples[0]
    runner.again(again.key)
    runner.run()
    assert events[-1] == Finished(again)


def test_questions_are_those_of_the_run(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["r" + " " * 8])
    assert len(asked(log)) == 9, "unanswered ones are there"
    log.header.facts["selection"] = {"only": "science", "limit": 2}
    assert [q.id for q in asked(log)] == ["maths-000", "science-001", "science-004"]


def test_a_guided_target_is_shown_with_its_limit(tmp_path):
    for kind, guided in (("local", True), ("http", False)):
        log = made.write(tmp_path / f"{kind}.jsonl", ["r"], target={"kind": kind})
        assert Replay(log).target.can(Ability.GUIDE) == guided


# --- the command


def test_lines_and_report(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    made.write(path, ["rw af"])
    before = path.read_bytes()
    code, out, err = call(capsys, "--replay", path, "--speed", FAST)
    assert code == 0 and "[5/" not in out and "[4/4] science-004: failed: no answer within 120 s" in out
    assert "score: 33.3 %" in out and "asked: 4 of the 5 questions" in out and path.read_bytes() == before
    code, again, _ = call(capsys, "view", path)
    assert again.split("score:")[1][:30] == out.split("score:")[1][:30]


def test_torn_empty_and_resumed_logs(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    log = made.write(path, ["ww"])
    better = made.sample(log.header.questions[0], "right")
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(better) + b'\n{"id": "maths-0')
    code, out, err = call(capsys, "--replay", path, "--speed", FAST)
    lines = [line.split(":")[0] for line in out.splitlines() if line.startswith("[")]
    assert code == 0 and "the last line is incomplete" in err
    assert lines == ["[1/2] science-001", "[2/2] maths-000"], "what was asked again is played once, where it ended"
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    assert call(capsys, "--replay", path)[0] == 1
    path.write_bytes(b"")
    code, out, err = call(capsys, "--replay", path)
    assert (code, out, err.count("\n")) == (1, "", 1) and "not a log of ds4-eval" in err


@pytest.mark.parametrize(("argv", "said"), [
    (["--speed", "2"], "--speed is for --replay"), (["--replay", "LOG", "--speed", "0"], "0.01"),
    (["--replay", "LOG", "--json"], "only shows a log"), (["--replay", "LOG", "-o", "x"], "only shows a log"),
    (["--replay", "LOG", "--resume", "LOG"], "only shows a log"), (["--replay", "none.jsonl"], "No such file"),
])  # fmt: skip
def test_usage(tmp_path, capsys, argv, said):
    made.write(tmp_path / "LOG", ["r"])
    code, out, err = call(capsys, *(str(tmp_path / "LOG") if arg == "LOG" else arg for arg in argv))
    assert code in (1, 2) and out == "" and said in err and err.count("\n") == 1


# --- the screen


def on_screen(log, speed, test, size=(100, 30)):
    """Run ``test(app, pilot)`` beside a replay on the screen."""
    app = EvalApp(lambda listen: Replay(log, speed, listen), asked(log), log.header.epochs, Replay(log).log,
                  title="again", pause_s=0.0)  # fmt: skip

    async def play():
        try:
            with patch("textual.app.wait_for_idle", settled), patch("textual.pilot.wait_for_idle", settled):
                async with app.run_test(size=size) as pilot:
                    await pilot.pause()
                    await test(app, pilot)
        finally:
            app.work.leave()

    asyncio.run(play())


def lines(app) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@pytest.mark.thorough
def test_the_screen_ends_as_the_run_did(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["rwamf s"])

    async def test(app, pilot):
        await until(pilot, lambda: len(app.work.runner.log.samples) == 6 and not app.work.alive)
        await pilot.pause(0.2)
        states = [app.board.state(Key(1, q.id)).value for q in log.header.questions]
        assert states == ["PASS", "FAIL", "AMBIG", "MISS", "ERR", "PEND", "STOP"]
        text = lines(app)
        assert "score 1/4 = 25.0 %" in text and "6/7" in text and "DONE" in text

    on_screen(log, FAST, test)


@pytest.mark.thorough
def test_keys_in_a_replay(tmp_path):
    """Faster, slower, paused, again, now, and left."""
    log = made.write(tmp_path / "run.jsonl", ["rrr "], seconds=100.0)

    async def test(app, pilot):
        runner = app.work.runner
        await until(pilot, lambda: app.board.live)
        await pilot.pause(0.2)
        assert "REPLAY 1×" in lines(app) and "Faster" in lines(app)
        await pilot.press("plus", "plus", "plus", "minus")
        assert runner.speed == 4 and "REPLAY 4×" in lines(app)
        await pilot.press("p")
        assert runner.paused and "PAUSED" in lines(app)
        await pilot.press("p", "down", "down", "down", "enter")
        await until(pilot, lambda: runner.running() and Key(1, "maths-003") not in app.board.queued)
        assert app.board.state(Key(1, "maths-003")).value == "PEND", "it was never answered"
        runner.speed = FASTEST
        await until(pilot, lambda: len(runner.log.samples) == 3)
        await pilot.press("home", "r")
        await until(pilot, lambda: len(app.board.samples) == 3 and not app.board.live)
        await pilot.press("q")
        assert app.work.stopping

    on_screen(log, 1.0, test)


@pytest.mark.thorough
def test_a_run_has_no_speed(tmp_path):
    """The keys of a replay are no keys of a run, nor in its footer."""
    from .staged import Stage

    async def play():
        stage = Stage(tmp_path)
        shut = stage.play.shut("thinking")
        async with stage.app.run_test(size=(120, 30)) as pilot:
            await pilot.press("plus")
            await pilot.pause(0.1)
            assert "Faster" not in stage.text() and "REPLAY" not in stage.text()
            shut.set()
        stage.work.leave()
        stage.log.close()

    asyncio.run(play())


@pytest.mark.thorough
def test_the_clock_is_that_of_the_run(tmp_path):
    """Speed and time on the screen are the run's own, however fast it is played."""
    log = made.write(tmp_path / "run.jsonl", ["r" * 5], seconds=10.0, ttft=0.0, tokens=100)

    async def test(app, pilot):
        await until(pilot, lambda: len(app.work.runner.log.samples) == 5 and not app.work.alive)
        await pilot.pause(0.2)
        assert 2 < app.board.pace.mean < 14, "tokens a second: 10 on an idle machine, 200 by the clock of this one"

    on_screen(log, 20.0, test)


# --- the picture of the README

PICTURE = Path(__file__).parents[2] / "docs" / "reference" / "eval-replay.svg"
STATES = ("PEND", "FILL", "THINK", "ANS", "PASS", "FAIL", "AMBIG", "MISS", "DONE", "REPLAY", "key_position_late")


def test_the_picture_shows_every_state_in_half_a_minute():
    text = PICTURE.read_text(encoding="utf-8")
    words = " ".join(part.text or "" for part in ElementTree.fromstring(text).iter())
    assert all(state in words for state in STATES) and PICTURE.stat().st_size < 400_000
    seconds = {float(s) for s in re.findall(r"animation:k\d+ ([\d.]+)s", text)}
    assert len(seconds) == 1 and 25 < seconds.pop() < 31


@pytest.mark.parametrize(("name", "right", "counts"), [
    ("right", 12, {"right": 12}), ("broken", 3, {"right": 3, "wrong": 4, "ambiguous": 1, "missing": 4}),
])  # fmt: skip
def test_its_logs_say_what_it_shows(name, right, counts):
    """And the present grader says the same of them."""
    log = logs.read(animation.LOGS / f"{name}.jsonl")
    again = regrade_log(log)
    assert again.changed == () and again.after.outcomes == counts
    assert any(s.reasoning for s in log.samples) and f"{right}/12" in PICTURE.read_text(encoding="utf-8")


def screen(*texts: str) -> str:
    """A screenshot of lines, as rich draws them."""
    lines = "".join(
        f'<text class="terminal-7-r{1 + i % 2}" x="{12.2 * i:g}" y="{24.4 * i + 20:g}" textLength="9" clip-path="u">'
        f"{text}</text>" for i, text in enumerate(texts)
    )  # fmt: skip
    style = ".terminal-7-r1 { fill: red }\n.terminal-7-r2 { fill: blue;font-weight: bold }"
    rects = "".join(f'<rect fill="#111111" x="{x}" y="1.5" width="10" height="24.65" shape-rendering="crispEdges"/>'
                    for x in (0, 10, 40))  # fmt: skip
    return f'<svg xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{rects}<rect x="0" y="0"/>{lines}</svg>'


def test_what_stands_still_is_drawn_once_and_the_rest_in_its_time():
    moving = animation.animated([(0.0, screen("a", "b")), (1.0, screen("a", "c")), (3.0, screen("a", "b"))], 4.0)
    parts = ElementTree.fromstring(moving)
    groups = {"".join(g.itertext()): g for g in parts.iter("{http://www.w3.org/2000/svg}g")}
    assert set(groups) == {"a", "b", "c"} and groups["a"].get("style") is None
    assert (groups["b"].get("opacity"), groups["c"].get("opacity")) == ("1", "0"), "the end stands without motion"
    assert "{0.000%{opacity:1}25.000%{opacity:0}75.000%{opacity:1}100.000%{opacity:0}}" in moving
    assert "{0%{opacity:0}25.000%{opacity:1}75.000%{opacity:0}}" in moving and "4s step-end infinite" in moving
    assert moving.count('style="fill: red"') == 1 and moving.count('fill="#111111"') == 2, "neighbours are one"
    assert 'x="0" y="1.5" width="20.0"' in moving
