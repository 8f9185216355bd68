"""The pack of settled knowledge: its shape, its languages and fields, its balance, and where its answers stand."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import pytest

from ds4ref.eval import library, packs
from ds4ref.eval.packs import near_duplicates, stamped
from ds4ref.eval.prompt import user_text
from ds4ref.eval.verify import Unverified, verify
from ds4ref.eval.view import detail
from tests.eval.logs import build

PACK = library.load("recall")
QUESTIONS = PACK.questions
CHOICE = [q for q in QUESTIONS if q.kind == "choice"]
WORDS = {
    "recall-en": r"\b(which|who|the)\b", "recall-zh": r"[\u4e00-\u9fff]{4}", "recall-es": r"¿|\b(qué|quién|año)\b",
    "recall-fr": r"\b(quel|quelle|qui|dans|combien)\b", "recall-de": r"\b(welche[rsmn]?|wer|der|an)\b",
}  # fmt: skip
"""What questions of a language hold."""


def test_60_questions_in_five_languages():
    assert Counter(q.source for q in QUESTIONS) == dict.fromkeys(WORDS, 12)
    for q in QUESTIONS:
        assert re.search(WORDS[q.source], q.question, re.IGNORECASE), q.id
        assert bool(re.search(r"[\u4e00-\u9fff]", q.question)) == (q.source == "recall-zh")
    assert PACK.header.canary and PACK.header.licence == "MIT" and PACK.header.version == 1


def test_languages_take_turns():
    for n in (5, 20, 45):
        assert set(Counter(q.source for q in QUESTIONS[:n]).values()) == {n // 5}


def test_many_fields():
    fields = Counter(q.domain.partition("/")[0] for q in QUESTIONS)
    assert len(fields) >= 15 and max(fields.values()) <= 60 / 6
    for source in WORDS:
        assert len({q.domain.partition("/")[0] for q in QUESTIONS if q.source == source}) >= 8


def test_every_answer_is_stated_by_two_works_and_difficulty_is_not_claimed():
    for q in QUESTIONS:
        assert len({work.casefold() for work in q.references}) == len(q.references) == 2, q.id
        assert all(len(work) > 8 for work in q.references)
        assert q.difficulty == "unmeasured" and q.explanation and q.licence == "MIT" and not q.think


def test_a_changed_item_is_another_item():
    assert [q.id for q in QUESTIONS] == [stamped(q) for q in QUESTIONS]


def test_references_and_explanation_do_not_make_an_item():
    other = msgspec.structs.replace(QUESTIONS[0], references=("a", "b"), explanation="c")
    assert stamped(other) == QUESTIONS[0].id


def test_no_question_is_there_twice():
    assert not near_duplicates(QUESTIONS, 0.15)
    assert len({(q.answer if q.kind == "integer" else q.choices[q.letters.index(q.answer)]) for q in QUESTIONS}) == 60


def test_han_characters_are_words():
    one = msgspec.structs.replace(QUESTIONS[1], id="a", question="清代长篇小说《儿女英雄传》的作者是谁？")
    two = msgspec.structs.replace(one, id="b", question="清代长篇小说《儿女英雄传》的作者是哪一位？")
    three = msgspec.structs.replace(one, id="c", question="成语“筚路蓝缕”最早见于下列哪部典籍？")
    assert [pair[:2] for pair in near_duplicates([one, two, three])] == [("a", "b")]


def test_keys_are_balanced():
    assert len(CHOICE) == 36 and all(len(q.choices) == 6 and q.guess == pytest.approx(1 / 6) for q in CHOICE)
    assert set(Counter(q.answer for q in CHOICE).values()) == {6}
    assert max(Counter((q.source, q.answer) for q in CHOICE).values()) <= 2


@pytest.mark.parametrize("said", [*"ABCDEF", *sorted({q.answer for q in QUESTIONS if q.kind == "integer"}), "1900"])
def test_no_constant_answer_is_above_chance_by_five_points(said):
    chance = sum(q.guess for q in QUESTIONS) / len(QUESTIONS)
    right = sum(q.answer == said for q in QUESTIONS) / len(QUESTIONS)
    assert right <= chance + 0.05
    assert sum(q.answer == said for q in CHOICE) / len(CHOICE) <= 1 / 6 + 0.05


@pytest.mark.parametrize("pick", [max, min])
def test_keys_do_not_stand_out(pick):
    """By length, in a language or over all."""
    hits = [q for q in CHOICE if pick(q.choices, key=len) == q.choices[q.letters.index(q.answer)]]
    assert len(hits) <= 36 / 6 + 4
    assert max(Counter(q.source for q in hits).values(), default=0) <= 4


def test_the_key_is_not_in_the_question():
    for q in QUESTIONS:
        key = q.answer if q.kind == "integer" else q.choices[q.letters.index(q.answer)]
        assert key.casefold() not in q.question.casefold(), q.id


def test_prompts_end_with_their_form():
    assert all(user_text(q).rsplit("\n", 1)[1].startswith("Answer: <") for q in QUESTIONS)


def test_what_a_program_can_compute_it_computes():
    computed = [q for q in QUESTIONS if q.verifier]
    assert [q.verifier for q in computed] == ["gb2312_hanzi"]
    verify(computed[0])
    with pytest.raises(Unverified, match="6763 was computed"):
        verify(msgspec.structs.replace(computed[0], answer="6764"))


def test_a_question_is_shown_with_the_works_that_state_its_answer():
    q = QUESTIONS[0]
    text = detail(build("a", ["r"]), q, [])
    assert all(f"stated by: {work}" in text for work in q.references)


def test_packs_that_come_with_the_program():
    assert library.names() == ["ds4ref", "long", "nano", "recall"]
    assert library.load("nano") == packs.load("nano")
