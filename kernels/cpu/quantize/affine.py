"""Fit w = d * s_j * code - dmin * m_j to a block of weights: the search that quantizes to Q4_K and Q2_K.

Three stages, each on all groups of the block at once. First each group alone: codes from several starting scales, each
followed by the best (scale, minimum) for those codes, a weighted least-squares problem with two unknowns, repeated.
Then the block: one d and one dmin, all groups' scales and minima as small integers. Then alternately: every group tries
the neighbours of its two integers with fresh codes, and d and dmin are refitted, again by least squares. The best
solution of all turns is kept, so a turn never makes a block worse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from ..simd.helpers import store_float
from ..simd.vec import Float, Int, inline
from ..tasks.lang import JIT, local, round_f16
from .lanes import TINY, LaneOps, clamped, inverse, nearest

LARGEST_F16 = np.float32(65504)


class Affine(NamedTuple):
    """Parameters of a block format and its search.

    lanes   number of groups in a block
    n       number of weights in a group
    top     greatest code
    most    greatest integer scale or minimum
    starts  first and last number of codes to divide a group's range by, and how many values between them to try
    passes  rounds of coding and fitting from each start
    turns   rounds of trying neighbouring integers and refitting d and dmin
    """

    lanes: int
    n: int
    top: int
    most: int
    starts: tuple[float, float, int]
    passes: int
    turns: int


def fitter(kind: Affine) -> Any:
    """Make the compiled function ``fit(x, w, codes, scales, minima, ds)`` that fits one block; its arguments are
    addresses.

    x, w            read: the block's weights, and the costs of errors in them, both transposed (``lanes``)
    codes           written: codes as floats, transposed
    scales, minima  written: integer scale and minimum of each group, as floats
    ds              written: d and dmin, two floats exact in f16
    """
    ops = LaneOps(kind.lanes)
    F = ops.vec
    load, store, splat, zero, total, times = ops.load, ops.store, ops.splat, ops.zero, ops.total, ops.times
    lower, upper, largest, where_greater = ops.lower, ops.upper, ops.largest, ops.where_greater
    add, add_product = ops.add, ops.add_product
    n, step = kind.n, 4 * kind.lanes
    top, most = float(kind.top), float(kind.most)
    passes, turns, count = kind.passes, kind.turns, kind.starts[2]
    first = np.float32(kind.starts[0])
    stride = np.float32((kind.starts[1] - kind.starts[0]) / max(1, count - 1))
    most32 = np.float32(most)
    pair, triple, five = types.UniTuple(F, 2), types.UniTuple(F, 3), types.UniTuple(F, 5)

    def code(k, x, inv, low):
        return nearest(k, clamped(k, k.fma(x, inv, low), 0.0, top))

    @inline(triple, F, F, F, Int, Int, F, F)
    def sums_step(k, sl, sll, sxl, x, w, inv, low):
        values, costs = k.load(F, x), k.load(F, w)
        codes = code(k, values, inv, low)
        weighted = costs * codes
        return sl + weighted, k.fma(weighted, codes, sll), k.fma(weighted, values, sxl)

    @njit(**JIT)
    def sums(x, w, inv, low):
        """Return the sums over a group of w code, w code^2 and w x code."""
        sl, sll, sxl = zero(), zero(), zero()
        for i in range(n):
            sl, sll, sxl = sums_step(sl, sll, sxl, x + step * i, w + step * i, inv, low)
        return sl, sll, sxl

    @inline(triple, F, F, F, F, F)
    def solve(k, sw, swx, sl, sll, sxl):
        """Return scale, minimum, and the error they save against all zeros."""
        zeros, ones = k.zero(F), k.const(F, 1.0)
        det = sw * sll - sl * sl
        sound = det.compare(">", sw * sll * 1e-6)
        divisor = k.select(sound, det, ones)
        scale = k.select(sound, (sw * sxl - swx * sl) / divisor, zeros)
        low = k.select(sound, (sl * sxl - sll * swx) / divisor, k.const(F, -1.0))
        # a negative minimum cannot be stored: use the best scale without one
        coded = sll.compare(">", TINY)
        fit_groups = k.select(coded, sxl / k.select(coded, sll, ones), zeros)
        constant = k.select(sw.compare(">", TINY), (zeros - swx) / k.select(sw.compare(">", TINY), sw, ones), zeros)
        scale = k.select(low.compare("<", 0.0), fit_groups, scale)
        low = k.select(low.compare("<", 0.0), k.select(coded, zeros, k.maximum(constant, zeros)), low)
        usable = scale.compare(">", 0.0)
        scale = k.select(usable, scale, zeros)
        gain = (scale * sxl - low * swx) * 2.0 - scale * scale * sll + scale * low * sl * 2.0 - low * low * sw
        return scale, low, gain

    @inline(pair, F, F, Float)
    def start(k, low, high, codes):
        """Return the reciprocal scale and the offset that map low..high to 0..codes."""
        inv = codes.splat(F) * inverse(k, high - low)
        return inv, k.zero(F) - low * inv

    @inline(pair, F, F)
    def next_start(k, scale, low):
        inv = inverse(k, scale)
        return inv, low * inv

    at_most_zero = inline(F, F)(lambda k, a: k.minimum(a, k.zero(F)))

    @inline(five, Int, Int, F, F, F, F)
    def trial_setup(k, d_at, dmin_at, scales, minima, a, b):
        """Return the integers moved by (a, b), the scale and minimum they stand for, and the reciprocal of the
        scale."""
        s = clamped(k, scales + a, 0.0, most)
        m = clamped(k, minima + b, 0.0, most)
        big = s * k.load(Float, d_at).splat(F)
        low = m * k.load(Float, dmin_at).splat(F)
        return s, m, big, low, inverse(k, big)

    @inline(F, F, Int, Int, F, F, F, F)
    def error_step(k, error, x, w, scale, low, inv, offset):
        values = k.load(F, x)
        miss = (values + low) - scale * code(k, values, inv, offset)
        return k.fma(k.load(F, w) * miss, miss, error)

    @inline(types.none, Int, Int, F, F)
    def code_step(k, out, x, inv, offset):
        k.store(out, code(k, k.load(F, x), inv, offset))

    integers = inline(F, F, Float)(lambda k, values, inv: nearest(k, clamped(k, values * inv.splat(F), 0.0, most)))

    @njit(**JIT)
    def fit_groups(x, w, sw, swx):
        """Return the best scale and minimum of each group, before rounding to integers."""
        low, high = load(x), load(x)
        for i in range(1, n):
            low, high = lower(low, x + step * i), upper(high, x + step * i)
        low = at_most_zero(low)
        best, scale, minimum = splat(np.float32(-3e38)), zero(), zero()
        for number in range(count):
            inv, offset = start(low, high, first + stride * np.float32(number))
            for _ in range(passes):
                sl, sll, sxl = sums(x, w, inv, offset)
                s, m, gain = solve(sw, swx, sl, sll, sxl)
                scale, minimum = where_greater(gain, best, s, scale), where_greater(gain, best, m, minimum)
                best = where_greater(gain, best, gain, best)
                inv, offset = next_start(s, m)
        return scale, minimum

    @njit(**JIT)
    def error_of(x, w, scale, low, inv):
        offset = times(low, inv)
        error = zero()
        for i in range(n):
            error = error_step(error, x + step * i, w + step * i, scale, low, inv, offset)
        return error

    @njit(**JIT)
    def neighbours(x, w, ds, scales, minima, reach):
        """Return the best integers within ``reach`` of each group's, and the total error."""
        best, best_s, best_m = splat(np.float32(3e38)), scales, minima
        for a in range(-reach, reach + 1):
            for b in range(-reach, reach + 1):
                s, m, scale, low, inv = trial_setup(
                    ds, ds + 4, scales, minima, splat(np.float32(a)), splat(np.float32(b))
                )
                error = error_of(x, w, scale, low, inv)
                best_s, best_m = where_greater(best, error, s, best_s), where_greater(best, error, m, best_m)
                best = where_greater(best, error, error, best)
        return best_s, best_m, total(best)

    @njit(**JIT)
    def refit(x, w, ds, scales, minima, sw, swx):
        """Store the d and dmin that fit the integers and their codes best."""
        s, m, scale, low, inv = trial_setup(ds, ds + 4, scales, minima, zero(), zero())
        sl, sll, sxl = sums(x, w, inv, times(low, inv))
        a = total(times(times(s, s), sll))
        b = total(times(times(s, m), sl))
        c = total(times(times(m, m), sw))
        p, q = total(times(s, sxl)), total(times(m, swx))
        det = a * c - b * b
        d, dmin = np.float32(0), np.float32(-1)
        if det > np.float32(1e-6) * a * c:
            d, dmin = (p * c - b * q) / det, (b * p - a * q) / det
        if not dmin >= 0:
            d, dmin = (p / a if a > 0 else np.float32(0)), np.float32(0)
        store_halves(ds, d, dmin)

    @njit(**JIT)
    def store_halves(ds, d, dmin):
        store_float(ds, round_f16(min(max(d, np.float32(0)), LARGEST_F16)))
        store_float(ds + 4, round_f16(min(max(dmin, np.float32(0)), LARGEST_F16)))

    load_one = inline(Float, Int)(lambda k, address: k.load(Float, address))

    @inline(Float, Float)
    def one_over(k, x):
        usable = x.compare(">", TINY)
        one = k.const(Float, 1.0)
        return k.select(usable, one / k.select(usable, x, one), k.const(Float, 0.0))

    scratch = local(64)

    @njit(**JIT)
    def fit(x, w, codes, scales_at, minima_at, ds):
        sw, swx = zero(), zero()
        for i in range(n):
            sw = add(sw, load(w + step * i))
            swx = add_product(swx, load(w + step * i), load(x + step * i))
        scale, minimum = fit_groups(x, w, sw, swx)
        current = scratch()
        store_halves(current, largest(scale) / most32, largest(minimum) / most32)
        s, m = integers(scale, one_over(load_one(current))), integers(minimum, one_over(load_one(current + 4)))
        store_float(ds, load_one(current))
        store_float(ds + 4, load_one(current + 4))
        best, best_s, best_m = np.float32(3e38), s, m
        for turn in range(turns):
            s, m, error = neighbours(x, w, current, s, m, 1)
            if error < best:
                best, best_s, best_m = error, s, m
                store_float(ds, load_one(current))
                store_float(ds + 4, load_one(current + 4))
            if turn < turns - 1:
                refit(x, w, current, s, m, sw, swx)
        s, m, scale, low, inv = trial_setup(ds, ds + 4, best_s, best_m, zero(), zero())
        offset = times(low, inv)
        for i in range(n):
            code_step(codes + step * i, x + step * i, inv, offset)
        store(scales_at, s)
        store(minima_at, m)

    return fit
