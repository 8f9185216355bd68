"""Run some layers of a forward pass with hooks that replace intermediates (teacher forcing).

A hook's ``tap`` returns the value to continue with. If that is the other engine's for every intermediate that the other
engine dumped, each of our ops works on that engine's inputs, so errors do not add up. ``run_layers`` runs only the
requested layers, whose inputs the hooks must provide. ``pass_of`` returns how this is done for an architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..archs.deepseek4 import attention, head, moe
from ..archs.deepseek4.chunk import HEAD
from ..archs.deepseek4.forward import Model
from ..archs.deepseek4.hooks import NAMES, Recorder
from ..archs.deepseek4.weights import LayerWeights, Weights
from ..archs.dense import blocks
from ..archs.dense.chunk import TENSORS
from ..archs.dense.chunk import Chunk as DenseChunk
from ..archs.dense.forward import Model as DenseModel
from ..engine import Engine
from ..errors import DataError
from ..numerics import Numerics
from .library import applicable

__all__ = [
    "HEAD", "NAMES", "LayerWeights", "Model", "Pass", "Recorder", "Weights", "applicable", "model_in", "model_of",
    "pass_of", "run_layers",
]  # fmt: skip


def model_of(engine: Engine) -> Model:
    """Return the engine's DeepSeek V4 model; raise DataError for another architecture, whose intermediates differ."""
    if not isinstance(engine.model, Model):
        raise DataError(f"{engine.path}: trace works on DeepSeek V4 (deepseek4) only, and this is {engine.shape.name}; "
                        "diagnose, doctor, diff and damage work on it")  # fmt: skip
    return engine.model


def model_in(engine: Engine, numerics: Numerics) -> Model:
    """Return the engine's model in another numerics mode, sharing its weights."""
    model = model_of(engine)
    other = Model(model.shape, model.weights, model.ops, numerics)
    other.steering = model.steering
    return other


def run_layers(
    model: Model,
    ids: Sequence[int],
    hooks: Any,
    layers: Collection[int] | None = None,
    weights: Mapping[int, LayerWeights | Weights] | None = None,
    cancel: Callable[[int], None] | None = None,
) -> None:
    """Run all tokens in one chunk through some layers of the model, whose values only the hooks see.

    layers   numbers of the layers, ``HEAD`` for the output head; None: all. If the layer before one is not run, the
             hooks must set its residual streams at ``hc_attn_in``
    weights  weights to use instead of the model's own, by layer number
    cancel   called with each layer's number before the layer is run; may raise to stop
    """
    cache = model.cache(len(ids) + 1, exact=True)
    c = model.chunk(np.asarray(ids, np.int32), cache, hooks)
    replaced = weights or {}
    for layer, w in enumerate(model.weights.layers):
        if layers is None or layer in layers:
            moe.hashed_experts(c, layer, _layer(replaced.get(layer), w))
    whole = replaced.get(HEAD)
    whole = whole if isinstance(whole, Weights) else model.weights
    X = c.ops.streams(c.ops.embed(whole.token_embd, c.ids), model.shape.hc)
    for layer, (w, rows) in enumerate(zip(model.weights.layers, cache.layers, strict=True)):
        if layers is not None and layer not in layers:
            continue
        if cancel is not None:
            cancel(layer)
        c.at_layer(layer, _layer(replaced.get(layer), w), rows)
        X = moe.half_layer(c, attention.half_layer(c, X))
    if layers is None or HEAD in layers:
        head.logits(c, whole, X)


def resumed(
    model: Model, ids: Sequence[int], hooks: Any, half: int = 0, X: np.ndarray | None = None
) -> tuple[np.ndarray, list[np.ndarray]]:  # fmt: skip
    """Run all tokens in one chunk from a half layer on; return logits (T, V) and the residual streams (T, C, D) that
    enter each half layer from there on and the output head.

    half  as ``scoped.first_half`` counts
    X     residual streams that enter it; None: from the embedding, with ``half`` 0
    """
    cache = model.cache(len(ids) + 1, exact=True)
    c = model.chunk(np.asarray(ids, np.int32), cache, hooks)
    for layer, w in enumerate(model.weights.layers):
        moe.hashed_experts(c, layer, w)
    if X is None:
        X = c.ops.streams(c.ops.embed(model.weights.token_embd, c.ids), model.shape.hc)
    if half:  # hooks of a region enter it when the half layer before it ends
        c.layer = (half - 1) // 2
        X = c.tap(("hc_attn_post", "hc_ffn_post")[(half - 1) % 2], X)
    streams = []
    for layer, (w, rows) in enumerate(zip(model.weights.layers, cache.layers, strict=True)):
        c.at_layer(layer, w, rows)
        for n, run in ((2 * layer, attention.half_layer), (2 * layer + 1, moe.half_layer)):
            if n >= half:
                streams.append(np.array(X))
                X = run(c, X)
    return model.logits(X, 0, hooks), [*streams, np.array(X)]


def _layer(replacement: LayerWeights | Weights | None, own: LayerWeights) -> LayerWeights:
    return replacement if isinstance(replacement, LayerWeights) else own


def _dense_layers(model: Any, ids: Sequence[int], hooks: Any, layers: Collection[int]) -> None:
    """Run ``layers`` of a dense decoder; hooks set a layer's input at ``l_in`` if the layer before it is not run."""
    cache = model.cache(len(ids) + 1, exact=True)
    cache.reserve(len(ids))
    c = DenseChunk(model, np.asarray(ids, np.int32), 0, hooks)
    x = blocks.embed(c, model.weights)
    for layer, (w, rows) in enumerate(zip(model.weights.layers, cache.layers, strict=True)):
        if layer in layers:
            c.layer = layer
            x = blocks.feed_forward(c, w, blocks.attention(c, w, [rows], x))
    if HEAD in layers:
        blocks.logits(c, model.weights, x)


@dataclass(frozen=True)
class Pass:
    """How to run single layers of an architecture with teacher forcing.

    run       run(model, ids, hooks, layers) runs all tokens through some layers, HEAD being the output head
    entering  name of the intermediate that is a layer's input, which hooks can set
    leaving   name of the intermediate that is a layer's output
    tensors   names of the weights that produce each intermediate; None: they are listed in ``trace.ops``
    """

    run: Callable[[Any, Sequence[int], Any, Collection[int]], None]
    entering: str
    leaving: str
    tensors: Mapping[str, Sequence[str]] | None = None


_PASSES: dict[Any, Pass] = {
    Model: Pass(run_layers, "hc_attn_in", "hc_ffn_post"),
    DenseModel: Pass(_dense_layers, "l_in", "l_out", TENSORS),
}


def pass_of(engine: Engine) -> Pass:
    """Return the ``Pass`` of the engine's architecture; raise DataError if teacher forcing does not support it."""
    forced = next((one for kind, one in _PASSES.items() if isinstance(engine.model, kind)), None)
    if forced is None:
        raise DataError(f"{engine.path}: the pass of this family has no points")
    return forced
