"""Read GPQA: a question with one correct and three incorrect answers, in no order.

The answers are sorted by the SHA-256 digests of ``SEED``, question and answer, with a line feed between them, in UTF-8.
So the order depends on the texts alone: importing again, or a file with its rows or columns in another order, gives the
same letters, and the right answer has every letter equally often.
"""

from __future__ import annotations

import hashlib
import re

from ..packs import LETTERS, Question
from .records import Record, Shape, choices_of, identity

SEED = "ds4-eval import gpqa 1"
"""First part of the hashed text; the 1 is the version of the order, as another order would make other items."""
WRONG = ("incorrect answer 1", "incorrect answer 2", "incorrect answer 3")


def ordered(question: str, answers: list[str]) -> list[str]:
    """Return ``answers`` in the order in which they are shown."""

    def digest(answer: str) -> bytes:
        return hashlib.sha256(f"{SEED}\n{question}\n{answer}".encode("utf-8", "surrogatepass")).digest()

    return sorted(answers, key=digest)


def source(stem: str) -> str:
    """Return the source for a file name: "GPQA Diamond" for ``gpqa_diamond``, "GPQA" for any other name."""
    match = re.fullmatch(r"gpqa[ _-]([a-z]+)", stem, re.IGNORECASE)
    return f"GPQA {match[1].capitalize()}" if match else "GPQA"


def question(record: Record) -> Question:
    """Convert one row to a question."""
    asked, right = record.text("question"), record.text("correct answer")
    choices = choices_of(ordered(asked, [right, *(record.text(name) for name in WRONG)]))
    name = source(record.stem)
    return Question(
        id=identity(record.note("record id", "id")),
        source=name,
        domain=record.note("high level domain", "subdomain"),
        difficulty=record.note("writer's difficulty estimate", "difficulty"),
        kind="choice",
        question=asked,
        choices=choices,
        answer=LETTERS[choices.index(right)],
        explanation=record.kept("explanation"),
    )


SHAPE = Shape(
    name="gpqa",
    title="GPQA",
    licence="CC BY 4.0",
    needs=(("question",), ("correct answer",), *((name,) for name in WRONG)),
    fits=lambda cells: "correct answer" in cells and WRONG[0] in cells,
    question=question,
)
