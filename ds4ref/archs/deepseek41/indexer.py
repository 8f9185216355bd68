"""Indexer of an index source: selects the compressed rows that a token attends to in this layer and those after it.

The candidate source also chooses blocks of rows, by the best score of each; later index sources score only rows of
these candidate blocks. The newest block is always one of them. The candidate source itself selects from all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..deepseek4.indexer import SCORES_AT_ONCE
from ..inputs import of_sequence
from .chunk import Chunk

if TYPE_CHECKING:
    import numpy as np


class Wanted(NamedTuple):
    """What the indexer computes from the attention inputs of T tokens: query heads (T, Hi, d), and the weight of each
    head's scores (T, Hi)."""

    q: np.ndarray
    weights: np.ndarray

    def of(self, places: slice | None) -> Wanted:
        """Return the part that belongs to one sequence's tokens, which are at ``places`` in the chunk."""
        return Wanted(of_sequence(self.q, places), of_sequence(self.weights, places))


def project(c: Chunk, x: np.ndarray, u: np.ndarray, tables: tuple[np.ndarray, np.ndarray]) -> Wanted | None:
    """Compute query heads and head weights from the attention input x (T, D) and the normed low-rank query u (T,
    q_rank); ``tables``: cos and sin for RoPE.

    Return None if the layer is no index source, or while so few rows exist that all are selected.
    """
    ops, s, w = c.ops, c.shape, c.w
    if c.layer not in s.index_sources or not any(part.scored for part, _ in c.sequences()):
        return None
    iq = ops.linear(u, w.indexer_attn_q_b, "float").reshape(len(x), s.index_heads, s.index_dim)
    iq = c.tap("indexer_q", c.index_rounding(ops.rope(iq, *tables)))
    weights = ops.scale(ops.linear(x, w.indexer_proj, "float"), s.index_scale)
    return Wanted(iq, c.tap("indexer_weights", weights))


def select(c: Chunk, wanted: Wanted | None) -> None:
    """Set ``c.selected``, the numbers of the rows that one sequence's tokens attend to, int32 (T, k), ascending and
    padded with -1; None while there are at most k rows, all selected. The candidate source sets ``c.candidates``,
    too."""
    ops, s, scored = c.ops, c.shape, c.scored
    if wanted is None or not scored:
        c.selected = c.tap("indexer_topk", None)
        return
    rows = c.tap("indexer_rows", c.cache.rows("indexer")[:scored])
    source = c.plan.candidates and c.layer == s.candidate_source
    parts = c.parts(len(rows), SCORES_AT_ONCE)
    run = (lambda q, weights, of: _among_candidates(c, q, rows, weights, of)) if c.narrowed else (
        lambda q, weights, of: _among_all(c, q, rows, weights, of, source)
    )  # fmt: skip
    if len(parts) == 1:
        c.selected, blocks = run(*wanted, slice(None))
        c.selected = c.tap("indexer_topk", c.selected)
    else:
        c.selected = ops.array(len(wanted.q), s.index_topk, dtype="i4")
        blocks = ops.array(len(wanted.q), s.candidate_blocks, dtype="i4") if source else None
        for part in parts:
            selected, some = run(wanted.q[part], wanted.weights[part], part)
            ops.fill(c.selected[part], selected)
            if blocks is not None:
                ops.fill(blocks[part], some)
    if source:
        c.candidates = blocks


def _among_all(
    c: Chunk, q: np.ndarray, rows: np.ndarray, weights: np.ndarray, of: slice, source: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the selected rows of the tokens ``of`` and, if ``source``, their candidate blocks."""
    ops, s, visible = c.ops, c.shape, c.visible(c.ratio)[of]
    scores = c.tap("indexer_scores", ops.index_scores(q, rows, weights, c.rows(c.ratio)))
    blocks = None
    if source:
        best = ops.block_maxima(scores, visible, s.candidate_size, -(-len(rows) // s.candidate_size))
        blocks = c.tap("candidates", ops.select_rows(best, c.visible_blocks()[of], s.candidate_blocks))
    return ops.select_rows(scores, visible, s.index_topk), blocks


def _among_candidates(
    c: Chunk, q: np.ndarray, rows: np.ndarray, weights: np.ndarray, of: slice
) -> tuple[np.ndarray, None]:
    """Return the rows that the tokens ``of`` select among those of their candidate blocks."""
    ops, s, blocks = c.ops, c.shape, c.candidates
    assert blocks is not None
    scores = c.tap("indexer_scores", ops.block_scores(q, rows, weights, blocks[of], s.candidate_size))
    places = ops.select_rows(scores, c.listed()[of], s.index_topk)
    return ops.block_rows(places, blocks[of], s.candidate_size), None
