"""The screen of ds4-eval in every size, with hostile text, thousands of questions and floods of tokens."""

import inspect
import re

import pytest

from ds4ref.eval.packs import Question
from ds4ref.eval.plan import Key, Settings
from ds4ref.eval.runner import Streamed
from ds4ref.eval.tui import app, dialogs, header, pane, screen, table, text
from ds4ref.targets import Ability, Delta

from .demo import HOSTILE
from .scripted import integer
from .staged import check_widths, resized, staged, until

SIZES = [(80, 24), (90, 18), (60, 15), (59, 24), (80, 14), (40, 15), (24, 6), (8, 3), (1, 1), (200, 50), (300, 90)]


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


@pytest.mark.thorough
@staged(size=(40, 15), before=lambda stage: stage.play.shut("answer"))
async def test_a_small_screen_shows_one_pane_at_a_time(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    await until(pilot, lambda: "ANS" in stage.text() and "PEND" in stage.text() and "So it is." not in stage.text())
    await pilot.press("tab")
    await until(pilot, lambda: "So it is." in stage.text() and "PEND" not in stage.text())
    await pilot.press("p")
    await until(pilot, lambda: "PAUSED" in stage.text())
    await pilot.press("tab")
    await until(pilot, lambda: "PEND" in stage.text() and "So it is." not in stage.text())


@pytest.mark.thorough
@staged(size=(80, 24), before=lambda stage: stage.play.shut("answer"))
async def test_resizing_keeps_the_end_in_view(stage, pilot):
    stage.play.thoughts = " ".join(f"thought-{i}" for i in range(2000))
    await pilot.press("j", "enter")
    await until(pilot, lambda: stage.states()[1] == "ANS")
    for size in ((200, 50), (50, 12), (80, 24), (120, 8), (90, 18)):
        await resized(stage, pilot, *size)
        check_widths(stage)
        if stage.main.pane.region.width:
            await until(pilot, lambda: stage.main.pane.view.is_vertical_scroll_end)
    await until(pilot, lambda: "So it is." in stage.text())
    assert stage.main.pane.view.text.count("thought-") == 2000


# --- hostile text

EVIL = "".join(HOSTILE).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
WRITTEN = "[bold]not bold[/bold] [/] [red"


@pytest.mark.thorough
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
    for size in ((100, 30), (45, 12)):
        await resized(stage, pilot, *size)
        for keys in (("home",), ("end",), ("o",), ("end",), ("escape",), ("f",), ("escape",), ("tab",), ("tab",)):
            await pilot.press(*keys)
            check_widths(stage)
    await resized(stage, pilot, 160, 50)
    await pilot.press("end")
    await until(pilot, lambda: WRITTEN in stage.text() and "[bold]" in stage.lines()[0])
    await pilot.press("slash", *"[/b", "enter")
    check_widths(stage)


# --- many and much


@pytest.mark.thorough
@staged(questions=[integer(i) for i in range(1, 2001)], before=lambda stage: stage.play.shut("answer"))
async def test_thousands_of_questions(stage, pilot):
    await until(pilot, lambda: stage.states()[0] == "ANS")
    for key, selected in (("end", 1999), ("home", 0)):
        await pilot.press(key)
        assert stage.main.table.selected == selected
    await pilot.press("slash", *"maths-1321", "enter")
    await until(pilot, lambda: stage.main.table.selected == 1320 and "Which number is 1321?" in stage.text())
    check_widths(stage)


@pytest.mark.thorough
@staged(before=lambda stage: stage.play.shut("prefill"))
async def test_a_flood_of_tokens_is_shown_and_its_beginning_dropped(stage, pilot):
    await until(pilot, lambda: stage.board.live)
    key = Key(1, stage.questions[0].id)
    for i in range(50_000):
        stage.work._listen(Streamed(key, f"word{i}{' ' if i % 9 else chr(10)}", True, i + 1, 0.0))
    await until(pilot, lambda: "word49999" in stage.text())
    assert stage.board.pace.tokens == 50_000
    shown = stage.main.pane.view.text
    assert shown.startswith("(earlier text is in the log)") and 100_000 < len(shown) < 300_000


def test_text_that_grows_changes_only_its_last_block():
    words = "".join(f"word{i}" + " \n"[i % 9 == 0] for i in range(3000))
    before = list(text.split([text.Piece("plain", words[:15_000])]))
    after = list(text.split([text.Piece("plain", words)]))
    assert after[: len(before) - 1] == before[:-1] and len(after) > len(before) > 3
    assert "\n".join(piece.text for piece in after) == words
    unbroken = list(text.split([text.Piece("plain", "x" * 30_000)]))
    assert "".join(piece.text for piece in unbroken) == "x" * 30_000 and len(unbroken) == 4


# --- budgets, streams, textual


@pytest.mark.thorough
@staged(settings=Settings(tokens=2000, hard_limit=512), abilities=[Ability.GUIDE],
        before=lambda stage: stage.play.shut("thinking"))  # fmt: skip
async def test_thinking_has_what_the_hard_limit_leaves_it(stage, pilot):
    await until(pilot, lambda: "1/1,488 tokens" in stage.text())
    stage.play.shut("answer")
    stage.play.gates["thinking"].set()
    await until(pilot, lambda: "2/2,000 tokens" in stage.text())


def test_a_target_that_does_not_stream_shows_its_answer_at_the_end(tmp_path):
    @staged(before=lambda stage: setattr(stage.target, "abilities", stage.target.abilities - {Ability.STREAM}))
    async def whole(stage, pilot):
        await until(pilot, lambda: "DONE" in stage.text())
        await until(pilot, lambda: "│ hm hm" in stage.text() and "Answer: A" in stage.text())
        assert stage.board.pace.tokens == sum(sample.tokens for sample in stage.log.samples.values()) > 0

    whole(tmp_path)


def test_tags_in_the_text_of_a_stream_are_hidden(tmp_path):
    def tagged(request):
        for piece in ("<thi", "nk>hm", " hm</thin", "k>\n\n", "Answer: 7"):
            yield Delta(piece)

    @staged(play=tagged)
    async def hidden(stage, pilot):
        await until(pilot, lambda: "DONE" in stage.text())
        await pilot.press("home")
        await until(pilot, lambda: "│ hm hm" in stage.text() and "think>" not in stage.text())

    hidden(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("module", [app, dialogs, header, pane, screen, table, text], ids=str)
def test_no_attribute_of_ours_hides_one_of_textual_s(module):
    meant = {
        "BINDINGS", "CSS_PATH", "ENABLE_COMMAND_PALETTE", "HORIZONTAL_BREAKPOINTS", "TITLE", "VERTICAL_BREAKPOINTS",
        "animation_level", "can_focus", "can_focus_children", "compose", "get_default_screen", "on_mount",
        "check_action", "release_anchor", "theme", "_handle_exception", "_fatal_error",
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
