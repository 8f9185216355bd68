"""The screen of ds4-eval: what it shows of a run, and every key."""

import pytest

from ds4ref.errors import TargetError
from ds4ref.eval.log import Grade, Sample
from ds4ref.eval.plan import Key
from ds4ref.eval.tui.header import Header
from tests.marking import sampled

from .scripted import choice, integer
from .staged import staged, until


def done(question, outcome="right", status="done", epoch=1, **more):
    grade = Grade(outcome, "204") if status == "done" else None
    return Sample(question.id, epoch, "", status, question.answer, "", grade=grade, **more)


# --- states


@pytest.mark.thorough
@staged(before=lambda stage: [stage.play.shut(act) for act in stage.play.gates])
async def test_a_question_goes_through_its_states(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "FILL")
    await until(pilot, lambda: "FILL" in stage.rows()[0] and "PEND" in stage.rows()[1])
    stage.play.gates["prefill"].set()
    await until(pilot, lambda: stage.states()[0] == "THINK")
    await until(pilot, lambda: "THINK" in stage.rows()[0] and "│ hm hm" in stage.text())
    stage.play.gates["thinking"].set()
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.pause(0.2)
    await until(
        pilot, lambda: "ANS" in stage.rows()[0] and "│ So it is." not in stage.text() and "So it is." in stage.text()
    )
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states() == ["PASS"] * 4)
    await until(pilot, lambda: "PASS" in stage.rows()[0] and "7/7" in stage.rows()[0] and "C/C" in stage.rows()[1])


QUESTIONS = [integer(i) for i in range(1, 8)]


@pytest.mark.thorough
@staged(
    questions=QUESTIONS,
    earlier=[
        done(QUESTIONS[0]), done(QUESTIONS[1], "wrong"), done(QUESTIONS[2], "ambiguous"), done(QUESTIONS[3], "missing"),
        done(QUESTIONS[4], status="failed", error="the connection was reset"), done(QUESTIONS[5], status="stopped"),
    ],
    before=lambda stage: stage.play.shut("prefill"),
)  # fmt: skip
async def test_every_state_is_told_by_a_word_and_counted(stage, pilot):
    await until(pilot, lambda: stage.board.live)
    words = [row[1:].split()[1] for row in stage.rows()]
    assert words == ["PASS", "FAIL", "AMBIG", "MISS", "ERR", "STOP", "FILL"]
    await until(pilot, lambda: "1 stopped" in stage.text() and "(4." in stage.text())
    for said in ("score 1/4 = 25.0 % (4.6 to 69.9)", "1 wrong", "1 ambiguous", "1 missing", "1 failed", "6/7"):
        await until(pilot, lambda said=said: said in stage.text())
    await pilot.press("home", *["down"] * 4)
    await until(pilot, lambda: "the connection was reset" in stage.text())


@staged()
async def test_a_run_that_is_over_stays_on_the_screen(stage, pilot):
    await until(pilot, lambda: "DONE" in stage.text())
    await until(pilot, lambda: "score 4/4 = 100.0 %" in stage.text())
    await pilot.press("q")
    await until(pilot, lambda: not stage.app.is_running)
    assert stage.stored() == {q.id: "done" for q in stage.questions}


@staged(stay=False)
async def test_without_stay_the_end_of_the_run_is_the_end(stage, pilot):
    await until(pilot, lambda: not stage.app.is_running)
    assert len(stage.log.samples) == 4


# --- moving about


