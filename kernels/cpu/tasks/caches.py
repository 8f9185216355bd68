"""Store rows in caches and gather windows from them; add, scale, repeat vectors, take table rows."""

from __future__ import annotations

import numpy as np

from .. import tasktable as t
from .lang import f32p, i32p, i64p, store_f16
from .registry import body


@body(t.ADD, exact=True)
def add(args, first, last, thread):
    """Add two arrays; items are numbers."""
    a, b, out = f32p(args.a), f32p(args.b), f32p(args.out)
    for i in range(first, last):
        out[i] = a[i] + b[i]


@body(t.SCALE, exact=True)
def scale(args, first, last, thread):
    """Multiply by a number; items are numbers."""
    x, out, factor = f32p(args.x), f32p(args.out), np.float32(args.factor)
    for i in range(first, last):
        out[i] = x[i] * factor


@body(t.STREAMS, exact=True)
def streams(args, first, last, thread):
    """Copy a token's vector to all hyper-connection streams; items are (token, stream)."""
    width = args.width
    for item in range(first, last):
        x, out = f32p(args.x + 4 * width * (item // args.count)), f32p(args.out + 4 * width * item)
        for i in range(width):
            out[i] = x[i]


@body(t.TAKE_ROWS, exact=True)
def take_rows(args, first, last, thread):
    """Take rows ids[item] of an int32 table; items are positions in ids."""
    ids, width = i32p(args.ids), args.width
    for item in range(first, last):
        if ids[item] < 0 or ids[item] >= args.rows:
            i64p(args.error)[0] = 1
            return
        x, out = i32p(args.table + 4 * width * np.int64(ids[item])), i32p(args.out + 4 * width * item)
        for i in range(width):
            out[i] = x[i]


@body(t.STORE_ROWS, exact=True)
def store_rows(args, first, last, thread):
    """Store the newest min(tokens, slots) rows (the items): token i goes to slot (at + i) % slots, as binary16 if
    ``half``."""
    width, slots = args.width, args.slots
    skipped = max(args.tokens - slots, 0)
    for item in range(first, last):
        token = skipped + item
        x, slot = f32p(args.x + 4 * width * token), (i64p(args.at)[0] + token) % slots
        if args.half != 0:
            for i in range(width):
                store_f16(args.rows + 2 * (slot * width + i), x[i])
        else:
            out = f32p(args.rows + 4 * slot * width)
            for i in range(width):
                out[i] = x[i]


@body(t.POSITION_BIAS, exact=True)
def position_bias(args, first, last, thread):
    """Add the bias of a token's position within its window; items are tokens."""
    width = args.width
    for token in range(first, last):
        place = (i64p(args.at)[0] + token) % args.ratio
        gate, ape = f32p(args.gate + 4 * width * token), f32p(args.ape + 4 * width * place)
        out = f32p(args.out + 4 * width * token)
        for i in range(width):
            out[i] = gate[i] + ape[i]


@body(t.WINDOWS, exact=True)
def windows(args, first, last, thread):
    """Gather compression windows; items are (window, slot).

    With overlap the first ``ratio`` slots are the first halves of the previous window's rows, the others the second
    halves of this window's rows.
    Positions before ``at`` are read from the ring, others from the new rows; positions past the last new row repeat it.
    """
    ratio, width, at = args.ratio, args.width, i64p(args.at)[0]
    halves = 2 if args.overlap != 0 else 1
    for item in range(first, last):
        window, slot = item // (halves * ratio), item % (halves * ratio)
        position = (at // ratio + window) * ratio + slot
        half = 0
        if halves == 2:
            half = 1 if slot >= ratio else 0
            position -= ratio
        if position >= at:
            row = args.new + 4 * halves * width * min(position - at, args.tokens - 1)
        else:
            row = args.ring + 4 * halves * width * ((position + args.slots) % args.slots)
        x, out = f32p(row + 4 * width * half), f32p(args.out + 4 * width * item)
        for i in range(width):
            out[i] = x[i]
