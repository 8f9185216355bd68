"""The screen of ds4-eval, driven by Textual's pilot and on a terminal of its own: what it shows, and every key."""

from __future__ import annotations

import os
import signal
import sys
import termios
from functools import partialmethod
from pathlib import Path

import pytest

from ds4ref.console.common import Interrupt
from ds4ref.errors import TargetError
from ds4ref.eval.log import Grade, Sample
from ds4ref.eval.packs import Question
from ds4ref.eval.plan import Settings, keys
from ds4ref.eval.runner import Runner, Streamed
from ds4ref.eval.tui import show, widgets
from ds4ref.eval.tui.app import EvalApp
from ds4ref.eval.tui.board import WINDOW, Pace
from ds4ref.eval.tui.text import clean, one_line, split_thinking
from ds4ref.targets import Ability, Delta
from tests.marking import sampled
from tests.terminal import Terminal

from .scripted import Scripted, choice, integer, log_of
from .staged import Play, check_widths, resized, sees, staged, until

QUESTIONS = [integer(i) for i in range(1, 8)]


def done(question, outcome="right", status="done", epoch=1, **more):
    grade = Grade(outcome, "204") if status == "done" else None
    return Sample(question.id, epoch, "", status, question.answer, "", grade=grade, **more)


# --- a run


@staged(before=lambda stage: [stage.play.shut(act) for act in stage.play.gates])
async def test_a_question_goes_through_its_states(stage, pilot):
    await until(pilot, lambda: "FILL" in stage.rows()[0] and "PEND" in stage.rows()[1])
    stage.play.gates["prefill"].set()
    await until(pilot, lambda: "THINK" in stage.rows()[0] and "│ hm hm" in stage.text())
    stage.play.gates["thinking"].set()
    await until(
        pilot, lambda: "ANS" in stage.rows()[0] and "│ So it is." not in stage.text() and "So it is." in stage.text()
    )
    stage.play.gates["answer"].set()
    await until(pilot, lambda: "7/7" in stage.rows()[0] and "C/C" in stage.rows()[1] and "DONE" in stage.text())
    await sees(stage, pilot, "score 4/4 = 100.0 % (51.0 to 100.0)")
    await pilot.press("q")
    await until(pilot, lambda: not stage.app.is_running)
    assert stage.stored() == {q.id: "done" for q in stage.questions}


@staged(
    questions=QUESTIONS,
    earlier=[
        done(QUESTIONS[0]), done(QUESTIONS[1], "wrong"), done(QUESTIONS[2], "ambiguous"), done(QUESTIONS[3], "missing"),
        done(QUESTIONS[4], status="failed", error="the connection was reset"), done(QUESTIONS[5], status="stopped"),
    ],
    before=lambda stage: stage.play.shut("prefill"),
)  # fmt: skip
async def test_every_state_is_told_by_a_word_counted_and_found(stage, pilot):
    await until(pilot, lambda: stage.board.live)
    words = [row[1:].split()[1] for row in stage.rows()]
    assert words == ["PASS", "FAIL", "AMBIG", "MISS", "ERR", "STOP", "FILL"]
    await sees(stage, pilot, "score 1/4 = 25.0 % (4.6 to 69.9)", "1 wrong", "1 ambiguous", "1 missing")
    await sees(stage, pilot, "1 failed", "1 stopped", "6/7")
    await pilot.press("home", *["down"] * 4)
    await sees(stage, pilot, "the connection was reset")
    for words, shown in (("ambig", [2]), ("maths 0004", [3]), ("is 7?", [6]), ("nothing", [])):
        await pilot.press("slash", *words)
        await until(pilot, lambda shown=shown: stage.app.table.shown == shown)
        await pilot.press("enter", "o", "escape", "escape")
        await until(pilot, lambda: stage.app.table.shown == list(range(7)) and len(stage.app.screen_stack) == 1)
        assert stage.app.focused is stage.app.table


