"""Row stages whose result is packed by the block that made it, for the products that read it.

A norm in front of products takes one block, and packing what it made another launch of a few warps. Here the block goes
on after a barrier, so the values come from its cache. The bits are those of the row kernels and of ``packing``.
"""

from __future__ import annotations

import numpy as np

from ..driver.grids import threads_for
from ..driver.shim import cuda, f32, f64, i32
from ..rows.hyper import MOST_STREAMS, TABLE, WARP, normed_sum, split_off
from ..rows.stages import MOST, PEAKS, stages_of_row
from .packing import pack_row

F32 = np.float32


@cuda.jit
def chain_packed_kernel(
    out, codes, scales, codes_k, scales_k, sums_k, x, weight, cos, sin, n, heads, stages, weighted, eps, half, gap,
    sign, channels, factor, a8, q8k,
):  # fmt: skip
    """Run the chain on one row per block, then pack it."""
    sums = cuda.shared.array(MOST, f64)
    peaks = cuda.shared.array(PEAKS, i32)
    row = cuda.blockIdx.x
    stages_of_row(
        x, out, weight, cos, sin, row * n, row // heads, n, stages, weighted, eps, half, gap, sign, channels, factor,
        sums, peaks,
    )  # fmt: skip
    pack_row(codes, scales, codes_k, scales_k, sums_k, out, row * n, n, a8, q8k)  # every stage ends with a barrier


def chain_packed(
    stream, out, codes, scales, codes_k, scales_k, sums_k, x, weight, cos, sin, rows, n, heads, stages, weighted, eps,
    half, gap, sign, channels, factor, a8, q8k,
):  # fmt: skip
    """Run ``stages.chain``, and ``pack_a8``, ``pack_q8k`` or both on its result; n % 32 == 0, or n % 256 == 0 with
    ``q8k``. Arrays of a kind that is not wanted are not touched."""
    chain_packed_kernel[rows, threads_for(n, MOST), stream](
        out, codes, scales, codes_k, scales_k, sums_k, x, weight, cos, sin, n, heads, stages, weighted, F32(eps), half,
        gap, F32(sign), channels, F32(factor), a8, q8k,
    )  # fmt: skip


@cuda.jit
def enter_packed_kernel(
    out, post, comb, codes, scales, codes_k, scales_k, sums_k, mix, scale, base, X, weight, C, D, iters, eps, weighted,
    norm_eps, a8, q8k,
):  # fmt: skip
    """Run ``hyper.enter_kernel``, and pack the input of the layer."""
    table = cuda.shared.array(TABLE, f32)
    pre = cuda.shared.array(MOST_STREAMS, f32)
    sums = cuda.shared.array(MOST, f64)
    token = cuda.blockIdx.x >> 1
    if cuda.blockIdx.x & 1 == 0:
        normed_sum(out, mix, scale, base, X, weight, token, C, D, eps, weighted, norm_eps, pre, sums)
        cuda.syncthreads()
        pack_row(codes, scales, codes_k, scales_k, sums_k, out, token * D, D, a8, q8k)
    elif cuda.threadIdx.x < WARP:
        split_off(post, comb, mix, scale, base, token, C, iters, eps, table)


def enter_packed(
    stream, out, post, comb, codes, scales, codes_k, scales_k, sums_k, mix, scale, base, X, weight, tokens, C, D, iters,
    eps, weighted, norm_eps, a8, q8k,
):  # fmt: skip
    """Run ``hyper.hc_enter``, and ``pack_a8``, ``pack_q8k`` or both on its first result, as ``chain_packed`` does."""
    enter_packed_kernel[2 * tokens, threads_for(D, MOST), stream](
        out, post, comb, codes, scales, codes_k, scales_k, sums_k, mix, scale, base, X, weight, C, D, iters, F32(eps),
        weighted, F32(norm_eps), a8, q8k,
    )  # fmt: skip
