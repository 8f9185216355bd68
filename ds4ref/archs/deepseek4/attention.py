"""Attention half of a layer: one softmax over the KV rows of the sliding window and the compressed KV rows
(docs/explanation/model.md 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..inputs import into_part, of_sequence
from . import compressor, hyper_connections, indexer
from .chunk import Chunk
from .shape import CSA

if TYPE_CHECKING:
    import numpy as np

    Tables = tuple[np.ndarray, np.ndarray]


def half_layer(c: Chunk, X: np.ndarray) -> np.ndarray:
    """Apply attention of the current layer to the residual streams X (T, C, D) and return the new streams; write the KV
    rows of the chunk's tokens into the layer's cache."""
    ops, s, w = c.ops, c.shape, c.w
    h, mixing = hyper_connections.pre(c, "attn", X)
    x = c.tap("attn_norm", ops.rms_norm(h, w.attn_norm, s.rms_eps))
    tables = c.tap("rope_tables", c.rope_tables())

    u, q = _query(c, x, tables)
    row = cache_row(c, x, tables)
    projected = compressor.project(c, "attn", x) if c.ratio else None
    wanted = indexer.project(c, x, u, tables) if c.ratio == CSA else None
    joined = ops.array(*q.shape) if c.members else None
    for part, places in c.sequences():
        ops.store_rows(of_sequence(row, places), part.cache.raw, part.at())
        o = _attend(part, of_sequence(q, places), projected, wanted, places, joined)
    o = c.tap("kqv_out", o if joined is None else joined)
    # a cached row is both key and value, so values are rotated, too: undo it with the angles of the query's position
    o = c.tap("kqv_back", ops.rope(o, *tables, inverse=True))
    return hyper_connections.post(c, "attn", c.steer("attn", output(c, o)), mixing)


def _attend(
    c: Chunk,
    q: np.ndarray,
    projected: compressor.Projected | None,
    wanted: indexer.Wanted | None,
    places: slice | None,
    joined: np.ndarray | None,
) -> np.ndarray:
    """Store the compressed rows that one sequence's tokens complete, and return the attention output of its queries
    q (T, H, hd).

    projected, wanted: results of ``project`` for the tokens of all sequences; those of this one are at ``places``.
    joined: array for the results of all sequences, None if there is only one.
    """
    ops, s, w = c.ops, c.shape, c.w
    first, count = c.tap("raw_window", c.raw_window())
    comp_count, selected = c.no_rows(), None
    if projected is not None:
        row = compressor.closed_rows(c, "attn", projected.of(places))
        if row is not None:
            row = c.tap("KVcompress", c.store(c.kv_rounding(row)))
            ops.store_rows(row, c.cache.rows("attn"), c.at(c.ratio))
        comp_count = c.tap("comp_count", c.visible(c.ratio))
    if wanted is not None:
        selected = indexer.select(c, wanted.of(places))
    sinks = c.tap("attn_sinks", w.attn_sinks)
    part = into_part(joined, places)
    return ops.attention(q, c.cache.raw, first, count, c.cache.comp, comp_count, selected, sinks, s.attn_scale, **part)


def _query(c: Chunk, x: np.ndarray, tables: Tables) -> tuple[np.ndarray, np.ndarray]:
    """Return, for the attention input x (T, D), the normed low-rank query u (T, q_rank) and the query heads after RoPE
    q (T, H, hd); ``tables``: cos and sin."""
    ops, s, w = c.ops, c.shape, c.w
    u = c.tap("q_lora", ops.linear(x, w.attn_q_a, c.act(w.attn_q_a)))
    u = c.tap("q_lora_norm", ops.rms_norm(u, w.attn_q_a_norm, s.rms_eps))
    q = ops.linear(u, w.attn_q_b, c.act(w.attn_q_b)).reshape(len(x), s.n_heads, s.head_dim)
    q = c.tap("Qraw", q)
    q = c.tap("Qnorm", ops.rms_norm(q, None, s.rms_eps))
    return u, c.tap("Qcur", ops.rope(q, *tables))


def cache_row(c: Chunk, x: np.ndarray, tables: Tables) -> np.ndarray:
    """Return the rows (T, hd) to cache for the attention input x (T, D), each both key and value: after norm, RoPE and
    the roundings of the numerics mode."""
    ops, w = c.ops, c.w
    kv = c.tap("KVraw", ops.linear(x, w.attn_kv, c.act(w.attn_kv)))
    kv = c.tap("KVnorm", ops.rms_norm(kv, w.attn_kv_a_norm, c.shape.rms_eps))
    kv = c.tap("KVrope", ops.rope(kv[:, None, :], *tables)[:, 0])
    return c.tap("KVcur", c.store(c.kv_rounding(kv)))


def output(c: Chunk, o: np.ndarray) -> np.ndarray:
    """Project the attention output o (T, H, hd) to (T, D) by two matrices: a low-rank one for each group of heads, and
    one for all groups."""
    ops, w = c.ops, c.w
    grouped = o.reshape(len(o), c.shape.o_groups, -1)
    low = c.tap("attn_low", ops.grouped_linear(grouped, w.attn_output_a, c.act(w.attn_output_a)))
    return c.tap("attn_out", ops.linear(low, w.attn_output_b, c.act(w.attn_output_b)))
