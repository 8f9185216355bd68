"""Read SuperGPQA: up to ten options in order, and the right one by its text and by its letter."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

from ..packs import LETTERS, Question
from .records import Record, Shape, Skip, choices_of, identity, letter_of

LONGEST_LIST = 100_000
"""Largest number of characters of a list written into one cell."""


def question(record: Record) -> Question:
    """Convert one record to a question; letter and text of the answer must agree."""
    asked = record.text("question")
    choices = choices_of(_listed(record.value("options", "choices")))
    return Question(
        id=identity(record.note("uuid", "id")),
        source="SuperGPQA",
        domain=record.note("discipline", "field", "subfield"),
        difficulty=record.note("difficulty"),
        kind="choice",
        question=asked,
        choices=choices,
        answer=LETTERS[_right(record, choices)],
    )


def _right(record: Record, choices: tuple[str, ...]) -> int:
    letter, text = record.note("answer letter"), record.value("answer")
    by_letter = letter_of(letter, choices) if letter else None
    if letter and by_letter is None:
        raise Skip("the answer's letter is not among the options", letter)
    if not isinstance(text, str) or not text.strip():
        if by_letter is None:
            raise Skip("no answer", text or "")
        return by_letter
    by_text = next((i for i, choice in enumerate(choices) if choice.strip() == text.strip()), None)
    if by_text is None:
        raise Skip("the answer is not among the options", text)
    if by_letter is not None and by_text != by_letter:
        raise Skip("the answer and its letter disagree", f"{letter}, {text}")
    return by_text


def _listed(options: Any) -> Any:
    """Parse a list that was written into a CSV cell as JSON or as a Python literal; return lists unchanged."""
    if not isinstance(options, str):
        return options
    if len(options) > LONGEST_LIST:
        raise Skip("the choices are not a list of texts", "too long")
    try:
        return json.loads(options)
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an escape that Python does not know: Python did not write this
            return ast.literal_eval(options.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise Skip("the choices are not a list of texts", options) from None


SHAPE = Shape(
    name="supergpqa",
    title="SuperGPQA",
    licence="ODC-BY",
    needs=(("question",), ("options", "choices"), ("answer", "answer letter")),
    fits=lambda cells: bool(cells & {"options", "choices"}) and "answer letter" in cells,
    question=question,
)
