"""The packs that come with the program: shape, balance, and that nothing but the question tells the answer."""

import itertools
import re
from collections import Counter

import pytest

from ds4ref.eval import library, packs
from ds4ref.eval.grading import grade
from ds4ref.eval.library import load
from ds4ref.eval.packs import LETTERS, stamped
from ds4ref.eval.prompt import user_text

from .verify.security import shown_lines

OURS, RECALL = load("ds4ref").questions, load("recall").questions
BOTH = pytest.mark.parametrize("questions", [OURS, RECALL], ids=["ds4ref", "recall"])
COUNTS = {"science": 25, "scholar": 25, "maths": 25, "security": 18}
LANGUAGES = {
    "recall-en": r"\b(which|who|the)\b", "recall-zh": r"[\u4e00-\u9fff]{4}", "recall-es": r"¿|\b(qué|quién|año)\b",
    "recall-fr": r"\b(quel|quelle|qui|dans|combien)\b", "recall-de": r"\b(welche[rsmn]?|wer|der|an)\b",
}  # fmt: skip
"""What questions of a source hold."""


def test_what_there_is():
    assert library.names() == ["ds4ref", "long", "nano", "recall"]
    assert Counter(q.source for q in OURS) == COUNTS
    assert Counter(q.source for q in RECALL) == dict.fromkeys(LANGUAGES, 12)
    kinds = {"science": "choice", "scholar": "choice", "maths": "integer", "security": "lines"}
    assert all(q.kind == kinds[q.source] for q in OURS)
    for name in library.files():
        assert load(name).header.canary and load(name).header.licence == "MIT"


@BOTH
def test_sources_take_turns(questions):
    """The first n questions are a fair sample of all of them."""
    sources = len({q.source for q in questions})
    for n in (sources, 4 * sources, 9 * sources):
        assert set(Counter(q.source for q in questions[:n]).values()) == {n // sources}


@BOTH
def test_an_item_is_explained_has_the_id_of_its_text_and_asks_in_its_form(questions):
    for q in questions:
        assert q.id == stamped(q) and q.explanation and q.licence and q.domain and q.difficulty
        assert user_text(q).rsplit("\n", 1)[1].startswith("Answer: <")
        key = q.choices[q.letters.index(q.answer)] if q.kind == "choice" else q.answer
        assert q.source in COUNTS or key.casefold() not in q.question.casefold(), q.id


def test_every_wrong_choice_of_ours_is_a_named_mistake():
    for q in OURS:
        assert [bool(why) for why in q.distractors] == [letter != q.answer for letter in q.letters], q.id


def test_answers_of_maths_and_security():
    maths = [int(q.answer) for q in OURS if q.source == "maths"]
    assert len(set(maths)) == 25 and all(0 <= answer <= 999 for answer in maths)
    security = [q for q in OURS if q.source == "security"]
    assert sum(q.answer == "0" for q in security) == 5
    for q in security:
        lines = packs.line_set(q.answer)
        assert len(lines) <= 3 and max(lines) <= len(shown_lines(q.question)) <= 32


def test_recall_is_in_five_languages_of_many_fields_with_two_works_each():
    for q in RECALL:
        assert re.search(LANGUAGES[q.source], q.question, re.IGNORECASE), q.id
        assert bool(re.search(r"[\u4e00-\u9fff]", q.question)) == (q.source == "recall-zh")
        assert len({work.casefold() for work in q.references}) == 2 and q.difficulty == "unmeasured"
    fields = Counter(q.domain.partition("/")[0] for q in RECALL)
    assert len(fields) >= 15 and max(fields.values()) <= 10


# --- guessing


@pytest.mark.parametrize(("questions", "source", "size"), [
    (OURS, "science", 4), (OURS, "scholar", 10), (RECALL, "recall-", 6)
])  # fmt: skip
def test_keys_are_balanced_and_do_not_stand_out(questions, source, size):
    asked = [q for q in questions if q.source.startswith(source) and q.choices]
    counts = Counter(q.answer for q in asked)
    assert all(len(q.choices) == size for q in asked)
    assert all(abs(counts[letter] - len(asked) / size) <= 3 for letter in LETTERS[:size])
    for pick in (max, min):
        hits = sum(pick(q.choices, key=len) == q.choices[q.letters.index(q.answer)] for q in asked)
        assert hits <= len(asked) / size + 6, f"the key is the {pick.__name__} {hits} times"


ALWAYS = (*LETTERS, "", "yes", "no", "true", "none", *map(str, range(-1, 20)), "0-999", "1,2,3", "all of them")
"""What says the same to everything."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", library.files())
def test_no_constant_answer_is_above_chance(name):
    """Of whole packs and of every source: 5 points above, or a question more than chance gives."""
    every = load(name).questions
    answers = dict.fromkeys([*ALWAYS, *(q.answer for q in every)])
    groups = [every, *([q for q in every if q.source == source] for source in {q.source for q in every})]
    for asked in groups:
        allowed = 100 * sum(q.chance for q in asked) / len(asked) + max(5, 100 / len(asked))
        for answer in answers:
            for form in ("{}", "Answer: {}", "</think>{}", "<think>so</think>\nAnswer: {}"):
                right = sum(grade(q, form.format(answer), finish="stop").outcome == "right" for q in asked)
                assert 100 * right / len(asked) <= allowed, (asked[0].source, form.format(answer))


def test_chance_is_stated_where_it_is_not_one_in_the_choices():
    """The commonest key of security is 0: nothing is wrong in five functions of 18."""
    chances = {source: {q.chance for q in OURS if q.source == source} for source in COUNTS}
    assert chances == {"science": {0.25}, "scholar": {0.1}, "maths": {0.001}, "security": {0.2778}}
    assert Counter(q.answer for q in OURS if q.source == "security").most_common(1) == [("0", 5)]
    assert {round(q.chance, 3) for q in RECALL if q.choices} == {0.167}


# --- near duplicates


def shingles(q: packs.Question) -> set[tuple[str, ...]]:
    """Runs of five words; a Han character is a word, and all numbers are the same word."""
    words = re.findall(r"[0-9]+|[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+", " ".join((q.question, *q.choices)).lower())
    words = ["0" if word.isdigit() else word for word in words]
    return {tuple(words[i : i + 5]) for i in range(max(1, len(words) - 4))}


@BOTH
def test_no_near_duplicates(questions):
    for one, other in itertools.combinations(map(shingles, questions), 2):
        assert len(one & other) / len(one | other) <= 0.2
