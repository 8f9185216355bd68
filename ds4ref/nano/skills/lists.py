"""Questions that ask to copy, reverse or sort a short list of digits, letters or words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import factorial
from string import ascii_lowercase, digits
from typing import Any

from .base import Item, Skill, assistant, pick, user
from .lexicon import OBJECTS, TOPIC_WORDS

KINDS: dict[str, Sequence[str]] = {"digits": digits, "letters": ascii_lowercase, "words": OBJECTS + TOPIC_WORDS}
TASKS = {"copy": "Copy", "reverse": "Reverse", "sort": "Sort"}


def solved(task: str, elements: Sequence[str]) -> list[str]:
    """Return the right answer to a task (a key of ``TASKS``) for a list of elements."""
    if task == "sort":
        return sorted(elements)
    return list(reversed(elements)) if task == "reverse" else list(elements)


def _maker(task: str) -> Callable[..., list[Item]]:
    def make(rng: random.Random, room: int, questions: int, length: Any = (3, 8), kind: Any = None) -> list[Item]:
        items = []
        for _ in range(questions):
            n = pick(rng, length)
            elements = rng.sample(KINDS[pick(rng, kind)], n)
            reply = assistant(" ".join(solved(task, elements)))
            asked = user(f"{TASKS[task]}: {' '.join(elements)}")
            items.append(Item(f"lists/{task}", asked, reply, 1 / factorial(n)))
        return items

    return make


SKILLS = tuple(
    Skill(
        f"lists/{task}",
        _maker(task),
        questions=4,
        tokens=22,
        level={"kind": ["digits", "letters"] if task == "sort" else [*KINDS]},
    )
    for task in TASKS
)
