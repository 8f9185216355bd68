"""Multiple choice in the form of ds4-eval: look a fact up, find it among four choices, give its letter."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

from ...text.chat import Message
from ...text.exam import SYSTEM, exam_text
from .base import Item, Skill, assistant, pick, thinking
from .lexicon import NAMES, OBJECTS, PLACES

LETTERS = "ABCD"
_LAST_LINE = re.compile(r"Answer: ([A-Z])")
_RELATIONS = (
    ("{} keeps the {}.", "What does {} keep?", OBJECTS),
    ("{} has the {}.", "What does {} have?", OBJECTS),
    ("{} lives near the {}.", "What is near the house of {}?", PLACES),
)


def given_letter(text: str) -> str:
    """Return the letter that the last line of a reply states; "" if it states none."""
    match = _LAST_LINE.fullmatch(text.rstrip("\n").rpartition("\n")[2])
    return match[1] if match else ""


def _grade(item: Item, text: str) -> dict[str, bool]:
    visible, right = item.visible(text) or "", item.reply.content
    value = visible.partition("\n")[0] == right.partition("\n")[0]
    return {"all": given_letter(visible) == given_letter(right), "value": value}


def _make(rng: random.Random, room: int, questions: int, facts: Any = (4, 8), near: float = 1.0) -> list[Item]:
    """Return questions about 4 or more facts each.

    facts  number of facts
    near   part of the wrong choices that are values of other facts; the rest occur in no fact
    """
    items = []
    for _ in range(questions):
        count = pick(rng, facts)
        form, asking, values = rng.choice(_RELATIONS)
        names, drawn = rng.sample(NAMES, count), rng.sample(values, count + 3)
        asked = rng.randrange(count)
        told = [value for i, value in enumerate(drawn[:count]) if i != asked]
        rng.shuffle(told)
        wrong = [told[i] if rng.random() < near else drawn[count + i] for i in range(3)]
        choices = [drawn[asked], *wrong]
        rng.shuffle(choices)
        text = " ".join(form.format(*fact) for fact in zip(names, drawn, strict=False))
        prompt = exam_text(f"{text}\n{asking.format(names[asked])}", choices, "choice")
        letter = LETTERS[choices.index(drawn[asked])]
        reply = assistant(f"{drawn[asked]}\nAnswer: {letter}")
        messages = (Message("system", SYSTEM), Message("user", prompt))
        thought = f"{form.format(names[asked], drawn[asked])} {letter}. {drawn[asked]}"
        items.append(Item("choice", messages, reply, 0.25, thought=thought, grader=_grade))
    return items


def _make_thinking(rng: random.Random, room: int, questions: int, **level: Any) -> list[Item]:
    return [replace(thinking(item), skill="think/choice") for item in _make(rng, room, questions, **level)]


SKILLS = (
    Skill("choice", "multiple choice in ds4-eval's form", _make, 8, 85, whole=True),
    Skill("think/choice", "multiple choice after the fact is repeated", _make_thinking, 8, 95, whole=True),
)