@staged(questions=[integer(i) for i in range(1, 101)], before=lambda stage: stage.play.shut("answer"))
async def test_keys_that_move_and_l_goes_back_to_what_runs(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    seen = []
    for key in ("down", "j", "k", "up", "up", "end", "up", "home", "pagedown", "pageup"):
        await pilot.press(key)
        seen.append(stage.app.table.cursor_row)
    page = stage.app.table.size.height
    assert seen == [1, 2, 1, 0, 0, 99, 98, 0, page, 0]
    await pilot.press("end")
    await sees(stage, pilot, "Not asked yet", "Which number is 100?")
    await pilot.press("l")
    assert stage.app.table.cursor_row == 0 and stage.app.following
    await pilot.click("#questions", offset=(5, 2))
    assert stage.app.table.cursor_row == 2 and not stage.app.following


@staged(before=lambda stage: stage.play.shut("answer"))
async def test_enter_asks_now_and_again(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("enter")
    await pilot.pause(0.2)
    assert len(stage.target.asked) == 1, "what runs already"
    await pilot.press("end", "enter")
    await until(pilot, lambda: stage.states()[3] == "ANS" and stage.states()[0] == "PEND")
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states() == ["PASS"] * 4)
    assert [list(stage.stored()).index(q.id) for q in stage.questions] == [1, 2, 3, 0]
    stage.play.answers[stage.questions[1].id] = "Answer: A"
    await pilot.press("home", "down", "enter")
    await until(pilot, lambda: stage.states()[1] == "FAIL" and "score 3/4" in stage.text())


@staged(at_once=2, before=lambda stage: stage.play.shut("answer"))
async def test_p_pauses_and_goes_on(stage, pilot):
    await until(pilot, lambda: stage.states()[:2] == ["ANS", "ANS"])
    await pilot.press("p", "plus")
    await until(pilot, lambda: "PAUSED" in stage.text() and stage.work.runner.paused)
    assert "Faster" not in stage.text(), "a key of replays"
    seconds = stage.board.pace.seconds
    stage.play.gates["answer"].set()
    await pilot.pause(0.3)
    assert stage.states()[2] == "PEND" and stage.board.pace.seconds == seconds
    await pilot.press("p")
    await until(pilot, lambda: stage.states() == ["PASS"] * 4 and "PAUSED" not in stage.text())


@staged(before=lambda stage: stage.play.shut("answer"))
async def test_the_answer_is_scrolled_and_stays_where_the_user_is(stage, pilot):
    stage.play.thoughts = "".join(f"thought {i}\n" for i in range(100))
    await pilot.press("j", "enter")
    view = stage.app.pane.view
    await until(pilot, lambda: view.virtual_size.height > 100 and "thought 99" in stage.text())
    await until(pilot, lambda: view.is_vertical_scroll_end)
    await pilot.press("tab")
    await until(pilot, lambda: stage.app.focused is view)
    await pilot.press("home")
    await until(pilot, lambda: view.scroll_y == 0)
    await pilot.press("down", "pagedown")
    await until(pilot, lambda: 10 < view.scroll_y < view.max_scroll_y)
    place = view.scroll_y
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states()[1] == "PASS")
    await pilot.pause(0.3)
    assert view.scroll_y == place and stage.app.table.cursor_row == 1, "the verdict came, and the place is the same"
    await pilot.press("end")
    await until(pilot, lambda: view.is_vertical_scroll_end and "PASS  epoch 1: right (given C" in stage.text())