@staged(questions=[integer(i) for i in range(1, 101)], before=lambda stage: stage.play.shut("thinking"))
async def test_keys_that_move(stage, pilot):
    await until(pilot, lambda: stage.board.live)
    cursor = lambda: stage.main.table.selected  # noqa: E731
    seen = []
    for key in ("down", "j", "k", "up", "up", "end", "up", "home", "pagedown", "pageup"):
        await pilot.press(key)
        seen.append(cursor())
    page = stage.main.table.size.height
    assert seen == [1, 2, 1, 0, 0, 99, 98, 0, page, 0]


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("answer"))
async def test_the_pane_follows_the_run_until_the_user_goes_elsewhere(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    assert stage.main.table.selected == 0
    await pilot.press("end")
    await until(
        pilot,
        lambda: (
            stage.main.table.selected == 3 and "Not asked yet" in stage.text() and "choice two of 2" in stage.text()
        ),
    )
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states() == ["PASS"] * 4)
    assert stage.main.table.selected == 3


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("answer"))
async def test_l_goes_back_to_what_runs(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("end", "l")
    assert stage.main.table.selected == 0 and stage.main.following
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states()[3] == "PASS")
    assert stage.main.table.selected == 3, "along with it"


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("answer"))
async def test_the_stream_is_scrolled_by_keys_and_stays_where_the_user_is(stage, pilot):
    stage.play.thoughts = "".join(f"thought {i}\n" for i in range(100))
    await pilot.press("j", "enter")
    await until(pilot, lambda: stage.states()[1] == "ANS")
    view = stage.main.pane.view
    await until(pilot, lambda: view.virtual_size.height > 100)
    await until(pilot, lambda: view.is_vertical_scroll_end and "thought 99" in stage.text())
    await pilot.press("tab", "home")
    await until(pilot, lambda: stage.app.focused is view and view.scroll_y == 0 and "thought 0" in stage.text())
    await pilot.press("down", "down", "up", "pagedown")
    await until(pilot, lambda: 10 < view.scroll_y < view.max_scroll_y)
    place = view.scroll_y
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states()[1] == "PASS")
    await pilot.pause(0.3)
    assert view.scroll_y == place, "the verdict came, and the place is the same"
    assert stage.main.table.selected == 1, "and the next question did not take the screen away"
    await pilot.press("end")
    await until(pilot, lambda: view.is_vertical_scroll_end and "PASS  epoch 1: right (given C" in stage.text())
    await pilot.press("tab")
    assert stage.app.focused is stage.main.table


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("answer"))
async def test_the_mouse_selects_opens_and_scrolls(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.click("#questions", offset=(5, 2))
    assert stage.main.table.selected == 2
    await pilot.click("#questions", offset=(5, 3), times=2)
    await until(pilot, lambda: len(stage.app.screen_stack) == 2)
    assert stage.main.table.selected == 3
    await until(pilot, lambda: "SYSTEM" in stage.text() and "science-0002" in stage.text())


# --- the run, by hand


@staged(before=lambda stage: stage.play.shut("answer"))
async def test_enter_asks_the_selected_question_now(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("end", "enter")
    await until(pilot, lambda: stage.states()[3] == "ANS")
    assert stage.states()[0] == "PEND", "what ran waits again"
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states() == ["PASS"] * 4)
    assert list(stage.stored())[0] == stage.questions[3].id and len(stage.log.samples) == 4


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("answer"))
async def test_enter_on_what_runs_changes_nothing(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("enter")
    await pilot.pause(0.2)
    assert stage.states()[0] == "ANS" and len(stage.target.asked) == 1


@pytest.mark.thorough
@staged()
async def test_r_asks_again_and_the_last_answer_counts(stage, pilot):
    await until(pilot, lambda: "DONE" in stage.text())
    stage.play.answers[stage.questions[1].id] = "Answer: A"
    gate = stage.play.shut("answer")
    await pilot.press("home", "down", "r")
    await until(pilot, lambda: stage.states()[1] == "ANS")
    assert "DONE" not in stage.text(), "the run goes on"
    gate.set()
    await until(pilot, lambda: stage.states()[1] == "FAIL")
    await until(pilot, lambda: "score 3/4" in stage.text() and len(stage.target.asked) == 5)


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("answer"))
async def test_r_leaves_what_runs_alone_and_marks_what_is_next(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("end", "r", "home")
    await until(pilot, lambda: stage.rows()[3].startswith("»") and stage.states()[0] == "ANS")
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states() == ["PASS"] * 4)
    await until(
        pilot, lambda: [q.id for q in stage.questions][3] == list(stage.stored())[1] and "»" not in stage.rows()[3]
    )


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("answer"))
async def test_p_pauses_and_goes_on(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("p")
    await until(pilot, lambda: "PAUSED" in stage.text() and stage.work.runner.paused)
    seconds = stage.board.pace.seconds
    stage.play.gates["answer"].set()
    await pilot.pause(0.3)
    assert stage.states()[1] == "PEND" and stage.board.pace.seconds == seconds
    await pilot.press("p")
    await until(pilot, lambda: stage.states() == ["PASS"] * 4)
    await until(pilot, lambda: "PAUSED" not in stage.text())


@pytest.mark.thorough
@staged(at_once=2, before=lambda stage: stage.play.shut("answer"))
async def test_several_at_once_and_the_pane_stays_with_one(stage, pilot):
    await until(pilot, lambda: stage.states()[:2] == ["ANS", "ANS"])
    first = stage.main.table.selected
    await pilot.pause(0.3)
    assert stage.main.table.selected == first and len(stage.board.live) == 2
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states() == ["PASS"] * 4)


# --- the end


