"""Write the prompt: the question, its choices, and the required form of the last line (ds4ref/text/exam.py)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ds4ref.targets import Message, Prompt
from ds4ref.text.exam import SYSTEM, exam_text

from .calls import call_of
from .packs import EXAM, LETTERS, Question


def user_text(question: Question, order: Sequence[int] = ()) -> str:
    """Return the user's message; ``order``: index of the choice shown at each letter (default: unchanged)."""
    if question.kind not in EXAM:
        return question.question
    shown = [question.choices[i] for i in order] or question.choices
    return exam_text(question.question, shown, question.kind)


def prompt(question: Question, think: str, order: Sequence[int] = (), system: str = SYSTEM) -> Prompt:
    """Return the prompt to send to a target; only an examination has the system text."""
    think = question.think or think
    if question.kind in EXAM:
        return Prompt.chat(user_text(question, order), system, think)
    messages = [Message("user", question.question)]
    if question.called:
        messages += [Message("assistant", calls=(call_of(question.called),)), Message("tool", question.result)]
    return Prompt.conversation(messages, question.tools, think)


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
