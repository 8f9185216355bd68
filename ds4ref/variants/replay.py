"""Repeat one prompt's pass with something changed at one place, from the half layer on in which it is changed.

    replay = Replay(engine, ids, "exact")
    replay.logits                              (T, V) of the pass as it is
    replay.run(Change("attn_out", 3, "zero", {"attn_out": ...}))

A short prompt's pass takes milliseconds, so that thousands of changes can be tried (``edits``). The residual streams at
every half layer are kept, and everything is causal: the first tokens alone give the first rows, and tokens from a
position on give theirs from the cache of the right pass before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..archs.deepseek4.chunk import HEAD
from ..archs.deepseek4.forward import HALVES, Base
from ..backends import private_backend
from ..engine import Engine
from .faults import Changed, Edit
from .rounding import INPUTS, SETS

FFN = ("hc_ffn", "ffn")


@dataclass(frozen=True, eq=False)
class Change:
    """One change of the pass at one place.

    op     the intermediate at which the mistake would be
    layer  number of the layer, ``HEAD`` for the output head, None for every layer that has the intermediate
    says   what is changed, in words
    edits  functions that replace intermediates, by name
    weights  tensors in place of the layer's, by field of ``LayerWeights``
    inputs   (matrix, function of the input that its product alone gets)
    mask   (T,) bool, the tokens whose intermediates, and the rows of the cache that end with them, are replaced; None:
           all
    share  how far each floating-point intermediate goes from the right value (0) to the replaced one (1)
    part   (axis, i, n) of a change that makes part i of n along an axis zero
    """

    op: str
    layer: int | None
    says: str
    edits: Mapping[str, Edit] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[tuple[Any, Callable[[np.ndarray], np.ndarray]], ...] = ()
    mask: np.ndarray | None = None
    share: float = 1.0
    part: tuple[int, int, int] | None = None


class _Changing:
    """Session hooks that apply a change after the rounding set's own replacements."""

    def __init__(self, begin: Callable[[Any], None] | None, change: Change | None):
        self._begin, self._change = begin, change
        self._taps: dict[str, Any] = {}

    def begin(self, chunk: Any) -> None:
        if self._begin is not None:
            self._begin(chunk)
        for matrix, alter in self._change.inputs if self._change is not None else ():
            chunk.ops = Changed(chunk.ops, **{name: self._fed(chunk, name, matrix, alter) for name in INPUTS})

    def _fed(self, chunk: Any, name: str, matrix: Any, alter: Callable[[np.ndarray], np.ndarray]) -> Callable:
        """Return the product ``name`` that gives ``matrix`` another input."""
        plain, change = getattr(chunk.ops, name), self._change

        def product(x: np.ndarray, *args: Any) -> np.ndarray:
            if change is not None and any(arg is matrix for arg in args[:2]):
                x = blend(x, alter(x), change, chunk)
            return plain(x, *args)

        return product

    def done(self, chunk: Any) -> None:
        """Drop the intermediates and the changed ops, which refer to the chunk: such circles are freed late."""
        self._taps.clear()
        chunk.ops = None

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        change = self._change
        if change is not None:
            edit = change.edits.get(name)
            if edit is not None and change.layer in (None, layer):
                value = blend(value, edit(value, layer, chunk, self._taps), change, chunk)
            self._taps[name] = value
        return value


def blend(value: Any, new: Any, change: Change, chunk: Any) -> Any:
    """Return ``new`` at the change's tokens and to its share, ``value`` elsewhere; both have one shape, or are equally
    long tuples."""
    if isinstance(value, tuple):
        return tuple(blend(a, b, change, chunk) for a, b in zip(value, new, strict=True))
    if not isinstance(value, np.ndarray) or not isinstance(new, np.ndarray):
        return new
    if change.share != 1 and value.dtype.kind == "f":
        new = value + np.float32(change.share) * (new - value)
    if change.mask is not None:
        at = np.arange(chunk.pos0, chunk.pos0 + len(chunk.ids))
        ratio = getattr(chunk, "ratio", 0)  # 0 in the output head
        if value.ndim > 1 and len(value) == chunk.plan.closing.get(ratio):
            at = at[(at + 1) % ratio == 0]  # a row of the cache counts with its last token
        if len(at) == len(value):
            new = np.where(change.mask[at].reshape(-1, *[1] * (value.ndim - 1)), new, value)
    return np.ascontiguousarray(new, value.dtype)


class Replay:
    """One prompt's pass in one rounding set, with changes.

    beside  compute on this thread alone, so that several replays can run at a time
    """

    def __init__(self, engine: Engine, ids: Sequence[int], mode: str, beside: bool = False):
        own = engine.model
        assert isinstance(own, Base)
        ops = private_backend(engine.backend) if beside else own.ops
        self.rounding = SETS[mode]
        self.model = type(own)(own.shape, own.weights, ops, self.rounding.numerics)
        self.model.steering = own.steering
        self.ids = np.asarray(ids, np.int32)
        self.cache = self.model.cache(len(self.ids) + 1, exact=True)
        self._states: dict[tuple[int, str], tuple[np.ndarray, ...]] = {}
        self._before: dict[int, Any] = {0: self.cache.snapshot()}
        self.logits = self._pass(None, 0, len(self.ids), (0, "attn"))

    def run(self, change: Change, until: int | None = None, since: int = 0) -> np.ndarray:
        """Return the logits (n, V) of the first ``until`` tokens (None: all) with a change.

        since  number of tokens that are right, whose logits are left out
        """
        layer = 0 if change.layer is None else change.layer
        ffn = change.layer is not None and change.op.startswith(FFN)
        half = 2 * layer + ffn if layer == HEAD else self.model.restart(2 * layer + ffn)
        start = (half // 2, HALVES[half % 2])
        with np.errstate(all="ignore"):
            if since not in self._before:
                self._pass(Change("", 0, ""), 0, since, (0, "attn"))
                self.cache.advance(since)
                self._before[since] = self.cache.snapshot()
            return self._pass(change, since, len(self.ids) if until is None else until, start)

    def _pass(self, change: Change | None, since: int, until: int, start: tuple[int, str]) -> np.ndarray:
        """Return logits (n, V), beginning at a half layer; without a change, keep the state that enters each."""
        model, first = self.model, start[0]
        self.cache.reset(self._before[since])
        hooks = _Changing(self.rounding.begin, change)
        c = model.chunk(self.ids[since:until], self.cache, hooks)
        weights = list(model.weights.layers)
        if change is not None and change.weights:
            assert change.layer is not None
            weights[change.layer] = replace(weights[change.layer], **change.weights)
        if change is None:
            state = model.enter(c)
        else:
            kept = self._states[start if first != HEAD else (HEAD, "attn")]
            state = tuple(np.ascontiguousarray(part[since:until]) for part in kept)
        for layer, (w, rows) in enumerate(zip(weights, self.cache.layers, strict=True)):
            if not 0 <= first <= layer:
                continue
            c.at_layer(layer, w, rows)
            for half in HALVES:
                if (layer, half) >= start:
                    self._keep(change, layer, half, state)
                    state = model.half_layer(c, half, *state)
        self._keep(change, HEAD, "attn", state)
        logits = np.array(model.head(c, model.collapse(c, *state)))
        hooks.done(c)
        return logits

    def _keep(self, change: Change | None, layer: int, half: str, state: tuple[np.ndarray, ...]) -> None:
        if change is None:
            self._states[layer, half] = tuple(map(np.copy, state))