ENDS = {
    "before the first token": ("prefill", ()),
    "while it thinks": ("thinking", ()),
    "while it answers": ("answer", ()),
    "in a pause": ("answer", ("p",)),
    "in the details": ("answer", ("o",)),
    "in the help": ("answer", ("question_mark",)),
    "in the filters": ("answer", ("f",)),
    "in the search": ("answer", ("slash", "x")),
}


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
@pytest.mark.parametrize("phase", sampled(ENDS, 4))
def test_the_end_in_every_phase(tmp_path, phase, key):
    act, before = ENDS[phase]
    if key == "q" and before and before != ("p",):
        pytest.skip("there q closes the dialog, or is a letter")

    @staged(before=lambda stage: stage.play.shut(act))
    async def ends(stage, pilot):
        await until(pilot, lambda: stage.board.live and (act == "prefill") == (stage.states()[0] == "FILL"))
        await pilot.press(*before, key)
        await until(pilot, lambda: not stage.app.is_running)
        assert stage.stored() == {stage.questions[0].id: "stopped"}
        assert stage.work.failure is None and not stage.work.alive

    ends(tmp_path)


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("answer"))
async def test_q_in_a_dialog_closes_the_dialog(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    for key in ("o", "question_mark", "f"):
        await pilot.press(key)
        assert len(stage.app.screen_stack) == 2
        await pilot.press("q")
        assert len(stage.app.screen_stack) == 1 and not stage.work.stopping


@pytest.mark.thorough
@staged()
async def test_twice_does_not_wait(stage, pilot):
    await until(pilot, lambda: "DONE" in stage.text())
    stage.work.runner.stop = lambda: None  # a target that hears of nothing
    gate = stage.play.shut("answer")
    await pilot.press("home", "r")
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("q")
    await pilot.pause(0.2)
    await until(pilot, lambda: stage.app.is_running and "STOPPING" in stage.text())
    await pilot.press("q")
    await until(pilot, lambda: not stage.app.is_running)
    gate.set()
    assert stage.work.runner.left


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.answers.update({q.id: TargetError("reset") for q in stage.questions}),
        questions=[integer(i) for i in range(1, 8)])  # fmt: skip
async def test_an_error_of_the_run_ends_the_screen(stage, pilot):
    await until(pilot, lambda: not stage.app.is_running)
    assert isinstance(stage.work.failure, TargetError) and "5 samples in a row" in str(stage.work.failure)


def test_an_error_of_a_widget_ends_the_screen(tmp_path, monkeypatch):
    def broken(header):
        raise ZeroDivisionError("in a widget")

    @staged()
    async def ends(stage, pilot):
        monkeypatch.setattr(Header, "_score", broken)
        stage.main.header.renew("", 0)
        await until(pilot, lambda: stage.app.crash is not None)
        assert not stage.app._exit_renderables, "the caller says what happened"

    with pytest.raises(ZeroDivisionError):
        ends(tmp_path)


# --- filter, search, details, help


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.answers.update({stage.questions[1].id: "Answer: A"}))
async def test_f_filters(stage, pilot):
    await until(pilot, lambda: "DONE" in stage.text())
    await pilot.press("f")
    await until(
        pilot, lambda: "unanswered" in stage.text() and "1  wrong" in stage.text() and "2  science" in stage.text()
    )
    await pilot.press("down", "down", "enter")
    await until(
        pilot,
        lambda: stage.main.table.shown == [1] and "1 of 4 · wrong" in stage.text() and stage.main.table.selected == 1,
    )
    await pilot.press("f", "end", "enter")
    await until(pilot, lambda: stage.main.table.shown == [1, 3] and "science" in stage.text())
    await pilot.press("f", "escape")
    assert stage.main.table.shown == [1, 3]
    await pilot.press("f", "j", "k", "home", "enter")
    assert stage.main.table.shown == [0, 1, 2, 3]


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("answer"))
async def test_a_filter_keeps_up_with_the_run(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("end", "f", "down", "enter")
    assert stage.main.table.shown == [0, 1, 2, 3]
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states() == ["PASS"] * 4)
    await until(pilot, lambda: stage.main.table.shown == [3])  # the selected one stays


@pytest.mark.thorough
@staged()
async def test_a_filter_that_lets_nothing_through(stage, pilot):
    await until(pilot, lambda: "DONE" in stage.text())
    await pilot.press("f", "down", "down", "down", "down", "enter")
    await until(pilot, lambda: stage.main.table.shown == [] and "0 of 4 · failed" in stage.text())
    await pilot.press("down", "enter", "r", "o", "n", "left")
    assert len(stage.app.screen_stack) == 1 and stage.app.is_running


