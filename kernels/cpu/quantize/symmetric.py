"""Fit w = d * code with codes around zero, one scale per group: the search behind all formats without minima.

The largest weight of a group is mapped to the last code on either side, and to values around both; from each of these
starts, coding and fitting the best scale (weighted least squares) alternate. Codes are integers, or uneven levels.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from ..simd.vec import Emit, Float, Int, Val, inline
from ..tasks.lang import JIT
from .lanes import TINY, LaneOps, clamped, inverse, like, nearest


class Symmetric(NamedTuple):
    """Shape of the groups and of the search: ``lanes`` groups of ``n`` weights, codes ``low`` .. ``high``.

    spread  how far around the end codes the largest weight is mapped, in codes
    starts  number of values within ``spread`` to try
    passes  rounds of coding and fitting from each start
    levels  the values that a code may have, in rising order; empty: every integer from low to high
    """

    lanes: int
    n: int
    low: int
    high: int
    spread: float
    starts: int
    passes: int
    levels: tuple[int, ...] = ()


def _coder(kind: Symmetric) -> Any:
    """Return an emitter: the nearest code to x * inv, as a float."""
    if not kind.levels:
        return lambda k, x, inv: nearest(k, clamped(k, x * inv, float(kind.low), float(kind.high)))

    def level(k, x, inv):
        return counted(k, kind, x * inv, lambda below, above: float(above - below), float(kind.levels[0]))

    return level


def counted(k: Emit, kind: Symmetric, value: Val, step: Callable[[int, int], float], start: float) -> Val:
    """Return ``start`` plus the ``step`` from level to level for every midpoint of two levels below ``value``."""
    total = like(k, value, start)
    for below, above in pairwise(kind.levels):
        total = total + k.select(
            value.compare(">", (below + above) / 2), like(k, value, step(below, above)), like(k, value, 0.0)
        )
    return total


class Fitter:
    """Compiled parts of the search.

    fit_groups(x, w)      scales of the groups
    sums(x, w, inv)       sums of w x code and of w code^2 by group
    error(x, w, scale)    error by group
    codes(x, scale, out)  stores transposed float codes, or numbers of levels
    """

    def __init__(self, kind: Symmetric):
        self.words = words = LaneOps(kind.lanes)
        F = words.vec
        load, splat, zero, where_greater = words.load, words.splat, words.zero, words.where_greater
        n, step, passes, starts = kind.n, 4 * kind.lanes, kind.passes, kind.starts
        spread = np.float32(kind.spread)
        stride = np.float32(2 * kind.spread / max(1, starts - 1))
        pair = types.UniTuple(F, 2)
        low_end, high_end = np.float32(kind.low), np.float32(kind.high)
        code = _coder(kind)

        @inline(pair, F, F, Int, Int, F)
        def sums_step(k, sxl, sll, x, w, inv):
            values = k.load(F, x)
            codes = code(k, values, inv)
            weighted = k.load(F, w) * codes
            return k.fma(weighted, values, sxl), k.fma(weighted, codes, sll)

        @njit(**JIT)
        def sums(x, w, inv):
            sxl, sll = zero(), zero()
            for i in range(n):
                sxl, sll = sums_step(sxl, sll, x + step * i, w + step * i, inv)
            return sxl, sll

        @inline(F, F, Int)
        def extreme(k, peak, at):
            values = k.load(F, at)
            return k.select(k.abs(values).compare(">", k.abs(peak)), values, peak)

        @inline(F, F, Float)
        def start(k, peak, end):
            return end.splat(F) * inverse(k, peak)

        @inline(pair, F, F)
        def solve(k, sxl, sll):
            """Return the scale, and the error it saves against all zeros."""
            coded = sll.compare(">", TINY)
            scale = k.select(coded, sxl / k.select(coded, sll, k.const(F, 1.0)), k.zero(F))
            return scale, scale * sxl

        @inline(F, F)
        def reciprocal(k, scale):
            return inverse(k, scale)

        @inline(F, F, Int, Int, F, F)
        def error_step(k, error, x, w, scale, inv):
            values = k.load(F, x)
            miss = values - scale * code(k, values, inv)
            return k.fma(k.load(F, w) * miss, miss, error)

        @inline(types.none, Int, Int, F)
        def code_step(k, out, x, inv):
            value = k.load(F, x)
            k.store(out, counted(k, kind, value * inv, lambda *_: 1.0, 0.0) if kind.levels else code(k, value, inv))

        @njit(**JIT)
        def fit_groups(x, w):
            peak = load(x)
            for i in range(1, n):
                peak = extreme(peak, x + step * i)
            best, scale = splat(np.float32(-3e38)), zero()
            for number in range(2 * starts):
                end = low_end if number < starts else high_end
                inv = start(peak, end + stride * np.float32(number % starts) - spread)
                for _ in range(passes):
                    sxl, sll = sums(x, w, inv)
                    s, gain = solve(sxl, sll)
                    scale = where_greater(gain, best, s, scale)
                    best = where_greater(gain, best, gain, best)
                    inv = reciprocal(s)
            return scale

        @njit(**JIT)
        def error(x, w, scale):
            inv, total = reciprocal(scale), zero()
            for i in range(n):
                total = error_step(total, x + step * i, w + step * i, scale, inv)
            return total

        @njit(**JIT)
        def codes(x, scale, out):
            inv = reciprocal(scale)
            for i in range(n):
                code_step(out + step * i, x + step * i, inv)

        self.fit_groups, self.sums, self.error, self.codes, self.reciprocal = fit_groups, sums, error, codes, reciprocal
