"""The forward pass of a chunk of tokens through a dense decoder, layer by layer.

Prefill runs chunks of many tokens. Decode runs chunks of one token, as a pass that is recorded once, by the same
functions, and then replayed (``ds4ref.decode``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import archs
from ...errors import Cancelled
from ...numerics import Numerics
from ..binding import placed
from ..experts import ExpertUse
from ..inputs import Inputs, blank
from . import blocks, payload
from .cache import Cache
from .chunk import Chunk
from .rope import RopeTables
from .shape import DenseShape, Scaling
from .weights import Weights

if TYPE_CHECKING:
    import numpy as np

    from ...residency.resident import ResidentExperts


def of_family(mode: Numerics) -> Numerics:
    """Return a numerics mode adapted to these families, which unlike DeepSeek V4 are trained without rounding of
    intermediates.

    Only mode ``ds4`` rounds: inputs of quantized matrices to 8 bits and cached rows to float16, as llama.cpp does. RoPE
    angles are computed in float64, except in mode ``exact``, which computes them as Hugging Face does.
    """
    rounds = mode.act_quant
    rope = mode.rope if mode.rope == "f32" else "f64"
    return mode._replace(kv_fp8=False, kv_f16=rounds, indexer_qat=False, route_floor=False, rope=rope)


class Model(archs.Model):
    """The immutable part of a model: shape, weights, ops, numerics. Shared by all sessions."""

    def __init__(
        self,
        shape: DenseShape,
        weights: Weights,
        ops: Any,
        numerics: Numerics,
        advise: bool = False,
        resident: ResidentExperts | None = None,
    ):
        self.shape, self.weights, self.ops = shape, placed(weights, ops, on_host=("rope_freqs",)), ops
        self.numerics = of_family(numerics)
        layers = self.weights.layers if shape.n_experts else []
        self.experts = ExpertUse(ops, layers, shape.n_experts, advise, resident)
        self.rope = RopeTables(shape, self.numerics.rope, weights.rope_freqs)
        self.window_rope = self.rope
        if shape.window_theta:
            plain = replace(shape, scaling=Scaling(gain=shape.scaling.gain))
            self.window_rope = RopeTables(plain, self.numerics.rope, theta=shape.window_theta)

    def cache(self, ctx: int, exact: bool = False) -> Cache:
        """Return an empty cache for ``ctx`` tokens.

        Rows that the numerics mode rounds to float16 are stored as float16. With ``exact`` they are stored as float32,
        which hooks that change the rounding need.
        """
        return Cache(self.shape, ctx, self.ops, self.numerics.kv_f16 and not exact)

    def forward(
        self, ids: np.ndarray, cache: Cache, hooks: Any = None, cancel: Callable[[], bool] | None = None
    ) -> np.ndarray:
        """Run tokens ids (T,) through all layers, advance ``cache`` by T, and return the residual stream (T, D) for
        ``logits``.

        hooks: see and may replace named intermediates.
        Raise Cancelled if ``cancel()``, called between layers, returns true; the caller must then roll back the cache.
        """
        cache.reserve(len(ids))
        with self.experts.passing(fresh=cache.pos == 0):
            x = self._layers(Chunk(self, ids, cache.pos, hooks), cache, cancel=cancel)
        cache.advance(len(ids))
        return x

    def _layers(self, c: Chunk, *caches: Cache, cancel: Callable[[], bool] | None = None) -> np.ndarray:
        x = c.tap("inp_embd", blocks.embed(c, self.weights))
        for layer, w in enumerate(self.weights.layers):
            if cancel is not None and cancel():
                raise Cancelled("stopped")
            c.layer = layer
            x = blocks.feed_forward(c, w, blocks.attention(c, w, [cache.layers[layer] for cache in caches], x))
        return x

    def logits(self, X: np.ndarray, pos0: int = 0, hooks: Any = None) -> np.ndarray:
        """Compute logits (T, V) float32, an array of the backend, from the residual stream X (T, D) of tokens, the
        first one at position ``pos0``."""
        return blocks.logits(Chunk(self, [0] * len(X), pos0, hooks), self.weights, X)

    # --- saved sessions

    def save(self, file: Any, tokens: Sequence[int], logits: np.ndarray, cache: Cache) -> None:
        """Write a session (tokens, last logits (V,), cache) in the format of ``payload``."""
        payload.save(file, self.shape, self.numerics.kv_f16, tokens, logits, cache)

    def load(self, file: Any, cache: Cache) -> tuple[list[int], np.ndarray]:
        """Read a session into an empty cache and return tokens and logits (V,); raise PayloadError for a bad file."""
        return payload.load(file, self.shape, self.numerics.kv_f16, cache)

    def saved_bytes(self, tokens: int) -> int:
        """Return the size of a saved session of ``tokens`` tokens in bytes."""
        return payload.size(self.shape, self.numerics.kv_f16, tokens)

    # --- recorded passes of a few tokens (see ``ds4ref.decode``)

    def plan_rows(self, cache: Cache, pos: int, count: int) -> tuple[None, Hashable]:
        """Return None as the plan, and a constant key: the same ops run at every position, so one recording can be
        replayed for all tokens."""
        return None, ()

    def record_rows(
        self, recording: Any, caches: Sequence[Cache], counts: Sequence[int], plans: Sequence[None]
    ) -> tuple[Any, Any, Inputs]:
        """Record the ops of a pass of T tokens in all, ``counts`` tokens for each of ``caches``; return its residual
        stream (T, D), its logits (T, V) and its inputs."""
        sequences = zip(caches, counts, strict=True)
        members = [Chunk(self, blank(count), cache.pos, None, recording) for cache, count in sequences]
        c = members[0]
        if len(members) > 1:
            c = Chunk(self, blank(sum(counts)), c.pos0, None, recording, members)
        x = self._layers(c, *caches)
        return x, blocks.logits(c, self.weights, x), c.leave()
