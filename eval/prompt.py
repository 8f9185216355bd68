"""Write the prompt: the question, its choices, and the required form of the last line.

The required forms equal those of ds4's own evaluation (docs/reference/eval.md), so that both scores can be compared;
the words are ours.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ds4ref.targets import Prompt

from .packs import LETTERS, Question

SYSTEM = (
    "You are given one difficult question from an examination; reason about it with care before you answer. "
    "The last line of your reply must have exactly the form that the question asks for."
)
_FINAL = "Solve the problem. End with exactly one final line, and write nothing after it:"
_FINAL_LINES = "End with exactly one final line, and write nothing after it:"
FORMS = {
    "choice": (_FINAL, "Answer: <letter>"),
    "integer": (_FINAL, "Answer: <integer>"),
    "lines": (_FINAL_LINES, "Answer: <line number or comma-separated line numbers>"),
}


def user_text(question: Question, order: Sequence[int] = ()) -> str:
    """Return the user's message; ``order``: index of the choice shown at each letter (default: unchanged)."""
    parts = [question.question, ""]
    if question.choices:
        shown = [question.choices[i] for i in order or range(len(question.choices))]
        parts += ["Choices:", *(f"{letter}. {text}" for letter, text in zip(LETTERS, shown, strict=False)), ""]
    return "\n".join([*parts, *FORMS[question.kind]])


def prompt(question: Question, think: str, order: Sequence[int] = (), system: str = SYSTEM) -> Prompt:
    """Return the prompt to send to a target."""
    return Prompt.chat(user_text(question, order), system, think)


def shuffled(question: Question, seed: int, epoch: int) -> tuple[int, ...]:
    """Return a random order of the choices, determined by question, seed and epoch; empty without choices."""
    order = list(range(len(question.choices)))
    random.Random(f"{seed} {epoch} {question.digest}").shuffle(order)
    return tuple(order)


def key(question: Question, order: Sequence[int] = ()) -> str:
    """Return the right answer for choices shown in ``order``."""
    if not order:
        return question.answer
    return LETTERS[list(order).index(LETTERS.index(question.answer))]
