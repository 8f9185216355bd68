"""The screen of ds4-eval in every size, with hostile text, thousands of questions and floods of tokens."""

import inspect
import re

import pytest

from ds4ref.targets import Ability, Delta
from eval.packs import Question
from eval.plan import Key, Settings
from eval.runner import Started, Streamed
from eval.tui import app, dialogs, draw, header, pane, questions, scroll, textview
from eval.tui.textview import MOST, Piece, TextView

from .demo import HOSTILE
from .scripted import integer
from .staged import check_widths, resized, staged, until

SIZES = [(80, 24), (90, 18), (60, 15), (59, 24), (80, 14), (40, 10), (24, 6), (8, 3), (1, 1), (200, 50), (300, 90)]


@pytest.mark.thorough
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_size_works_with_every_dialog(tmp_path, size):
    @staged(size=size, before=lambda stage: stage.play.shut("answer"))
    async def fits(stage, pilot):
        await until(pilot, lambda: stage.states()[0] == "ANS")
        await pilot.pause()
        check_widths(stage)
        for key in ("tab", "tab", "o", "escape", "question_mark", "escape", "f", "escape", "slash", "escape", "end"):
            await pilot.press(key)
            check_widths(stage)
        stage.play.gates["answer"].set()
        await until(pilot, lambda: stage.states() == ["PASS"] * 4)
        check_widths(stage)

    fits(tmp_path)


