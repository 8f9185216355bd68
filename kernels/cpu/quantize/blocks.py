"""Make row quantizers (entry points) from quantizers of one block of 256 weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ...formats import FORMATS
from ..tasks.lang import JIT, local
from ..tasks.registry import export
from .affine import Affine, fitter
from .lanes import codes_of, importance_weights, plain_weights, transpose


def export_rows(fmt: str, quantize_block: Any) -> None:
    """Export ``quantize.FMT`` made from ``quantize_block(x, importance, block)``: addresses of 256 floats, of their
    importance or 0, and of the output block."""
    block_bytes = FORMATS[fmt].block_bytes

    @export(f"quantize.{fmt}", 5)
    def quantize(x, rows, cols, importance, out):
        """Quantize ``rows`` rows of ``cols`` floats; ``importance`` is the address of a row of floats, or 0."""
        for r in range(rows):
            for b in range(cols // 256):
                block_importance = importance + 1024 * b if importance else 0
                quantize_block(x + 4 * (r * cols + 256 * b), block_importance, out)
                out += block_bytes


def affine_block(search: Affine, spread: int, pack: Any) -> Any:
    """Compile ``quantize_block`` of a format with scales and minima: the search, then ``pack``.

    An error in a weight costs abs(x) + the rms of its group without importance, a sqrt(spread mean(x^2) + x^2) with
    importance a (docs/reference/quantize.md).
    ``pack(block, codes, scales, minima, ds)`` writes a block from byte codes, float scales, minima and (d, dmin).
    """
    lanes, n = search.lanes, search.n
    fit, spread32 = fitter(search), np.float32(spread)
    new_values, new_costs, new_across, new_codes = local(1024), local(1024), local(1024), local(1024)
    new_bytes, new_scales, new_minima, new_ds = local(256), local(4 * lanes), local(4 * lanes), local(8)

    @njit(**JIT)
    def quantize_block(x, importance, block):
        costs, values, across, codes = new_costs(), new_values(), new_across(), new_codes()
        if importance:
            importance_weights(x, importance, costs, 256, spread32)
        else:
            for g in range(lanes):
                plain_weights(x + 4 * n * g, costs + 4 * n * g, n)
        transpose(x, values, lanes, n)
        transpose(costs, across, lanes, n)
        scales, minima, ds, flat = new_scales(), new_minima(), new_ds(), new_bytes()
        fit(values, across, codes, scales, minima, ds)
        codes_of(codes, flat, lanes, n)
        pack(block, flat, scales, minima, ds)

    return quantize_block
