"""Stories in simple English: two characters, their things and places, with verbs and pronouns that agree.

Characters, things, colours and places stay the same within a story, so that earlier sentences help to predict later
ones. Every word is one token, and so is every full stop, so that sizes are known without a tokenizer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from .base import Conversation, Item, Skill, assistant, pick, plain_text, user
from .lexicon import COLOURS, NAMES, OBJECTS, PLACES, TABLES, WORDS

_STORIES: dict[str, list[Any]] = TABLES["stories"]


def stories(
    rng: random.Random, names: Sequence[str] = NAMES, things: Sequence[str] = OBJECTS, hero: str = ""
) -> Iterator[list[str]]:
    """Yield stories without end, each a list of 5 to 12 sentences, with only these names and things; ``hero``: the main
    character, "" for a random one."""
    while True:
        first = hero or rng.choice(names)
        friend = rng.choice([name for name in names if name != first])
        thing, gift = rng.sample(things, 2)
        home, away = rng.sample(PLACES, 2)
        man = first in WORDS["men"]
        fixed = {
            "hero": first, "friend": friend, "thing": thing, "gift": gift, "home": home, "away": away,
            "colour": rng.choice(COLOURS), "size": rng.choice(_STORIES["sizes"]),
            "he": "he" if man else "she", "He": "He" if man else "She", "him": "him" if man else "her",
            "his": "his" if man else "her",
        }  # fmt: skip
        fixed["animal"], fixed["animals"] = rng.choice(_STORIES["animals"])
        middles = rng.sample(_STORIES["middle"], rng.randint(2, 9))
        story = []
        first_two = (rng.choice(_STORIES[part]) for part in ("first", "second"))
        for template in (*first_two, *middles, rng.choice(_STORIES["last"])):
            mood, other = rng.sample(_STORIES["moods"], 2)
            acts, act = rng.choice(_STORIES["acts"])
            story.append(template.format(**fixed, mood=mood, other=other, acts=acts, act=act))
        yield story


def sentence_size(sentence: str) -> int:
    """Return the number of tokens of a sentence of words of the vocabulary that ends in a full stop."""
    return sentence.count(" ") + 2


def text(rng: random.Random, tokens: int) -> str:
    """Return stories of at least ``tokens`` tokens in all, each a paragraph."""
    paragraphs, size = [], 0
    for story in stories(rng):
        paragraphs.append(" ".join(story))
        size += sum(map(sentence_size, story))
        if size >= tokens:
            break
    return "\n\n".join(paragraphs)


def filler(rng: random.Random, tokens: int, names: Sequence[str], things: Sequence[str]) -> list[str]:
    """Return sentences from stories with these names and things, of ``tokens`` - 10 to ``tokens`` tokens in all."""
    sentences: list[str] = []
    for story in stories(rng, names, things):
        for sentence in story:
            tokens -= sentence_size(sentence)
            if tokens < 0:
                return sentences
            sentences.append(sentence)
    raise AssertionError("stories never end")


def _story(rng: random.Random, room: int, questions: int, sentences: int | tuple[int, int] = (4, 12)) -> list[Item]:
    items = []
    for _ in range(questions):
        hero = rng.choice(NAMES)
        story = next(stories(rng, hero=hero))[: pick(rng, sentences)]
        items.append(Item("story", user(f"Tell a story about {hero}."), assistant(" ".join(story)), 0.0))
    return items


def _plain(rng: random.Random, tokens: int) -> Conversation:
    return plain_text(text(rng, tokens))


SKILLS = (
    Skill("english", _story, 1, 70, whole=True, raw=_plain),
    Skill("story", _story, 1, 70),
)
