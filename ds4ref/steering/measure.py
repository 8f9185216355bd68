"""Measures the effect of steering on prompts, and its cost in prediction quality, at several scales.

The effect is the change of a metric (``metrics``) from the unsteered engine, paired by prompt. The cost is the change
of the loss (negative log-likelihood per token) on a text, paired by blocks of tokens. The confidence level of intervals
applies to all scales together. Both are in nats; if the cost is larger than the effect, steering does more harm than
good by this measure.
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

    prompts    token ids of each prompt; the directions must not have been built from these prompts
    text       token ids of the text on which the cost is measured
    metric     function of engine and prompt whose change is the effect
    component  whose output the directions were built from, and is steered: "ffn_out" or "attn_out"
    """

    prompts: Sequence[Sequence[int]]
    text: Sequence[int]
    metric: Metric
    component: str = "ffn_out"


@dataclass
class Point:
    """Results at one scale (the strength of steering), as differences from the unsteered engine.

    effect   change of the metric in nats
    cost     change of the loss on the text, in nats per token
    """

    scale: float
    effect: Interval
    cost: Interval

    @property
    def moves(self) -> int:
        """Return 1 or -1 if the effect is significantly above or below 0, else 0."""
        return (self.effect.known and self.effect.low > 0) - (self.effect.known and self.effect.high < 0)

    @property
    def size(self) -> float:
        """Return the size of the effect, regardless of its sign."""
        return abs(self.effect.estimate)

    @property
    def worth(self) -> float:
        """Return the size of the effect minus the cost; a negative cost counts as 0."""
        return self.size - max(0.0, self.cost.estimate)

    def to_json(self) -> dict[str, Any]:
        """Return the point as JSON-ready data, intervals as [estimate, low, high]."""
        return {
            "scale": self.scale, "effect": numbers(self.effect), "cost": numbers(self.cost), "moves": self.moves,
        }  # fmt: skip


@dataclass
class Result:
    """Results at all scales, in ascending order without scale 0; and the number of prompts.

    ``base`` is (mean metric, mean loss) of the unsteered engine.
    """

    points: list[Point] = field(default_factory=list)
    base: tuple[float, float] = (math.nan, math.nan)
    prompts: int = 0

    @property
    def best(self) -> Point | None:
        """Return the point with the largest ``worth`` among those with a significant effect.

        None if there is no point with a significant effect that is larger than its cost.
        """
        moving = [point for point in self.points if point.moves and point.worth > 0]
        return max(moving, key=lambda point: point.worth, default=None)

    @property
    def verdict(self) -> str:
        """Return a sentence for the user on effect and cost at the best scale."""
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
        """Return the result as JSON-ready data."""
        return {
            "verdict": self.verdict, "prompts": self.prompts, "base": {"metric": self.base[0], "loss": self.base[1]},
            "points": [point.to_json() for point in self.points],
        }  # fmt: skip


def steering_of(rows: np.ndarray, component: str, scale: float) -> Steering:
    """Return the engine's setting that steers the output of ``component`` with the directions ``rows`` at a scale."""
    return Steering(rows, **{"attn": 0.0, "ffn": 0.0, COMPONENTS[component]: scale})


def measure(
    engine: Engine,
    rows: np.ndarray,
    trial: Trial,
    scales: Sequence[float],
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Measure effect and cost of the directions ``rows`` (layers, width) at each of ``scales``.

    The weights of ``engine`` are used, its own steering is not. ``progress`` is called with (scales done, total), which
    includes the unsteered engine.
    """
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
    """Return the metric of each prompt (prompts,), and the loss of each token of the text (tokens,), in nats."""
    metric = np.array([trial.metric(engine, ids) for ids in trial.prompts])
    return metric, nll(engine.session(len(trial.text) + 1), trial.text[:WARM], trial.text[WARM:])
