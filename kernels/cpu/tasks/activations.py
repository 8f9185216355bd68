"""Quantize activations: A8 per 32 values, Q8_K per 256. Exact: the codes are part of the definition."""

from __future__ import annotations

from .. import simd
from .. import tasktable as t
from ..sizes import A8_BLOCK, Q8K_BLOCK, Q8K_SUM
from .lang import f32p, i8p
from .registry import body


@body(t.QUANTIZE_A8, exact=True)
def quantize_a8(args, first, last, thread):
    """Quantize to A8; items are blocks of 32 values."""
    n = A8_BLOCK * (last - first)
    simd.quantize_a8(args.x + 4 * A8_BLOCK * first, n, args.codes + A8_BLOCK * first, args.scales + 4 * first)


@body(t.QUANTIZE_Q8K, exact=True)
def quantize_q8k(args, first, last, thread):
    """Quantize to Q8_K; items are blocks of 256 values."""
    n, sums = Q8K_BLOCK * (last - first), args.sums + 2 * (Q8K_BLOCK // Q8K_SUM) * first
    simd.quantize_q8k(args.x + 4 * Q8K_BLOCK * first, n, args.codes + Q8K_BLOCK * first, args.scales + 4 * first, sums)


@body(t.SCALE_CODES, exact=True)
def scale_codes(args, first, last, thread):
    """Convert codes back to floats; items are blocks of ``block`` codes."""
    n, scales = args.block, f32p(args.scales)
    for item in range(first, last):
        codes, out = i8p(args.codes + n * item), f32p(args.out + 4 * n * item)
        for i in range(n):
            out[i] = codes[i] * scales[item]
