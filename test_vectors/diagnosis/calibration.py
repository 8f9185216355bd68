"""What the confidence of a verdict is worth: the share of such verdicts that were right on simulated engines.

The numbers that a decision rests on go through a logistic regression, one for each kind of verdict, fitted and checked
by ``python -m benchmarks.calibration``; its coefficients and the reliability on engines kept apart are in
calibration.json beside this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from .verdict import PROBLEMS, Diagnosis

PATH = Path(__file__).with_name("calibration.json")

FEATURES: dict[str, dict[str, float]] = {
    "fault": {"odds": 20.0, "gap": 20.0, "misfit": 10.0},
    "clean": {"odds": 20.0, "misfit": 3.0, "hidden": 50.0},
    "unknown": {"odds": 20.0, "misfit": 50.0, "ratio": 10.0},
    "undecided": {"odds": 20.0, "misfit": 50.0, "ratio": 10.0},
}
"""By kind of verdict: the features, with the size beyond which they say nothing more (they are cut there and divided
by it)."""
MOST = 0.98
"""No simulation of some hundred engines supports more than this."""


def kind_of(verdict: str) -> str:
    """Rounding sets are one kind."""
    return verdict if verdict in (*PROBLEMS, "undecided") else "clean"


def vector(kind: str, features: Mapping[str, float]) -> list[float]:
    """Features of a kind, cut and scaled to -1 .. 1."""
    return [float(np.clip(features.get(name, 0.0), -size, size)) / size for name, size in FEATURES[kind].items()]


@cache
def _fitted() -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads(PATH.read_text())["coefficients"]
    return found


def probability(kind: str, features: Mapping[str, float], coefficients: Mapping[str, list[float]]) -> float:
    """Share of such verdicts that are right."""
    w = coefficients[kind]
    value = w[0] + float(np.dot(w[1:], vector(kind, features)))
    return float(np.clip(1 / (1 + np.exp(-value)), 0.005, MOST))


def confidence(result: Diagnosis) -> float:
    """Of a finished verdict; 1 for one that states a fact about the numbers alone."""
    kind = kind_of(result.verdict)
    return probability(kind, result.features, _fitted()) if kind in FEATURES else 1.0
