"""Stages of training, read from ``curriculum.toml``: how long the rows of a stage are, which skills they contain, and
how difficult these are."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rows:
    """One kind of training rows of a stage.

    length   tokens of a row
    share    their share of the stage's tokens
    weights  of skills by name (``mixture``)
    levels   skill -> parameters of difficulty; a pair of integers is a range
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
"""Name of a stage -> its kinds of rows, in the order of training."""