@staged(before=lambda stage: stage.play.shut("answer"))
async def test_search(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("slash", *"WHICH CHOICE", "enter")
    await until(
        pilot,
        lambda: (
            stage.main.table.selected == 1 and "1 of 2 with" in stage.text() and stage.app.focused is stage.main.table
        ),
    )
    await pilot.press("n")
    await until(pilot, lambda: stage.main.table.selected == 3 and "2 of 2 with" in stage.text())
    await pilot.press("n", "N", "N")
    assert stage.main.table.selected == 1
    await pilot.press("slash", *"[nowhere]", "enter")
    await until(pilot, lambda: stage.main.table.selected == 1 and "no '[nowhere]' here" in stage.text())
    await pilot.press("slash", *"q7", "escape")
    await until(
        pilot,
        lambda: stage.app.focused is stage.main.table and not stage.work.stopping and "4 questions" in stage.text(),
    )


@staged(before=lambda stage: stage.play.shut("answer"))
async def test_details(stage, pilot):
    dialog = lambda: stage.app.screen.query_one("#text")  # noqa: E731
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.press("o")
    await until(pilot, lambda: "ANSWER SO FAR" in dialog().text)
    assert "So it is." in dialog().text and "expected: 7" in dialog().text
    stage.play.gates["answer"].set()
    await until(pilot, lambda: "OUTPUT" in dialog().text)
    for said in ("epoch 1: right (given 7", "REASONING\nhm hm", "Answer: 7", "It is 7.",
                 "40 prompt tokens", "SYSTEM", "Which number is 7?"):  # fmt: skip
        assert said in dialog().text, said
    await pilot.press("down", "pagedown", "end")
    await until(pilot, lambda: dialog().is_vertical_scroll_end)
    await pilot.press("escape", "home", "down", "o")
    await until(pilot, lambda: "A: forgot a sign" in dialog().text and "D: off by one" in dialog().text)
    await pilot.press("escape")


@staged(before=lambda stage: stage.play.shut("prefill"))
async def test_details_of_a_question_that_waits(stage, pilot):
    await pilot.press("end", "o")
    await until(pilot, lambda: "not asked yet" in stage.text())
    await until(pilot, lambda: "choice two of 2" in stage.text() and "Answer: <letter>" in stage.text())


@staged(size=(100, 50))
async def test_help_names_every_key(stage, pilot):
    await pilot.press("question_mark")
    await until(pilot, lambda: "STATES" in stage.text())
    for said in ("Enter", "pause", "filter", "search", "Ctrl-C", "AMBIG", "another epoch"):
        await until(pilot, lambda said=said: said in stage.text())
    await pilot.press("escape")
    assert len(stage.app.screen_stack) == 1


# --- epochs


@pytest.mark.thorough
@staged(questions=[integer(7), choice(1)], epochs=3, before=lambda stage: stage.play.shut("answer"))
async def test_epochs_are_marks_and_can_be_looked_at(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await until(pilot, lambda: stage.rows()[0].count("»··"))
    stage.play.answers[stage.questions[0].id] = "Answer: 8"
    stage.play.gates["answer"].set()
    await until(pilot, lambda: "DONE" in stage.text())
    await until(pilot, lambda: stage.rows()[0].count("✗✗✗") and "0/3" in stage.rows()[0])
    await until(pilot, lambda: stage.rows()[1].count("✓✓✓") and "3/3" in stage.rows()[1])
    await pilot.press("home")
    await until(pilot, lambda: "epoch 3/3" in stage.text())
    await pilot.press("left", "left", "left")
    await until(pilot, lambda: "epoch 1/3" in stage.text() and stage.main.table.key == Key(1, stage.questions[0].id))
    await pilot.press("right")
    await until(pilot, lambda: "epoch 2/3" in stage.text())
    gate = stage.play.shut("answer")
    await pilot.press("r")
    await until(pilot, lambda: stage.state(0, 2) == "ANS")
    gate.set()
    await until(pilot, lambda: "DONE" in stage.text())
    assert len(stage.log.samples) == 6


@staged(questions=[integer(7)], epochs=8, before=lambda stage: stage.play.shut("answer"))
async def test_eight_epochs_have_a_mark_each(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await until(pilot, lambda: "»·······" in stage.rows()[0])


@staged(questions=[integer(7)], epochs=9, before=lambda stage: stage.play.shut("answer"))
async def test_many_epochs_are_counted(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await until(pilot, lambda: "0 of 9" in stage.rows()[0])
