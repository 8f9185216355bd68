"""Recall: facts about names and things, and questions about them at a known distance.

The distance of a question is the number of tokens from the fact's value in the text to the answer. Names and things are
chosen at random for every episode, and the text between facts and question has other names and things, so only the fact
itself helps to answer.
"""

from __future__ import annotations

import random
from math import exp, log
from typing import Any

from ...text import protocol
from ...text.rendered import Rendered, TextPart
from .base import OTHER, REPLY, Conversation, Item, Segment, Skill, assistant, no_questions, pick, user
from .english import filler
from .lexicon import NAMES, OBJECTS

RANGES = {"recall/window": (20, 60), "recall/near": (76, 512), "recall/far": (612, 4096)}
"""Skill -> range of distances in tokens: inside the sliding window, within reach of the compressed rows at ratio 4, and
far beyond."""

_FORMS = (("{} keeps the {}.", "What does {} keep?"), ("{} has the {}.", "What does {} have?"))
# by style: number of tokens of one fact; smallest distance (end of fact, end of text, question, start of answer)
_FACT = {"pairs": 3, "sentence": 5}
_LEAST = {"pairs": 6, "sentence": 9}


def make(
    rng: random.Random,
    room: int,
    questions: int,
    name: str,
    pairs: Any = 8,
    distance: Any = None,
    style: Any = "sentence",
    spread: Any = None,
) -> list[Item]:
    """Return the items of an episode: questions about facts of one text. The first question is asked at a chosen
    distance.

    name      name of the skill, a key of ``RANGES``
    pairs     number of facts, 1 to 32
    distance  distance in tokens, up to 10 less because sentences are not cut; None: log-uniform in the skill's range,
              or, in the style "pairs", a text of facts only
    style     form of facts: "pairs" ("Ana lamp") or "sentence" ("Ana keeps the lamp.")
    spread    whether other sentences are between facts; None: either
    """
    count, style = pick(rng, pairs), pick(rng, style)
    low, high = RANGES[name]
    wanted = pick(rng, distance) or round(exp(rng.uniform(log(low), log(high))))
    if style == "pairs" and distance is None:  # the text contains only facts
        wanted = _LEAST[style] + rng.randrange(count) * _FACT[style]
    # the facts before the one that is asked for, and some questions, must also fit into the row
    wanted = max(min(wanted, room - count * _FACT[style] - 40), _LEAST[style])
    mixed = pick(rng, [False, True] if spread is None else spread)

    names, things = rng.sample(NAMES, len(NAMES)), rng.sample(OBJECTS, len(OBJECTS))
    form, asking = rng.choice(_FORMS) if style == "sentence" else ("{} {}", "{}?")
    facts = [form.format(*fact) for fact in zip(names[:count], things[:count], strict=True)]
    between = wanted - _LEAST[style]
    after = rng.randint(0, min(count - 1, between // _FACT[style]))
    others = filler(rng, between - after * _FACT[style], names[count:], things[count:])
    asked = count - 1 - after
    text = facts[: asked + 1] + _mixed(rng, facts[asked + 1 :], others, mixed)
    gap = "\n" if style == "pairs" else " "
    order = [asked, *rng.sample([i for i in range(count) if i != asked], min(count, questions) - 1)]
    items: list[Item] = []
    for i in order:
        question = asking.format(names[i])
        asked_text = question if items else f"{gap.join(text)}\n\n{question}"
        items.append(Item(name, user(asked_text), assistant(things[i]), 1 / count, thought=facts[i]))
    return items


def _mixed(rng: random.Random, facts: list[str], others: list[str], mixed: bool) -> list[str]:
    if not mixed:
        return facts + others
    places = sorted(rng.randint(0, len(others)) for _ in facts)
    for fact, place in zip(reversed(facts), reversed(places), strict=True):
        others.insert(place, fact)
    return others


def _skill(name: str, whole: bool) -> Skill:
    def made(rng: random.Random, room: int, questions: int, **level: Any) -> list[Item]:
        return make(rng, room, questions, name, **level)

    return Skill(name, made, questions=8, tokens=12, whole=whole)


def _echo(rng: random.Random, tokens: int, pairs: Any = (2, 8)) -> Conversation:
    """Return a training row for the first stage: short facts, all of them repeated many times, each time in another
    order.

    The targets are the values of names that occurred before; there are no questions, as each value follows its name.
    """
    count = pick(rng, pairs)
    facts = list(zip(rng.sample(NAMES, count), rng.sample(OBJECTS, count), strict=True))
    between = rng.choice(("", " keeps the"))
    segments = [Segment(tuple(Rendered().protocol(protocol.BOS).parts), 0.0)]
    known: set[str] = set()
    drawn: list[tuple[str, str]] = []
    while 3 * len(drawn) <= tokens:
        drawn += rng.sample(facts, count)
    for name, thing in drawn:
        segments.append(Segment((TextPart(f" {name}{between}", None),), OTHER))
        segments.append(Segment((TextPart(f" {thing}", None),), REPLY if name in known else 0.0))
        segments.append(Segment((TextPart(".", None),), OTHER))
        known.add(name)
    return Conversation(tuple(segments))


SKILLS = (
    Skill("echo", no_questions, whole=True, raw=_echo),
    _skill("recall/window", whole=False),
    _skill("recall/near", whole=True),
    _skill("recall/far", whole=True),
)
