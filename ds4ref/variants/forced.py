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

from ..archs.deepseek4.chunk import HEAD
from ..archs.deepseek4.forward import HALVES, Base
from ..archs.deepseek4.forward import Model as Model
from ..archs.deepseek4.hooks import LATER, NAMES, Recorder
from ..archs.deepseek4.weights import LayerWeights, Weights
from ..archs.deepseek41.forward import Model as Model41
from ..archs.dense import blocks
from ..archs.dense.chunk import TENSORS
from ..archs.dense.chunk import Chunk as DenseChunk
from ..archs.dense.forward import Model as DenseModel
from ..engine import Engine
from ..errors import DataError
from ..numerics import Numerics

__all__ = [
    "HEAD", "LATER", "NAMES", "Base", "LayerWeights", "Model", "Model41", "Pass", "Recorder", "Weights", "model_in",
    "model_of", "pass_of", "run_layers",
]  # fmt: skip


def model_of(engine: Engine) -> Any:
    """Return the engine's DeepSeek V4 or V4.1 model; raise DataError for another architecture, whose intermediates
    differ."""
    if not isinstance(engine.model, Base):
        raise DataError(f"{engine.path}: trace works on DeepSeek V4 and V4.1 only, and this is {engine.shape.name}; "
                        "diagnose, doctor, diff and damage work on it")  # fmt: skip
    return engine.model


def model_in(engine: Engine, numerics: Numerics) -> Any:
    """Return the engine's model in another numerics mode, sharing its weights."""
    model = model_of(engine)
    other = type(model)(model.shape, model.weights, model.ops, numerics)
    other.steering = model.steering
    return other


def run_layers(
    model: Any,
    ids: Sequence[int],
    hooks: Any,
    layers: Collection[int] | None = None,
    weights: Mapping[int, Any] | None = None,
    cancel: Callable[[int], None] | None = None,
) -> None:
    """Run all tokens in one chunk through some layers of the model, whose values only the hooks see.

    layers   numbers of the layers, ``HEAD`` for the output head; None: all. If the layer before one is not run, the
             hooks must set what enters it (``ENTERING``)
    weights  weights to use instead of the model's own, by layer number
    cancel   called with each layer's number before the layer is run; may raise to stop
    """
    cache = model.cache(len(ids) + 1, exact=True)
    c = model.chunk(np.asarray(ids, np.int32), cache, hooks)
    replaced = weights or {}
    whole = replaced.get(HEAD) or model.weights
    state = model.enter(c, whole)
    for layer, (w, rows) in enumerate(zip(model.weights.layers, cache.layers, strict=True)):
        if layers is not None and layer not in layers:
            continue
        if cancel is not None:
            cancel(layer)
        c.at_layer(layer, replaced.get(layer) or w, rows)
        for half in HALVES:
            state = model.half_layer(c, half, *state)
    if layers is None or HEAD in layers:
        model.head(c, model.collapse(c, *state), whole)


State = tuple[np.ndarray, ...]


def resumed(
    model: Any, ids: Sequence[int], hooks: Any, half: int = 0, state: State | None = None
) -> tuple[np.ndarray, list[State]]:
    """Run all tokens in one chunk from a half layer on; return logits (T, V) and the states (``Base``) that enter each
    half layer from there on and the output head.

    half   as ``scoped.first_half`` counts
    state  state that enters it; None: from the embedding, with ``half`` 0
    """
    cache = model.cache(len(ids) + 1, exact=True)
    c = model.chunk(np.asarray(ids, np.int32), cache, hooks)
    state = model.enter(c) if state is None else tuple(map(np.copy, state))
    if half:  # hooks of a region enter it when the half layer before it ends
        c.layer = (half - 1) // 2
        state = (c.tap(("hc_attn_post", "hc_ffn_post")[(half - 1) % 2], state[0]), *state[1:])
    states = []
    for layer, (w, rows) in enumerate(zip(model.weights.layers, cache.layers, strict=True)):
        c.at_layer(layer, w, rows)
        for n, name in enumerate(HALVES, 2 * layer):
            if n >= half:
                states.append(tuple(map(np.array, state)))
                state = model.half_layer(c, name, *state)
    states.append(tuple(map(np.array, state)))
    return model.logits(model.collapse(c, *state), 0, hooks), states


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
    Base: Pass(run_layers, "hc_attn_in", "hc_ffn_post"),
    DenseModel: Pass(_dense_layers, "l_in", "l_out", TENSORS),
}


def pass_of(engine: Engine) -> Pass:
    """Return the ``Pass`` of the engine's architecture; raise DataError if teacher forcing does not support it."""
    forced = next((one for kind, one in _PASSES.items() if isinstance(engine.model, kind)), None)
    if forced is None:
        raise DataError(f"{engine.path}: the pass of this family has no points")
    return forced
