"""The forward pass of a chunk of tokens, layer by layer. Prefill and decode are the same pass.

Between half layers go the streams X (T, C, D) and the weights (T, C) by which the *next* half layer reads them: its
own coefficients are computed from the same X, but their input weights serve the half layer after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import Cancelled, UsageError
from ...numerics import Numerics
from ..deepseek4 import head, payload
from ..deepseek4.forward import Base
from ..deepseek4.hyper_connections import coefficients, post
from ..deepseek4.moe import feed_forward
from ..deepseek4.rope import RopeTables
from . import attention, engram
from .cache import Cache
from .chunk import HEAD, Chunk, Plan, plan
from .hashing import Lookup
from .shape import ModelShape
from .weights import ON_HOST, Weights

if TYPE_CHECKING:
    import numpy as np

Block = Callable[[Chunk, "np.ndarray"], "np.ndarray"]


class Model(Base):
    """The immutable part of a model: shape, weights, ops, numerics. Shared by all sessions.

    Raise UsageError for numerics mode ds4: which values ds4 rounds in this family is not known.
    """

    shape: ModelShape
    weights: Weights
    chunk_kind, cache_kind = Chunk, Cache
    on_host = ON_HOST

    def __init__(self, shape: ModelShape, weights: Weights, ops: Any, numerics: Numerics, *more: Any):
        if numerics.act_quant:
            raise UsageError(f"numerics {numerics.name} is not known for DeepSeek V4.1: use exact or qat")
        # rows are rounded as trained, but not to float16 as well; routing weights have no floor
        super().__init__(shape, weights, ops, numerics._replace(kv_f16=False, route_floor=False, rope="f64"), *more)
        self.rope = {c: RopeTables(shape, c, "f64") for c in (False, True)}  # type: ignore[arg-type]
        hashing, tables = (
            self.weights.hashing,
            [self.weights.layers[layer].engram_embd for layer in shape.engram_layers],
        )
        self.lookups = {
            layer: Lookup(hashing, which, table)
            for which, (layer, table) in enumerate(zip(shape.engram_layers, tables, strict=True))
            if hashing is not None and table is not None
        }

    def chunk(self, ids: np.ndarray, cache: Any, hooks: Any = None) -> Any:
        """Make room for tokens ids (T,) in ``cache`` and return them as a chunk at its position."""
        c = super().chunk(ids, cache, hooks)
        c.before = cache.note(cache.pos, ids)
        return c

    def load(self, file: Any, cache: Any) -> tuple[list[int], np.ndarray]:
        """Read a session into an empty cache and return tokens and logits (V,); raise PayloadError for a bad file."""
        tokens, logits = payload.load(file, self.shape, cache)  # type: ignore[arg-type]
        cache.note(0, tokens)
        return tokens, logits

    def _plan(self, cache: Any, pos: int, count: int, lasting: bool = False) -> Plan:
        return plan(self.shape, pos, count, cache.ctx if lasting else 0)

    def _layers(self, c: Chunk, *caches: Any, cancel: Callable[[], bool] | None = None) -> np.ndarray:
        """Run a chunk through all layers; return the weighted sum (T, D) of the final streams."""
        X = c.ops.streams(c.ops.embed(self.weights.token_embd, c.ids), self.shape.hc)
        weights = c.first_weights()
        for layer, w in enumerate(self.weights.layers):
            if cancel is not None and cancel():
                raise Cancelled("stopped")
            c.at_layer(layer, w, *(cache.layers[layer] for cache in caches))
            X, weights = self.layer(c, X, weights)
        c.layer = HEAD
        return c.tap("result_hc", c.ops.hc_reduce(X, weights))

    def layer(self, c: Chunk, X: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Run the chunk's current layer on the streams X (T, C, D), which its first half layer reads by ``weights`` (T,
        C); return the same of the next layer."""
        if c.layer in self.lookups:
            X = engram.apply(c, X)
        X, weights = _half_layer(c, "attn", X, weights, attention.attend)
        return _half_layer(c, "ffn", X, weights, feed_forward)

    def _head(self, c: Chunk, X: np.ndarray) -> np.ndarray:
        c.layer = HEAD
        return head.vocabulary(c, self.weights, X)  # type: ignore[arg-type]


def _half_layer(c: Chunk, half: str, X: np.ndarray, before: np.ndarray, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Apply attention or experts (``block``) to the streams X (T, C, D), read by the weights ``before`` (T, C); return
    the new streams and the weights by which the next half layer reads them."""
    weights, mixing = coefficients(c, half, X)
    h = c.tap(f"hc_{half}_pre", c.ops.hc_reduce(mixing.X, before))
    x = c.tap(f"{half}_norm", c.ops.rms_norm(h, getattr(c.w, f"{half}_norm"), c.shape.rms_eps))
    return post(c, half, block(c, x), mixing), weights
