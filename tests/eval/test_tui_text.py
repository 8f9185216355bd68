"""Foreign text on a screen: harmless, of known width, wrapped without loss; answers as they stream."""

import random

import pytest
from rich.cells import cell_len

from eval.tui.text import Transcript, clean, cut, one_line, width, wrap

HOSTILE = [
    "\x1b[2J\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m\x85",
    "a\rb\x08\x7f\x00",
    "\u202egnp.exe\u202c \u2066x\u2069",
    "zero\u200bwidth\u200d\ufeff\u2060\xad",
    "\ud83d half",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f 1\ufe0f\u20e3",
    "\U0001f1e9\U0001f1ea",
    "a" + "\u0301" * 400,
    "\u0301leading",
    "全角文字テスト ｶﾅ 한국어 \u115f\u1160\u3164",
    "ไทย हिन्दी עברית العربية",
    "\u2028\u2029\v\f\t",
    "\U000e0041\U000e007f",
]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_nothing_that_a_terminal_acts_on_is_left(text):
    shown = clean(text)
    assert not [c for c in shown if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    assert not [c for c in shown if c in "\u200b\u200d\u202e\u2066\ufe0f\ufeff\U0001f3fd\U0001f1e9"]
    shown.encode("utf-8")
    assert "\n" not in one_line(text)


def test_what_is_shown_instead():
    assert clean("\x1b[31mred\x7f") == "␛[31mred␡"
    assert clean("a\tb\r\nc\rd\u2028e") == "a    b\nc␍d\ne"
    assert clean("\U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \ud83d") == "DE \U0001f44d �"
    assert clean("[bold]not bold[/] [@click=app.quit]x[/]") == "[bold]not bold[/] [@click=app.quit]x[/]"


def test_text_without_anything_special_is_left_alone():
    text = "Grüße: ∑ x² ≤ 1, 漢字, 😀"
    assert clean(text) == text


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_widths_are_those_that_textual_counts_with(text):
    for line in clean(text).split("\n"):
        assert width(line) == cell_len(line)


def test_cut_fits_and_says_so():
    assert cut("abcdef", 6) == "abcdef" and cut("abcdef", 5) == "abcd…" and cut("abc", 0) == ""
    assert cut("漢字漢字", 6) == "漢字…" and width(cut("漢字漢字", 5)) <= 5


def test_wrap_breaks_at_spaces_and_keeps_indentation():
    assert wrap("the quick brown fox", 10) == ["the quick ", "brown fox"]
    assert wrap("    indented text", 10) == ["    ", "indented ", "text"]
    assert wrap("    if x: y", 20) == ["    if x: y"]
    assert wrap("漢字漢字漢", 4) == ["漢字", "漢字", "漢"]
    assert wrap("ab 0123456789abcdef", 8) == ["ab ", "01234567", "89abcdef"]
    assert wrap("", 10) == [""]


def _texts(seed: int) -> str:
    dice = random.Random(seed)
    parts = ["word", " ", "  ", "longerword", "漢", "字", "é", "e\u0301", "x" * 30, "a\u0301" * 3, "-", "😀", "   "]
    return "".join(dice.choice(parts) for _ in range(dice.randint(0, 40)))


@pytest.mark.parametrize("seed", range(60))
def test_wrapped_lines_lose_nothing_and_fit(seed):
    text = clean(_texts(seed))
    for cells in (2, 3, 7, 20):
        rows = wrap(text, cells)
        assert "".join(rows).removeprefix("\u25cc") == text
        assert all(width(row.rstrip(" ")) <= cells for row in rows)


@pytest.mark.parametrize("seed", range(60))
def test_text_that_comes_in_pieces_wraps_to_the_same(seed):
    text, dice = clean(_texts(seed)), random.Random(seed)
    for cells in (2, 5, 20):
        rows = [""]
        rest = text
        while rest:
            piece, rest = rest[: (n := dice.randint(1, 6))], rest[n:]
            rows += wrap(rows.pop() + piece, cells)
        assert rows == wrap(text, cells)


def test_marks_at_the_beginning_of_a_line_have_something_to_stand_on():
    assert wrap("\u0301x", 10) == ["\u25cc\u0301x"] and one_line("\u0301x") == "\u25cc\u0301x"


def test_heaps_of_marks_are_cut():
    (row,) = wrap("a" + "\u0301" * 1000 + "b", 10)
    assert len(row) < 10 and row[0] == "a" and row[-1] == "b"


# ------------------------------------------------------------------------------------------------------- transcripts


def _parts(transcript: Transcript) -> tuple[str, str]:
    """What was thought, what was said."""
    return tuple("".join(text for thought, text in transcript if thought is wanted) for wanted in (True, False))


def _streamed(said: list[tuple[str, bool]]) -> Transcript:
    made = Transcript()
    for text, thinking in said:
        made.add(text, thinking)
    made.finish()
    return made


def test_a_target_that_knows_about_thinking():
    assert _parts(_streamed([("hm ", True), ("so", True), ("\n\nIt is 4", False)])) == ("hm so", "It is 4")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>\nhm\n</think>\n\nIt is 4", "hm\n", "It is 4"),
        ("  <think>hm</think>4", "hm", "4"),
        ("hm</think>4", "hm", "4"),  # the tag that opens was part of the prompt
        ("<think>\n\n</think>\n\n4", "", "4"),
        ("a < b and c <d", "", "a < b and c <d"),
        ("4</thin", "", "4</thin"),
        ("hm</think>A literal </think> or <think> stays", "hm", "A literal </think> or <think> stays"),
        ("x\r\ny\rz", "", "x\ny␍z"),
    ],
)
def test_tags_are_hidden_however_the_text_is_cut(text, thought, answer, size):
    pieces = [(text[i : i + size], False) for i in range(0, len(text), size)]
    assert _parts(_streamed(pieces)) == (thought, answer)


def test_leftovers_of_a_tag_beside_reasoning():
    assert _parts(_streamed([("hm", True), ("</think>", True), ("4", False)])) == ("hm", "4")
    assert _parts(_streamed([("<think>hm", True), ("</thi", False), ("nk>\n4", False)])) == ("hm", "4")
    assert _parts(_streamed([("hm", True), ("Use </think> to close", False)])) == ("hm", "Use </think> to close")
    assert _parts(_streamed([("hm", True), ("<think>", False), ("4", False)])) == ("hm", "4")


def test_while_it_thinks_between_tags_it_is_shown_as_thought():
    made = Transcript()
    made.add("<think>hm", False)
    assert list(made) == [(True, "hm")] and made.turns == 0


def test_a_late_tag_turns_what_was_said_into_thought():
    made = Transcript()
    made.add("hm hm", False)
    assert list(made) == [(False, "hm hm")]
    made.add("</think>4", False)
    assert _parts(made) == ("hm hm", "4") and made.turns == 1


def test_a_whole_answer_is_what_its_stream_was():
    assert _parts(Transcript.of("hm", "It is <4")) == ("hm", "It is <4")
