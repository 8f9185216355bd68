"""Quantize blocks of 32 with one f16 scale by a search (``symmetric``): Q4_0 and Q5_0 with importance, IQ4_NL."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ...formats import FORMATS
from ..simd.helpers import load_float, store_float
from ..tasks.lang import JIT, local, round_f16, store_f16
from .lanes import importance_weights, load_byte, plain_weights, put_byte, store_byte, transpose
from .symmetric import Fitter, Symmetric

WEIGHTS = 32
GROUPS = 8
ONE, ZERO = np.float32(1), np.float32(0)
LARGEST_F16 = np.float32(65504)


@njit(**JIT)
def _round_scales(at):
    """Round eight floats to f16 in place."""
    for g in range(GROUPS):
        store_float(at + 4 * g, round_f16(min(max(load_float(at + 4 * g), -LARGEST_F16), LARGEST_F16)))


def fitted_rows(fmt: str, search: Symmetric, spread: int, floor: float, pack: Any) -> Any:
    """Compile a row quantizer (x, rows, cols, importance, out) that fits the scale of every block.

    spread, floor  as of ``blocks.weigher``
    pack           ``pack(block, codes)`` writes the codes of a block, a byte each: numbers of levels, or codes above
                   the least one
    """
    block_bytes = FORMATS[fmt].block_bytes
    fit = Fitter(search)
    fit_groups, sums, error, codes_at, reciprocal = fit.fit_groups, fit.sums, fit.error, fit.codes, fit.reciprocal
    load, store, where_greater = fit.words.load, fit.words.store, fit.words.where_greater
    new_padded, new_importance, new_costs = local(1024), local(1024), local(1024)
    new_values, new_across, new_coded = local(1024), local(1024), local(1024)
    new_scales, new_tried, new_bytes = local(32), local(32), local(32)
    above, spread32, floor32 = np.float32(0 if search.levels else -search.low), np.float32(spread), np.float32(floor)

    @njit(**JIT)
    def group(x, importance, blocks, out):
        """Quantize up to eight blocks at once."""
        padded, padded_importance, costs = new_padded(), new_importance(), new_costs()
        for i in range(WEIGHTS * GROUPS):
            inside = i < WEIGHTS * blocks
            store_float(padded + 4 * i, load_float(x + 4 * i) if inside else ZERO)
            known = inside and importance != 0
            store_float(padded_importance + 4 * i, load_float(importance + 4 * i) if known else ONE)
        for g in range(GROUPS):
            if importance:
                importance_weights(padded + 128 * g, padded_importance + 128 * g, costs + 128 * g, WEIGHTS, spread32)
            else:
                plain_weights(padded + 128 * g, costs + 128 * g, WEIGHTS, floor32)
        values, across, coded, scales, tried = new_values(), new_across(), new_coded(), new_scales(), new_tried()
        flat = new_bytes()
        transpose(padded, values, GROUPS, WEIGHTS)
        transpose(costs, across, GROUPS, WEIGHTS)
        store(scales, fit_groups(values, across))
        _round_scales(scales)
        # refit the scales to the codes that the rounded scales give
        sxl, sll = sums(values, across, reciprocal(load(scales)))
        store(tried, sxl)
        store(coded, sll)
        for g in range(GROUPS):
            denominator = load_float(coded + 4 * g)
            store_float(tried + 4 * g, load_float(tried + 4 * g) / denominator if denominator > ZERO else ZERO)
        _round_scales(tried)
        before, after = load(scales), load(tried)
        chosen = where_greater(error(values, across, before), error(values, across, after), after, before)
        store(scales, chosen)
        codes_at(values, chosen, coded)
        for g in range(blocks):
            store_f16(out, load_float(scales + 4 * g))
            for i in range(WEIGHTS):
                put_byte(flat + i, load_float(coded + 4 * (i * GROUPS + g)) + above)
            pack(out, flat)
            out += block_bytes

    @njit(**JIT)
    def rows_of(x, rows, cols, importance, out):
        for _ in range(rows):
            for first in range(0, cols // WEIGHTS, GROUPS):
                count = min(GROUPS, cols // WEIGHTS - first)
                group(x + 128 * first, importance + 128 * first if importance else 0, count, out)
                out += block_bytes * count
            x += 4 * cols

    return rows_of


@njit(**JIT)
def pack_nibbles(out, codes):
    """Write 32 codes as 16 bytes: the first half in the low nibbles."""
    for i in range(16):
        store_byte(out + i, (load_byte(codes + i) & 15) | (load_byte(codes + 16 + i) & 15) << 4)


@njit(**JIT)
def pack_4(block, codes):
    """Write the codes of Q4_0 and IQ4_NL."""
    pack_nibbles(block + 2, codes)


@njit(**JIT)
def pack_5(block, codes):
    """Write the codes of Q5_0."""
    for byte in range(4):
        high = 0
        for bit in range(8):
            high |= load_byte(codes + 8 * byte + bit) >> 4 << bit
        store_byte(block + 2 + byte, high)
    pack_nibbles(block + 6, codes)
