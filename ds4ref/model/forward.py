"""One chunk of tokens through the model, layer by layer (engine.md 3, 3.8).

Decode is a chunk of one token; prefill is a chunk of many. The arithmetic per token does not depend on how the tokens
are cut into chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from ..errors import Cancelled
from ..numerics import Numerics
from ..session.cache import Cache
from ..shape import ModelShape
from ..weights.tensors import Weights
from . import attention, head, moe
from .chunk import Chunk
from .experts import ExpertUse
from .hooks import Hooks
from .rope import RopeTables


class Model:
    """The immutable part: shape, weights, ops, numerics. Shared by all sessions."""

    def __init__(self, shape: ModelShape, weights: Weights, ops: ModuleType, numerics: Numerics, advise: bool = False):
        self.shape, self.weights, self.ops, self.numerics = shape, weights, ops, numerics
        self.experts = ExpertUse(weights.layers, shape.n_experts, advise)
        self.rope = {c: RopeTables(shape, c, numerics.rope) for c in (False, True)}

    def forward(
        self,
        ids: np.ndarray,
        cache: Cache,
        hooks: Hooks | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> np.ndarray:
        """Advance ``cache`` by the tokens ids (T,); returns the final streams (T, C, D), which ``logits`` reads.

        Raises Cancelled between layers if ``cancel()`` turns true; the cache is then the caller's to roll back.
        """
        chunk = Chunk(self, ids, cache.pos, hooks)
        e = self.ops.embed(self.weights.token_embd, chunk.ids)
        X = np.ascontiguousarray(np.broadcast_to(e[:, None, :], (len(ids), self.shape.hc, self.shape.dim)))
        for layer, w in enumerate(self.weights.layers):
            if cancel is not None and cancel():
                raise Cancelled("stopped")
            X = attention.half_layer(chunk, layer, w, X, cache.layers[layer])
            X = moe.half_layer(chunk, layer, w, X)
        cache.pos += len(ids)
        return X

    def logits(self, X: np.ndarray, pos0: int = 0, hooks: Hooks | None = None) -> np.ndarray:
        """Streams X (T, C, D) of tokens from position ``pos0`` on -> logits (T, V) float32."""
        return head.logits(Chunk(self, np.zeros(len(X), np.int32), pos0, hooks), self.weights, X)
