"""The pass, some layers of it, with hooks that put other values in: what teacher forcing is made of.

A hook's ``tap`` returns the value to go on with. One that returns another engine's value at every point that engine
dumped makes each op of ours work on that engine's inputs: ``run_layers`` goes through the layers asked for, whatever
the layers between them would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..archs.deepseek4 import attention, head, moe
from ..archs.deepseek4.chunk import HEAD
from ..archs.deepseek4.forward import Model
from ..archs.deepseek4.hooks import NAMES
from ..archs.deepseek4.weights import LayerWeights, Weights
from ..engine import Engine
from ..errors import DataError
from ..numerics import Numerics
from .library import applicable

__all__ = ["HEAD", "NAMES", "LayerWeights", "Model", "Weights", "applicable", "model_in", "model_of", "run_layers"]


def model_of(engine: Engine) -> Model:
    """The engine's model; DataError if it is of a family whose pass has other points than these."""
    if not isinstance(engine.model, Model):
        raise DataError(f"{engine.path}: the points of this pass are not those of {engine.shape.name}")
    return engine.model


def model_in(engine: Engine, numerics: Numerics) -> Model:
    """The engine's model in another numerics mode, the weights shared."""
    model = model_of(engine)
    return Model(model.shape, model.weights, model.ops, numerics)


def run_layers(
    model: Model,
    ids: Sequence[int],
    hooks: Any,
    layers: Collection[int] | None = None,
    weights: Mapping[int, LayerWeights | Weights] | None = None,
    cancel: Callable[[int], None] | None = None,
) -> None:
    """All tokens in one chunk through ``layers`` (None: all), HEAD among them for the output head.

    A layer whose predecessor is left out starts from whatever streams there are: its hooks must put some in at
    ``hc_attn_in``. ``weights`` replaces those of single layers. ``cancel`` is called with each layer's number before it
    is run.
    """
    cache = model.cache(len(ids) + 1, exact=True)
    c = model.chunk(np.asarray(ids, np.int32), cache, hooks)
    given = weights or {}
    for layer, w in enumerate(model.weights.layers):
        if layers is None or layer in layers:
            moe.given_experts(c, layer, _layer(given.get(layer), w))
    whole = given.get(HEAD)
    whole = whole if isinstance(whole, Weights) else model.weights
    X = c.ops.streams(c.ops.embed(whole.token_embd, c.ids), model.shape.hc)
    for layer, (w, rows) in enumerate(zip(model.weights.layers, cache.layers, strict=True)):
        if layers is not None and layer not in layers:
            continue
        if cancel is not None:
            cancel(layer)
        c.at_layer(layer, _layer(given.get(layer), w), rows)
        X = moe.half_layer(c, attention.half_layer(c, X))
    if layers is None or HEAD in layers:
        head.logits(c, whole, X)


def _layer(given: LayerWeights | Weights | None, own: LayerWeights) -> LayerWeights:
    return given if isinstance(given, LayerWeights) else own
