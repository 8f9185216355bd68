"""Rotary embedding on the trailing channels (docs/model.md 5)."""

from __future__ import annotations

from .. import tasktable as t
from .lang import f32p
from .registry import body


@body(t.ROPE, exact=True)
def rope(args, first, last, thread):
    """Items are (token, head) vectors; adjacent pairs of the last 2 * half channels turn by the token's angles."""
    width, half = args.width, args.half
    plain = width - 2 * half
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
            a, b = x[plain + 2 * i], x[plain + 2 * i + 1]
            out[plain + 2 * i] = a * c - b * s
            out[plain + 2 * i + 1] = a * s + b * c
