"""Questions and what is made of an answer to one."""

from __future__ import annotations

from ds4ref.eval.grading import grade
from ds4ref.eval.packs import Question

CHOICES = ("It doubles", "It is halved", "It stays the same", "It vanishes")


def question(kind="choice", answer="C", choices=CHOICES):
    return Question("q-1", "test", "", "", kind, "What happens?", choices if kind == "choice" else (), answer)


def outcome(text, kind="choice", answer="C", **more):
    found = grade(question(kind, answer), text, **more)
    return found.outcome, found.given
