"""Prompts for examination questions, used by ds4-eval and to train models for it.

The required forms of the answer's last line are those of ds4's own evaluation (docs/reference/eval.md), so that scores
can be compared; the wording of the prompts is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

SYSTEM = (
    "You are given one difficult question from an examination; reason about it with care before you answer. "
    "The last line of your reply must have exactly the form that the question asks for."
)
_FINAL = "Solve the problem. End with exactly one final line, and write nothing after it:"
_FINAL_LINES = "End with exactly one final line, and write nothing after it:"
FORMS = {
    "choice": (_FINAL, "Answer: <letter>"),
    "integer": (_FINAL, "Answer: <integer>"),
    "text": (_FINAL_LINES, "Answer: <your answer>"),
    "lines": (_FINAL_LINES, "Answer: <line number or comma-separated line numbers>"),
}


def exam_text(question: str, choices: Sequence[str], kind: str) -> str:
    """Return the user's message: question, lettered choices if any, and the required form of the last line.

    kind: key of FORMS, which gives the form; raise KeyError for any other.
    """
    parts = [question, ""]
    if choices:
        lettered = zip(ascii_uppercase, choices, strict=False)
        parts += ["Choices:", *(f"{letter}. {text}" for letter, text in lettered), ""]
    return "\n".join([*parts, *FORMS[kind]])
