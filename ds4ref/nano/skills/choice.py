"""Multiple-choice questions in the format of ds4-eval: the model must find a fact in a text, find its value among four
choices, and answer with the letter."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...text import protocol
from ...text.chat import Message
from ...text.exam import SYSTEM, exam_text
from ...text.rendered import Rendered, TextPart
from .base import REPLY, Conversation, Item, Segment, Skill, assistant, no_questions, pick, thinking
from .lexicon import NAMES, OBJECTS, PLACES

LETTERS = "ABCD"
_LAST_LINE = re.compile(r"Answer: ([A-Z])")
_RELATIONS = (
    ("{} keeps the {}.", "What does {} keep?", OBJECTS),
    ("{} has the {}.", "What does {} have?", OBJECTS),
    ("{} likes the {}.", "What does {} like?", PLACES),
)


def given_letter(text: str) -> str:
    """Return the letter that the last line of a reply states as "Answer: X"; "" if it states none."""
    match = _LAST_LINE.fullmatch(text.rstrip("\n").rpartition("\n")[2])
    return match[1] if match else ""


def _grade(item: Item, text: str) -> bool:
    return given_letter(item.visible(text) or "") == given_letter(item.reply.content)


def _make(rng: random.Random, room: int, questions: int, facts: Any = (4, 8), near: float = 1.0) -> list[Item]:
    """Return ``questions`` items, each with a text of its own.

    facts  number of facts in a text, at least 4
    near   share of the wrong choices that are values of other facts in the text; the others do not occur in it
    """
    items = []
    for _ in range(questions):
        count = pick(rng, facts)
        form, asking, values = rng.choice(_RELATIONS)
        names, drawn = rng.sample(NAMES, count), rng.sample(values, count + 3)
        asked = rng.randrange(count)
        others = [value for i, value in enumerate(drawn[:count]) if i != asked]
        rng.shuffle(others)
        wrong = [others[i] if rng.random() < near else drawn[count + i] for i in range(3)]
        choices = [drawn[asked], *wrong]
        rng.shuffle(choices)
        text = " ".join(form.format(*fact) for fact in zip(names, drawn, strict=False))
        prompt = exam_text(f"{text}\n{asking.format(names[asked])}", choices, "choice")
        letter = LETTERS[choices.index(drawn[asked])]
        working, last = (
            f"{form.format(names[asked], drawn[asked])} {gone_through(choices, drawn[asked])}",
            f"Answer: {letter}",
        )
        reply = assistant(f"{working}\n{last}")
        messages = (Message("system", SYSTEM), Message("user", prompt))
        items.append(Item("choice", messages, reply, 0.25, thought=working, brief=last, grader=_grade))
    return items


def _make_thinking(rng: random.Random, room: int, questions: int, **level: Any) -> list[Item]:
    return [replace(thinking(item), skill="think/choice") for item in _make(rng, room, questions, **level)]


def gone_through(choices: Sequence[str], wanted: str) -> str:
    """Return the choices with their letters, from the first to the wanted one, as the reasoning writes them."""
    last = choices.index(wanted)
    return " ".join(f"{letter}. {value}" for letter, value in zip(LETTERS, choices[: last + 1], strict=False))


def _search(rng: random.Random, tokens: int) -> Conversation:
    """Return training rows for a part of ``choice``: lists of choices, each followed by three searches for a value.

    A search writes the choices again, up to the wanted value. That is easier to learn than looking back from a value to
    the letter before it.
    """
    segments = [Segment(tuple(Rendered().protocol(protocol.BOS).parts), 0.0)]
    size = 0
    while size <= tokens:
        values = rng.sample(rng.choice((OBJECTS, PLACES)), len(LETTERS))
        lines = "".join(f"\n{letter}. {value}" for letter, value in zip(LETTERS, values, strict=True))
        segments.append(Segment((TextPart(f"{lines}\n\n", None),), 0.0))
        for value in rng.choices(values, k=3):
            segments.append(Segment((TextPart(f" the {value}.", None),), 0.0))
            segments.append(Segment((TextPart(f" {gone_through(values, value)}\n", None),), REPLY))
        size += 45
    return Conversation(tuple(segments))


SKILLS = (
    Skill("search", no_questions, whole=True, raw=_search),
    Skill("choice", _make, 8, 85, whole=True),
    Skill("think/choice", _make_thinking, 8, 95, whole=True),
)
