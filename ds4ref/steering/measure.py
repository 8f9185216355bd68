"""Measure what steering does to prompts against what it costs, over scales.

Effect: the change of a metric (``metrics``) from the unsteered engine, paired by prompt; intervals hold for all scales
together. Cost: the change of the loss of a text, paired by blocks of tokens, alike. Both are in nats; where the cost
exceeds the effect, steering does more harm than good by this measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engine_options import Steering
from ..runs.stats import Interval, centre_interval, weighted_interval
from .metrics import BLOCK, WARM, Metric, nll
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
    cost     of the loss of the text, nats a token
    """

    scale: float
    effect: Interval
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
            "scale": self.scale, "effect": numbers(self.effect), "cost": numbers(self.cost), "moves": self.moves,
        }  # fmt: skip


@dataclass
class Result:
    """Points by ascending scale, without scale 0; ``base``: mean metric and loss of the unsteered engine."""

    points: list[Point] = field(default_factory=list)
    base: tuple[float, float] = (math.nan, math.nan)
    prompts: int = 0

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
    base_metric, base_loss = _numbers(engine.steered(None), trial)
    result = Result(base=(float(base_metric.mean()), float(base_loss.mean())), prompts=len(trial.prompts))
    for number, scale in enumerate(scales, 1):
        if progress is not None:
            progress(number, len(scales) + 1)
        metric, loss = _numbers(engine.steered(steering_of(rows, trial.component, scale)), trial)
        blocks = np.add.reduceat(loss - base_loss, np.arange(0, len(loss), BLOCK))
        sizes = np.add.reduceat(np.ones(len(loss)), np.arange(0, len(loss), BLOCK))
        effect = centre_interval(metric - base_metric, confidence)
        result.points.append(Point(scale, effect, weighted_interval(blocks, sizes, confidence)))
    return result


def _numbers(engine: Engine, trial: Trial) -> tuple[np.ndarray, np.ndarray]:
    """Return the metric of each prompt (prompts,), and the loss of the text's tokens (tokens,)."""
    metric = np.array([trial.metric(engine, ids) for ids in trial.prompts])
    return metric, nll(engine.session(len(trial.text) + 1), trial.text[:WARM], trial.text[WARM:])
