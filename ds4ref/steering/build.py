"""Builds directions from pairs of prompts, a target and a control each.

The difference of a pair is that of what a component (attention or FFN) adds to the residual at the last token of each
prompt, target minus control. A layer's direction is computed as by ds4's tool: the mean of the differences, without its
part along the mean of the controls, scaled to length 1.

Then the directions are tested. Half of the pairs are held out. The other half is split into folds, and the pairs of
each fold are projected on the direction built from the other folds. The more often the target lies further along the
direction than its control, the larger is the layer's weight; it is 0 if that could be chance. How the direction of the
whole half separates the held-out pairs is only reported.

    built = build(last_tokens(engine, good, "ffn_out"), last_tokens(engine, bad, "ffn_out"), Options())
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError
from ..runs.stats import Interval, wilson

if TYPE_CHECKING:
    from ..engine import Engine

LEAST_PAIRS = 4
"""Minimum number of pairs: two to build from, so that each can be tested on the other's direction, and two held out."""
NOISE = 1e-6
"""Length below which what remains of a unit vector, after removing a part, is only rounding error."""
CONFIDENCE = 0.95
"""Confidence level of the tests of all layers together."""
FOLDS = 5


@dataclass(frozen=True)
class Options:
    """How directions are built.

    pair_normalize  scale the difference of each pair to length 1, so that all count equally
    orthogonalize   remove the part along the mean of the controls
    """

    pair_normalize: bool = False
    orthogonalize: bool = True


@dataclass(frozen=True)
class Layer:
    """Result of testing the direction of one layer.

    A pair is in order if its target lies further along the direction than its control.

    weight    how strongly the layer is steered, 0 to 1
    folds     share of the pairs in order, of those built from, each on the direction built from other folds
    held_out  share of the held-out pairs in order, on the direction built from all others
    """

    weight: float
    folds: Interval
    held_out: Interval

    @property
    def separates(self) -> bool:
        """Return whether significantly more than half of the held-out pairs are in order."""
        return self.held_out.low > 0.5


@dataclass(frozen=True)
class Built:
    """Directions and the results of their test.

    rows      direction of each layer, times the square root of its weight, (layers, width) float32
    layers    test of each layer
    pairs     number of pairs that the directions were built from
    held_out  number of pairs held out
    """

    rows: np.ndarray
    layers: list[Layer]
    pairs: int
    held_out: int

    @property
    def verdict(self) -> str:
        """Return a sentence on how well the directions separate the held-out pairs."""
        good = [n for n, layer in enumerate(self.layers) if layer.separates and self.rows[n].any()]
        if not good:
            return f"does not separate the {self.held_out} pairs held out, in any layer"
        best = max(good, key=lambda n: self.layers[n].held_out.low)
        share = self.layers[best].held_out
        return (
            f"separates the {self.held_out} pairs held out in {len(good)} of {len(self.layers)} layers; best layer "
            f"{best}: {share.estimate:.0%} in order ({share.low:.0%}..{share.high:.0%})"
        )


class LastToken:
    """Session hooks that keep what a component of each layer adds at the newest token.

    component   "ffn_out" or "attn_out"
    rows        what it adds, (layers, width) float32
    """

    def __init__(self, component: str, layers: int, dim: int):
        self.component, self.rows = component, np.zeros((layers, dim), np.float32)

    def begin(self, chunk: Any) -> None:
        """Do nothing at the beginning of a chunk."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Keep the last token's value if ``name`` is the component, and return ``value`` unchanged."""
        if name == self.component:
            self.rows[layer] = chunk.ops.host(value[-1:])[0]
        return value


def last_tokens(
    engine: Engine, prompts: Sequence[Sequence[int]], component: str, progress: Callable[[int], None] | None = None
) -> np.ndarray:
    """Return what ``component`` of each layer adds at the last token of each prompt, (prompts, layers, width) float32.

    Prompts are token ids; the values are those before steering. ``progress`` is called with the number of prompts done.
    """
    out = np.empty((len(prompts), engine.shape.n_layers, engine.shape.dim), np.float32)
    for number, ids in enumerate(prompts):
        session = engine.session(len(ids) + 1)
        session.hooks = hooks = LastToken(component, *out.shape[1:])
        session.sync(ids)
        out[number] = hooks.rows
        if progress is not None:
            progress(number + 1)
    return out


def unit(x: np.ndarray) -> np.ndarray:
    """Return the vectors ``x`` (..., width) scaled to length 1, as float64; zero vectors stay zero."""
    length = np.linalg.norm(x := np.asarray(x, np.float64), axis=-1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def directions(target: np.ndarray, control: np.ndarray, options: Options) -> np.ndarray:
    """Return the direction of each layer, of length 1, (layers, width) float64; zeros if nothing differs in a layer.

    ``target`` and ``control`` are activations, (pairs, layers, width).
    """
    difference = target.astype(np.float64) - control
    d = unit((unit(difference) if options.pair_normalize else difference).mean(axis=0))
    if options.orthogonalize:
        mean = unit(control.mean(axis=0, dtype=np.float64))
        d = d - mean * (mean * d).sum(axis=-1, keepdims=True)
        d[np.linalg.norm(d, axis=-1) < NOISE] = 0
    return unit(d)


def build(target: np.ndarray, control: np.ndarray, options: Options) -> Built:
    """Build directions from the activations ``target`` and ``control`` (pairs, layers, width), and test them.

    Every second pair is held out. Raise DataError for fewer than ``LEAST_PAIRS`` pairs, or if all layers have weight 0.
    """
    if len(target) < LEAST_PAIRS:
        raise DataError(f"{len(target)} pairs of prompts are too few: at least {LEAST_PAIRS}, half of them held out")
    (t, held_t), (c, held_c) = ((x[::2], x[1::2]) for x in (target, control))
    folds = np.arange(len(t)) % min(FOLDS, len(t))
    right = np.zeros(t.shape[:2], bool)
    for fold in range(folds.max() + 1):
        inside = folds == fold
        right[inside] = in_order(directions(t[~inside], c[~inside], options), t[inside], c[inside])
    rows = directions(t, c, options)
    held_out = in_order(rows, held_t, held_c)
    confidence = 1 - (1 - CONFIDENCE) / len(rows)
    layers = []
    for layer in range(len(rows)):
        shares = [wilson(float(x[:, layer].sum()), len(x), confidence) for x in (right, held_out)]
        weight = 2 * shares[0].estimate - 1 if shares[0].low > 0.5 else 0.0
        layers.append(Layer(weight, *shares))
    weights = np.array([layer.weight for layer in layers])
    if not (weights[:, None] * rows).any():
        raise DataError(
            f"no layer tells targets from controls: of {len(t)} pairs, tested on directions of others, at most "
            f"{right.mean(axis=0).max():.0%} lie in order; more pairs may"
        )
    return Built((np.sqrt(weights)[:, None] * rows).astype(np.float32), layers, len(t), len(held_t))


def in_order(rows: np.ndarray, target: np.ndarray, control: np.ndarray) -> np.ndarray:
    """Return whether each target lies further along its layer's direction than its control, bool (pairs, layers).

    ``rows`` has the directions, (layers, width).
    """
    along: np.ndarray = np.einsum("pld,ld->pl", target.astype(np.float64) - control, rows)
    return along > 0
