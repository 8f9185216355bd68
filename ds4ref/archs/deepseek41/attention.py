"""Attention of a layer: one softmax over the rows of its own sliding window and the selected compressed rows of the
last kv source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..deepseek4.attention import cache_row, output
from ..inputs import into_part, of_sequence
from . import compressor, indexer
from .chunk import Chunk

if TYPE_CHECKING:
    import numpy as np


def attend(c: Chunk, x: np.ndarray) -> np.ndarray:
    """Return the output (T, D) of the current layer's attention for its normed input x (T, D); write the rows of the
    chunk's tokens into the layer's cache."""
    ops, s, w = c.ops, c.shape, c.w
    tables = c.tap("rope_tables", c.rope_tables())
    u = latent(c, x)
    q = ops.linear(u, w.attn_q_b, c.act(w.attn_q_b)).reshape(len(x), s.n_heads, s.head_dim)
    q = c.tap("Qcur", ops.rope(c.tap("Qraw", q), *tables))  # no norm of query heads
    row = cache_row(c, x, tables)
    share = rows_and_choice(c, x, u, tables)
    joined = ops.array(*q.shape) if c.members else None
    for part, places in c.sequences():
        ops.store_rows(of_sequence(row, places), part.cache.raw, part.at())
        share(part, places)
        o = _attention(part, of_sequence(q, places), places, joined)
    o = c.tap("kqv_out", o if joined is None else joined)
    # a cached row is both key and value, so values are rotated, too: undo it with the angles of the query's position
    o = c.tap("kqv_back", ops.rope(o, *tables, inverse=True))
    return c.steer("attn", output(c, o))


def latent(c: Chunk, x: np.ndarray) -> np.ndarray:
    """Return the normed low-rank queries u (T, q_rank), of which attention and indexer make theirs."""
    u = c.tap("q_lora", c.ops.linear(x, c.w.attn_q_a, c.act(c.w.attn_q_a)))
    return c.tap("q_lora_norm", c.ops.rms_norm(u, c.w.attn_q_a_norm, c.shape.rms_eps))


def rows_and_choice(
    c: Chunk, x: np.ndarray, u: np.ndarray, tables: tuple[np.ndarray, np.ndarray]
) -> Callable[[Chunk, slice | None], None]:
    """Compute what later layers share: compressed rows if the current layer is a kv source, the choice of rows if it is
    an index source. Return a function that stores it for one sequence and its places in the chunk."""
    projected, wanted = compressor.project(c, x), indexer.project(c, x, u, tables)

    def share(part: Chunk, places: slice | None) -> None:
        if projected is not None:
            compressor.store(part, projected.of(places))
        if c.layer in c.shape.index_sources:
            indexer.select(part, None if wanted is None else wanted.of(places))

    return share


def _attention(c: Chunk, q: np.ndarray, places: slice | None, joined: np.ndarray | None) -> np.ndarray:
    """Return the attention output of one sequence's queries q (T, H, hd), written to ``places`` of ``joined`` if that
    is given."""
    first, count = c.tap("raw_window", c.raw_window())
    comp_count, selected = c.no_rows(), None
    if c.ratio:
        comp_count, selected = c.tap("comp_count", c.visible(c.ratio)), c.selected
    sinks, scale = c.tap("attn_sinks", c.w.attn_sinks), c.shape.attn_scale
    rows, part = c.cache.comp if c.ratio else None, into_part(joined, places)
    return c.ops.attention(q, c.cache.raw, first, count, rows, comp_count, selected, sinks, scale, **part)
