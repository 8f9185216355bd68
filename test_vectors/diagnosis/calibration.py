"""Priors of the candidates, and the confidence of a verdict; both from simulated engines.

``python -m benchmarks.calibration`` derives the priors from the mix of engines that it draws, and fits one logistic
regression for each kind of verdict on one half of them; the reliability on the other half is stored with both, in
calibration.json beside this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .verdict import PROBLEMS, Diagnosis

PATH = Path(__file__).with_name("calibration.json")

FEATURES: dict[str, dict[str, float]] = {
    "fault": {"odds": 20.0, "gap": 20.0, "misfit": 10.0},
    "clean": {"odds": 20.0, "misfit": 3.0, "hidden": 50.0},
    "unknown": {"odds": 20.0, "misfit": 50.0, "ratio": 10.0},
    "undecided": {"odds": 20.0, "misfit": 50.0, "ratio": 10.0},
}
"""Features of each kind of verdict, with the magnitude at which they are clipped and by which they are divided."""
MAX_CONFIDENCE = 0.98
"""Fifty verdicts of a kind without an error support no more than 1 - 1/50."""


@cache
def _stored() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(PATH.read_text())
    return table


def log_prior(table: str, kind: str, count: float = 1.0) -> float:
    """Log probability of one of ``count`` equally likely members of a kind; ``table`` is "sets" or "kinds"."""
    return float(np.log(_stored()["priors"][table][kind] / count))


def kind_of(verdict: str) -> str:
    """Kind of a verdict: all rounding sets are "clean"."""
    return verdict if verdict in (*PROBLEMS, "undecided") else "clean"


def vector(kind: str, features: Mapping[str, float]) -> list[float]:
    """Features of a kind, clipped and scaled to -1 .. 1."""
    return [float(np.clip(features.get(name, 0.0), -size, size)) / size for name, size in FEATURES[kind].items()]


def probability(kind: str, features: Mapping[str, float], coefficients: Mapping[str, list[float]]) -> float:
    """Predict the share of such verdicts that are right."""
    w = coefficients[kind]
    value = w[0] + float(np.dot(w[1:], vector(kind, features)))
    return float(np.clip(1 / (1 + np.exp(-value)), 0.005, MAX_CONFIDENCE))


def confidence(result: Diagnosis) -> float:
    """Confidence of a finished verdict; 1 for one that states a fact about the numbers alone."""
    kind = kind_of(result.verdict)
    return probability(kind, result.features, _stored()["coefficients"]) if kind in FEATURES else 1.0
