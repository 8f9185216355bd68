"""Foreign text on a screen is harmless; thinking is told from the answer."""

import pytest

from ds4ref.eval.tui.text import clean, one_line, split_thinking

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


def test_marks_stand_on_something_and_are_few():
    assert clean("\u0301x") == "\u25cc\u0301x" and one_line("\u0301x") == "\u25cc\u0301x"
    assert len(clean("a" + "\u0301" * 1000 + "b")) < 10


# ------------------------------------------------------------------------------------------------- reasoning and output


@pytest.mark.parametrize(
    ("reasoning", "output", "thought", "answer"),
    [
        ("", "", "", ""),
        ("hm", "", "hm", ""),
        ("hm", "\n\nIt is 4", "hm", "It is 4"),
        ("", "<think>\nhm\n</think>\n\nIt is 4", "hm\n", "It is 4"),
        ("", "  <think>hm</think>4", "hm", "4"),
        ("", "<think>hm", "hm", ""),
        ("", "hm</think>4", "hm", "4"),  # the prompt opened it
        ("", "<think>\n\n</think>\n\n4", "", "4"),
        ("", "a < b and c <d", "", "a < b and c <d"),
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
