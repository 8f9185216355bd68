"""Attention half of a layer: window rows and compressed rows in one softmax (engine.md 3.3)."""

from __future__ import annotations

import numpy as np

from ..session.cache import LayerCache
from ..weights.tensors import LayerWeights
from . import compressor, hyper_connections, indexer
from .chunk import Chunk


def half_layer(chunk: Chunk, layer: int, w: LayerWeights, X: np.ndarray, cache: LayerCache) -> np.ndarray:
    """Streams X (T, C, D) in and out; appends this chunk's rows to ``cache``."""
    ops, shape = chunk.ops, chunk.shape
    h, mixing = hyper_connections.pre(chunk, "attn", layer, X, w.hc_attn_fn, w.hc_attn_scale, w.hc_attn_base)
    x = chunk.tap("attn_norm", layer, ops.rms_norm(h, w.attn_norm, shape.rms_eps))
    ratio = shape.ratios[layer]
    tables = chunk.tap("rope_tables", layer, chunk.rope_tables(ratio != 0))

    u, q = _query(chunk, layer, w, x, tables)
    kv = _row(chunk, layer, w, x, tables)
    raw, base = cache.raw.append(kv)
    first = np.maximum(chunk.positions - (shape.window - 1), 0)
    window = (first - base).astype(np.int32), (chunk.positions - first + 1).astype(np.int32)
    first_row, row_count = chunk.tap("raw_window", layer, window)

    comp, selected = None, None
    comp_count = np.zeros(len(x), np.int32)
    if ratio:
        rows = compressor.emit_rows(chunk, "attn", layer, x, w.compressor("attn"), cache.comp_state)
        if len(rows):
            cache.comp.append(chunk.tap("KVcompress", layer, chunk.store(chunk.kv_rounding(rows))))
        comp_count = chunk.tap("comp_count", layer, chunk.visible(ratio))
        if ratio == 4:
            selected = indexer.select(chunk, layer, w, x, u, tables, cache)
        comp = cache.comp.rows if len(cache.comp) else None

    sinks = chunk.tap("attn_sinks", layer, w.attn_sinks)
    scale = shape.head_dim**-0.5
    o = ops.attention(q, raw, first_row, row_count, comp, comp_count, selected, sinks, scale)
    o = chunk.tap("kqv_out", layer, o)
    # values carry rope because keys and values are one row: take it off again at the query's position
    o = chunk.tap("kqv_back", layer, ops.rope(o, *tables, inverse=True))
    y = _output(chunk, layer, w, o)
    return hyper_connections.post(chunk, "attn", layer, y, mixing)


def _query(
    chunk: Chunk, layer: int, w: LayerWeights, x: np.ndarray, tables: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """x (T, D) -> normed low rank u (T, q_rank), rotated heads q (T, H, hd)."""
    ops, shape = chunk.ops, chunk.shape
    u = chunk.tap("q_lora", layer, ops.linear(x, w.attn_q_a, chunk.act(w.attn_q_a)))
    u = chunk.tap("q_lora_norm", layer, ops.rms_norm(u, w.attn_q_a_norm, shape.rms_eps))
    q = ops.linear(u, w.attn_q_b, chunk.act(w.attn_q_b)).reshape(len(x), shape.n_heads, shape.head_dim)
    q = chunk.tap("Qraw", layer, q)
    q = chunk.tap("Qnorm", layer, ops.rms_norm(q, None, shape.rms_eps))
    return u, chunk.tap("Qcur", layer, ops.rope(q, *tables))


def _row(chunk: Chunk, layer: int, w: LayerWeights, x: np.ndarray, tables: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """x (T, D) -> the cached key = value rows (T, hd): norm, rope, rounding, storage."""
    ops = chunk.ops
    kv = chunk.tap("KVraw", layer, ops.linear(x, w.attn_kv, chunk.act(w.attn_kv)))
    kv = chunk.tap("KVnorm", layer, ops.rms_norm(kv, w.attn_kv_a_norm, chunk.shape.rms_eps))
    kv = chunk.tap("KVrope", layer, ops.rope(kv[:, None, :], *tables)[:, 0])
    return chunk.tap("KVcur", layer, chunk.store(chunk.kv_rounding(kv)))


def _output(chunk: Chunk, layer: int, w: LayerWeights, o: np.ndarray) -> np.ndarray:
    """Heads o (T, H, hd) -> (T, D) through the grouped low rank projection."""
    ops = chunk.ops
    grouped = o.reshape(len(o), chunk.shape.o_groups, -1)
    low = chunk.tap("attn_low", layer, ops.grouped_linear(grouped, w.attn_output_a, chunk.act(w.attn_output_a)))
    return chunk.tap("attn_out", layer, ops.linear(low, w.attn_output_b, chunk.act(w.attn_output_b)))
