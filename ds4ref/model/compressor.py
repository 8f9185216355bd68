"""Compressor: windows of 4 or 128 tokens become one cached row each (engine.md 3.4, 3.10).

One routine serves the attention rows (head_dim wide) and the indexer rows (index_dim wide). Ratio 4 overlaps: a row
mixes the first half of the previous window's four projections with the second half of its own four.
"""

from __future__ import annotations

import numpy as np

from ..session.cache import CompressorState
from ..weights.tensors import CompressorWeights
from .chunk import Chunk


def emit_rows(
    chunk: Chunk,
    prefix: str,
    layer: int,
    x: np.ndarray,
    w: CompressorWeights,
    state: CompressorState | None,
) -> np.ndarray:
    """Feed x (T, D) into ``state``; returns the rows of the windows that closed, (n, width), normed and rotated.

    ``prefix`` is "attn" or "indexer". Rounding and storing are the caller's. The first row returned belongs to window
    pos0 // ratio.
    """
    assert state is not None
    ops, ratio, width = chunk.ops, state.ratio, len(w.norm)
    kv = chunk.tap(f"{prefix}_comp_kv_raw", layer, ops.linear(x, w.kv, "float"))
    gate = chunk.tap(f"{prefix}_comp_gate_raw", layer, ops.linear(x, w.gate, "float"))
    phase = chunk.positions % ratio
    score = chunk.tap(f"{prefix}_comp_score_raw", layer, gate + w.ape[phase])

    pending_kv, pending_score = state.pending(int(phase[0]))
    kv = np.concatenate((pending_kv, kv)) if len(pending_kv) else kv
    score = np.concatenate((pending_score, score)) if len(pending_score) else score
    n = len(kv) // ratio
    closed, first = n * ratio, chunk.pos0 // ratio
    if not n:
        state.keep_pending(kv, score)
        return np.empty((0, width), np.float32)
    windows_kv = kv[:closed].reshape(n, ratio, -1)
    windows_score = score[:closed].reshape(n, ratio, -1)
    candidates = windows_kv, windows_score
    if state.overlap:
        candidates = _overlap(windows_kv, windows_score, state, width)
        state.keep_window(windows_kv[-1], windows_score[-1])
    state.keep_pending(kv[closed:], score[closed:])

    candidates = chunk.tap(f"{prefix}_comp_candidates", layer, candidates)
    rows = ops.rms_norm(ops.pool(*candidates), w.norm, chunk.shape.rms_eps)
    tables = chunk.rope_tables(True, np.arange(first, first + n) * ratio)
    cos, sin = chunk.tap(f"{prefix}_comp_rope_tables", layer, tables)
    return ops.rope(rows[:, None, :], cos, sin)[:, 0]


def _overlap(kv: np.ndarray, score: np.ndarray, state: CompressorState, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Candidates of a ratio-4 layer (n, 8, width): previous windows' first halves, their own second halves."""
    previous_kv, previous_score = state.previous()
    before_kv = np.concatenate((previous_kv[None], kv[:-1]))[:, :, :width]
    before_score = np.concatenate((previous_score[None], score[:-1]))[:, :, :width]
    return (
        np.concatenate((before_kv, kv[:, :, width:]), axis=1),
        np.concatenate((before_score, score[:, :, width:]), axis=1),
    )
