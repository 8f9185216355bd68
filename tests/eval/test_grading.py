"""The grader: the corpus, what each of its rules is there for, its words, and any text at all."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eval import grading
from eval.grading import corpus, cues, grade, plain, self_test, statements, values
from eval.packs import LETTERS, line_set
from eval.prompt import key

from .grading import outcome, question

ENTRIES = corpus.entries()


# ---------------------------------------------------------------------------------------------------------- corpus


def test_every_output_of_the_corpus_gets_the_grade_that_a_reader_gave_it():
    count, wrong = self_test()
    assert count == len(ENTRIES) and not wrong, "\n".join(wrong)


def test_the_corpus_is_broad():
    assert len(ENTRIES) >= 200
    assert {e.question.kind for e in ENTRIES} == {"choice", "integer", "lines"}
    assert min(Counter(e.question.kind for e in ENTRIES).values()) > 100
    assert min(Counter(e.outcome for e in ENTRIES).values()) >= 20
    assert sum(e.text.count("\n\n") >= 2 for e in ENTRIES) >= 20, "outputs of several paragraphs"
    assert all(e.outcome in ("right", "wrong", "ambiguous", "missing") for e in ENTRIES)
    asked = [(e.question.kind, e.question.choices, e.question.answer, e.text, e.reasoning, e.finish) for e in ENTRIES]
    assert len(set(asked)) == len(asked)


def test_what_is_given_agrees_with_the_outcome():
    """A mistake in the corpus would be a mistake in the grader."""
    for e in ENTRIES:
        assert (e.given == "") == (e.outcome == "missing"), e.text
        if e.outcome in ("right", "wrong"):
            lines = e.question.kind == "lines"
            good = values.within(e.given, line_set(e.question.answer)) if lines else e.given == e.question.answer
            assert good == (e.outcome == "right"), e.text


def test_a_failure_is_told(monkeypatch):
    monkeypatch.setattr(corpus, "entries", lambda: [ENTRIES[0], ENTRIES[1]._replace(outcome="right", given="C")])
    count, wrong = self_test()
    assert count == 2 and len(wrong) == 1 and "wrong B" in wrong[0] and "instead of right C" in wrong[0]


def test_ambiguous_and_missing_say_why():
    for e in ENTRIES:
        found = e.graded()
        assert found.why, e.text
        if found.outcome == "ambiguous":
            assert ":" in found.why, e.text


NEVER = re.compile(r"(?!)")


def patterns(module):
    return [name for name, value in sorted(vars(module).items()) if isinstance(value, re.Pattern)]


def corpus_notices() -> bool:
    grading._folded.cache_clear()
    try:
        return any((g.outcome, g.given) != (e.outcome, e.given) for e in reversed(ENTRIES) for g in [e.graded()])
    except Exception:  # without a rule it may well break
        return True
    finally:
        grading._folded.cache_clear()


@pytest.mark.parametrize("step", plain.STEPS, ids=lambda step: step.__name__)
def test_the_corpus_notices_a_step_that_is_left_out(step, monkeypatch):
    monkeypatch.setattr(plain, "STEPS", tuple(other for other in plain.STEPS if other is not step))
    assert corpus_notices()


@pytest.mark.parametrize("table", ["_COMMANDS", "_MARKUP"])
def test_the_corpus_notices_a_markup_rule_that_is_left_out(table, monkeypatch):
    rules = getattr(plain, table)
    spared = []
    for i, rule in enumerate(rules):
        monkeypatch.setattr(plain, table, rules[:i] + rules[i + 1 :])
        spared += [rule[1].pattern] * (not corpus_notices())
    assert not spared


@pytest.mark.parametrize("find", statements.FINDERS, ids=lambda find: find.__name__)
def test_the_corpus_notices_a_finder_that_is_left_out(find, monkeypatch):
    monkeypatch.setattr(grading, "FINDERS", tuple(other for other in statements.FINDERS if other is not find))
    assert corpus_notices()


@pytest.mark.parametrize("module", [plain, cues, statements, values, grading], ids=lambda module: module.__name__)
def test_the_corpus_notices_a_pattern_that_finds_nothing(module, monkeypatch):
    spared = []
    for name in patterns(module):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, NEVER)
            spared += [name] * (not corpus_notices())
    assert not spared


@pytest.mark.parametrize("kind", ["choice", "integer", "lines"])
def test_the_corpus_notices_what_leads_to_a_value(kind, monkeypatch):
    monkeypatch.setitem(statements._LEAD, kind, NEVER)
    assert corpus_notices()


@pytest.mark.parametrize(
    "name",
    ["_hedged", "_doubted", "_listed", "_opens_line", "_further_on", "_read_behind", "_behind_fillers", "taken_back"],
)
def test_the_corpus_notices_a_question_that_is_not_asked(name, monkeypatch):
    nothing = {
        "_further_on": lambda *a: iter(()),
        "_read_behind": lambda output, start, at: output.read(at),
        "_behind_fillers": lambda output, at: at,
        "taken_back": lambda *a: ([], []),
    }.get(name, lambda *a: False)
    for module in (statements, grading):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, nothing)
    assert corpus_notices()


# ------------------------------------------------------------------------------------------- what the corpus leaves


def test_the_order_shown_decides_letters_and_texts():
    asked, order = question(answer="A"), (2, 0, 3, 1)  # B shows the first choice
    assert grade(asked, "Answer: B", order=order).outcome == "right"
    assert grade(asked, "Answer: A", order=order) == grade(asked, "Answer: (A)", order=order)
    assert grade(asked, "Answer: A", order=order).outcome == "wrong"
    by_text = grade(asked, "Answer: It doubles", order=order)
    assert (by_text.outcome, by_text.given) == ("right", "B") and "text" in by_text.why
    assert grade(asked, "Answer: B. It doubles", order=order).outcome == "right"
    assert grade(asked, "Answer: A. It doubles", order=order).outcome == "ambiguous"


def test_reasoning_counts_for_nothing_but_is_told_from_nothing():
    assert outcome("", reasoning="Answer: C") == ("missing", "")
    assert "thinking" in grade(question(), "", reasoning="Answer: C").why
    assert "thinking" in grade(question(), "<think>Answer: C").why
    assert grade(question(), "").why == "empty"
    assert grade(question(), " \n\u200b").why == "empty"
    assert outcome("Answer: C", reasoning="Answer: B") == ("right", "C")


def test_what_was_cut_off_is_said():
    assert grade(question(), "Let me see", finish="length").why.endswith("cut off")
    assert not grade(question(), "Let me see", finish="stop").why.endswith("cut off")


def test_a_letter_that_was_not_shown_is_wrong_and_said_to_be_none():
    found = grade(question(), "Answer: E")
    assert (found.outcome, found.given) == ("wrong", "E") and "none of ABCD" in found.why


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([("7", "7")], "7"),
        ([("6", "4")], "4-6"),
        ([("4", "5"), ("6", "6")], "4-6"),
        ([("9", "9"), ("3", "3"), ("10", "10")], "3,9-10"),
        ([("0", "0"), ("1", "1")], "0,1"),
        ([("1", "3"), ("2", "5")], "1-5"),
        ([("4", "4"), ("4" * 20, "4" * 20)], "4," + "4" * 20),
    ],
)
def test_lines_have_one_spelling(ranges, text):
    assert values.spelt(ranges) == text


@pytest.mark.parametrize(
    ("given", "key", "good"),
    [
        ("4", "4-6", True),
        ("4-6", "4-6", True),
        ("4,6", "4-6", True),
        ("4-7", "4-6", False),
        ("3", "4-6", False),
        ("0", "0", True),
        ("0", "1-3", False),
        ("0,4", "4", False),
        ("1-999999999999", "1-9999", False),
        ("9" * 30, "9", False),
        ("4-" + "9" * 30, "4", False),
    ],
)
def test_lines_within_a_key(given, key, good):
    assert values.within(given, line_set(key)) == good


def test_a_statement_that_is_many_words_back_still_counts():
    assert outcome("Answer: C\n\n" + "The field is uniform. " * 2000) == ("right", "C")
    assert outcome("The answer is B. " * 50 + "\n\nAnswer: C") == ("right", "C")
    assert outcome("Answer: C\n" * 50) == ("right", "C")


def test_long_chinese_texts_are_searched_in_pieces():
    text = "设线圈的面积为常数" * 1000
    for at in range(cues.PIECE - 8, cues.PIECE + 8):
        assert outcome(f"{text}\n答案：C\n{text[:at]}") == ("right", "C")


def test_words_are_found_wherever_a_piece_ends():
    for at in range(cues.PIECE - 30, cues.PIECE + 5):
        assert outcome("Hence the correct option is C.\n" + "x" * at + " y" * 3000) == ("right", "C")


# -------------------------------------------------------------------------------------------------------- any text

KINDS = st.sampled_from(
    [("choice", "C"), ("choice", "A"), ("integer", "12"), ("integer", "-5"), ("lines", "4-6"), ("lines", "0")]
)


PIECES = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from([e.text for e in ENTRIES if len(e.text) < 60]),
        st.sampled_from(
            [
                "Answer: ",
                "\\boxed{",
                "}",
                "</think>",
                "<think>",
                "\n",
                "|",
                "```",
                "~~",
                "\ud800",
                "\0",
                " or ",
                "12",
                "4-6",
                "C",
            ]
        ),
        st.characters(),
    ),
    max_size=12,
).map("".join)


@given(KINDS, PIECES, st.sampled_from(["", "stop", "length", "error"]), st.permutations(range(4)))
@example(("choice", "C"), "\x02", "", [0, 1, 2, 3])
def test_any_text_has_a_grade(kind, text, finish, order):
    found = grade(question(*kind), text, finish=finish, order=tuple(order) if kind[0] == "choice" else ())
    assert found.outcome in ("right", "wrong", "ambiguous", "missing")
    assert found.why
    assert (found.given == "") == (found.outcome == "missing")


@pytest.mark.parametrize("lead", ["is ", "= ", "=> ", "7 is ", "=1x=> "])
@pytest.mark.parametrize("tail", ["5 and ", "1 = ", "1/", "+ 1 "])
def test_a_text_of_nothing_but_cues_is_read_in_few_places(monkeypatch, lead, tail):
    read = []

    def reader(text, at, shown=()):
        read.append(at)
        return values.integer(text, at, shown)

    monkeypatch.setitem(values.READERS, "integer", reader)
    grade(question("integer", "7"), "ответ " * 700 + lead * 150 + tail * 700 + "7", finish="stop", order=())
    assert 0 < len(read) < 80


def test_an_enumeration_is_read_to_its_first_numbers():
    found = values.integer("1, 2" + ", 3" * 90, 0)
    assert found is not None and found.unclear == "several numbers" and found.end < 40
    found = values.integer("1" + "+1" * 140, 0)
    assert found is not None and "not worked out" in found.unclear and len(found.given[0]) <= values.TOLD


INVISIBLE = st.text("\u200b\u200c\u200d\ufeff\u2060\u00ad\u200e\u200f\u202a\u202e\x00", max_size=5)


@given(KINDS, PIECES, st.text(" \n\t\r\u00a0\u2009", max_size=5), INVISIBLE)
def test_space_and_invisible_characters_behind_an_answer_change_nothing(kind, text, space, invisible):
    if text.rpartition("\n")[2].strip("~`") != text.rpartition("\n")[2] or "\x1b" in text:
        return  # a fence or an escape sequence that the addition would complete
    asked = question(*kind)
    assert grade(asked, text + space + invisible) == grade(asked, text)


@given(
    KINDS,
    st.lists(st.sampled_from(["Answer", ": ", "C", "1", "2", "4", "-", "6", ".", "\n", "so "]), max_size=9),
    INVISIBLE,
)
def test_invisible_characters_within_change_nothing(kind, pieces, invisible):
    assert grade(question(*kind), invisible.join(pieces)) == grade(question(*kind), "".join(pieces))


FORMS = (
    "Answer: {}",
    "answer: {}",
    "**Answer:** {}",
    "The answer is {}.",
    "Answer: ({})",
    "\\boxed{{{}}}",
    "Final answer: **{}**",
    "{}",
)


@given(
    st.integers(2, 10),
    st.data(),
    st.sampled_from(FORMS),
    st.sampled_from(["", "Let us see.\n\n", "The answer is not obvious.\n\n"]),
)
def test_the_right_letter_is_right_and_another_is_wrong(count, data, form, before):
    choices = tuple(f"the {word} of them" for word in "one two six ten red big old new top end".split())[:count]
    asked = question(answer=data.draw(st.sampled_from(LETTERS[:count])), choices=choices)
    order = tuple(data.draw(st.permutations(range(count))))
    right = key(asked, order)
    assert grade(asked, before + form.format(right), order=order).outcome == "right"
    other = data.draw(st.sampled_from([letter for letter in LETTERS[:count] if letter != right]))
    assert grade(asked, before + form.format(other), order=order).outcome == "wrong"


@given(
    st.integers(-(10**17), 10**17),
    st.sampled_from(FORMS),
    st.sampled_from(["{}", "{:,}", "{}.0", " {}", "${}$", "{} ways"]),
)
def test_the_right_integer_is_right_and_its_neighbour_is_wrong(number, form, spelling):
    asked = question("integer", str(number))
    assert grade(asked, form.format(spelling.format(number))).outcome == "right"
    assert grade(asked, form.format(spelling.format(number + 1))).outcome == "wrong"


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6, unique=True), st.data(), st.sampled_from(FORMS[:-2]))
def test_some_of_the_right_lines_are_right_and_one_more_is_wrong(lines, data, form):
    lines.sort()
    asked = question("lines", ",".join(map(str, lines)))
    some = sorted(data.draw(st.sets(st.sampled_from(lines), min_size=1)))
    between = data.draw(st.sampled_from([",", ", ", " and ", "; ", " & "]))
    assert grade(asked, form.format(between.join(map(str, some)))).outcome == "right"
    more = data.draw(st.integers(1, 60).filter(lambda line: line not in lines))
    assert grade(asked, form.format(between.join(map(str, [*some, more])))).outcome == "wrong"


@pytest.mark.parametrize("kind", ["choice", "integer", "lines"])
def test_long_runs_end(kind):
    """Not timed: a pattern that tries every split of a run would not end in a lifetime."""
    asked = question(kind, {"choice": "C", "integer": "12", "lines": "7"}[kind])
    for piece in (
        "a",
        " ",
        "1",
        "1,",
        "\\boxed{",
        "{",
        "answer ",
        "Answer: ",
        "not ",
        "```\n",
        "|-",
        "~~a",
        "A and ",
        "- 1",
        "x=",
        "(",
        "ab cd ",
    ):
        for head, tail in (("", ""), ("Answer: ", "!"), ("\\boxed{", "}"), ("The answer ", "\n"), ("\n|", "x\n")):
            assert grade(asked, head + piece * (20_000 // len(piece)) + tail).why


def test_the_page_shows_what_ds4_makes_of_the_corpus():
    page = (Path(__file__).parents[2] / "docs" / "eval.md").read_text()
    assert corpus.table() in page, "python -m eval.grading.corpus"