@staged(size=(50, 14), before=lambda stage: stage.play.shut("answer"))
async def test_where_there_is_little_room_there_is_one_pane_at_a_time(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.pause()
    assert stage.main.list.size.width > 40 and not stage.main.pane.display
    await pilot.press("tab")
    await until(pilot, lambda: stage.main.pane.view.size.width > 40)
    await until(pilot, lambda: "So it is." in stage.text() and "PEND" not in stage.text())
    await pilot.press("tab")
    await until(pilot, lambda: "PEND" in stage.text() and "So it is." not in stage.text())


@staged(size=(80, 24), before=lambda stage: stage.play.shut("answer"))
async def test_resizing_in_the_middle(stage, pilot):
    stage.play.thoughts = " ".join(f"thought-{i}" for i in range(2000))
    await pilot.press("j", "enter")
    await until(pilot, lambda: stage.states()[1] == "ANS")
    view = stage.main.pane.view
    for size in ((200, 50), (50, 12), (80, 24), (120, 8), (90, 18)):
        await resized(stage, pilot, *size)
        await pilot.pause()
        check_widths(stage)
        if stage.main.pane.display:
            assert view.at_end and view.text.split()[-1] == "is."
            assert all(len(row) <= view.size.width for row in view.text.split("\n") if row[-1:] != " ")
    assert " ".join(view.text.split()).count("thought-") == 2000, "nothing got lost"
    stage.play.gates["answer"].set()
    await until(pilot, lambda: stage.states() == ["PASS"] * 4)


@staged(size=(80, 24), before=lambda stage: stage.play.shut("answer"))
async def test_a_reader_keeps_the_place_when_the_width_changes(stage, pilot):
    stage.play.thoughts = " ".join(f"thought-{i}" for i in range(2000))
    await pilot.press("j", "enter")
    await until(pilot, lambda: stage.states()[1] == "ANS")
    view = stage.main.pane.view
    view.go(view.count // 2)
    before = int(re.findall(r"thought-(\d+)", view._lines[view.top][1])[0])
    await resized(stage, pilot, 160, 24)
    await pilot.pause()
    after = int(re.findall(r"thought-(\d+)", view._lines[view.top][1])[0])
    assert before - 20 < after <= before and not view.at_end


# --- hostile text

EVIL = "".join(HOSTILE).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
WRITTEN = "[bold]not bold[/bold] [/] [red"


@staged(
    questions=[
        Question("evil-1", "s[b]ource", "d\x1b[31m", "hard", "choice", EVIL, (EVIL + "1", EVIL + "2"), "A", EVIL),
        Question("evil-2", "[/]", WRITTEN, "hard", "integer", WRITTEN, (), "1"),
    ],
    title="\x1b]0;x\x07[bold]" + WRITTEN,
    before=lambda stage: stage.play.answers.update({"evil-1": EVIL + "\nAnswer: A", "evil-2": WRITTEN}),
)
async def test_hostile_text_is_shown_as_it_is_and_breaks_nothing(stage, pilot):
    stage.play.thoughts = EVIL + "\n" + "\x1b[2J" * 50 + "\n" + WRITTEN
    await until(pilot, lambda: "DONE" in stage.text())
    for size in ((100, 30), (45, 12), (160, 50)):
        await resized(stage, pilot, *size)
        for keys in (("home",), ("end",), ("o",), ("end",), ("escape",), ("f",), ("escape",), ("tab",), ("tab",)):
            await pilot.press(*keys)
            check_widths(stage)
    await pilot.press("end")
    await until(pilot, lambda: WRITTEN in stage.text() and "[bold]" in stage.lines()[0])
    await pilot.press("slash", *"[/b", "enter")
    check_widths(stage)


@staged(before=lambda stage: stage.play.answers.update({q.id: "\ud83d\nAnswer: 7" for q in stage.questions}))
async def test_half_a_character_is_stored_as_something_else(stage, pilot):
    await until(pilot, lambda: "DONE" in stage.text())
    assert stage.work.failure is None
    assert stage.log.samples[Key(1, "maths-0007")].output == "So it is.\n\ufffd\nAnswer: 7"


# --- many and much


def many(stage):
    stage.drawn = 0
    strip_of = stage.main.list.strip_of

    def counted(i):
        stage.drawn += 1
        return strip_of(i)

    stage.main.list.strip_of = counted
    stage.play.shut("answer")


@staged(questions=[integer(i) for i in range(1, 5001)], before=many)
async def test_of_thousands_of_questions_those_in_view_are_drawn(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    rows = stage.main.list.rows
    for key, cursor in (("end", 4999), ("home", 0), ("pagedown", rows - 1)):
        stage.drawn = 0
        await pilot.press(key)
        await pilot.pause()
        assert stage.main.list.cursor == cursor and 0 < stage.drawn <= 6 * rows
    await pilot.press("slash", *"maths-4321", "enter")
    assert stage.main.list.cursor == 4320
    stage.drawn = 0
    await pilot.pause()
    await pilot.pause(0.3)
    assert stage.drawn <= 2 * rows, "nothing happens, and nothing is drawn"
    check_widths(stage)


@staged(before=lambda stage: stage.play.shut("prefill"))
async def test_a_flood_of_tokens_is_taken_in_at_once(stage, pilot):
    await until(pilot, lambda: stage.board.live)
    writes = []
    write = stage.main.pane.view.write
    stage.main.pane.view.write = lambda pieces: (writes.append(1), write(pieces))
    key = Key(1, stage.questions[0].id)
    stage.main.look()
    for i in range(20_000):
        stage.work._listen(Streamed(key, f"word{i} ", True, i + 1, 0.0))
    stage.main.look()
    assert len(writes) == 1 and stage.board.pace.tokens == 20_000
    assert stage.main.pane.view.text.split()[-1] == "word19999"


def test_scrollback_is_long_and_not_endless(tmp_path):
    @staged(before=lambda stage: stage.play.shut("prefill"))
    async def goes_on(stage, pilot):
        await until(pilot, lambda: stage.board.live)
        view = stage.main.pane.view
        for _ in range(60):
            view.write([Piece("thought", ("x" * 99 + "\n") * 100)])
        assert view.at_end and MOST // 2 < len(view.text) < 2 * MOST
        assert view.text.startswith("(what came before this is in the log)")
        view.show([])
        for _ in range(60):
            view.write([Piece("plain", "y" * 10_000)])
        assert MOST // 2 <= len(view.text) < 2 * MOST

    goes_on(tmp_path)


@staged()
async def test_what_is_written_in_pieces_is_what_is_written_at_once(stage, pilot):
    await until(pilot, lambda: "DONE" in stage.text())
    view: TextView = stage.main.pane.view
    text = (
        "The quick brown fox, 漢字, jumps.\n\n    indented code that is rather longer than a line is wide, indeed\n" * 5
    )
    view.show([Piece("plain", text), Piece("thought", "hm"), Piece("thought", " hm\n"), Piece("quiet", "end")])
    whole = view.text
    view.show([])
    for i in range(0, len(text), 3):
        view.write([Piece("plain", text[i : i + 3])])
    view.write([Piece("thought", "hm"), Piece("thought", " hm\n"), Piece("quiet", "end")])
    assert view.text == whole


# --- colours


@staged(before=lambda stage: stage.play.shut("answer"))
async def test_thinking_is_set_apart_by_colour_and_by_a_mark(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await pilot.pause(0.2)
    view = stage.main.pane.view
    thought, said = (list(view.strip_of(i))[0] for i in (0, view.count - 2))
    assert thought.text.startswith("┊ hm hm") and said.text.startswith("So it is.")
    assert thought.style.color != said.style.color


def test_no_color_is_heard(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    @staged(before=lambda stage: stage.play.answers.update({stage.questions[1].id: "Answer: A"}))
    async def grey(stage, pilot):
        await until(pilot, lambda: "DONE" in stage.text())
        await pilot.pause()
        assert "FAIL" in stage.text() and "1 wrong" in stage.text()
        for strip in stage.app.screen._compositor.render_strips():
            for segment in strip.apply_filter(stage.app._filters[-1], stage.app.screen.background_colors[1]):
                for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                    assert colour is None or len(set(colour.triplet or (0,))) == 1, segment

    grey(tmp_path)


# --- budgets, and textual


@staged(settings=Settings(tokens=2000, hard_limit=512), abilities=[Ability.STEER],
        before=lambda stage: stage.play.shut("thinking"))  # fmt: skip
async def test_thinking_has_what_the_hard_limit_leaves_it(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "THINK")
    await until(pilot, lambda: "1/1488" in stage.text())
    stage.play.shut("answer")
    stage.play.gates["thinking"].set()
    await until(pilot, lambda: "2/2000" in stage.text())


def test_a_target_that_does_not_stream_shows_its_answer_at_the_end(tmp_path):
    @staged(before=lambda stage: setattr(stage.target, "abilities", stage.target.abilities - {Ability.STREAM}))
    async def whole(stage, pilot):
        await until(pilot, lambda: "DONE" in stage.text())
        assert "┊ hm hm" in stage.text() and "Answer: A" in stage.text()
        assert stage.board.pace.tokens == sum(sample.tokens for sample in stage.log.samples.values()) > 0

    whole(tmp_path)


def test_tags_in_the_text_of_a_stream_are_hidden(tmp_path):
    def tagged(request):
        for text in ("<thi", "nk>hm", " hm</thin", "k>\n\n", "Answer: 7"):
            yield Delta(text)

    @staged(play=tagged)
    async def hidden(stage, pilot):
        await until(pilot, lambda: "DONE" in stage.text())
        await pilot.press("home")
        assert "┊ hm hm" in stage.text() and "think>" not in stage.text()

    hidden(tmp_path)


@staged()
async def test_events_of_other_runs_do_no_harm(stage, pilot):
    await until(pilot, lambda: "DONE" in stage.text())
    stage.work._listen(Started(Key(1, "unknown")))
    stage.work._listen(Streamed(Key(9, stage.questions[0].id), "x", False, 1, 0.0))
    stage.main.look()
    assert not stage.board.live


@pytest.mark.parametrize("module", [app, dialogs, draw, header, pane, questions, scroll, textview], ids=str)
def test_no_attribute_of_ours_hides_one_of_textual_s(module):
    meant = {
        "BINDINGS", "COMPONENT_CLASSES", "CSS_PATH", "ENABLE_COMMAND_PALETTE", "TITLE", "can_focus", "compose",
        "can_focus_children", "get_default_screen", "notify_style_update", "render_line", "theme", "_handle_exception",
        "_fatal_error",
    }  # fmt: skip
    assigned = re.compile(r"^ +self\.(\w+)(?:: [^=\n]+)?(?:, self\.\w+)* = ", re.MULTILINE)
    for name, made in vars(module).items():
        if not inspect.isclass(made) or made.__module__ != module.__name__:
            continue
        theirs: set[str] = set()
        for base in made.__mro__[1:]:
            if base.__module__.startswith("textual."):
                theirs |= set(vars(base)) | set(assigned.findall(inspect.getsource(base)))
        ours = {key for key, value in vars(made).items() if not key.startswith("__")}
        ours |= set(assigned.findall(inspect.getsource(made)))
        machinery = {"_computes", "_decorated_handlers", "_merged_bindings", "_reactives"}
        machinery |= {key for key in ours if key.startswith(("_inherit_", "_css"))}
        assert not (ours & theirs) - meant - machinery, name
