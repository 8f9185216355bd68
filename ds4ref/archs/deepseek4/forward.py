"""The forward pass of a chunk of tokens, layer by layer (docs/explanation/model.md 1.3, 11.2).

Prefill runs chunks of many tokens; decode runs chunks of one token, as a pass that is recorded once and then replayed
(``ds4ref.decode``). A token's result does not depend on the other tokens of its chunk, except for rounding: backends
sum in another order for chunks of many tokens (``ds4ref.kernels.cpu``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import archs
from ...errors import Cancelled
from ...numerics import Numerics
from ..binding import placed
from ..experts import ExpertUse
from ..inputs import Inputs, blank
from . import attention, head, hyper_connections, moe, payload
from .cache import Cache
from .chunk import Chunk, Plan, plan
from .hooks import Hooks
from .rope import RopeTables
from .shape import ModelShape
from .weights import Weights

if TYPE_CHECKING:
    from ...residency.resident import ResidentExperts


HALVES = ("attn", "ffn")
"""Halves of a layer, in order."""


class Base(archs.Model):
    """What the models of DeepSeek's families share: a pass over chunks, recorded passes, saved sessions.

    A family's ``Model`` has its own half layers and output head, and the kinds of its chunks and caches. The *state*
    between half layers is a tuple of arrays, the first one the streams (T, C, D).
    """

    chunk_kind: Any = Chunk
    cache_kind: Any = Cache
    on_host: tuple[str, ...] = ()
    """Weights that stay in the host's memory."""

    def __init__(
        self,
        shape: Any,
        weights: Any,
        ops: Any,
        numerics: Numerics,
        advise: bool = False,
        resident: ResidentExperts | None = None,
    ):
        self.shape, self.ops, self.numerics = shape, ops, numerics
        self.weights = placed(weights, ops, self.on_host)
        self.experts = ExpertUse(ops, self.weights.layers, shape.n_experts, advise, resident)
        self.rope = {c: RopeTables(shape, c, numerics.rope) for c in (False, True)}
        self.tapped: tuple[int, ...] = ()
        """Layers whose streams a DSpark drafter reads; set before the first session."""

    def cache(self, ctx: int, exact: bool = False) -> Any:
        """Return an empty cache for ``ctx`` tokens.

        Rows that the numerics mode rounds to float16 are stored as float16. With ``exact`` they are stored as float32,
        which hooks that change the rounding need.
        """
        return self.cache_kind(self.shape, ctx, self.ops, self.numerics.kv_f16 and not exact, self.tapped)

    def forward(
        self,
        ids: np.ndarray,
        cache: Any,
        hooks: Hooks | None = None,
        cancel: Callable[[], bool] | None = None,
        incoming: np.ndarray | None = None,
    ) -> Any:
        """Run tokens ids (T,) through all layers, advance ``cache`` by T, and return the final streams (T, ...) for
        ``logits``; the state (a tuple) if the model lacks the last layers.

        hooks: see and may replace named intermediates.
        incoming: state of the preceding layers (``joined``), for a model that lacks the first ones
        (``weights.bind_part``).
        Raise Cancelled if ``cancel()``, called between layers, returns true; the caller must then roll back the cache.
        """
        with self.experts.passing(fresh=cache.pos == 0):
            c = self.chunk(ids, cache, hooks)
            c.incoming = incoming
            X = self._layers(c, cache, cancel=cancel)
        cache.advance(len(ids))
        return X

    def chunk(self, ids: np.ndarray, cache: Any, hooks: Hooks | None = None) -> Any:
        """Make room for tokens ids (T,) in ``cache`` and return them as a chunk at its position."""
        cache.reserve(len(ids))
        return self.chunk_kind(self, ids, cache.pos, self._plan(cache, cache.pos, len(ids)), hooks)

    def _plan(self, cache: Any, pos: int, count: int, lasting: bool = False) -> Any:
        """Return the plan of a pass of ``count`` tokens at ``pos``; ``lasting``: one that holds for many positions."""
        raise NotImplementedError

    def enter(self, c: Any, weights: Any = None) -> tuple[Any, ...]:
        """Return the state that enters the first layer; ``weights``: to use instead of the model's own."""
        raise NotImplementedError

    def half_layer(self, c: Any, half: str, *state: Any) -> tuple[Any, ...]:
        """Run a half of the chunk's current layer, "attn" or "ffn"; return the new state."""
        raise NotImplementedError

    def restart(self, half: int) -> int:
        """Return the half layer, at or before ``half``, from which on a pass can be repeated with its state alone: none
        from there on reads what an earlier one made. 2 n is attention of layer n, 2 n + 1 its experts."""
        return half

    def collapse(self, c: Any, *state: Any) -> np.ndarray:
        """Return what ``head`` takes of the state after the last layer."""
        raise NotImplementedError

    def head(self, c: Any, X: np.ndarray, weights: Any = None) -> np.ndarray:
        """Compute logits (T, V) from what ``collapse`` returns; ``weights``: to use instead of the model's own."""
        raise NotImplementedError

    def _layers(self, c: Any, *caches: Any, cancel: Callable[[], bool] | None = None) -> Any:
        """Run a chunk through all layers and return what ``head`` takes; the state without an output head."""
        state = self.enter(c)
        for layer, w in enumerate(self.weights.layers):
            if cancel is not None and cancel():
                raise Cancelled("stopped")
            c.at_layer(layer, w, *(cache.layers[layer] for cache in caches))
            for half in HALVES:
                state = self.half_layer(c, half, *state)
        return state if self.weights.output is None else self.collapse(c, *state)

    def joined(self, state: Sequence[Any], incoming: np.ndarray | None = None) -> np.ndarray:
        """Return the state after a pass as one array on the host, float32 (T, n), which a model of the following layers
        takes as ``incoming``; here ``incoming`` is what this one took."""
        parts = [self.ops.host(part) for part in state]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    def logits(self, X: np.ndarray, pos0: int = 0, hooks: Hooks | None = None) -> np.ndarray:
        """Compute logits (T, V) float32, an array of the backend, from the streams X (T, ...) of tokens, the first one
        at position ``pos0``."""
        return self.head(self.chunk_kind(self, [0] * len(X), pos0, Plan({}, 0), hooks), X)

    # --- saved sessions

    def save(self, file: Any, tokens: Sequence[int], logits: np.ndarray, cache: Any) -> None:
        """Write a session (tokens, last logits (V,), cache) in the format of ``payload``."""
        payload.save(file, self.shape, cache.ctx, tokens, logits, cache)

    def load(self, file: Any, cache: Any) -> tuple[list[int], np.ndarray]:
        """Read a session into an empty cache and return tokens and logits (V,); raise PayloadError for a bad file."""
        return payload.load(file, self.shape, cache)

    def saved_bytes(self, tokens: int) -> int:
        """Return the size of a saved session of ``tokens`` tokens in bytes."""
        return self.shape.payload_bytes(tokens)

    # --- recorded passes of a few tokens (see ``ds4ref.decode``)

    def plan_rows(self, cache: Any, pos: int, count: int) -> tuple[Any, Hashable]:
        """Return the plan of a pass of ``count`` tokens at ``pos``, and a key: passes with equal keys can replay the
        same recording."""
        rows_plan = self._plan(cache, pos, count, lasting=True)
        return rows_plan, rows_plan.key

    def record_rows(
        self, recording: Any, caches: Sequence[Any], counts: Sequence[int], plans: Sequence[Any]
    ) -> tuple[Any, Any, Inputs]:
        """Record the ops of a pass of T tokens in all: ``counts`` tokens, planned by ``plans``, for each of ``caches``.

        Return the pass's streams (T, ...), its logits (T, V) and its inputs; for a model without the output head its
        state, None and its inputs.
        """
        members = [
            self.chunk_kind(self, blank(count), cache.pos, rows_plan, None, recording)
            for cache, count, rows_plan in zip(caches, counts, plans, strict=True)
        ]
        c = members[0]
        if len(members) > 1:
            c = self.chunk_kind(self, blank(sum(counts)), c.pos0, Plan({}, 0), None, recording, members)
        X = self._layers(c, *caches)
        return X, None if self.weights.output is None else self.head(c, X), c.leave()