@staged(before=lambda stage: stage.play.shut("answer"), size=(100, 60))
async def test_details_and_help(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("o")
    await sees(stage, pilot, "answer so far", "expected: 7")
    stage.play.gates["answer"].set()
    await sees(stage, pilot, "epoch 1: right (given 7", "--- reasoning", "Answer: 7", "It is 7.", "40 prompt tokens")
    await pilot.press("escape", "home", "down", "o")
    await sees(stage, pilot, "A: forgot a sign", "D: off by one")
    await pilot.press("q", "question_mark")
    await sees(stage, pilot, "Enter", "pause", "Ctrl-C", "AMBIG", "95 % interval")
    await pilot.press("q")
    assert len(stage.app.screen_stack) == 1 and not stage.work.stopping


@staged(questions=[integer(7), choice(1)], epochs=3, before=lambda stage: stage.play.shut("answer"))
async def test_epochs_are_marks(stage, pilot):
    await until(pilot, lambda: "»·· 0/0" in stage.rows()[0])
    stage.play.answers[stage.questions[0].id] = "Answer: 8"
    stage.play.gates["answer"].set()
    await until(pilot, lambda: "✗✗✗ 0/3" in stage.rows()[0] and "✓✓✓ 3/3" in stage.rows()[1])
    await pilot.press("home")
    await sees(stage, pilot, "epoch 3/3", "score 3/6")
    await pilot.press("o")
    await until(pilot, lambda: stage.app.screen.query_one("#plain").visual and "epoch 1: wrong" in stage.text())


# --- the end

ENDS = {
    "before the first token": ("prefill", (), "q"),
    "while it thinks": ("thinking", (), "ctrl+c"),
    "in a pause": ("answer", ("p",), "q"),
    "in the details": ("answer", ("o",), "ctrl+c"),
    "in the help": ("answer", ("question_mark",), "ctrl+c"),
    "in the filter": ("answer", ("slash", "x"), "ctrl+c"),
}


@pytest.mark.parametrize("phase", sampled(ENDS, 3))
def test_the_end_in_every_phase(tmp_path, phase):
    act, before, key = ENDS[phase]

    @staged(before=lambda stage: stage.play.shut(act))
    async def ends(stage, pilot):
        await until(pilot, lambda: stage.board.live and (act == "prefill") == (stage.states()[0] == "FILL"))
        await pilot.press(*before, key)
        await until(pilot, lambda: not stage.app.is_running)
        assert stage.stored() == {stage.questions[0].id: "stopped"}
        assert stage.work.failure is None and not stage.work.alive

    ends(tmp_path)


@staged()
async def test_twice_does_not_wait(stage, pilot):
    await sees(stage, pilot, "DONE")
    stage.work.runner.stop = lambda: None  # a target that hears of nothing
    gate = stage.play.shut("answer")
    await pilot.press("home", "enter")
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("q")
    await until(pilot, lambda: stage.app.is_running and "STOPPING" in stage.text())
    await pilot.press("q")
    await until(pilot, lambda: not stage.app.is_running)
    gate.set()
    assert stage.work.runner.left


def test_an_error_of_a_widget_ends_the_screen(tmp_path, monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("in a widget")

    @staged()
    async def ends(stage, pilot):
        monkeypatch.setattr(widgets.AnswerPane, "renew", broken)
        await until(pilot, lambda: stage.app.crash is not None)
        assert not stage.app._exit_renderables, "the caller says what happened"

    with pytest.raises(ZeroDivisionError):
        ends(tmp_path)


@pytest.mark.parametrize("end", ["leave", "error"])
def test_the_caller_gets_what_happened(tmp_path, monkeypatch, end):
    run = EvalApp.run_async
    monkeypatch.setattr(EvalApp, "run_async", partialmethod(run, headless=True, size=(80, 24)))
    play, log = Play(QUESTIONS), log_of(tmp_path / "log.jsonl", QUESTIONS)
    play.answers = {q.id: TargetError("reset") for q in QUESTIONS} if end == "error" else {}
    runners = []

    def make(hear):
        def listen(event):
            hear(event)
            if end == "leave" and isinstance(event, Streamed):
                runners[0].leave()

        runners.append(Runner(Scripted(play), log, keys(QUESTIONS, 1), settings=Settings(tokens=2000),
                              questions=QUESTIONS, listen=listen))  # fmt: skip
        return runners[0]

    with log, pytest.raises(KeyboardInterrupt if end == "leave" else TargetError):
        show(make, QUESTIONS, 1, log, title="a play", interrupt=Interrupt(), pause_s=0.0)
    assert len(log.samples) == {"leave": 0, "error": 5}[end]


# --- sizes, hostile text, odd targets

HOSTILE = [
    "\x1b[2J\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m\x85 a\rb\x08\x7f\x00 \u2028\u2029\v\f\t",
    "\u202egnp.exe\u202c \u2066x\u2069 zero\u200bwidth\u200d\ufeff\u2060\xad \ud83d half \U000e0041\U000e007f",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f 1\ufe0f\u20e3 \U0001f1e9\U0001f1ea",
    "a" + "\u0301" * 400 + " 全角文字テスト ｶﾅ 한국어 \u115f\u1160\u3164 ไทย हिन्दी עברית العربية",
    "[bold]not bold[/bold] [/] [red [@click=app.quit]q[/] " + "x" * 300,
]
EVIL = "\n".join(HOSTILE).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
SIZES = [(80, 24), (60, 15), (59, 24), (40, 15), (24, 6), (8, 3), (1, 1), (200, 50)]


@pytest.mark.parametrize("size", sampled([(size,) for size in SIZES], 3), ids=str)
def test_every_size_works_with_hostile_text_and_every_dialog(tmp_path, size):
    asked = [Question("evil-1", "s[b]ource", "d\x1b[31m", "hard", "choice", EVIL, (EVIL + "1", EVIL + "2"), "A", EVIL)]

    @staged(size=size, questions=[*asked, integer(7)], title="\x1b]0;x\x07[bold]" + EVIL,
            before=lambda stage: stage.play.answers.update({"evil-1": EVIL + "\nAnswer: A"}))  # fmt: skip
    async def fits(stage, pilot):
        stage.play.thoughts = EVIL
        await until(pilot, lambda: stage.states() == ["PASS"] * 2)
        for key in (
            "home",
            "tab",
            "tab",
            "o",
            "end",
            "escape",
            "question_mark",
            "escape",
            "slash",
            "x",
            "escape",
            "end",
        ):
            await pilot.press(key)
            await pilot.pause()
            check_widths(stage)
        await resized(stage, pilot, 160, 50)
        await pilot.press("home")
        await until(pilot, lambda: "[bold]not bold[/bold] [/]" in stage.text() and "[bold]" in stage.lines()[1])

    fits(tmp_path)


@staged(size=(40, 15), before=lambda stage: stage.play.shut("answer"))
async def test_a_small_screen_shows_one_pane_at_a_time(stage, pilot):
    await until(pilot, lambda: "ANS" in stage.text() and "PEND" in stage.text() and "So it is." not in stage.text())
    await pilot.press("tab")
    await until(pilot, lambda: "So it is." in stage.text() and "PEND" not in stage.text())
    await pilot.press("tab")
    await until(pilot, lambda: "PEND" in stage.text() and "So it is." not in stage.text())


@staged(settings=Settings(tokens=2000, hard_limit=512), abilities=[Ability.GUIDE],
        before=lambda stage: stage.play.shut("thinking"))  # fmt: skip
async def test_thinking_has_what_the_hard_limit_leaves_it(stage, pilot):
    await sees(stage, pilot, "1/1,488 tokens")
    stage.play.shut("answer")
    stage.play.gates["thinking"].set()
    await sees(stage, pilot, "2/2,000 tokens")


def tagged(request):
    yield from map(Delta, ("<thi", "nk>hm", " hm</thin", "k>\n\n", "Answer: 7", " " * 5000))


@pytest.mark.parametrize(("play", "lost"), [(tagged, ()), (None, (Ability.STREAM,))], ids=["tags", "no stream"])
def test_tags_are_hidden_and_a_target_that_does_not_stream_shows_its_answer_at_the_end(tmp_path, play, lost):
    @staged(play=play, before=lambda stage: setattr(stage.target, "abilities", stage.target.abilities - {*lost}))
    async def whole(stage, pilot):
        await sees(stage, pilot, "DONE")
        await pilot.press("home")
        await until(pilot, lambda: "│ hm hm" in stage.text() and "think>" not in stage.text())
        assert stage.board.pace.tokens == sum(sample.tokens for sample in stage.log.samples.values()) > 0

    whole(tmp_path)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_nothing_that_a_terminal_acts_on_is_left(text):
    shown = clean(text)
    assert not [c for c in shown if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    assert not [c for c in shown if c in "\u200b\u200d\u202e\u2066\ufe0f\ufeff\U0001f3fd\U0001f1e9"]
    shown.encode("utf-8")
    assert "\n" not in one_line(text)


def test_what_is_shown_instead():
    assert clean("\x1b[31mred\x7f") == "␛[31mred�" and clean("a\tb\r\nc\rd\u2028e") == "a    b\nc␍d�e"
    assert clean("\U0001f44d\U0001f3fd \ud83d") == "\U0001f44d �" and len(clean("a" + "\u0301" * 1000 + "b")) < 10
    assert clean("Grüße: ∑ x² ≤ 1, 漢字, 😀") == "Grüße: ∑ x² ≤ 1, 漢字, 😀"


@pytest.mark.parametrize(
    ("reasoning", "output", "thought", "answer"),
    [
        ("hm", "\n\nIt is 4", "hm", "It is 4"),
        ("", "<think>\nhm\n</think>\n\nIt is 4", "hm\n", "It is 4"),
        ("", "<think>hm", "hm", ""),
        ("", "hm</think>4", "hm", "4"),  # the prompt opened it
        ("", "<think>\n\n</think>\n\n4", "", "4"),
        ("", "hm</think>A literal </think> or <think> stays", "hm", "A literal </think> or <think> stays"),
        ("hm</think>", "4", "hm", "4"),
        ("hm", "</think>4", "hm", "4"),
        ("<think>hm", "<think>4", "hm", "4"),
        ("hm", "Use </think> to close", "hm", "Use </think> to close"),
    ],
)
def test_thinking_is_told_from_the_answer(reasoning, output, thought, answer):
    parts = dict(split_thinking(reasoning, output))
    assert (parts.get(True, ""), parts.get(False, "")) == (thought, answer)


def test_speed_looks_back_a_little_the_mean_at_everything_and_a_pause_counts_for_nothing():
    now = [100.0]
    pace = Pace(lambda: now[0])

    def passes(seconds, tokens=0, going=True):
        now[0] += seconds
        pace.tick()
        pace.going = going
        if tokens:
            pace.add(tokens)

    passes(5)
    assert (pace.seconds, pace.speed, pace.mean, pace.seconds_left(5)) == (0, None, None, None), "before anything came"
    for i in range(100):
        passes(0.1, 1 if i < 50 else 3)
    assert pace.mean == pytest.approx((50 + 150) / 10) and pace.speed == pytest.approx(30, rel=0.1)
    passes(0, going=False)
    passes(1000)
    assert pace.speed == pytest.approx(30, rel=0.1) and pace.seconds == pytest.approx(10)
    pace.add(800, streamed=False)
    assert pace.speed == pytest.approx(30, rel=0.1) and pace.mean == pytest.approx(100), "no burst"
    passes(2 * WINDOW)
    pace.samples = 2
    assert pace.speed == pytest.approx(0, abs=0.6) and pace.seconds_left(10) == pytest.approx(80)


# --- on a terminal

UP, AWAY, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
LOG = Path(__file__).parents[1] / "data" / "replay" / "right.jsonl"


@pytest.fixture
def terminal():
    """A slow replay on a terminal of its own."""
    command = [sys.executable, "-m", "ds4ref.eval.cli", "--replay", LOG, "--speed", "0.01"]
    with Terminal(command, TERM="xterm-256color") as one:
        one.until("FILL")
        yield one


@pytest.mark.parametrize("end", sampled(["q", "o\x03", "SIGINT", "SIGTERM", "SIGHUP"], ["q"]), ids=ascii)
def test_what_ends_it_restores_the_terminal(terminal, end):
    """Nothing is left of the screen, and the report comes after it."""
    if end.startswith("SIG"):
        terminal.process.send_signal(getattr(signal, end))
    else:
        for key in end:
            terminal.types(key)
            for _ in range(5):
                terminal.read()
    wanted = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}.get(end, 0)
    assert terminal.ends()[0] == wanted and termios.tcgetattr(terminal.slave) == terminal.settings
    assert terminal.out.count(AWAY) >= terminal.out.count(UP) == 1
    after = terminal.out[terminal.out.rindex(AWAY) :]
    assert CURSOR in after and "?1000h" not in after and "score: " in after


@pytest.mark.thorough
def test_a_terminal_that_goes_away_takes_the_run_along(terminal):
    os.close(terminal.slave)
    os.close(terminal.master)
    for number in (signal.SIGHUP, signal.SIGCONT):  # as the kernel or a shell does
        os.kill(terminal.process.pid, number)
    assert terminal.process.wait(60) > 0, "it ends by itself, with an error, and is not killed"
