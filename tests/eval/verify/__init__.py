"""Compute the right answers of our own packs from the statements of the questions.

There is a module for each source or subject. For multiple choice a function takes the choices and returns the index of
the right one; for integers it returns the integer. A security item is compiled and run under sanitizers, once as shown
and once with the lines of its answer fixed. The notes of ``long`` are read again.
"""

from __future__ import annotations

from importlib import import_module

from ds4ref.eval.packs import LETTERS, Question

MODULES = {
    "science": ("physics", "chemistry", "biology"),
    "scholar": ("scholar",),
    "maths": ("maths",),
    "security": ("security",),
    "recall-zh": ("recall",),
    **dict.fromkeys(("long-lookup", "long-latest", "long-hop"), ("notes",)),
}
"""Modules with the verifiers, by source of a question."""


def computed(question: Question) -> str:
    """Compute the answer to a question that has a verifier."""
    modules = [import_module(f"{__name__}.{name}") for name in MODULES[question.source]]
    if hasattr(modules[0], "answer"):
        return modules[0].answer(question)
    function = next(getattr(module, question.verifier) for module in modules if hasattr(module, question.verifier))
    return LETTERS[function(question.choices)] if question.kind == "choice" else str(function())
