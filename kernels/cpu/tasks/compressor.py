"""Compress windows of cache rows to one row each: one softmax per channel (docs/explanation/model.md 6)."""

from __future__ import annotations

import numpy as np

from .. import tasktable as t
from ..sizes import POOL_CHANNELS as CHANNELS
from .lang import exp32, f32p, local
from .registry import body

MAXIMA, SUMS = local(4 * CHANNELS), local(4 * CHANNELS)
ABSENT = np.float32(-5e29)
"""Score at or below which a row counts as absent; a channel in which all are absent becomes 0."""


@body(t.POOL, exact=True)
def pool(args, first, last, thread):
    """Pool kv and score (windows, m, c); items are (window, block of channels)."""
    m, c = args.m, args.c
    top, total = f32p(MAXIMA()), f32p(SUMS())
    for item in range(first, last):
        window = item // args.blocks
        c0 = (item % args.blocks) * CHANNELS
        width = min(CHANNELS, c - c0)
        base = 4 * (c * m * window + c0)
        out = f32p(args.out + 4 * (c * window + c0))
        for i in range(width):
            top[i] = np.float32(-np.inf)
            total[i] = np.float32(0)
            out[i] = np.float32(0)
        for j in range(m):
            score = f32p(args.score + base + 4 * c * j)
            for i in range(width):
                # a NaN becomes the top; if a later score replaces it, its own weight is still NaN
                top[i] = top[i] if score[i] <= top[i] else score[i]
        for j in range(m):
            score, kv = f32p(args.score + base + 4 * c * j), f32p(args.kv + base + 4 * c * j)
            for i in range(width):
                # if all rows are absent every weight must be 0, even where score - top would be NaN
                weight = np.float32(0) if top[i] <= ABSENT else exp32(score[i] - top[i])
                total[i] += weight
                out[i] += weight * kv[i]
        for i in range(width):
            out[i] = out[i] / total[i] if total[i] != 0 else np.float32(0)
