"""The pack of 93: its shape, its balance, and its answers, computed."""

from collections import Counter

import pytest

from ds4ref.eval import packs
from ds4ref.eval.grading import grade
from ds4ref.eval.packs import LETTERS, load, near_duplicates, stamped
from ds4ref.eval.prompt import user_text
from ds4ref.eval.verify import verify
from ds4ref.eval.verify.security import NoCompiler, shown_lines
from tests.marking import sampled

OURS = load(packs.DEFAULT)
QUESTIONS = OURS.questions
COUNTS = {"science": 25, "scholar": 25, "maths": 25, "security": 18}
KINDS = {"science": "choice", "scholar": "choice", "maths": "integer", "security": "lines"}


def test_93_questions_of_four_sources():
    assert Counter(q.source for q in QUESTIONS) == COUNTS
    assert all(q.kind == KINDS[q.source] for q in QUESTIONS)
    assert OURS.header.canary and OURS.header.licence and OURS.header.version >= 1


def test_sources_take_turns():
    """The first n questions are a fair sample of all of them."""
    for n in (4, 12, 40, 72):
        counts = Counter(q.source for q in QUESTIONS[:n])
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_changed_item_is_another_item():
    assert [q.id for q in QUESTIONS] == [stamped(q) for q in QUESTIONS]


@pytest.mark.parametrize("source, size", [("science", 4), ("scholar", 10)])
def test_keys_are_balanced(source, size):
    asked = [q for q in QUESTIONS if q.source == source]
    counts = Counter(q.answer for q in asked)
    assert all(len(q.choices) == size for q in asked)
    assert all(abs(counts[letter] - len(asked) / size) <= 3 for letter in LETTERS[:size])


ALWAYS = (*LETTERS, "", "yes", "no", "true", "none", *map(str, range(-1, 20)), "0-999", "1,2,3", "all of them")
"""What says the same to everything."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", packs.names())
def test_no_constant_answer_is_above_chance(name):
    """Of whole packs and of every source: 5 points above, or a question more than chance gives."""
    every = load(name).questions
    answers = dict.fromkeys([*ALWAYS, *(q.answer for q in every)])
    groups = [every, *([q for q in every if q.source == source] for source in load(name).sources())]
    for asked in groups:
        allowed = 100 * sum(q.chance for q in asked) / len(asked) + max(5, 100 / len(asked))
        for answer in answers:
            for form in ("{}", "Answer: {}", "</think>{}", "<think>so</think>\nAnswer: {}"):
                right = sum(grade(q, form.format(answer), finish="stop").outcome == "right" for q in asked)
                assert 100 * right / len(asked) <= allowed, (asked[0].source, form.format(answer))


def test_chance_is_stated_where_it_is_not_one_in_the_choices():
    """The commonest key of security is 0: nothing is wrong in five functions of 18."""
    chances = {source: {q.chance for q in QUESTIONS if q.source == source} for source in COUNTS}
    assert chances == {"science": {0.25}, "scholar": {0.1}, "maths": {0.001}, "security": {0.2778}}
    keys = Counter(q.answer for q in QUESTIONS if q.source == "security")
    assert keys.most_common(1) == [("0", 5)] and round(5 / 18, 4) == 0.2778


def test_keys_do_not_stand_out():
    """The right choice is the longest or the shortest no more often than chance makes it."""
    for source, size in (("science", 4), ("scholar", 10)):
        asked = [q for q in QUESTIONS if q.source == source]
        for pick in (max, min):
            hits = sum(pick(q.choices, key=len) == q.choices[q.letters.index(q.answer)] for q in asked)
            assert hits <= len(asked) / size + 6, f"{source}: the key is the {pick.__name__} {hits} times"


def test_every_wrong_choice_is_a_named_mistake():
    for q in QUESTIONS:
        for letter, why in zip(q.letters, q.distractors, strict=True):
            assert bool(why) == (letter != q.answer), q.id


def test_every_item_is_explained():
    assert all(len(q.explanation) > 150 and q.licence and q.domain and q.difficulty for q in QUESTIONS)
    assert all(q.verifier for q in QUESTIONS)


def test_maths_answers_are_as_in_a_contest():
    answers = [int(q.answer) for q in QUESTIONS if q.source == "maths"]
    assert len(set(answers)) == 25 and all(0 <= a <= 999 for a in answers)


def test_security_has_negative_controls_and_small_answers():
    asked = [q for q in QUESTIONS if q.source == "security"]
    assert sum(q.answer == "0" for q in asked) >= 4
    for q in asked:
        lines = packs.line_set(q.answer)
        assert len(lines) <= 3 and max(lines) <= len(shown_lines(q.question)) <= 32


def test_no_near_duplicates():
    assert not near_duplicates(QUESTIONS, 0.2)


def test_prompts_end_with_their_form():
    for q in QUESTIONS:
        assert user_text(q).rsplit("\n", 1)[1].startswith("Answer: <")


@pytest.mark.parametrize("question", sampled(QUESTIONS, 5), ids=lambda q: f"{q.source}-{q.verifier}")
def test_the_answer_is_what_is_computed(question):
    try:
        verify(question)
    except NoCompiler as reason:
        pytest.skip(f"no compiler with sanitizers: {reason}")
