"""Training rows and held-out test questions, which are made from different random seeds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...text.chat import Message
from ...text.protocol import DEFAULT_SYSTEM
from ...text.tokenizer import Tokenizer
from . import english
from .base import Item, encode_segment, item_segments, thinking
from .vocabulary import SKILLS

SYSTEM_SHARE, THINKING_SHARE = 0.15, 0.1
"""Share of the conversations that start with ds4's default system text, and of those in which every reply has
reasoning (which may be empty)."""

Row = tuple[np.ndarray, np.ndarray]
"""Token ids (tokens,) int32, and the weight of each as a training target (tokens,) float32."""


def held_out(skill: str, count: int, seed: int = 0, **level: Any) -> list[Item]:
    """Return ``count`` test questions, the same for equal arguments; raise KeyError for an unknown skill. ``level``:
    parameters of difficulty that replace the skill's."""
    maker = SKILLS[skill]
    level = {**maker.test, **level}
    return [maker.item(random.Random(f"held-out {skill} {seed} {i}"), **level) for i in range(count)]


def held_out_text(tokens: int, seed: int = 0) -> str:
    """Return stories of at least ``tokens`` tokens that are not in training, to measure perplexity."""
    return english.text(random.Random(f"held-out english {seed}"), tokens)


def training_rng(seed: int, index: int) -> random.Random:
    """Return the random number generator for training row ``index``."""
    return random.Random(f"train {seed} {index}")


def mixture(
    weights: Mapping[str, float],
    rng: random.Random,
    length: int,
    tokenizer: Tokenizer,
    **levels: Mapping[str, Any],
) -> Row:
    """Return one training row, cut after ``length`` tokens; raise ValueError if no weight is positive.

    weights: skill -> weight. A skill whose episodes fill rows (``Skill.whole``) gets a share of the rows in proportion
    to its weight; all other rows mix the other skills, whose shares of the tokens are about in proportion to their
    weights. levels: skill -> its parameters of difficulty.
    """
    whole = {name: weight for name, weight in weights.items() if SKILLS[name].whole and weight > 0}
    small = {name: weight for name, weight in weights.items() if not SKILLS[name].whole and weight > 0}
    if not whole and not small:
        raise ValueError("a mixture needs a skill whose weight is positive")
    kinds = [*whole, ""]
    only = rng.choices(kinds, [*whole.values(), sum(small.values())])[0]
    targets: list[float]
    if only and SKILLS[only].raw is not None:
        ids, targets = SKILLS[only].train(rng, length, **levels.get(only, {})).encode(tokenizer)
        return _row(ids, targets, length)
    system = rng.random() < SYSTEM_SHARE
    think = rng.random() < THINKING_SHARE
    per_question = [weight / (SKILLS[name].tokens * (1 + SKILLS[name].questions) / 2) for name, weight in small.items()]
    ids, targets = [], []
    while len(ids) < length:
        name = only or rng.choices([*small], per_question)[0]
        for item in SKILLS[name].episode(rng, length - len(ids), **levels.get(name, {})):
            if system and not ids:
                item = with_system(item)
            if think:
                item = thinking(item)
            for segment in item_segments(item, first=not ids):
                encoded = encode_segment(segment, tokenizer)
                ids += encoded
                targets += [segment.learn] * len(encoded)
    return _row(ids, targets, length)


def with_system(item: Item) -> Item:
    """Return the same question with the default system text before it, unless it has a system text of its own."""
    if item.messages[0].role == "system":
        return item
    return replace(item, messages=(Message("system", DEFAULT_SYSTEM), *item.messages))


def _row(ids: list[int], targets: list[float], length: int) -> Row:
    """Return a row as arrays, cut to ``length`` tokens; the first token is not a target."""
    return np.array(ids[:length], np.int32), np.array([0.0, *targets[1:length]], np.float32)
