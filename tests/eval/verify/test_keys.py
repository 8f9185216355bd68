"""The keys of our packs are what is computed from the statements of the questions."""

import msgspec
import pytest

from ds4ref.eval import library, long_pack, packs
from tests.marking import sampled

from . import computed

QUESTIONS = [q for name in ("ds4ref", "recall") for q in library.load(name).questions if q.verifier]


def right(question: packs.Question) -> bool:
    same = packs.line_set if question.kind == "lines" else str
    return same(computed(question)) == same(question.answer)


@pytest.mark.parametrize("question", sampled(QUESTIONS, 5), ids=lambda q: f"{q.source}-{q.verifier}")
def test_the_answer_is_what_is_computed(question):
    assert right(question)


def test_every_question_of_the_default_pack_is_computed():
    assert len(QUESTIONS) == 93 + 1


def test_the_notes_of_long_alone_give_the_answers():
    assert all(right(q) for q in long_pack.make().questions)


@pytest.mark.parametrize("source", long_pack.SOURCES)
def test_another_answer_is_noticed(source):
    q = next(q for q in long_pack.make((4096,)).questions if q.source == source)
    assert right(q) and not right(msgspec.structs.replace(q, answer="10000"))
