"""Row stages whose result is packed by the block that made it, for the products that read it.

A norm in front of products takes one block, and packing what it made another launch of a few warps. Here the block goes
on after a barrier, so the values come from its cache. The bits are those of the row kernels and of ``packing``.
"""

from __future__ import annotations

from ..driver.grids import threads_for
from ..driver.shim import cuda, f64, i32
from ..rows.hyper import enter
from ..rows.stages import MOST, PEAKS, stages_of_row
from .packing import pack_row


@cuda.jit
def chain_packed_kernel(out, codes, scales, codes_k, scales_k, sums_k, x, weight, cos, sin, c, a8, q8k):
    """Run the chain on one row per block, then pack it."""
    sums = cuda.shared.array(MOST, f64)
    peaks = cuda.shared.array(PEAKS, i32)
    row = cuda.blockIdx.x
    stages_of_row(x, out, weight, cos, sin, row, c, sums, peaks)
    pack_row(codes, scales, codes_k, scales_k, sums_k, out, row * c.n, c.n, a8, q8k)  # stages end with a barrier


def chain_packed(stream, out, codes, scales, codes_k, scales_k, sums_k, x, weight, cos, sin, rows, c, a8, q8k):
    """Run ``stages.chain``, and ``pack_a8``, ``pack_q8k`` or both on its result; n % 32 == 0, or n % 256 == 0 with
    ``q8k``. Arrays of a kind that is not wanted are not touched."""
    chain_packed_kernel[rows, threads_for(c.n, MOST), stream](
        out, codes, scales, codes_k, scales_k, sums_k, x, weight, cos, sin, c, a8, q8k
    )


@cuda.jit
def enter_packed_kernel(
    out, post, comb, codes, scales, codes_k, scales_k, sums_k, mix, scale, base, X, weight, e, a8, q8k
):  # fmt: skip
    """Run ``hyper.enter``, and pack the input of the layer."""
    enter(out, post, comb, mix, scale, base, X, weight, e)
    cuda.syncthreads()
    if cuda.blockIdx.x & 1 == 0:
        pack_row(codes, scales, codes_k, scales_k, sums_k, out, (cuda.blockIdx.x >> 1) * e.D, e.D, a8, q8k)


def enter_packed(
    stream, out, post, comb, codes, scales, codes_k, scales_k, sums_k, mix, scale, base, X, weight, tokens, e, a8, q8k
):  # fmt: skip
    """Run ``hyper.hc_enter``, and ``pack_a8``, ``pack_q8k`` or both on its first result, as ``chain_packed`` does."""
    enter_packed_kernel[2 * tokens, threads_for(e.D, MOST), stream](
        out, post, comb, codes, scales, codes_k, scales_k, sums_k, mix, scale, base, X, weight, e, a8, q8k
    )
