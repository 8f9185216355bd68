"""ds4's extractor: what it was seen to do, its windows to the byte, and that nothing stops it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.eval import corpus
from ds4ref.eval.ds4_grader import LETTER_WINDOW, NUMBER_WINDOW, ds4_grade
from ds4ref.eval.packs import Question

TEN = tuple(f"choice {word}" for word in "one two three four five six seven eight nine ten".split())


def graded(text, kind="choice", answer="C", choices=TEN[:4], **more):
    question = Question("q-1", "test", "", "", kind, "?", choices if kind == "choice" else (), answer)
    found = ds4_grade(question, text, **more)
    return found.outcome, found.given


def letter(text, choices=TEN[:4]):
    return graded(text, choices=choices)[1]


def number(text):
    return graded(text, "integer", "1")[1]


def lines(text):
    return graded(text, "lines", "1")[1]


def test_the_corpus_records_what_it_says():
    for entry in corpus.entries():
        result = entry.grade_by_ds4()
        assert (result.outcome, result.given) == entry.ds4, entry.text


# What was seen when the program itself was run (docs/reference/eval.md).


def test_fillers_are_letters():
    assert letter("The final answer is a bit tricky.\nAnswer: C") == "A"
    assert letter("Answer: I believe it is B", TEN) == "I"
    assert letter("Answer: I believe it is B") == "B", "with four choices I is none"


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("Answer: 1,024", "1"),
        ("Answer: -5", "5"),
        ("Answer: 12.5", "12"),
        ("The answer to part 1 is 12, hence\nAnswer: 70", "1"),
        ("Answer: 070", "70"),
        ("Answer: 000", "0"),
        ("\\boxed{117}", "117"),
        ("So 3 times 39 is 117.", "117"),
        ("Answer: none", ""),
    ],
)
def test_integers(text, given):
    assert number(text) == given


@pytest.mark.parametrize(
    ("text", "given"), [("Answer: **D**", "D"), ("ANSWER (E)", "E"), ("answer: e", "E"), ("\\boxed{C}", "C")]
)
def test_letters(text, given):
    assert letter(text, TEN) == given


def test_an_en_dash_makes_two_lines():
    assert lines("Answer: 17–20") == "17,20"
    assert lines("Answer: 17-20") == "17-20"
    assert graded("Answer: 17–20", "lines", "17,20") == ("right", "17,20")
    assert graded("Answer: 17-20", "lines", "17,20") == ("wrong", "17-20")


# What was read in it.


def test_what_is_behind_the_first_end_of_thinking_counts():
    assert letter("Answer: A</think>Answer: C</think>Answer: D") == "C"
    assert letter("Answer: A") == "A"
    assert graded("Answer: C</think>") == ("missing", "")
    assert letter("<think>Answer: B") == "B"


def test_the_first_answer_in_the_midst_of_any_word():
    assert letter("unANSWERed: B. Answer: C") == "B"


def test_letters_stand_between_bytes_that_are_no_letters():
    assert letter("answer: Bad, Cab, xD, D7") == "D"
    assert letter("answer: éCé") == "C", "the bytes of é are no ASCII letters"
    assert letter("answers: D") == "D"


def test_the_window_of_letters_ends_at_the_byte():
    assert letter("Answer" + " " * (LETTER_WINDOW - 1) + "C or D") == "C"
    assert letter("Answer" + " " * LETTER_WINDOW + "C or D") == "D", "outside of it the last one counts"
    assert letter("Answer" + "é" * (LETTER_WINDOW // 2) + "C or D") == "D", "bytes, not characters"
    assert letter("B. Answer" + " " * (LETTER_WINDOW - 1) + "Cat") == "B"


def test_without_a_letter_in_the_window_the_last_one_counts():
    assert letter("A or B, I answer: hmm") == "B"
    assert letter("A or B, I say") == "B"
    assert letter("hmm") == ""
    assert letter("K or Z") == ""


def test_letters_beyond_the_choices_are_none():
    assert letter("Answer: E or B") == "B"
    assert letter("Answer: J", TEN) == "J"


def test_the_window_of_numbers_ends_at_the_byte():
    assert number("Answer" + " " * (NUMBER_WINDOW - 1) + "12") == "1", "cut in two"
    assert number("Answer" + " " * NUMBER_WINDOW + "12 34") == "34"
    assert lines("Answer" + " " * (NUMBER_WINDOW - 2) + "12") == "12"


def test_the_window_of_lines_ends_with_the_line():
    assert lines("Answer: 3, 5\n7") == "3,5"
    assert lines("Answer:\n7, 9") == "7", "as for integers: the first number of the window"
    assert lines("Lines 3 and 5") == "5"
    assert lines("Answer: 4-6, 9 to 11") == "4-6,9,11"


@pytest.mark.parametrize(
    ("text", "answer", "outcome"),
    [
        ("Answer: 5", "4-6", "right"),
        ("Answer: 6-4", "4-6", "right"),
        ("Answer: 4, 7", "4-6", "wrong"),
        ("Answer: 0", "0", "right"),
        ("Answer: 0, 4", "4", "wrong"),
        ("Answer: 10", "3,9-10", "right"),
        ("Answer: 300", "4", "wrong"),
        ("Answer: 4, 300", "4", "wrong"),
        ("Answer: 1-99999999999999999999", "1-3", "wrong"),
    ],
)
def test_lines_within_the_key(text, answer, outcome):
    assert graded(text, "lines", answer)[0] == outcome


def test_integers_are_compared_as_digits():
    assert graded("Answer: -5", "integer", "5") == ("right", "5")
    assert graded("Answer: 5", "integer", "-5") == ("right", "5")
    assert graded("Answer: 117", "integer", "11") == ("wrong", "117")


def test_a_nul_ends_the_text():
    assert letter("Answer: B\0Answer: C") == "B"
    assert graded("\0Answer: C") == ("missing", "")


def test_other_scripts_are_no_digits():
    assert number("Answer: ١٢") == ""
    assert letter("Answer: Ｃ") == ""


def test_the_order_shown():
    assert graded("Answer: B", answer="A", order=(1, 0, 2, 3)) == ("right", "B")
    assert graded("Answer: A", answer="A", order=(1, 0, 2, 3)) == ("wrong", "A")


def test_it_is_never_ambiguous():
    assert graded("Answer: A or C") == ("wrong", "A")


@given(
    st.sampled_from(["choice", "integer", "lines"]),
    st.text() | st.text(st.characters(), max_size=5).map(lambda t: f"answer {t}9-"),
)
def test_any_text_has_a_grade(kind, text):
    outcome, given = graded(text, kind, {"choice": "C", "integer": "9", "lines": "9"}[kind])
    assert outcome in ("right", "wrong", "missing") and (given == "") == (outcome == "missing")
    assert graded("\ud800" + text, kind, {"choice": "C", "integer": "9", "lines": "9"}[kind])[0]
