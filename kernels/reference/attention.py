"""Attention whose query heads share one cache row per position, which is both key and value (model.md 4), and
grouped-query attention (Ainslie et al. 2023, "GQA")."""

from __future__ import annotations

import numpy as np


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
    """Attend with queries q (T, H, hd) to raw and compressed cache rows -> (T, H, hd).

    Token t sees positions raw_first[t] .. raw_first[t] + raw_count[t] - 1 of the ring buffer ``raw`` (N, hd) and, of
    the compressed rows ``comp``, the first comp_count[t] or, if ``selected`` (T, k) is given, those that its entries
    >= 0 name. All rows share one softmax, to which the head's sink adds one more logit without a value.
    """
    out = np.empty_like(q)
    sinks = sinks.astype(np.float64)
    for t in range(q.shape[0]):
        rows = raw[(raw_first[t] + np.arange(raw_count[t])) % max(1, len(raw))].astype(np.float64)
        if comp is not None:
            compressed = comp[: comp_count[t]] if selected is None else comp[selected[t][selected[t] >= 0]]
            rows = np.concatenate((rows, compressed.astype(np.float64)))
        scores = (q[t].astype(np.float64) @ rows.T) * scale
        top = np.maximum(scores.max(axis=1, initial=-np.inf), sinks)
        weight = np.exp(scores - top[:, None])
        out[t] = (weight @ rows) / (weight.sum(axis=1) + np.exp(sinks - top))[:, None]
    return out


def attend(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, first: np.ndarray, row_counts: np.ndarray, scale: float
) -> np.ndarray:
    """Attend with q (T, H, hd) to keys and values (N, K, hd) -> (T, H, hd); query head h uses key head h // (H / K).

    Token t attends to positions first[t] .. first[t] + row_counts[t] - 1 of the ring buffers ``keys`` and ``values``;
    without rows its output is NaN.
    """
    out = np.empty_like(q)
    tokens, heads, dim = q.shape
    shared = keys.shape[1]
    for t in range(tokens):
        rows = (first[t] + np.arange(row_counts[t])) % max(1, len(keys))
        k, v = (np.moveaxis(part[rows].astype(np.float64), 0, 1) for part in (keys, values))  # (K, rows, hd)
        scores = q[t].astype(np.float64).reshape(shared, heads // shared, dim) @ np.swapaxes(k, 1, 2) * scale
        weight = np.exp(scores - scores.max(axis=2, keepdims=True, initial=-np.inf))
        with np.errstate(invalid="ignore"):
            out[t] = (weight @ v / weight.sum(axis=2, keepdims=True)).reshape(heads, dim)
    return out
