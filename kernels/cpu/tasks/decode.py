"""Small tasks that only a token program needs: what the op-by-op pass does with NumPy between two ops."""

from __future__ import annotations

import numpy as np

from .. import tasktable as t
from .lang import f32p, i64p, store_f16
from .registry import body

EMPTY_SCORE = np.float32(-1e30)


@body(t.ADD, exact=True)
def add(args, first, last, thread):
    """Items are numbers."""
    a, b, out = f32p(args.a), f32p(args.b), f32p(args.out)
    for i in range(first, last):
        out[i] = a[i] + b[i]


@body(t.SCALE, exact=True)
def scale(args, first, last, thread):
    """Items are numbers."""
    x, out, factor = f32p(args.x), f32p(args.out), np.float32(args.factor)
    for i in range(first, last):
        out[i] = x[i] * factor


@body(t.STORE_ROW, exact=True)
def store_row(args, first, last, thread):
    """One item: row x (width) becomes row ``slot[0]`` of ``rows``, binary16 if ``half``."""
    x, at = f32p(args.x), args.width * i64p(args.slot)[0]
    if args.half != 0:
        for i in range(args.width):
            store_f16(args.rows + 2 * (at + i), x[i])
    else:
        out = f32p(args.rows + 4 * at)
        for i in range(args.width):
            out[i] = x[i]


@body(t.PUSH_PROJECTION, exact=True)
def push_projection(args, first, last, thread):
    """One item: a compressor's values and scores of this token go into slot ``first + phase`` of its state."""
    phase, width = i64p(args.phase)[0], args.width
    place = 4 * width * (args.first + phase)
    kv, gate, ape = f32p(args.kv), f32p(args.gate), f32p(args.ape + 4 * width * phase)
    state_kv, state_score = f32p(args.state_kv + place), f32p(args.state_score + place)
    for i in range(width):
        state_kv[i] = kv[i]
        state_score[i] = gate[i] + ape[i]


@body(t.OVERLAP, exact=True)
def overlap(args, first, last, thread):
    """Items are slots of one (2 * ratio, 2 * width) state array: the previous window's first halves, then the
    current one's second halves, side by side in ``out`` (2 * ratio, width)."""
    width, ratio = args.width, args.ratio
    for slot in range(first, last):
        x = f32p(args.state + 4 * width * (2 * slot + (1 if slot >= ratio else 0)))
        out = f32p(args.out + 4 * width * slot)
        for i in range(width):
            out[i] = x[i]


@body(t.CLOSE_WINDOW, exact=True)
def close_window(args, first, last, thread):
    """One item: the current window (from slot ``first`` on) becomes the previous one if there is room, and empty."""
    size = args.ratio * args.width
    at = 4 * args.first * args.width
    kv, score = f32p(args.state_kv + at), f32p(args.state_score + at)
    old_kv, old_score = f32p(args.state_kv), f32p(args.state_score)
    for i in range(size):
        if args.first > 0:
            old_kv[i] = kv[i]
            old_score[i] = score[i]
        kv[i] = np.float32(0)
        score[i] = EMPTY_SCORE
