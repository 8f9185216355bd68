"""Routing and the expert nonlinearity (signatures as in ``kernels.reference.moe``)."""

from __future__ import annotations

import ctypes

import numpy as np

from . import tasktable as t
from .arrays import address, chunk_of, expect, f32, i32
from .workers import POOL
from .workspace import scratch


def route(
    logits: np.ndarray,
    bias: np.ndarray | None,
    hash_ids: np.ndarray | None,
    k: int,
    scale: float,
    floor: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """logits (T, E) -> probs (T, E), ids int32 (T, k), weights (T, k).

    IndexError if a hash id is no expert.
    """
    logits = f32(logits, "logits")
    tokens, experts = logits.shape
    expect(0 < k <= experts, f"route to {k} experts", logits.shape)
    bias_at = hash_at = 0
    if bias is not None:
        bias = f32(bias, "bias")
        expect(bias.shape == (experts,), "route", logits.shape, bias.shape)
        bias_at = address(bias)
    if hash_ids is not None:
        hash_ids = i32(hash_ids, "hash_ids")
        expect(hash_ids.shape == (tokens, k), "route", logits.shape, hash_ids.shape)
        hash_at = address(hash_ids)
    probs, weights = np.empty((tokens, experts), np.float32), np.empty((tokens, k), np.float32)
    ids = np.empty((tokens, k), np.int32)
    (error,) = scratch(8)
    ctypes.c_int64.from_address(error).value = 0
    values = (
        address(logits),
        bias_at,
        hash_at,
        address(probs),
        address(ids),
        address(weights),
        experts,
        k,
        int(floor),
        scale,
        error,
    )
    POOL.run((t.ROUTE, tokens, chunk_of(tokens, (k + 16) * experts, POOL.threads), values))
    if ctypes.c_int64.from_address(error).value:
        raise IndexError(f"route: a hash id lies outside 0..{experts - 1}")
    return probs, ids, weights


def swiglu(gate: np.ndarray, up: np.ndarray, limit: float, weight: np.ndarray | None = None) -> np.ndarray:
    """silu(min(gate, limit)) * clip(up, -limit, limit) over (..., ff), times weight (...) if given."""
    gate, up = f32(gate, "gate"), f32(up, "up")
    expect(gate.shape == up.shape, "swiglu", gate.shape, up.shape)
    n = gate.shape[-1]
    rows = gate.size // n
    place = 0
    if weight is not None:
        weight = f32(weight, "weight")
        expect(weight.shape == gate.shape[:-1], "swiglu", gate.shape, weight.shape)
        place = address(weight)
    out = np.empty(gate.shape, np.float32)
    values = (address(gate), address(up), place, address(out), n, limit)
    POOL.run((t.SWIGLU, rows, chunk_of(rows, 8 * n, POOL.threads), values))
    return out
