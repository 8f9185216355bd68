"""Compute the right answers of our own packs from the statements of the questions.

There is a module for each source. For multiple choice a function returns a number that only one choice is near to, the
text of the choice, or words that no other choice has; for integers it returns the integer. A security item is compiled
and run under sanitizers, once as shown and once with the lines of its answer fixed. The notes of ``long`` are read
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module

from ds4ref.eval.packs import LETTERS, Question

_NUMBER = re.compile(r"(?P<number>-?\d[\d,]*(?:\.\d+)?)(?:e(?P<power>-?\d+))?(?P<percent>\s*%)?")


def leading_number(text: str) -> float:
    """Return the first number in a choice; forms: plain, 3.2e-4, 12 %, 34,500."""
    match = _NUMBER.search(text.replace("\u2212", "-"))
    assert match is not None, f"no number in {text!r}"
    return float(match["number"].replace(",", "")) * 10.0 ** int(match["power"] or 0) / (100 if match["percent"] else 1)


def fits(choice: str, value: float | str | Iterable[str]) -> bool:
    """Return whether a choice is what was computed: a number within 2 %, the text, or one with all the words."""
    if isinstance(value, str):
        return choice == value
    if isinstance(value, Iterable):
        return all(word in choice for word in value)
    return abs(leading_number(choice) - value) <= 0.02 * abs(value)


def computed(question: Question) -> str:
    """Compute the answer to a question that has a verifier."""
    module = import_module(f"{__name__}.{question.source.split('-')[0]}")
    if hasattr(module, "answer"):
        return module.answer(question)
    value = getattr(module, question.verifier)()
    if question.kind != "choice":
        return str(value)
    (index,) = [i for i, choice in enumerate(question.choices) if fits(choice, value)]
    return LETTERS[index]
