"""One chunk of tokens through the model, layer by layer (docs/model.md 1.3, 11.2).

Decode is a chunk of one token, recorded once and replayed (``ds4ref.decode``); prefill is a chunk of many. What a token
gets does not depend on which others are in its chunk, only, through the order of sums in the backend, on whether they
are many: see ``kernels.cpu``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import Cancelled
from ...numerics import Numerics
from . import attention, head, moe, payload
from .cache import Cache
from .chunk import Chunk, Plan, plan
from .experts import ExpertUse
from .hooks import Hooks
from .rope import RopeTables
from .shape import ModelShape
from .weights import Weights, placed

if TYPE_CHECKING:
    import numpy as np


class Model:
    """The immutable part: shape, weights, ops, numerics. Shared by all sessions."""

    def __init__(self, shape: ModelShape, weights: Weights, ops: Any, numerics: Numerics, advise: bool = False):
        self.shape, self.weights, self.ops, self.numerics = shape, placed(weights, ops), ops, numerics
        advise = advise or getattr(ops, "fetching", False)  # experts are on their way while the shared one is computed
        self.experts = ExpertUse(ops, self.weights.layers, shape.n_experts, advise)
        self.rope = {c: RopeTables(shape, c, numerics.rope) for c in (False, True)}

    def cache(self, ctx: int, exact: bool = False) -> Cache:
        """An empty cache for ``ctx`` tokens. Rows that the mode rounds to binary16 are stored as such unless
        ``exact``: hooks may change what is rounded."""
        return Cache(self.shape, ctx, self.ops, self.numerics.kv_f16 and not exact)

    def forward(
        self, ids: np.ndarray, cache: Cache, hooks: Hooks | None = None, cancel: Callable[[], bool] | None = None
    ) -> np.ndarray:
        """Advance ``cache`` by the tokens ids (T,); returns the final streams (T, C, D), which ``logits`` reads.

        Raises Cancelled between layers if ``cancel()`` turns true; the cache is then the caller's to roll back.
        """
        X = self._layers(self.chunk(ids, cache, hooks), cache, cancel)
        cache.advance(len(ids))
        return X

    def chunk(self, ids: np.ndarray, cache: Cache, hooks: Hooks | None = None) -> Chunk:
        """Tokens ids (T,) at the position of ``cache``, which makes room for them."""
        cache.reserve(len(ids))
        return Chunk(self, ids, cache.pos, plan(self.shape, cache.pos, len(ids)), hooks)

    def _layers(self, c: Chunk, cache: Cache, cancel: Callable[[], bool] | None = None) -> np.ndarray:
        for layer, w in enumerate(self.weights.layers):
            moe.given_experts(c, layer, w)
        X = c.ops.streams(c.ops.embed(self.weights.token_embd, c.ids), self.shape.hc)
        for layer, (w, rows) in enumerate(zip(self.weights.layers, cache.layers, strict=True)):
            if cancel is not None and cancel():
                raise Cancelled("stopped")
            c.at_layer(layer, w, rows)
            X = attention.half_layer(c, X)
            X = moe.half_layer(c, X)
        return X

    def logits(self, X: np.ndarray, pos0: int = 0, hooks: Hooks | None = None) -> np.ndarray:
        """Streams X (T, C, D) of tokens from position ``pos0`` on -> logits (T, V) float32, of the backend."""
        return head.logits(Chunk(self, [0] * len(X), pos0, Plan({}, 0), hooks), self.weights, X)

    # --- saved sessions

    def save(self, file: Any, tokens: Sequence[int], logits: np.ndarray, cache: Cache) -> None:
        """Write a session (``payload``)."""
        payload.save(file, self.shape, cache.ctx, tokens, logits, cache)

    def load(self, file: Any, cache: Cache) -> tuple[list[int], np.ndarray]:
        """Read a session into an empty cache: tokens and logits (V,). PayloadError says why not."""
        return payload.load(file, self.shape, cache)

    def saved_bytes(self, tokens: int) -> int:
        """Size of a saved session of ``tokens`` tokens."""
        return payload.size(self.shape, tokens)

    # --- one token, recorded (see ``ds4ref.decode``)

    def plan_token(self, cache: Cache) -> tuple[Plan, Hashable]:
        """What the next token's pass decides from its position, and a key that is equal for equal decisions."""
        found = plan(self.shape, cache.pos, 1, cache.index_rows)
        return found, found.key

    def record_token(self, recording: Any, cache: Cache, found: Plan) -> tuple[Any, Any, Callable[[int, int], None]]:
        """The pass of one token into ``recording``: streams (1, C, D), logits (1, V), and what sets token and position
        before a replay."""
        c = Chunk(self, [0], cache.pos, found, None, recording)
        X = self._layers(c, cache)
        return X, head.logits(c, self.weights, X), c.move
