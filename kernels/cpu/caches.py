"""Ops of the CPU backend for cache writes and compression windows, declared in ``ds4ref.kernels.ops``."""

from __future__ import annotations

from ..binding import bind
from . import tasktable as t
from .sizes import POOL_CHANNELS
from .steps import Steps, is_half


class CacheOps(Steps):
    """The ops that store rows, add position bias, gather compression windows and pool them."""

    @bind
    def store_rows(self, x, rows, at, T, N, w):
        self.go(t.STORE_ROWS, min(T, N), w, (x, rows, at), T, w, N, is_half(rows))

    @bind
    def position_bias(self, gate, ape, at, out, T, r, c):
        self.go(t.POSITION_BIAS, T, c, (gate, ape, out, at), r, c)

    @bind
    def windows(self, ring, new, at, count, ratio, overlap, out, N, T, c):
        rows = count * (ratio + overlap * ratio)
        self.go(t.WINDOWS, rows, c, (ring, new, out, at), N, T, ratio, c, int(overlap))

    @bind
    def pool(self, kv, score, out, n, m, c):
        blocks = -(-c // POOL_CHANNELS)
        self.go(t.POOL_ROWS, n * blocks, 4 * m * POOL_CHANNELS, (kv, score, out), m, c, blocks)
