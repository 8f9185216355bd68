"""Quantize blocks of w = d * s_j * code, sub-scales of either sign: Q6_K, Q3_K and IQ4_XS.

Each group alone first (``symmetric``). Then the block: one d, sub-scales as integers. Then alternately: every group
tries the neighbours of its integer, and d is refitted by least squares. The best solution of all turns is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ..simd.helpers import load_float
from ..simd.vec import Float, inline
from ..tasks.lang import JIT, local, round_f16
from .blocks import weigher
from .lanes import TINY, clamped, codes_of, nearest, transpose
from .symmetric import Fitter, Symmetric

LARGEST_F16 = np.float32(65504)


@njit(**JIT)
def _half(d):
    return round_f16(min(max(d, -LARGEST_F16), LARGEST_F16))


def signed_block(search: Symmetric, most: int, starts: int, turns: int, cost: tuple[int, float], pack: Any) -> Any:
    """Compile ``quantize_block`` of a format whose sub-scales are the integers -most .. most - 1.

    starts  integers from -most on that the greatest sub-scale is mapped to, to begin with
    turns  rounds of neighbour search and refitting
    cost   ``spread`` and ``floor`` of ``weigher``
    pack   ``pack(block, codes, scales, d)`` writes a block from byte codes above zero, float sub-scales and d
    """
    lanes, n = search.lanes, search.n
    fitted = Fitter(search)
    fit_groups, sums, error_of, coded_at = fitted.fit_groups, fitted.sums, fitted.error, fitted.codes
    reciprocal, words = fitted.reciprocal, fitted.words
    F = words.vec
    load, store, splat, zero, total = words.load, words.store, words.splat, words.zero, words.total
    times, where_greater = words.times, words.where_greater
    least, greatest, least32 = float(-most), float(most - 1), np.float32(-most)
    above = np.float32(0 if search.levels else -search.low)
    weigh = weigher(lanes, n, *cost)
    new_values, new_costs, new_across, new_coded = local(1024), local(1024), local(1024), local(1024)
    new_bytes, new_scales = local(256), local(64)

    @inline(F, F, Float)
    def integers_of(k, scales, inv):
        return nearest(k, clamped(k, scales * inv.splat(F), least, greatest))

    @inline(F, F, Float)
    def moved(k, scales, by):
        return clamped(k, scales + by.splat(F), least, greatest)

    @inline(F, F, Float)
    def scaled(k, scales, d):
        return scales * d.splat(F)

    @njit(**JIT)
    def fit_block(x, w, scales_at):
        """Fit and return d (exact in f16); store the integer scales at ``scales_at`` as floats."""
        scale = fit_groups(x, w)
        store(scales_at, scale)
        extreme = np.float32(0)
        for j in range(lanes):
            s = load_float(scales_at + 4 * j)
            if abs(s) > abs(extreme):
                extreme = s
        d = _half(extreme / least32)
        if not abs(d) > np.float32(TINY):
            store(scales_at, zero())
            return np.float32(0)
        integers = integers_of(scale, np.float32(1) / d)
        best, best_integers, best_d = np.float32(3e38), integers, d
        for number in range(starts if starts > 1 else 0):
            tried_d = _half(extreme / (least32 + np.float32(number)))
            tried = integers_of(scale, np.float32(1) / tried_d)
            error_now = total(error_of(x, w, scaled(tried, tried_d)))
            if error_now < best:
                best, integers, d = error_now, tried, tried_d
        best, best_integers, best_d = np.float32(3e38), integers, d
        for turn in range(turns):
            smallest, chosen = splat(np.float32(3e38)), integers
            for by in range(-1, 2):
                tried = moved(integers, np.float32(by))
                error = error_of(x, w, scaled(tried, d))
                chosen = where_greater(smallest, error, tried, chosen)
                smallest = where_greater(smallest, error, error, smallest)
            integers = chosen
            error_now = total(smallest)
            if error_now < best:
                best, best_integers, best_d = error_now, integers, d
            if turn < turns - 1:
                sxl, sll = sums(x, w, reciprocal(scaled(integers, d)))
                numerator, denominator = total(times(integers, sxl)), total(times(times(integers, integers), sll))
                if denominator > np.float32(TINY):
                    refitted = _half(numerator / denominator)
                    if abs(refitted) > np.float32(TINY):
                        d = refitted
        store(scales_at, best_integers)
        return best_d

    @njit(**JIT)
    def quantize_block(x, importance, block):
        """Quantize 256 floats."""
        costs, values, across, coded = new_costs(), new_values(), new_across(), new_coded()
        flat, scales = new_bytes(), new_scales()
        weigh(x, importance, costs)
        transpose(x, values, lanes, n)
        transpose(costs, across, lanes, n)
        d = fit_block(values, across, scales)
        coded_at(values, scaled(load(scales), d), coded)
        codes_of(coded, flat, lanes, n, above)
        pack(block, flat, scales, d)

    return quantize_block