class Model(Base):
    """The immutable part of a model: shape, weights, ops, numerics. Shared by all sessions."""

    shape: ModelShape
    weights: Weights

    def _plan(self, cache: Any, pos: int, count: int, lasting: bool = False) -> Plan:
        return plan(self.shape, pos, count, cache.index_rows if lasting else 0)

    def enter(self, c: Chunk, weights: Weights | None = None) -> tuple[Any, ...]:
        """Return the streams that enter the first layer."""
        for layer, w in enumerate(self.weights.layers):
            moe.hashed_experts(c, layer, w)
        weights = weights or self.weights
        if weights.token_embd is None:
            return c.state_before()
        return (c.ops.streams(c.ops.embed(weights.token_embd, c.ids), self.shape.hc),)

    def half_layer(self, c: Chunk, half: str, *state: Any) -> tuple[Any, ...]:
        """Run a half of the chunk's current layer on the streams."""
        if half == "attn":
            return (attention.half_layer(c, *state),)
        X = moe.half_layer(c, *state)
        hyper_connections.keep_mean(c, X)
        return (X,)

    def collapse(self, c: Chunk, *state: Any) -> np.ndarray:
        """Return the streams."""
        (X,) = state
        return X

    def head(self, c: Chunk, X: np.ndarray, weights: Weights | None = None) -> np.ndarray:
        """Compute logits (T, V) from streams (T, C, D)."""
        return head.logits(c, weights or self.weights, X)
