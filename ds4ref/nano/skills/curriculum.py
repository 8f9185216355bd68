"""Stages of training as data (``curriculum.toml``): how long rows are, what they are made of, how hard it is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rows:
    """Rows of one kind; ``share`` is their part of a stage's tokens.

    length   tokens
    weights  of the skills by name (``mixture``)
    levels   of the skills by name; a pair of integers is a range
    """

    length: int
    share: float
    weights: Mapping[str, float]
    levels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _stages() -> dict[str, tuple[Rows, ...]]:
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    weights, levels = tables["weights"], tables["levels"]
    return {
        stage: tuple(
            Rows(
                kind["length"],
                kind["share"],
                weights.get(kind.get("weights"), {}) | kind.get("but", {}),
                levels.get(kind.get("levels"), {}),
            )
            for kind in kinds
        )
        for stage, kinds in tables["stages"].items()
    }


STAGES = _stages()
"""Kinds of rows of each stage, in the order of training."""
