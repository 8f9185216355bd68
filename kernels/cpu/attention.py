"""Attention, compressor pooling and the indexer (signatures as in ``kernels.reference``)."""

from __future__ import annotations

import ctypes

import numpy as np

from . import tasktable as t
from .arrays import address, chunk_of, expect, f32, i32
from .workers import POOL
from .workspace import scratch

HEAD_GROUP = 8
"""Heads per item; must not exceed ``tasks.attention.GROUP``."""

ROW_BLOCK = 64

F16 = np.dtype(np.float16)

POOL_CHANNELS = 64
INDEX_LANES = 64
INDEX_BLOCK = 256
"""Index rows per item: 128 KB of 128-wide rows."""


def scratch_bytes(dim: int) -> int:
    """What a thread needs: scores of one block of rows, running maxima and denominators, and the block widened."""
    return 4 * HEAD_GROUP * (ROW_BLOCK + 2) + 4 * ROW_BLOCK * dim


def cached_rows(rows: np.ndarray, name: str) -> tuple[np.ndarray, int]:
    """Rows stored as float32 or float16, and whether they are the latter."""
    if rows.dtype == F16:
        return (rows if rows.flags.c_contiguous else np.ascontiguousarray(rows)), 1
    return f32(rows, name), 0


def attention(
    q: np.ndarray,
    raw: np.ndarray,
    raw_first: np.ndarray,
    raw_count: np.ndarray,
    comp: np.ndarray | None,
    comp_count: np.ndarray,
    selected: np.ndarray | None,
    sinks: np.ndarray,
    scale: float,
) -> np.ndarray:
    """q (T, H, hd), raw (N, hd), comp (M, hd) -> (T, H, hd); one softmax over window and compressed rows, with sink.

    comp may be float16.

    IndexError if a row number lies outside raw or comp.
    """
    q, raw, sinks = f32(q, "q"), f32(raw, "raw"), f32(sinks, "sinks")
    raw_first, raw_count = i32(raw_first, "raw_first"), i32(raw_count, "raw_count")
    comp_count = i32(comp_count, "comp_count")
    tokens, heads, dim = q.shape
    expect(raw.ndim == 2 and raw.shape[1] == dim and sinks.shape == (heads,), "attention", q.shape, raw.shape)
    per_token = raw_first.shape == raw_count.shape == comp_count.shape == (tokens,)
    expect(per_token, "attention", q.shape, raw_first.shape, raw_count.shape, comp_count.shape)
    comp_at = selected_at = comp_rows = picks = half = 0
    if comp is not None:
        comp, half = cached_rows(comp, "comp")
        expect(comp.ndim == 2 and comp.shape[1] == dim, "attention", q.shape, comp.shape)
        comp_at, comp_rows = address(comp), comp.shape[0]
        if selected is not None:
            selected = i32(selected, "selected")
            expect(selected.ndim == 2 and selected.shape[0] == tokens, "attention", q.shape, selected.shape)
            selected_at, picks = address(selected), selected.shape[1]
    out = np.empty(q.shape, np.float32)
    size = scratch_bytes(dim)
    error, softmax = scratch(8, size * POOL.threads)
    ctypes.c_int64.from_address(error).value = 0
    group = min(HEAD_GROUP, heads)
    groups = -(-heads // group)
    POOL.run(
        (
            t.ATTENTION,
            tokens * groups,
            1,
            (
                address(q),
                address(raw),
                address(raw_first),
                address(raw_count),
                comp_at,
                half,
                address(comp_count),
                selected_at,
                address(sinks),
                address(out),
                error,
                raw.shape[0],
                comp_rows,
                picks,
                heads,
                dim,
                group,
                groups,
                softmax,
                size,
                scale,
            ),
        )
    )
    if ctypes.c_int64.from_address(error).value:
        raise IndexError(f"attention: a row number lies outside {raw.shape[0]} raw or {comp_rows} compressed rows")
    return out


def pool(kv: np.ndarray, score: np.ndarray) -> np.ndarray:
    """kv, score (n, m, c) -> (n, c): per channel, softmax of the m scores, weighted sum of the m values."""
    kv, score = f32(kv, "kv"), f32(score, "score")
    expect(kv.ndim == 3 and kv.shape == score.shape, "pool", kv.shape, score.shape)
    n, m, c = kv.shape
    out = np.empty((n, c), np.float32)
    blocks = -(-c // POOL_CHANNELS)
    values = (address(kv), address(score), address(out), m, c, POOL_CHANNELS, blocks)
    POOL.run((t.POOL_ROWS, n * blocks, chunk_of(n * blocks, 4 * m * POOL_CHANNELS, POOL.threads), values))
    return out


def index_scores(iq: np.ndarray, rows: np.ndarray, w: np.ndarray) -> np.ndarray:
    """iq (T, H, d), rows (n, d), w (T, H) -> (T, n): sum over heads of relu(iq_h . row) * w_h."""
    iq, w = f32(iq, "iq"), f32(w, "w")
    rows, half = cached_rows(rows, "rows")
    tokens, heads, dim = iq.shape
    expect(rows.ndim == 2 and rows.shape[1] == dim and w.shape == (tokens, heads), "index_scores", iq.shape, rows.shape)
    n = rows.shape[0]
    out = np.empty((tokens, n), np.float32)
    lanes = -(-heads // INDEX_LANES) * INDEX_LANES
    packed, wide = scratch(4 * lanes * (dim + 1) * tokens, 16 * dim * POOL.threads)
    items = -(-n // INDEX_BLOCK) * tokens
    POOL.run(
        (
            t.INDEX_PACK,
            tokens,
            chunk_of(tokens, heads * dim, POOL.threads),
            (address(iq), address(w), packed, heads, dim),
        ),
        (
            t.INDEX_SCORES,
            items,
            1,
            (packed, address(rows), half, address(out), tokens, n, heads, dim, INDEX_BLOCK, wide),
        ),
    )
    return out


def select_rows(scores: np.ndarray, visible: np.ndarray, k: int) -> np.ndarray:
    """The k best of the first visible[t] rows: int32 (T, k), ascending, -1 at the end; ties to the lower row."""
    scores, visible = f32(scores, "scores"), i32(visible, "visible")
    expect(scores.ndim == 2 and visible.shape == scores.shape[:1], "select_rows", scores.shape, visible.shape)
    tokens, n = scores.shape
    out = np.empty((tokens, k), np.int32)
    values = (address(scores), address(visible), address(out), n, k)
    POOL.run((t.SELECT_ROWS, tokens, chunk_of(tokens, 8 * n, POOL.threads), values))
    return out
