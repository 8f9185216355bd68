"""Choosing experts, and the activation functions of FFNs (docs/explanation/model.md 8)."""

from __future__ import annotations

import numpy as np

ROUTE_FLOOR = 2.0**-14
ROUTE_EPS = 1e-20


def route(
    logits: np.ndarray,
    bias: np.ndarray | None,
    hash_ids: np.ndarray | None,
    k: int,
    scale: float,
    floor: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose experts from logits (T, E): return probs (T, E), ids int32 (T, k), weights (T, k).

    probs = sqrt(softplus(logits)). The k experts with the largest probs + bias are chosen, in descending order, the
    lower id first among equals; with ``hash_ids`` (T, k) those experts are taken instead. Weights are the probs of the
    chosen, without bias, over their sum (at least 2^-14 if ``floor``, else plus 1e-20), times scale.
    """
    x = logits.astype(np.float64)
    softplus = np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))
    probs = np.sqrt(softplus).astype(np.float32)
    if hash_ids is not None:
        ids = hash_ids.astype(np.int32)
    else:
        choice = probs if bias is None else probs + bias
        ids = np.argsort(-choice, axis=1, kind="stable")[:, :k].astype(np.int32)
    weights = np.take_along_axis(probs, ids, axis=1)
    total = weights.astype(np.float64).sum(axis=1, keepdims=True)
    total = np.maximum(total, ROUTE_FLOOR) if floor else total + ROUTE_EPS
    return probs, ids, (weights / total * scale).astype(np.float32)


def swiglu(gate: np.ndarray, up: np.ndarray, limit: float, weight: np.ndarray | None = None) -> np.ndarray:
    """Return silu(min(gate, limit)) * clip(up, -limit, limit), (..., ff), times weight (...) unless that is None.

    The gate is limited from above only.
    """
    g = np.minimum(gate, np.float32(limit)).astype(np.float64)
    u = np.clip(up, np.float32(-limit), np.float32(limit))
    e = np.exp(-np.abs(g))
    mid = g * (np.where(g >= 0, 1, e) / (1 + e)) * u
    if weight is not None:
        mid = mid * weight[..., None]
    return mid.astype(np.float32)


def geglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Return gelu(gate) * up, of the same shape, with gelu(x) = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    x = gate.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return (0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) * up).astype(np.float32)


def count(ids: np.ndarray, counts: np.ndarray) -> None:
    """Add to counts int64 (E,) the number of times that each expert occurs in ids; ids out of range are ignored."""
    known = ids[(ids >= 0) & (ids < len(counts))]
    counts += np.bincount(known, minlength=len(counts))
