"""Write the prompt for a question: the question itself, its choices, and how the last line must look
(ds4ref/text/exam.py)."""

from __future__ import annotations

from ds4ref.targets import Message, Prompt
from ds4ref.text.exam import SYSTEM, exam_text

from .calls import call_of
from .packs import EXAM, Question


def user_text(question: Question) -> str:
    """Return the user's message for a question."""
    if question.kind not in EXAM:
        return question.question
    return exam_text(question.question, question.choices, question.kind)


def prompt(question: Question, think: str, system: str = SYSTEM) -> Prompt:
    """Return the prompt to send to a target, with the thinking mode ``think`` unless the question has its own; the
    system text ``system`` is used only for questions in the form of an examination."""
    think = question.think or think
    if question.kind in EXAM:
        return Prompt.chat(user_text(question), system, think)
    messages = [Message("user", question.question)]
    if question.called:
        messages += [Message("assistant", calls=(call_of(question.called),)), Message("tool", question.result)]
    return Prompt.conversation(messages, question.tools, think)
