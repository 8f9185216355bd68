"""Measure what steering does to prompts against what it costs, over scales.

Effect: the change of a metric (``metrics``) from the unsteered engine, paired by prompt; intervals hold for all scales
together. Cost: the change of the loss of a text, paired by blocks of tokens, alike. Both are in nats, so that one
curve shows both; where the cost exceeds the effect, steering does more harm than good by this measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine_options import Steering
from ..runs.stats import Interval, centre_interval, weighted_interval
from .metrics import BLOCK, WARM, Metric, nll, projection
from .sidecar import COMPONENTS, numbers

if TYPE_CHECKING:
    from ..engine import Engine

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Trial:
    """What is measured at every scale.

    prompts    token ids of each prompt, none of which the directions were built from
    text       token ids of the text that the cost is measured on
    metric     function of engine and prompt
    component  what the directions are of, and where they act: "ffn_out" or "attn_out"
    """

    prompts: Sequence[Sequence[int]]
    text: Sequence[int]
    metric: Metric
    component: str = "ffn_out"


@dataclass
class Point:
    """Results at one scale, differences from the unsteered engine.

    effect   of the metric, nats
    along    of the mean projection on the unit directions, after steering
    cost     of the loss of the text, nats a token
    """

    scale: float
    effect: Interval
    along: Interval
    cost: Interval

    @property
    def moves(self) -> int:
        """Return 1 or -1 if the effect is above or below 0 beyond chance, else 0."""
        return (self.effect.known and self.effect.low > 0) - (self.effect.known and self.effect.high < 0)

    @property
    def size(self) -> float:
        """Return the effect's size, whichever way."""
        return abs(self.effect.estimate)

    @property
    def worth(self) -> float:
        """Return the effect's size less the cost; a text that became likelier costs nothing."""
        return self.size - max(0.0, self.cost.estimate)

    def to_json(self) -> dict[str, Any]:
        """Return the point as plain data: estimate, low, high of each."""
        return {
            "scale": self.scale, "effect": numbers(self.effect), "projection": numbers(self.along),
            "cost": numbers(self.cost), "moves": self.moves,
        }  # fmt: skip


@dataclass
class Result:
    """Points by ascending scale, without scale 0; ``base``: mean metric and loss of the unsteered engine."""

    points: list[Point] = field(default_factory=list)
    base: tuple[float, float] = (math.nan, math.nan)
    prompts: int = 0

    def crossing(self, sign: int) -> float | None:
        """Return the scale of this sign, going out from 0, at which the cost first exceeds the effect.

        Of estimates, interpolated between the scales measured; None if it does not up to the last one.
        """
        at, ahead = 0.0, 0.0
        for point in sorted((p for p in self.points if p.scale * sign > 0), key=lambda p: abs(p.scale)):
            if point.worth < 0:
                return at if ahead <= 0 else at + (point.scale - at) * ahead / (ahead - point.worth)
            at, ahead = point.scale, point.worth
        return None

    @property
    def best(self) -> Point | None:
        """Return the point that moves the prompts and is worth most, or None if none moves them for what it costs."""
        moving = [point for point in self.points if point.moves and point.worth > 0]
        return max(moving, key=lambda point: point.worth, default=None)

    @property
    def verdict(self) -> str:
        """Return in words what the prompts show."""
        moving = [point for point in self.points if point.moves]
        if not moving:
            return f"does not move the {self.prompts} prompts: at no scale beyond chance ({CONFIDENCE:.0%})"
        best = self.best
        point = best or max(moving, key=lambda p: p.size)
        e, c = point.effect, point.cost
        text = (
            f"moves the {self.prompts} prompts by {e.estimate:+.3g} nats at scale {point.scale:g} ({CONFIDENCE:.0%} of "
            f"all scales: {e.low:+.3g}..{e.high:+.3g}), for {c.estimate:+.3g} nats a token of the text"
        )
        return text if best else text + ": more than it moves, as at every scale that moves them"

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "verdict": self.verdict, "prompts": self.prompts, "base": {"metric": self.base[0], "loss": self.base[1]},
            "points": [point.to_json() for point in self.points],
            "cost_exceeds_effect": {"above": self.crossing(1), "below": self.crossing(-1)},
        }  # fmt: skip


def steering_of(rows: np.ndarray, component: str, scale: float) -> Steering:
    """Return the steering that acts where the directions were read."""
    return Steering(rows, **{"attn": 0.0, "ffn": 0.0, COMPONENTS[component]: scale})


def measure(
    engine: Engine,
    rows: np.ndarray,
    trial: Trial,
    scales: Sequence[float],
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Measure directions ``rows`` (layers, width) at each of ``scales`` on the weights of ``engine``, unsteered."""
    scales = sorted({scale for scale in scales if scale})
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(scales))
    base = _numbers(engine.steered(None), rows, trial)
    result = Result(base=(float(base[0].mean()), float(base[2].mean())), prompts=len(trial.prompts))
    for number, scale in enumerate(scales, 1):
        if progress is not None:
            progress(number, len(scales) + 1)
        metric, along, loss = _numbers(engine.steered(steering_of(rows, trial.component, scale)), rows, trial)
        blocks = np.add.reduceat(loss - base[2], np.arange(0, len(loss), BLOCK))
        sizes = np.add.reduceat(np.ones(len(loss)), np.arange(0, len(loss), BLOCK))
        result.points.append(
            Point(
                scale,
                centre_interval(metric - base[0], confidence),
                centre_interval(along - base[1], confidence),
                weighted_interval(blocks, sizes, confidence),
            )  # fmt: skip
        )
    return result


def _numbers(engine: Engine, rows: np.ndarray, trial: Trial) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return metric and projection of each prompt (prompts,), and the loss of the text's tokens (tokens,)."""
    metric = np.array([trial.metric(engine, ids) for ids in trial.prompts])
    along = np.array([projection(engine, ids, trial.component, rows) for ids in trial.prompts])
    return metric, along, nll(engine.session(len(trial.text) + 1), trial.text[:WARM], trial.text[WARM:])
