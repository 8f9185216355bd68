"""Rows to learn from and questions to be tested with; their seeds never meet."""

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
"""Parts of the rows that start with ds4's default system text, and whose every turn has reasoning, perhaps empty."""

Row = tuple[np.ndarray, np.ndarray]
"""Token ids (tokens,) int32, and the weight of each id as a target (tokens,) float32."""


def held_out(skill: str, count: int, seed: int = 0, **level: Any) -> list[Item]:
    """Return test questions, the same for the same arguments; raise KeyError for an unknown skill."""
    maker = SKILLS[skill]
    level = {**maker.test, **level}
    return [maker.item(random.Random(f"held-out {skill} {seed} {i}"), **level) for i in range(count)]


def held_out_text(tokens: int, seed: int = 0) -> str:
    """Return stories of at least ``tokens`` tokens, for a perplexity."""
    return english.text(random.Random(f"held-out english {seed}"), tokens)


def training_rng(seed: int, index: int) -> random.Random:
    """Return the generator of training row ``index``."""
    return random.Random(f"train {seed} {index}")


def mixture(
    weights: Mapping[str, float],
    rng: random.Random,
    length: int,
    tokenizer: Tokenizer,
    **levels: Mapping[str, Any],
) -> Row:
    """Return one row of ``length`` tokens, cut at its end; raise ValueError if nothing has weight.

    A skill that fills rows gets its weight's share of the rows; the other rows are conversations in which the other
    skills have about their share of the tokens. ``levels`` are the levels of skills by name.
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
    """Return the same question after the default system text, if it has none of its own."""
    if item.messages[0].role == "system":
        return item
    return replace(item, messages=(Message("system", DEFAULT_SYSTEM), *item.messages))


def _row(ids: list[int], targets: list[float], length: int) -> Row:
    """Return arrays; the first token is no target."""
    return np.array(ids[:length], np.int32), np.array([0.0, *targets[1:length]], np.float32)
