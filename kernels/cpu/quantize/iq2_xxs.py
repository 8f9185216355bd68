"""Quantize weights to IQ2_XXS: each group of 8 weights (an *octet*) becomes an entry of a codebook
(kernels/formats/codebooks.py has the layout).

For a scale s, the weighted square error of an octet if it becomes entry e, with magnitudes g, is

    sum_i w_i (|x_i| - s g_i)^2 = const + s (s B_e - 2 A_e)        A_e = sum w |x| g,  B_e = sum w g^2

so A and B, computed once for all 256 entries, give the exact best entry for any scale with one multiply-add and one
minimum per entry, and trying another scale is cheap. An octet must have an even number of minus signs. Where the
weights have an odd number, one sign is flipped, chosen together with the entry: flipping i adds 4 s w_i |x_i| g_i, so
A_e loses twice the smallest w_i |x_i| g_i.

A group of 32 has a scale d (2 ls + 1) / 8. Each group first finds its best scale alone; then d is tried around the
value at which the largest of them has ls = 15, and fitted by least squares to the entries chosen.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from ds4ref.kernels.formats import FORMATS
from ds4ref.kernels.formats.codebooks import GRID

from ..simd.helpers import load_float, store_int
from ..simd.vec import F32x32, Float, I32x32, Int, inline
from ..tasks.lang import JIT, f32p, local, round_f16, store_f16
from .lanes import export_rows, importance_weights, load_byte, mean_square, store_byte

BLOCK_BYTES = FORMATS["IQ2_XXS"].block_bytes
CODES = 15
GROUPS, OCTETS = 8, 32

# Scales a group tries, relative to that which puts its largest weight on the largest magnitude.
FIRST, FACTOR, TRIES = np.float32(0.5), np.float32(1.12), 9
FINER = np.float32(1.05)

# Values of d that a block tries, relative to that which gives the group of largest scale the largest code.
LOWEST, STEP, STEPS = np.float32(0.94), np.float32(0.07), 4

ZERO, ONE, HUGE = np.float32(0), np.float32(1), np.float32(3e38)
FLATTER = np.float32(3)  # large weights count less than in other formats, because the codebook cannot reach them anyway
LARGEST_F16 = np.float32(65504)
EIGHTH = np.float32(0.125)
TOP = np.float32(GRID.max())

_TABLE = [int(v) for v in GRID.T.reshape(-1)]  # magnitude i of all entries, for each i
_SQUARES = [v * v for v in _TABLE]
_ROW = 1024  # bytes of 256 floats

_costs, _scaled = local(1024), local(1024)
_a, _b = local(OCTETS * _ROW), local(OCTETS * _ROW)
_signs, _scales, _codes, _best_codes = local(64), local(64), local(64), local(64)
_lanes, _places = local(128), local(128)


@inline(types.none, Int, Int, Int, Int, Int)
def _store_costs(k, wx, w, at, a_out, b_out):
    """Store -2 A and B of 32 entries; ``at`` is their byte offset."""
    grid, equal_costs = k.table("ds4_iq2_grid", "f32", _TABLE) + at, k.table("ds4_iq2_squares", "f32", _SQUARES) + at
    a, b = k.zero(F32x32), k.zero(F32x32)
    for i in range(8):
        a = k.fma(k.load(F32x32, grid + _ROW * i), k.load(Float, wx + 4 * i).splat(F32x32), a)
        b = k.fma(k.load(F32x32, equal_costs + _ROW * i), k.load(Float, w + 4 * i).splat(F32x32), b)
    k.store(a_out + at, a * -2.0)
    k.store(b_out + at, b)


@inline(types.none, Int, Int, Int)
def _flip_cheapest(k, wx, at, a_out):
    """Subtract twice the smallest term from A of 32 entries (stored as -2 A)."""
    grid = k.table("ds4_iq2_grid", "f32", _TABLE) + at
    least = k.load(F32x32, grid) * k.load(Float, wx).splat(F32x32)
    for i in range(1, 8):
        least = k.minimum(k.load(F32x32, grid + _ROW * i) * k.load(Float, wx + 4 * i).splat(F32x32), least)
    k.store(a_out + at, k.load(F32x32, a_out + at) + least * 4.0)


_greatest = inline(F32x32)(lambda k: k.const(F32x32, 3e38))


@inline(F32x32, F32x32, Int, Int, Float)
def _lower(k, least, a, b, s):
    return k.minimum(k.fma(s.splat(F32x32), k.load(F32x32, b), k.load(F32x32, a)), least)


_least = inline(Float, F32x32)(lambda k, a: k.fold(a, k.minimum))


@inline(types.none, Int, Int, Int, Int, Float, types.int32)
def _keep_lowest(k, values, places, a, b, s, place):
    """Keep, in each lane, the lowest cost so far, and ``place``, the number of the 32 entries that it is among."""
    cost, lowest = k.fma(s.splat(F32x32), k.load(F32x32, b), k.load(F32x32, a)), k.load(F32x32, values)
    better = cost.compare("<", lowest)
    k.store(values, k.select(better, cost, lowest))
    k.store(places, k.select(better, place.splat(I32x32), k.load(I32x32, places)))


_clear = inline(types.none, Int)(lambda k, values: k.store(values, k.const(F32x32, 3e38)))


@inline(types.int64, Int)
def load_int(k, address):
    """Load the int32 at ``address``."""
    return k.load(types.int32, address).sext(types.int64)


@njit(**JIT)
def tables(x, w, wx, a, b, signs):
    """Compute A and B of all octets of a block, and the signs of the weights, bit i of a byte set for a minus."""
    values, costs, products = f32p(x), f32p(w), f32p(wx)
    for i in range(8 * OCTETS):
        products[i] = costs[i] * abs(values[i])
    for octet in range(OCTETS):
        minuses, odd = 0, 0
        for i in range(8):
            minus = 1 if values[8 * octet + i] < ZERO else 0
            minuses |= minus << i
            odd ^= minus
        store_byte(signs + octet, minuses)
        for at in range(0, _ROW, 128):
            _store_costs(wx + 32 * octet, w + 32 * octet, at, a + _ROW * octet, b + _ROW * octet)
        if odd:
            for at in range(0, _ROW, 128):
                _flip_cheapest(wx + 32 * octet, at, a + _ROW * octet)


@njit(**JIT)
def group_cost(a, b, group, s):
    """Return the cost (error) of a group's four octets at scale ``s``, less a constant; it is never above 0 at the best
    scale."""
    total = ZERO
    for octet in range(4 * group, 4 * group + 4):
        least = _greatest()
        for at in range(_ROW * octet, _ROW * (octet + 1), 128):
            least = _lower(least, a + at, b + at, s)
        total += _least(least)
    return total * s


@njit(**JIT)
def best_entry(a, b, octet, s, values, places):
    """Return the cheapest entry of an octet at scale ``s``, the first of equals."""
    _clear(values)
    for chunk in range(8):
        at = _ROW * octet + 128 * chunk
        _keep_lowest(values, places, a + at, b + at, s, np.int32(chunk))
    least, best = HUGE, 0
    for lane in range(32):
        cost, entry = load_float(values + 4 * lane), 32 * load_int(places + 4 * lane) + lane
        if cost < least or (cost == least and entry < best):
            least, best = cost, entry
    return best


@njit(**JIT)
def best_group_scales(x, a, b, scales):
    """Store the best scale of each group by itself."""
    values, group_scales = f32p(x), f32p(scales)
    for group in range(GROUPS):
        extreme = ZERO
        for i in range(32 * group, 32 * group + 32):
            extreme = max(extreme, abs(values[i]))
        s = FIRST * extreme / TOP
        least, best = ZERO, ZERO
        for _ in range(TRIES):
            cost = group_cost(a, b, group, s)
            if cost < least:
                least, best = cost, s
            s *= FACTOR
        centre = best
        for side in range(2):
            s = centre * FINER if side else centre / FINER
            cost = group_cost(a, b, group, s)
            if cost < least:
                least, best = cost, s
        group_scales[group] = best


@njit(**JIT)
def choose_codes(a, b, scales, d, codes):
    """Store the better of the two scale codes around each group's best scale for this d; return the block's cost."""
    total = ZERO
    for group in range(GROUPS):
        exact = (load_float(scales + 4 * group) / (d * EIGHTH) - ONE) * np.float32(0.5)
        lower = int(min(max(exact, ZERO), np.float32(CODES - 1)))
        least, code = HUGE, lower
        for tried in range(lower, lower + 2):
            cost = group_cost(a, b, group, d * np.float32(2 * tried + 1) * EIGHTH)
            if cost < least:
                least, code = cost, tried
        store_int(codes + 4 * group, np.int32(code))
        total += least
    return total


@njit(**JIT)
def refitted(x, w, a, b, d, codes, values, places):
    """Return the d that best fits the entries chosen at ``d``."""
    numerator, denominator = ZERO, ZERO
    for octet in range(OCTETS):
        unit = np.float32(2 * load_int(codes + 4 * (octet >> 2)) + 1) * EIGHTH
        at = _ROW * octet + 4 * best_entry(a, b, octet, d * unit, values, places)
        numerator -= np.float32(0.5) * unit * load_float(a + at)
        denominator += unit * unit * load_float(b + at)
    return half(numerator / denominator) if denominator > ZERO else ZERO


@njit(**JIT)
def half(d):
    """Round d to the nearest binary16, between 0 and the largest finite one."""
    return round_f16(min(max(d, ZERO), LARGEST_F16))


@njit(**JIT)
def copy_codes(source, target):
    """Copy the code words of a block."""
    for group in range(GROUPS):
        store_int(target + 4 * group, np.int32(load_int(source + 4 * group)))


@njit(**JIT)
def pack(block, d, codes, wx, a, b, signs, values, places):
    """Write one block: entries and signs at the chosen scales."""
    store_f16(block, d)
    for group in range(GROUPS):
        code = load_int(codes + 4 * group)
        s = d * np.float32(2 * code + 1) * EIGHTH
        word = code << 28
        for p in range(4):
            octet = 4 * group + p
            entry = best_entry(a, b, octet, s, values, places)
            store_byte(block + 2 + 8 * group + p, entry)
            minuses = load_byte(signs + octet)
            word |= (even_signs(minuses, wx + 32 * octet, entry) & 127) << (7 * p)
        for p in range(4):
            store_byte(block + 6 + 8 * group + p, (word >> (8 * p)) & 255)


@inline(Float, Int, Int)
def magnitude(k, entry, i):
    """Return weight i of codebook entry ``entry``, without its sign."""
    return k.load(Float, k.table("ds4_iq2_grid", "f32", _TABLE) + (i * _ROW + entry * 4))


@njit(**JIT)
def even_signs(minuses, wx, entry):
    """Return the signs with an even number of minuses: flip the cheapest one where the number is odd."""
    odd = 0
    least, flipped = HUGE, 0
    for i in range(8):
        odd ^= (minuses >> i) & 1
        cost = load_float(wx + 4 * i) * magnitude(entry, i)
        if cost < least:
            least, flipped = cost, i
    return minuses ^ (1 << flipped) if odd else minuses


@njit(**JIT)
def equal_costs(x, out, n):
    """Store the costs of errors for use without importance: the same for every weight."""
    target = f32p(out)
    level = max(mean_square(x, n), np.float32(1e-30))
    for i in range(n):
        target[i] = ONE / level


@njit(**JIT)
def quantize_block(x, importance, block):
    """Quantize 256 floats."""
    w, wx, a, b, signs, scales = _costs(), _scaled(), _a(), _b(), _signs(), _scales()
    codes, best_codes, values, places = _codes(), _best_codes(), _lanes(), _places()
    if importance:
        importance_weights(x, importance, w, 256, FLATTER)
    else:
        equal_costs(x, w, 256)
    tables(x, w, wx, a, b, signs)
    best_group_scales(x, a, b, scales)
    extreme = ZERO
    for group in range(GROUPS):
        extreme = max(extreme, load_float(scales + 4 * group))
    base = extreme * np.float32(8.0 / (2 * CODES + 1))
    best, least = ZERO, HUGE
    for step in range(STEPS):
        d = half(base * (LOWEST + STEP * np.float32(step)))
        if d > ZERO:
            cost = choose_codes(a, b, scales, d, codes)
            if cost < least:
                best, least = d, cost
                copy_codes(codes, best_codes)
    if best == ZERO:
        for i in range(BLOCK_BYTES):
            store_byte(block + i, 0)
        return
    for _ in range(2):
        d = refitted(x, w, a, b, best, best_codes, values, places)
        if d > ZERO:
            cost = choose_codes(a, b, scales, d, codes)
            if cost < least:
                best, least = d, cost
                copy_codes(codes, best_codes)
    pack(block, best, best_codes, wx, a, b, signs, values, places)


export_rows("IQ2_XXS", quantize_block)
