"""The rule of the grader: the corpus states it, clause by clause; any text has a grade."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.eval import corpus, grading
from ds4ref.eval.grading import grade
from ds4ref.eval.packs import LETTERS, line_set
from ds4ref.eval.prompt import key

from .grading import outcome, question

ENTRIES = corpus.entries()


def test_the_corpus_states_the_rule():
    """260 answers written by hand, by clause of the rule, each with the grade that it must get."""
    assert len(ENTRIES) >= 260
    for entry in ENTRIES:
        result = entry.grade()
        assert (result.outcome, result.given) == entry.expected, (entry.clause, entry.text)
        assert result.why and "\n" not in result.why, (entry.clause, entry.text)


@pytest.mark.parametrize(
    ("kind", "key", "text", "expected"),
    [
        ("choice", "C", "Answer: all but C", ("ambiguous", "all but C")),
        ("choice", "C", "Answer: anything but C", ("ambiguous", "anything but C")),
        ("choice", "C", "Answer: C → D", ("ambiguous", "C → D")),
        ("choice", "C", "Answer: C\nEDIT: D", ("ambiguous", "C")),
        ("integer", "5", "Answer: 5π", ("ambiguous", "5π")),
        ("integer", "5", "Answer: <5", ("ambiguous", "<5")),
        ("integer", "204", "Answer: N = 35204, so the remainder is 204",
         ("ambiguous", "N = 35204, so the remainder is 204")),
    ],
)  # fmt: skip
def test_what_a_cleverer_grader_got_wrong_is_not_guessed(kind, key, text, expected):
    assert outcome(text, kind, key) == expected


def test_what_is_given_agrees_with_the_outcome():
    """A mistake in the corpus would be a mistake in the grader."""
    for entry in ENTRIES:
        (expected, value), right = entry.expected, entry.question.answer
        assert (value == "") == (expected == "missing"), entry.text
        if expected in ("right", "wrong"):
            good = line_set(value) <= line_set(right) if entry.question.kind == "lines" else value == right
            assert good == (expected == "right"), entry.text
    assert {entry.question.kind for entry in ENTRIES} == {"choice", "integer", "lines"}


def test_a_failure_is_told(monkeypatch):
    monkeypatch.setattr(corpus, "entries", lambda: [ENTRIES[0], ENTRIES[1]._replace(expected=("right", "C"))])
    count, lines = corpus.failures()
    assert count == 2 and len(lines) == 1 and "wrong B" in lines[0] and "instead of right C" in lines[0]


@pytest.mark.parametrize("name", [name for name, value in vars(grading).items() if isinstance(value, re.Pattern)])
def test_the_corpus_notices_a_pattern_that_matches_nothing(name, monkeypatch):
    monkeypatch.setattr(grading, name, re.compile(r"(?!)"))
    assert any((result.outcome, result.given) != e.expected for e in ENTRIES for result in [e.grade()])


@pytest.mark.parametrize(
    ("text", "more", "why"),
    [
        ("", {}, "empty"),
        (" \n", {"reasoning": "Answer: C"}, "nothing but thinking"),
        ("<think>Answer: C", {}, "nothing but thinking"),
        ("Let me see", {}, "no line 'Answer:', no box, no bare value at the end"),
        ("Let me see", {"finish": "length"}, "no line 'Answer:', no box, no bare value at the end, cut off"),
        ("Answer: C", {}, "answer line"),
        ("Answer: C\n", {"finish": "length"}, "answer line"),
        ("Answer: C", {"finish": "length"}, "answer line: the token limit may have cut it off"),
        ("Answer: A or C", {}, "answer line: not one choice and nothing else"),
        ("Answer: E", {}, "answer line, none of ABCD"),
        ("so \\boxed{C}", {}, "box"),
        ("\\boxed{C} it is", {}, "box: text follows it"),
        ("The flux is conserved.\n\nC", {}, "last line"),
        ("A\nC", {}, "last lines: not one choice and nothing else"),
    ],
)
def test_a_grade_says_why(text, more, why):
    assert grade(question(), text, **more).why == why


def test_thinking_counts_for_nothing():
    assert outcome("", reasoning="Answer: C") == ("missing", "")
    assert outcome("Answer: C", reasoning="Answer: B") == ("right", "C")


def test_the_order_shown_decides_letters_and_texts():
    asked, order = question(answer="A"), (2, 0, 3, 1)  # B shows the first choice
    assert grade(asked, "Answer: B", order=order).outcome == "right"
    assert grade(asked, "Answer: A", order=order).outcome == "wrong"
    assert grade(asked, "Answer: It doubles", order=order).given == "B"
    assert grade(asked, "Answer: B. It doubles", order=order).outcome == "right"
    assert grade(asked, "Answer: A. It doubles", order=order).outcome == "ambiguous"


def test_a_sign_belongs_to_the_choice_not_to_what_separates():
    choices = ("3.46", "-3.46")
    assert grade(question(answer="B", choices=choices), "Answer: B. −3.46").outcome == "right"
    assert grade(question(answer="B", choices=choices), "Answer: B - -3.46").outcome == "right"
    assert grade(question(answer="A", choices=choices), "Answer: A. -3.46").outcome == "ambiguous"
    assert grade(question(answer="A", choices=("2 V", "2 v")), "Answer: 2 V").outcome == "ambiguous", "two texts alike"


# -------------------------------------------------------------------------------------------------------- any text

KINDS = st.sampled_from(
    [("choice", "C"), ("choice", "A"), ("integer", "12"), ("integer", "-5"), ("lines", "4-6"), ("lines", "0")]
)
PIECES = ["Answer: ", "\\boxed{", "}", "</think>", "<think>", "\n", "```", "\\text{", "\ud800", "\0", " or ", "12",
          "4-6", "C", "/", ",", ".", "-", "1" * 5000]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join)


@given(KINDS, TEXTS, st.sampled_from(["", "stop", "length"]), st.permutations(range(4)))
def test_any_text_has_a_grade(kind, text, finish, order):
    result = grade(question(*kind), text, finish=finish, order=tuple(order) if kind[0] == "choice" else ())
    assert result.outcome in ("right", "wrong", "ambiguous", "missing") and result.why
    assert (result.given == "") == (result.outcome == "missing")


FORMS = ("Answer: {}", "**Answer:** {}", "Answer: ({}).", "so $\\boxed{{{}}}$", "Final answer: **{}**", "Well.\n\n{}")


@given(st.integers(2, 10), st.data(), st.sampled_from(FORMS))
def test_the_right_letter_is_right_and_another_is_wrong(count, data, form):
    choices = tuple(f"the {word} of them" for word in "one two six ten red big old new top end".split())[:count]
    asked = question(answer=data.draw(st.sampled_from(LETTERS[:count])), choices=choices)
    order = tuple(data.draw(st.permutations(range(count))))
    right = key(asked, order)
    assert grade(asked, form.format(right), order=order).outcome == "right"
    other = data.draw(st.sampled_from([letter for letter in LETTERS[:count] if letter != right]))
    assert grade(asked, form.format(other), order=order).outcome == "wrong"


@given(st.integers(-(10**17), 10**17), st.sampled_from(FORMS), st.sampled_from(["{}", "{:,}", "{}.0", " {}", "${}$"]))
def test_the_right_integer_is_right_and_its_neighbour_is_wrong(number, form, spelling):
    asked = question("integer", str(number))
    assert grade(asked, form.format(spelling.format(number))).outcome == "right"
    assert grade(asked, form.format(spelling.format(number + 1))).outcome == "wrong"


@given(st.sets(st.integers(1, 60), min_size=1, max_size=6), st.data(), st.sampled_from(FORMS))
def test_some_of_the_right_lines_are_right_and_one_more_is_wrong(lines, data, form):
    asked = question("lines", ",".join(map(str, sorted(lines))))
    some = sorted(data.draw(st.sets(st.sampled_from(sorted(lines)), min_size=1)))
    assert grade(asked, form.format(", ".join(map(str, some)))).outcome == "right"
    more = data.draw(st.integers(1, 60).filter(lambda line: line not in lines))
    assert grade(asked, form.format(", ".join(map(str, [*some, more])))).outcome == "wrong"


@pytest.mark.parametrize("kind", ["choice", "integer", "lines"])
def test_long_runs_end(kind):
    """Not timed: a pattern that tries every split of a run would not end in a lifetime."""
    asked = question(kind, {"choice": "C", "integer": "12", "lines": "7"}[kind])
    pieces = ["a", " ", "1", "1,", "1-", "\\boxed{", "{", "{}", "}", "answer ", "Answer: ", "\n", "*", "(", "\\text{"]
    for piece in (*pieces, "C ", "- ", "<think>"):
        for head, tail in (
            ("", ""),
            ("Answer: ", "!"),
            ("\\boxed{", "}"),
            ("Answer: \\text{", "}"),
            ("Answer: C", "\n"),
        ):
            assert grade(asked, head + piece * (50_000 // len(piece)) + tail).why


def test_the_page_states_the_table():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "eval.md").read_text()
    assert corpus.table() in page, "python -m ds4ref.eval.corpus"
