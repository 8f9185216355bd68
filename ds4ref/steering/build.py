"""Build directions from pairs of prompts: what a component adds at the last token of a prompt, target minus control.

Of each layer, as ds4's tool does: the unit mean of the differences, without its part along the mean of the controls.
Then tested: half of the pairs are held out. The other half is split into folds, and each fold's pairs are projected on
the direction of the other folds; a layer counts by how often the target lies further along than its control, and not
at all if that could be chance. What the whole half's direction does to the pairs held out is reported, and decides
nothing.

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
"""Two pairs to build from, so that each can be tested on the other's direction, and two held out."""
NOISE = 1e-6
"""Length of a unit vector's remainder below which nothing of it is left."""
CONFIDENCE = 0.95
"""Of all layers together."""
FOLDS = 5


@dataclass(frozen=True)
class Options:
    """How directions are built.

    pair_normalize  differences of pairs count equally, whatever their length
    orthogonalize   remove the part along the mean of the controls
    """

    pair_normalize: bool = False
    orthogonalize: bool = True


@dataclass(frozen=True)
class Layer:
    """Test of one layer.

    weight    factor on the layer's scale, 0..1
    folds     share of the pairs built from, each on the direction of other folds, whose target lies further along
    held_out  the same of the pairs held out, on the direction of all pairs built from
    """

    weight: float
    folds: Interval
    held_out: Interval

    @property
    def separates(self) -> bool:
        """Return whether the pairs held out lie in order more often than chance would have it."""
        return self.held_out.low > 0.5


@dataclass(frozen=True)
class Built:
    """Directions and their test: ``rows`` (layers, width) float32, a ``Layer`` each, numbers of pairs."""

    rows: np.ndarray
    layers: list[Layer]
    pairs: int
    held_out: int

    @property
    def verdict(self) -> str:
        """Return in words what the pairs held out show."""
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
    """Session hooks that keep what ``component`` adds at the newest token: ``rows`` (layers, width) float32."""

    def __init__(self, component: str, layers: int, dim: int):
        self.component, self.rows = component, np.zeros((layers, dim), np.float32)

    def begin(self, chunk: Any) -> None:
        """Do nothing."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Keep the last row of the component, before steering."""
        if name == self.component:
            self.rows[layer] = chunk.ops.host(value[-1:])[0]
        return value


def last_tokens(
    engine: Engine, prompts: Sequence[Sequence[int]], component: str, progress: Callable[[int], None] | None = None
) -> np.ndarray:
    """Return what ``component`` adds at the last token of each prompt, before steering: (prompts, layers, width)."""
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
    """Return x (..., width) as float64 with rows of length 1; rows of zeros stay."""
    length = np.linalg.norm(x := np.asarray(x, np.float64), axis=-1, keepdims=True)
    return x / np.where(length > 0, length, 1)


def directions(target: np.ndarray, control: np.ndarray, options: Options) -> np.ndarray:
    """Return a unit row for each layer (layers, width) of activations (pairs, layers, width); zeros where nothing
    differs."""
    difference = target.astype(np.float64) - control
    d = unit((unit(difference) if options.pair_normalize else difference).mean(axis=0))
    if options.orthogonalize:
        mean = unit(control.mean(axis=0, dtype=np.float64))
        d = d - mean * (mean * d).sum(axis=-1, keepdims=True)
        d[np.linalg.norm(d, axis=-1) < NOISE] = 0
    return unit(d)


def build(target: np.ndarray, control: np.ndarray, options: Options) -> Built:
    """Build directions from activations (pairs, layers, width), every second pair held out, and test them.

    Raise DataError for fewer than ``LEAST_PAIRS`` pairs, and if no layer passes the test that weighs it.
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
    """Return whether each target lies further along its layer's row than its control, bool (pairs, layers)."""
    along: np.ndarray = np.einsum("pld,ld->pl", target.astype(np.float64) - control, rows)
    return along > 0
