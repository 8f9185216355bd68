"""Questions about the topic of a text, most of whose sentences are about one subject."""

from __future__ import annotations

import random
from typing import Any

from .base import Item, Skill, assistant, pick, user
from .english import sentence_size
from .lexicon import NAMES, PLACES, TABLES, TOPICS

SHARE = 0.6
"""Share of a text's sentences that are about its topic."""
QUESTION = "What is the text mostly about?"


def section(rng: random.Random, topic: str, tokens: int) -> str:
    """Return a text of at least ``tokens`` tokens, with more sentences about ``topic`` than about all other topics
    together."""
    topics: list[str] = []
    sentences: list[str] = []
    size = 0
    others = [name for name in TOPICS if name != topic]
    while size < tokens:
        # never deviate from SHARE by more than one sentence, so that no text has two equally frequent topics
        own = rng.random() < SHARE
        behind = topics.count(topic) - SHARE * len(topics)
        if abs(behind) > 1:
            own = behind < 0
        topics.append(topic if own else rng.choice(others))
        a, b = rng.sample(TOPICS[topics[-1]], 2)
        name, other = rng.sample(NAMES, 2)
        sentences.append(
            rng.choice(TABLES["topic"]["sentences"]).format(a=a, b=b, name=name, other=other, place=rng.choice(PLACES))
        )
        size += sentence_size(sentences[-1])
    return " ".join(sentences)


def _make(rng: random.Random, room: int, questions: int, tokens: Any = (130, 480)) -> list[Item]:
    items = []
    for _ in range(questions):
        topic = rng.choice([*TOPICS])
        text = section(rng, topic, max(40, min(pick(rng, tokens), room - 20)))
        items.append(Item("topic", user(f"{text}\n\n{QUESTION}"), assistant(topic), 1 / len(TOPICS)))
    return items


SKILLS = (Skill("topic", _make, 1, 300, whole=False),)
