"""Closed-book facts of an invented world: what a model can only know from training.

128 towns have a ruler, a river, a food and a colour each, fixed by a seed. Training and test ask about the same facts;
only the phrasing and what stands around a question are drawn anew.
"""

from __future__ import annotations

import random
from functools import cache

from .base import Item, Skill, assistant, user
from .lexicon import COLOURS, FOODS, NAMES, RIVERS, TOWN_ENDS, TOWN_STARTS

SEED = 20260513
VALUES: dict[str, tuple[str, ...]] = {"ruler": NAMES[8:40], "river": RIVERS, "food": FOODS, "colour": COLOURS}
_QUESTIONS: dict[str, tuple[str, ...]] = {
    "ruler": ("Who rules {}?", "Name the ruler of {}."),
    "river": ("Which river is near {}?", "Name the river of {}."),
    "food": ("What do people eat in {}?", "Name the food of {}."),
    "colour": ("What colour is the flag of {}?", "Name the colour of {}."),
}
_STATEMENTS = {
    "ruler": "{1} rules {0}.",
    "river": "The river {1} is near {0}.",
    "food": "People eat {1} in {0}.",
    "colour": "The flag of {0} is {1}.",
}
TOWNS = tuple(start + end for start in TOWN_STARTS for end in TOWN_ENDS)


@cache
def facts() -> dict[tuple[str, str], str]:
    """Return the value of each (town, attribute); every value of an attribute is about equally frequent."""
    rng = random.Random(f"world {SEED}")
    values = {}
    for attribute, choices in VALUES.items():
        column = [choices[i % len(choices)] for i in range(len(TOWNS))]
        rng.shuffle(column)
        values.update({(town, attribute): value for town, value in zip(TOWNS, column, strict=True)})
    return values


def statement(town: str, attribute: str) -> str:
    """Return a fact as a sentence."""
    return _STATEMENTS[attribute].format(town, facts()[town, attribute])


def _make(rng: random.Random, room: int, questions: int) -> list[Item]:
    items = []
    for _ in range(questions):
        town, attribute = rng.choice(TOWNS), rng.choice([*VALUES])
        question = rng.choice(_QUESTIONS[attribute]).format(town)
        guess = 1 / len(VALUES[attribute])
        reply, thought = assistant(facts()[town, attribute]), statement(town, attribute)
        items.append(Item("facts", user(question), reply, guess, thought=thought))
    return items


SKILLS = (Skill("facts", _make, 8, 13),)
