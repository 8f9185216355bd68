"""Read AIME and other problems with an integer as the answer.

Contest files name their columns in several ways; the source of the questions is the name of the file.
"""

from __future__ import annotations

from ..packs import Question
from .records import NOT_STATED, Record, Shape, identity, integer_of

PROBLEM, ANSWER = ("problem", "question"), ("answer", "final answer")
NUMBER = ("problem number", "number", "problem no", "problem idx")
PART = ("part", "exam", "contest", "competition")


def question(record: Record) -> Question:
    """Convert one record to a question; its id is the file's, or made of year, part and number."""
    name = record.stem
    return Question(
        id=identity(record.note("id", "problem id", "unique id") or _numbered(record, name)),
        source=name,
        domain=record.note("domain", "subject", "category", "type", "topic") or "mathematics",
        difficulty=record.note("difficulty", "level"),
        kind="integer",
        question=record.text(*PROBLEM),
        choices=(),
        answer=integer_of(record.value(*ANSWER)),
        explanation=record.kept("solution", "explanation"),
    )


def _numbered(record: Record, name: str) -> str:
    number = record.note(*NUMBER)
    if not number:
        return ""
    return "-".join(part for part in (name, record.note("year"), record.note(*PART), number) if part)


SHAPE = Shape(
    name="aime",
    title="problems with integer answers",
    licence=NOT_STATED,
    needs=(PROBLEM, ANSWER),
    fits=lambda cells: bool(cells & set(PROBLEM)) and bool(cells & set(ANSWER)),
    question=question,
)
