"""Priors of the candidates and confidence of a verdict, both estimated from simulated engines.

``python -m benchmarks.calibration`` draws a mix of simulated engines; the prior of a kind of mistake or rounding is its
share in this mix. For each kind of verdict, a logistic regression that predicts whether the verdict is right is fitted
on one half of the engines and checked on the other half. The results are in calibration.json beside this module.
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
"""Inputs of the regression by kind of verdict; each is clipped to +-(the number given here) and divided by it."""
MAX_CONFIDENCE = 0.98
"""Upper bound of a confidence: fifty verdicts of a kind without an error support no more than 1 - 1/50."""


@cache
def _stored() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(PATH.read_text())
    return table


def log_prior(table: str, kind: str, count: float = 1.0) -> float:
    """Return the log prior of one of ``count`` equally likely candidates of a kind; ``table`` is "sets" or "kinds"."""
    return float(np.log(_stored()["priors"][table][kind] / count))


def kind_of(verdict: str) -> str:
    """Return the kind of a verdict for calibration: "clean" for every rounding set, else the verdict itself."""
    return verdict if verdict in (*PROBLEMS, "undecided") else "clean"


def vector(kind: str, features: Mapping[str, float]) -> list[float]:
    """Return the features of a kind of verdict as the regression's input, clipped and scaled to -1 .. 1."""
    return [float(np.clip(features.get(name, 0.0), -size, size)) / size for name, size in FEATURES[kind].items()]


def probability(kind: str, features: Mapping[str, float], coefficients: Mapping[str, list[float]]) -> float:
    """Return the probability that a verdict of this kind with these features is right.

    ``coefficients``: by kind, the fitted regression: constant, then one coefficient per feature.
    """
    w = coefficients[kind]
    value = w[0] + float(np.dot(w[1:], vector(kind, features)))
    return float(np.clip(1 / (1 + np.exp(-value)), 0.005, MAX_CONFIDENCE))


def confidence(result: Diagnosis) -> float:
    """Return the confidence of a verdict; 1 for a verdict that needs no calibration ("broken", for example)."""
    kind = kind_of(result.verdict)
    return probability(kind, result.features, _stored()["coefficients"]) if kind in FEATURES else 1.0
