"""The rule of the grader: the corpus states it, clause by clause; any text has a grade."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.eval.calls import call_parts
from ds4ref.eval.grading import grade
from ds4ref.eval.packs import LETTERS, Question

CORPUS = [json.loads(line) for line in (Path(__file__).parents[1] / "data" / "answers.jsonl").read_bytes().splitlines()]
CHOICES = ("It doubles", "It is halved", "It stays the same", "It vanishes")
TOOL = '{"type":"function","function":{"name":"t","parameters":{}}}'


def question(kind="choice", answer="C", choices=CHOICES):
    tools = (TOOL,) if kind == "call" else ()
    return Question("q-1", "test", "", "", kind, "?", choices if kind == "choice" else (), answer, tools=tools)


def graded(entry):
    asked = question(entry["kind"], entry["key"], tuple(entry.get("choices", ())))
    found = grade(asked, entry["text"], reasoning=entry.get("reasoning", ""), finish=entry.get("finish", ""))
    assert found.why and "\n" not in found.why
    return found.outcome, found.given


@pytest.mark.parametrize("clause", dict.fromkeys(entry["clause"] for entry in CORPUS))
def test_the_corpus_states_the_rule(clause):
    for entry in CORPUS:
        if entry["clause"] == clause:
            assert graded(entry) == (entry["outcome"], entry["given"]), entry["text"]


@pytest.mark.parametrize(
    ("text", "more", "why"),
    [
        ("", {}, "empty"),
        (" \n", {"reasoning": "Answer: C"}, "nothing but thinking"),
        ("<think>Answer: C", {}, "nothing but thinking"),
        ("Let me see", {"finish": "length"}, "no line 'Answer:', no box, no bare value at the end, cut off"),
        ("Answer: C\n", {"finish": "length"}, "answer line"),
        ("Answer: C", {"finish": "length"}, "answer line: the token limit may have cut it off"),
        ("Answer: A or C", {}, "answer line: not one choice and nothing else"),
        ("Answer: E", {}, "answer line, none of ABCD"),
        ("\\boxed{C} it is", {}, "box: text follows it"),
        ("The flux is conserved.\n\nC", {}, "last line"),
        ("A\nC", {}, "last lines: not one choice and nothing else"),
    ],
)
def test_a_grade_says_why(text, more, why):
    assert grade(question(), text, **more).why == why
    if why in ("empty", "nothing but thinking"):
        assert grade(question("exact"), text, **more).why == why


@pytest.mark.parametrize(
    ("kind", "right", "text", "outcome"),
    [
        ("integer", "5", "Answer: 5π", "ambiguous"),  # cleverer graders took a number out of these
        ("integer", "204", "Answer: N = 35204, so the remainder is 204", "ambiguous"),
        ("text", "Paris", "It is Paris.\n\nAnswer: Paris", "right"),
        ("text", "Paris", "**Answer:** \u201cparis\u201d.", "right"),
        ("text", "Paris", "\\boxed{\\text{Paris}}", "right"),
        ("text", "Paris", "<think>Lyon?</think>Paris.", "right"),
        ("text", "Paris", "Answer: Paris, France", "wrong"),
        ("text", "Paris", "Of course.\nParis", "missing"),
        ("text", "Paris", "Answer: Paris\nbut perhaps Lyon", "ambiguous"),
        ("text", "New  York", "Answer: new york", "right"),
        ("text", "3.14", "Answer: 3.140", "right"),
        ("text", "3.14", "Answer: 3.15", "wrong"),
        ("text", "007", "Answer: 7", "right"),
        ("text", "Straße", "Answer: STRASSE", "right"),
        ("text", "\ufb01re", "Answer: fire", "right"),
        ("exact", "a b", "so</think> a b\n", "right"),
        ("exact", "a b", "a b.", "wrong"),
        ("exact", "a b", "A b", "wrong"),
        ("exact", "a b", " ", "missing"),
        ("call", '{"name":"t","arguments":{}}', "set it", "wrong"),
        ("call", '{"name":"t","arguments":{}}', "", "missing"),
    ],
)
def test_kinds_beside_those_of_the_corpus(kind, right, text, outcome):
    assert grade(question(kind, right), text).outcome == outcome
    assert kind != "exact" or grade(question(kind, right), text.strip(), finish="length").outcome != "right"


@pytest.mark.parametrize("given", ["5", 5.5, True, None])
def test_types_of_arguments_count(given):
    right = '{"name":"t","arguments":{"n":5}}'
    assert call_parts(json.dumps({"name": "t", "arguments": {"n": given}}), right) == (True, False)
    assert call_parts(right, right) == (True, True) and call_parts("", right) == (False, False)


@pytest.mark.parametrize(
    ("answer", "choices", "text", "outcome"),
    [
        ("B", ("3.46", "-3.46"), "Answer: B. −3.46", "right"),
        ("B", ("3.46", "-3.46"), "Answer: B - -3.46", "right"),
        ("A", ("3.46", "-3.46"), "Answer: A. -3.46", "ambiguous"),
        ("A", ("2 V", "2 v"), "Answer: 2 V", "ambiguous"),
    ],
)
def test_a_sign_belongs_to_the_choice_not_to_what_separates(answer, choices, text, outcome):
    assert grade(question(answer=answer, choices=choices), text).outcome == outcome


# -------------------------------------------------------------------------------------------------------- any text

KINDS = st.sampled_from(
    [("choice", "C"), ("integer", "12"), ("integer", "-5"), ("lines", "4-6"), ("lines", "0"), ("text", "x")]
)
PIECES = ["Answer: ", "\\boxed{", "}", "</think>", "<think>", "\n", "```", "\\text{", "\ud800", "\0", " or ", "12",
          "4-6", "C", "/", ",", ".", "-", "1" * 5000]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join)


@given(KINDS, TEXTS, st.sampled_from(["", "stop", "length"]))
def test_any_text_has_a_grade(kind, text, finish):
    result = grade(question(*kind), text, finish=finish)
    assert result.outcome in ("right", "wrong", "ambiguous", "missing") and result.why
    assert (result.given == "") == (result.outcome == "missing")


FORMS = ("Answer: {}", "**Answer:** {}", "Answer: ({}).", "so $\\boxed{{{}}}$", "Final answer: **{}**", "Well.\n\n{}")


@given(st.integers(2, 10), st.data(), st.sampled_from(FORMS))
def test_the_right_letter_is_right_and_another_is_wrong(count, data, form):
    choices = tuple(f"the {word} of them" for word in "one two six ten red big old new top end".split())[:count]
    asked = question(answer=data.draw(st.sampled_from(LETTERS[:count])), choices=choices)
    assert grade(asked, form.format(asked.answer)).outcome == "right"
    other = data.draw(st.sampled_from([letter for letter in LETTERS[:count] if letter != asked.answer]))
    assert grade(asked, form.format(other)).outcome == "wrong"


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
    pieces = "a| |1|1,|1-|\\boxed{|{|{}|}|answer |Answer: |\n|*|(|\\text{|C |- |<think>".split("|")
    ends = (("", ""), ("Answer: ", "!"), ("\\boxed{", "}"), ("Answer: \\text{", "}"), ("Answer: C", "\n"))
    for piece in pieces:
        for head, tail in ends:
            assert grade(asked, head + piece * (50_000 // len(piece)) + tail).why
