"""Rotary embedding on the trailing channels (docs/explanation/model.md 5)."""

from __future__ import annotations

from .. import tasktable as t
from .lang import f32p
from .registry import body


@body(t.ROPE, exact=True)
def rope(args, first, last, thread):
    """Rotate pairs of the last 2 * half channels by the token's angles; items are (token, head) vectors.

    Pairs are adjacent channels or, with ``halves``, channels i and half + i.
    """
    width, half = args.width, args.half
    plain = width - 2 * half
    step, gap = (1, half) if args.halves != 0 else (2, 1)
    for item in range(first, last):
        token = item // args.heads
        x, out = f32p(args.x + 4 * width * item), f32p(args.out + 4 * width * item)
        cos, sin = f32p(args.cos + 4 * half * token), f32p(args.sin + 4 * half * token)
        for i in range(plain):
            out[i] = x[i]
        for i in range(half):
            c, s = cos[i], sin[i]
            if args.inverse != 0:
                s = -s
            at = plain + step * i
            a, b = x[at], x[at + gap]
            out[at] = a * c - b * s
            out[at + gap] = a * s + b * c
