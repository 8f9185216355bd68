"""Stages of training as data: how long rows are, what they are made of, how hard it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Weights = Mapping[str, float]
Levels = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Rows:
    """Rows of one kind; ``share`` is their part of a stage's tokens.

    length   tokens
    weights  of the skills by name (``mixture``)
    levels   of the skills by name; a pair of integers is a range
    """

    length: int
    share: float
    weights: Weights
    levels: Levels = field(default_factory=dict)


_LOOKUP_LEVELS: Levels = {
    "recall/window": {"pairs": (2, 10)},
    "recall/near": {"pairs": (4, 16), "distance": (40, 200), "style": ["pairs", "sentence", "sentence"]},
    "lists/copy": {"length": (3, 6)},
    "lists/reverse": {"length": (3, 6)},
    "lists/sort": {"length": (3, 6)},
}
_LOOKUP: Weights = {
    "recall/window": 4, "recall/near": 3, "choice": 1, "tools/open": 1,
    "lists/copy": 1, "lists/reverse": 1, "lists/sort": 1, "facts": 1, "sums2": 0.5, "think/sums2": 1, "story": 0.5,
}  # fmt: skip
_MIX_LEVELS: Levels = {
    "recall/window": {"pairs": (2, 12)},
    "recall/near": {"pairs": (2, 16), "distance": (60, 400)},
    "topic": {"tokens": (60, 400)},
}
_MIX: Weights = {
    "recall/window": 1.5, "recall/near": 2, "choice": 2.5, "think/choice": 1,
    "tools/fixed": 1.5, "tools/open": 3, "tools/result": 1.2,
    "english": 1, "story": 0.7, "facts": 1.2, "lists/copy": 0.6, "lists/reverse": 1, "lists/sort": 1,
    "sums2": 0.8, "sums3": 0.8, "think/sums2": 0.8, "think/sums3": 1.2, "topic": 2,
}  # fmt: skip
_SMALL: Weights = {name: weight for name, weight in _MIX.items() if not name.startswith("tools/")}
_LONG_LEVELS: Levels = {
    "recall/far": {"pairs": (4, 32)},
    "recall/near": {"pairs": (4, 32), "distance": (100, 1000)},
}
_LONG: Weights = {"recall/far": 6, "recall/near": 2, "topic": 1, "recall/window": 0.5}

_PAIRS: Rows = Rows(128, 0.8, {"recall/window": 1}, {"recall/window": {"pairs": (2, 8), "style": "pairs"}})

STAGES: dict[str, tuple[Rows, ...]] = {
    # complete facts that were told before
    "echo": (Rows(128, 1.0, {"echo": 1}),),
    # questions about two to eight facts in dense form
    "pairs": (Rows(128, 0.2, {"echo": 1}), _PAIRS),
    # facts as sentences, in the window and up to 200 tokens back; echoes from beyond the window
    "sentences": (
        Rows(256, 1.5, {"echo": 1}, {"echo": {"pairs": (16, 40)}}),
        Rows(128, 0.3, _PAIRS.weights, _PAIRS.levels),
        Rows(128, 0.7, {"recall/window": 1}, {"recall/window": {"pairs": (2, 10)}}),
        Rows(256, 1.0, {"recall/near": 1}, _LOOKUP_LEVELS),
    ),
    # choices gone through for a value
    "search": (Rows(128, 1.0, {"search": 1}),),
    # facts as sentences, choices, new tools, lists
    "lookup": (
        Rows(128, 0.3, {**_LOOKUP, "recall/near": 0, "choice": 0, "tools/open": 0}, _LOOKUP_LEVELS),
        Rows(256, 0.4, {**_LOOKUP, "tools/open": 0}, _LOOKUP_LEVELS),
        Rows(512, 0.3, _LOOKUP, _LOOKUP_LEVELS),
    ),
    # all skills in rows of 256 to 512 tokens; rows with tools are 512 long, as their prompt is 370
    "mix": (Rows(256, 0.3, _SMALL, _MIX_LEVELS), Rows(512, 0.7, _MIX, _MIX_LEVELS)),
    # all skills, and 10 % of the rows' tokens in rows of 1,024 to 4,096
    "long": (
        Rows(256, 0.2, _SMALL, _MIX_LEVELS),
        Rows(512, 0.5, _MIX, _MIX_LEVELS),
        Rows(1024, 0.2, {**_MIX, "recall/far": 2}, _MIX_LEVELS),
        Rows(1024, 0.03, _LONG, _LONG_LEVELS),
        Rows(2048, 0.03, _LONG, _LONG_LEVELS),
        Rows(4096, 0.04, _LONG, _LONG_LEVELS),
    ),
}
"""Kinds of rows of each stage, in the order of training."""
