"""The forward pass of a chunk of tokens, layer by layer. Prefill and decode are the same pass.

Between half layers go the streams X (T, C, D) and the weights (T, C) by which the *next* half layer reads them: its
own coefficients are computed from the same X, but their input weights serve the half layer after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    """The immutable part of a model: shape, weights, ops, numerics. Shared by all sessions."""

    shape: ModelShape
    weights: Weights
    chunk_kind, cache_kind = Chunk, Cache
    on_host = ON_HOST

    def __init__(self, shape: ModelShape, weights: Weights, ops: Any, numerics: Numerics, *more: Any):
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

    def enter(self, c: Chunk, weights: Weights | None = None) -> tuple[Any, ...]:
        """Return the streams that enter the first layer, and the weights by which it reads them."""
        weights = weights or self.weights
        if weights.token_embd is None:
            return c.state_before()
        return c.ops.streams(c.ops.embed(weights.token_embd, c.ids), self.shape.hc), c.first_weights()

    def half_layer(self, c: Chunk, half: str, *state: Any) -> tuple[Any, ...]:
        """Run a half of the chunk's current layer on the streams X (T, C, D), which it reads by weights (T, C); return
        the same of the next half layer."""
        X, weights = state
        if half == "ffn":
            return _half_layer(c, half, X, weights, feed_forward)
        return _half_layer(c, half, engram.apply(c, X) if c.layer in self.lookups else X, weights, self.attend)

    def attend(self, c: Chunk, x: np.ndarray) -> np.ndarray:
        """Return the attention output (T, D) for its normed input x (T, D)."""
        return attention.attend(c, x)

    def restart(self, half: int) -> int:
        """Return the half layer from which on a pass can be repeated: that of the first source of what it reads."""
        before = half + 1
        while half < before:
            before, half = half, min(half, 2 * min(self.shape.needs((half + 1) // 2), default=half))
        return half

    def collapse(self, c: Chunk, *state: Any) -> np.ndarray:
        """Return the weighted sum (T, D) of the final streams."""
        X, weights = state
        c.layer = HEAD
        return c.tap("result_hc", c.ops.hc_reduce(X, c.tap("result_hc_read", weights)))

    def head(self, c: Chunk, X: np.ndarray, weights: Weights | None = None) -> np.ndarray:
        """Compute logits (T, V) from the weighted sum (T, D) of the final streams."""
        c.layer = HEAD
        return head.vocabulary(c, weights or self.weights, X)  # type: ignore[arg-type]


def _half_layer(c: Chunk, half: str, X: np.ndarray, before: np.ndarray, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Apply attention or experts (``block``) to the streams X (T, C, D), read by the weights ``before`` (T, C); return
    the new streams and the weights by which the next half layer reads them."""
    before = c.tap(f"hc_{half}_read", before)
    weights, mixing = coefficients(c, half, X)
    h = c.tap(f"hc_{half}_pre", c.ops.hc_reduce(mixing.X, before))
    x = c.tap(f"{half}_norm", c.ops.rms_norm(h, getattr(c.w, f"{half}_norm"), c.shape.rms_eps))
    return post(c, half, block(c, x), mixing), weights
