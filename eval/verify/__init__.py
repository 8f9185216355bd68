"""Compute the right answers of our own pack from the statements of the questions.

    ds4-eval verify

There is a module for each source or subject. For multiple choice a function takes the choices and returns the index of
the right one; for integers it returns the integer. A security item is compiled and run under sanitizers, once as shown
and once with the lines of its answer fixed. The notes of ``long`` are read again.
"""

from __future__ import annotations

from importlib import import_module

from ..packs import LETTERS, Question
from .unverified import Unverified

__all__ = ["SOURCES", "Unverified", "verify"]

SOURCES = {
    "science": ("physics", "chemistry", "biology"),
    "scholar": ("scholar",),
    "maths": ("maths",),
    "security": ("security",),
    "recall-zh": ("recall",),
    **dict.fromkeys(("long-lookup", "long-latest", "long-hop"), ("notes",)),
}
"""Modules with the verifiers, by source of a question."""


def verify(question: Question) -> None:
    """Compute a question's answer: Unverified if it differs from the key, LookupError if there is no verifier."""
    if not question.verifier or question.source not in SOURCES:
        raise LookupError(f"{question.id} has no verifier")
    modules = [import_module(f"{__name__}.{name}") for name in SOURCES[question.source]]
    if hasattr(modules[0], "check"):
        modules[0].check(question)
        return
    function = next(getattr(module, question.verifier) for module in modules if hasattr(module, question.verifier))
    try:
        found = LETTERS[function(question.choices)] if question.kind == "choice" else str(function())
    except ValueError as error:
        raise Unverified(f"{question.id} ({question.verifier}): {error}") from None
    if found != question.answer:
        raise Unverified(f"{question.id} ({question.verifier}): {found} was computed, {question.answer} is the key")
