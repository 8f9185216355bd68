"""Quantize weights to Q8_0 and Q4_0: one f16 scale per 32 weights. Without importance no search is needed.

Both follow ggml bit for bit, so that files are identical whichever program wrote them: codes use the scale before it is
rounded to f16; Q8_0 rounds halves away from zero, Q4_0 maps the weight of greatest magnitude to -8 and rounds halves
up.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..simd.helpers import load_float, store_float
from ..tasks.lang import FAST, JIT, f32p, local, round_f16, store_f16
from ..tasks.registry import export
from .lanes import importance_weights, store_byte, transpose
from .symmetric import Fitter, Symmetric

WEIGHTS = 32
GROUPS = 8
SEARCH = Symmetric(lanes=GROUPS, n=WEIGHTS, reach=8, spread=0.9, starts=10, passes=2)

HALF, ONE, ZERO = np.float32(0.5), np.float32(1), np.float32(0)
LARGEST_F16 = np.float32(65504)

_fit = Fitter(SEARCH)
_fit_groups, _sums, _error, _codes, _reciprocal = _fit.fit_groups, _fit.sums, _fit.error, _fit.codes, _fit.reciprocal
_load, _store, _where_greater = _fit.words.load, _fit.words.store, _fit.words.where_greater
_padded, _importance, _costs = local(1024), local(1024), local(1024)
_values, _across, _coded, _scales, _tried = local(1024), local(1024), local(1024), local(32), local(32)


@njit(**FAST)
def largest(x, n):
    """Return max |x|."""
    x = f32p(x)
    peak = np.float32(0)
    for i in range(n):
        peak = max(peak, abs(x[i]))
    return peak


@export("quantize.Q8_0", 5)
def q8_0(x, rows, cols, importance, out):
    """Quantize ``rows`` rows of ``cols`` floats; importance is ignored."""
    for _ in range(rows * cols // WEIGHTS):
        d = largest(x, WEIGHTS) / np.float32(127)
        inv = ONE / d if d != ZERO else ZERO
        store_f16(out, d)
        values = f32p(x)
        for i in range(WEIGHTS):
            scaled = values[i] * inv
            whole = np.float32(int(abs(scaled) + HALF)) if abs(scaled) < np.float32(1e6) else ZERO
            # adding 0.5 may round up to the next integer where the fraction is just below one half
            if whole - abs(scaled) > HALF:
                whole -= ONE
            store_byte(out + 2 + i, int(whole if scaled >= ZERO else -whole))
        x += 4 * WEIGHTS
        out += 34


@njit(**JIT)
def q4_0_block(x, out):
    """Quantize 32 floats."""
    values = f32p(x)
    magnitude = largest(x, WEIGHTS)
    first = 0
    while first < WEIGHTS - 1 and abs(values[first]) != magnitude:
        first += 1
    d = values[first] / np.float32(-8)
    inv = ONE / d if d != ZERO else ZERO
    store_f16(out, d)
    for i in range(16):
        low = min(15, int(values[i] * inv + np.float32(8.5)))
        high = min(15, int(values[i + 16] * inv + np.float32(8.5)))
        store_byte(out + 2 + i, low | high << 4)


@njit(**JIT)
def q4_0_group(x, importance, blocks, out):
    """Quantize up to eight blocks at once, each with a scale fitted to the importance of its inputs."""
    padded, padded_importance, costs = _padded(), _importance(), _costs()
    for i in range(WEIGHTS * GROUPS):
        inside = i < WEIGHTS * blocks
        store_float(padded + 4 * i, load_float(x + 4 * i) if inside else ZERO)
        store_float(padded_importance + 4 * i, load_float(importance + 4 * i) if inside else ONE)
    for g in range(GROUPS):
        importance_weights(padded + 128 * g, padded_importance + 128 * g, costs + 128 * g, WEIGHTS, np.float32(1))
    values, across, coded, scales, tried = _values(), _across(), _coded(), _scales(), _tried()
    transpose(padded, values, GROUPS, WEIGHTS)
    transpose(costs, across, GROUPS, WEIGHTS)
    _store(scales, _fit_groups(values, across))
    round_scales(scales)
    # refit the scales to the codes that the rounded scales give
    sxl, sll = _sums(values, across, _reciprocal(_load(scales)))
    _store(tried, sxl)
    _store(coded, sll)
    for g in range(GROUPS):
        denominator = load_float(coded + 4 * g)
        store_float(tried + 4 * g, load_float(tried + 4 * g) / denominator if denominator > ZERO else ZERO)
    round_scales(tried)
    before, after = _load(scales), _load(tried)
    chosen = _where_greater(_error(values, across, before), _error(values, across, after), after, before)
    _store(scales, chosen)
    _codes(values, chosen, coded)
    for g in range(blocks):
        block = out + 18 * g
        store_f16(block, load_float(scales + 4 * g))
        for i in range(16):
            low = int(load_float(coded + 4 * (i * GROUPS + g))) + 8
            high = int(load_float(coded + 4 * ((i + 16) * GROUPS + g))) + 8
            store_byte(block + 2 + i, low | high << 4)


@njit(**JIT)
def round_scales(at):
    """Round eight floats to f16 in place."""
    for g in range(GROUPS):
        store_float(at + 4 * g, round_f16(min(max(load_float(at + 4 * g), -LARGEST_F16), LARGEST_F16)))


@export("quantize.Q4_0", 5)
def q4_0(x, rows, cols, importance, out):
    """Quantize ``rows`` rows of ``cols`` floats; ``importance`` is the address of a row of floats, or 0."""
    if importance == 0:
        for _ in range(rows * cols // WEIGHTS):
            q4_0_block(x, out)
            x += 4 * WEIGHTS
            out += 18
        return
    for _ in range(rows):
        for first in range(0, cols // WEIGHTS, GROUPS):
            count = min(GROUPS, cols // WEIGHTS - first)
            q4_0_group(x + 128 * first, importance + 128 * first, count, out)
            out += 18 * count
        x += 4 * cols
