"""Questions about facts of an invented world, which are not in the prompt: a model can know them only from training.

128 towns have a ruler, a river, a food and a colour each, fixed by a seed. Training and tests ask about the same facts;
only the phrasing and the text around a question are random.
"""

from __future__ import annotations

import random
from functools import cache

from .base import Item, Skill, assistant, user
from .lexicon import COLOURS, NAMES, TABLES, WORDS

SEED = 20260513
VALUES = {"ruler": NAMES[8:40], "river": WORDS["rivers"], "food": WORDS["foods"], "colour": COLOURS}
TOWNS = tuple(start + end for start in WORDS["starts"] for end in WORDS["ends"])


@cache
def facts() -> dict[tuple[str, str], str]:
    """Return all facts, (town, attribute) -> value; the values of an attribute are about equally frequent."""
    rng = random.Random(f"world {SEED}")
    values = {}
    for attribute, choices in VALUES.items():
        column = [choices[i % len(choices)] for i in range(len(TOWNS))]
        rng.shuffle(column)
        values.update({(town, attribute): value for town, value in zip(TOWNS, column, strict=True)})
    return values


def statement(town: str, attribute: str) -> str:
    """Return the fact about an attribute of a town as a sentence."""
    text: str = TABLES["world"][attribute]["statement"]
    return text.format(town, facts()[town, attribute])


def _make(rng: random.Random, room: int, questions: int) -> list[Item]:
    items = []
    for _ in range(questions):
        town, attribute = rng.choice(TOWNS), rng.choice([*VALUES])
        question = rng.choice(TABLES["world"][attribute]["questions"]).format(town)
        guess = 1 / len(VALUES[attribute])
        reply, thought = assistant(facts()[town, attribute]), statement(town, attribute)
        items.append(Item("facts", user(question), reply, guess, thought=thought))
    return items


SKILLS = (Skill("facts", _make, 8, 13),)
