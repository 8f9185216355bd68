"""A chunk of V4.1: the tokens that one pass computes together, with the roundings of the numerics mode, and what layers
share within the pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..deepseek4 import chunk
from ..deepseek4.chunk import HEAD as HEAD
from ..deepseek4.chunk import LASTING
from ..deepseek4.chunk import incoming as _incoming
from .hashing import Lookup
from .shape import JOINT, PAIRS, ModelShape
from .weights import LayerWeights

RAW_BLOCK = 32
"""Number of values of an attention row that share a scale."""


class Plan(NamedTuple):
    """Decisions of a pass that follow from the positions of its tokens.

    closing     compression ratio -> number of compressed rows that the chunk completes
    scored      compression ratio -> number of index keys to score; 0 while all rows are selected
    candidates  whether there are more blocks of rows than candidates, so that later index sources score only these
    """

    closing: dict[int, int]
    scored: dict[int, int]
    candidates: bool

    @property
    def key(self) -> tuple[int, ...]:
        """Return a tuple that is equal for plans whose passes run the same ops."""
        return *self.closing.values(), *self.scored.values(), self.candidates


def plan(shape: ModelShape, pos0: int, count: int, ctx: int = 0) -> Plan:
    """Return the plan of a pass of ``count`` tokens, the first one at position ``pos0``.

    ctx: if not 0, the numbers of scored keys are rounded up to powers of two, at least ``LASTING`` and at most what a
    context of ``ctx`` tokens has, so that one recording can be replayed at many positions.
    """
    end, scored = pos0 + count, {}
    for ratio in (JOINT, PAIRS):
        rows = end // ratio
        if rows <= shape.index_topk or ratio not in shape.ratios:
            rows = 0
        elif ctx:
            rows = min(max(LASTING, 1 << (rows - 1).bit_length()), ctx // ratio + 2)
        scored[ratio] = rows
    source = shape.candidate_source
    blocks = 0 if source is None else -(-(end // shape.ratios[source]) // shape.candidate_size)
    closing = {ratio: end // ratio - pos0 // ratio for ratio in (JOINT, PAIRS)}
    return Plan(closing, scored, blocks > shape.candidate_blocks)


class Chunk(chunk.Chunk):
    """The tokens ids (T,) of one pass, at positions pos0 .. pos0 + T - 1.

    tokens, before  the ids and those of the positions before, on the host: Engram's rows follow from them
    selected        rows that the last index source selected, int32 (T, k); None while all are
    candidates      candidate blocks of rows, int32 (T, blocks), once the candidate source has chosen them
    carried         attention input (T, D) that the next part of the model needs, too (``part``)
    """

    plan: Plan  # type: ignore[assignment]
    shape: ModelShape
    w: LayerWeights  # type: ignore[assignment]
    lookups: dict[int, Lookup]

    def __init__(
        self,
        model: Any,
        ids: Sequence[int] | np.ndarray,
        pos0: int,
        plan: Any,
        hooks: Any = None,
        ops: Any = None,
        members: Sequence[Any] = (),
    ):
        self.tokens, self.before = np.array(ids, np.int64), np.zeros(model.shape.engram_grams - 1, np.int64)
        self.lookups = model.lookups
        self.selected: np.ndarray | None = None
        self.candidates: np.ndarray | None = None
        self.carried: np.ndarray | None = None
        super().__init__(model, ids, pos0, plan, hooks, ops, members)

    def move(self, ids: np.ndarray | Sequence[int] | int, pos0: int) -> None:
        """Refill the input arrays in place for other tokens, after ``before`` was set."""
        self.tokens = np.broadcast_to(np.asarray(ids, np.int64), self.tokens.shape)
        super().move(ids, pos0)

    def move_sequences(
        self, tokens: Sequence[Sequence[int]], starts: Sequence[int], caches: Sequence[Any] = ()
    ) -> None:
        """Refill the input arrays; Engram's rows follow from the tokens in the caches, too."""
        for (part, _), ids, pos0, cache in zip(self.sequences(), tokens, starts, caches, strict=True):
            part.before = cache.note(pos0, ids)
        super().move_sequences(tokens, starts, caches)

    def leave(self) -> Any:
        """Drop references to weights, cache and arrays of the pass, keeping the inputs; return the chunk."""
        self.selected = self.candidates = self.carried = None
        return super().leave()

    @property
    def narrowed(self) -> bool:  # type: ignore[override]
        """Return whether the current layer scores only rows of candidate blocks."""
        source = self.shape.candidate_source
        return source is not None and self.plan.candidates and self.layer > source

    @property
    def scored(self) -> int:
        """Return the number of index keys that the current layer scores; 0 while all rows are selected."""
        return self.plan.scored[self.ratio]

    # --- inputs

    def first_weights(self) -> np.ndarray:
        """Return the weights (T, C) of the streams as the first half layer's input: the first stream alone."""

        def compute(c: Chunk) -> tuple[np.ndarray]:
            weights = np.zeros((len(c.ids), c.shape.hc), np.float32)
            weights[:, 0] = 1
            return (weights,)

        return self.input("first", compute)[0]

    def state_before(self, rows: bool = False) -> tuple[np.ndarray, ...]:
        """Return what the preceding layers left: the streams (T, C, D), and the weights (T, C) by which to read them;
        with ``rows`` also the attention input (T, D) of the layer whose rows are read here (``part``)."""
        return self.input("state", lambda c: tuple(_incoming(c, c.shape.hc, *[c.shape.dim] * rows)))

    def visible_blocks(self) -> np.ndarray:
        """Return how many blocks have a row that a token may attend to, int32 (T,), at the candidate source."""
        return self.input("blocks", lambda c: (_blocks(c)[1].astype(np.int32),))[0]

    def listed(self) -> np.ndarray:
        """Return how many rows of its candidate blocks a token may attend to, int32 (T,): they precede all others,
        because blocks are in ascending order and only the newest may be incomplete."""

        def compute(c: Chunk) -> tuple[np.ndarray]:
            rows, blocks = _blocks(c)
            size, most = c.shape.candidate_size, c.shape.candidate_blocks
            return (np.where(blocks > most, (most - 1) * size + (rows - 1) % size + 1, rows).astype(np.int32),)

        return self.input("listed", compute)[0]

    # --- rounding

    def kv_rounding(self, rows: np.ndarray) -> np.ndarray:
        """Return attention rows (n, hd), rounded to E4M3 in blocks of 32 if the mode rounds cached values."""
        return self.ops.round_e4m3(rows, None, RAW_BLOCK) if self.numerics.kv_fp8 else rows

    def row_rounding(self, rows: np.ndarray) -> np.ndarray:
        """Return compressed rows (n, hd), rounded to E2M1 with E4M3 scales if the mode rounds cached values."""
        return self.ops.round_nvfp4(rows) if self.numerics.kv_fp8 else rows

    def index_rounding(self, v: np.ndarray) -> np.ndarray:
        """Return index keys or queries (..., index_dim), rounded to E2M1 if the mode does so."""
        return self.ops.round_e2m1(v) if self.numerics.indexer_qat else v


def _blocks(c: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Return how many rows of the candidate source each token may attend to, and how many blocks these make."""
    source = c.shape.candidate_source
    assert source is not None
    rows = (c.positions + 1) // c.shape.ratios[source]
    return rows, -(-rows // c.shape.candidate_size)
