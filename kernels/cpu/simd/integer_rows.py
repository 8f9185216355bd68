"""Row kernels for int8 inputs, generated from the declaration of a format: used in tiers N and C.

The dot product of a block is d_x * (d * sum_g s_g dot_g - dmin * sum_g m_g xsum_g), integer sums exact.

Packed buffer for a8, per 32 inputs: 32 codes | f32 d_x. For q8k, per 256: 256 codes | 8 f32 d_x | with minima the sums
of the codes of each group, 16 i16 or 8 i32.
"""

from __future__ import annotations

from numba import njit, types

from ...formats import Format
from ...formats.format import Codebook
from .decode import SubScales, block_minimum, block_scale, codes, group_lanes, numbers, octets, signed
from .helpers import dots, madd, store_float
from .quantize import a8_scale, make_q8k_pack, sixteen_sums, store_codes
from .row_kernel import LANES_8, Part, RowKernel, make_rows, records
from .vec import JIT, Emit, F32x8, Float, I8x32, I16x16, I32x8, Int, Val, inline

_PACKED_A8 = 36


def _run_dots(k: Emit, fmt: Format, block: Val, run: int, x: Val, scales: SubScales | None) -> Val:
    """Return s_g * code * x of 32 weights, summed to 8 int32 lanes."""
    inputs = k.load(I8x32, x)
    lanes = None if scales is None else scales.lanes(group_lanes(fmt, 32 * run, 32)[::2])
    if isinstance(fmt.codes, Codebook):
        magnitudes, masks = octets(k, fmt, block, 32 * run, 32)
        if masks is not None:
            return dots(k, magnitudes, (inputs ^ masks) - masks, lanes, signed=False)
        return dots(k, magnitudes, inputs, lanes, signed=True)
    return dots(k, codes(k, fmt, block, 32 * run, 32), inputs, lanes, signed(fmt))


def _block(k: Emit, fmt: Format, total: Val, block: Val, x: Val) -> Val:
    """Return total + the lane sums of one block."""
    runs = fmt.block_elems // 32
    scales = None if fmt.scales is None else SubScales(k, fmt, block, "i16")
    whole = _run_dots(k, fmt, block, 0, x, scales)
    for run in range(1, runs):
        whole = whole + _run_dots(k, fmt, block, run, x + 32 * run, scales)
    d = block_scale(k, fmt, block, F32x8)
    if runs == 1:
        return k.fma(whole.to_float(F32x8), d * k.load(Float, x + 32).splat(F32x8), total)
    scale = k.load(F32x8, x + 256)
    total = k.fma(whole.to_float(F32x8), d * scale, total)
    if fmt.minima is None:
        return total
    minima = numbers(k, fmt.minima, block, 0, fmt.minima.count)
    if fmt.group == 16:
        sums = madd(k, minima.sext(I16x16), k.load(I16x16, x + 288))
    else:
        sums = minima.sext(I32x8) * k.load(I32x8, x + 288)
    dmin = block_minimum(k, fmt, block, F32x8)
    return k.fma(k.zero(F32x8) - sums.to_float(F32x8), dmin * scale, total)


@njit(**JIT)
def _pack_a8(x, n, buffer):
    for _ in range(n // 32):
        scale, inverse = a8_scale(x)
        store_codes(buffer, x, inverse)
        store_float(buffer + 32, scale)
        buffer += _PACKED_A8
        x += 128


_finish = inline(types.none, Int, Int, Float)(lambda k, target, half, scale: k.store(target + 256, scale.splat(F32x8)))


@inline(types.none, Int, Int, Float)
def _finish_sums_16(k, target, half, scale):
    k.store(target + 256, scale.splat(F32x8))
    for sub in range(8):
        for part, value in enumerate(sixteen_sums(k, k.load(I8x32, target + 32 * sub))):
            k.store(target + 288 + 4 * sub + 2 * part, value)


@inline(types.none, Int, Int, Float)
def _finish_sums_32(k, target, half, scale):
    k.store(target + 256, scale.splat(F32x8))
    for sub in range(8):
        low, high = sixteen_sums(k, k.load(I8x32, target + 32 * sub))
        k.store(target + 288 + 4 * sub, (low + high).sext(types.int32))


def integer_kernel(fmt: Format) -> RowKernel:
    """Generate the kernel of a block format for inputs of its own rounding, ``fmt.activation``.

    This does not work for formats with a single minimum per block, which would need the sum of 32 inputs.
    """
    assert fmt.minimum is None or fmt.minima is not None

    add_one = inline(F32x8, F32x8, Int, Int)(lambda k, total, weights, x: _block(k, fmt, total, weights, x))

    if fmt.activation == "a8":

        @inline(F32x8, F32x8, Int, Int)
        def add_two(k, total, weights, x):
            return _block(k, fmt, _block(k, fmt, total, weights, x), weights + fmt.block_bytes, x + _PACKED_A8)

        pair = Part(64, add_two, 2 * fmt.block_bytes, 2 * _PACKED_A8)
        rows = make_rows(LANES_8, 1, pair, Part(32, add_one, fmt.block_bytes, _PACKED_A8))
        return RowKernel(_pack_a8, rows, records(32, _PACKED_A8))
    size, finish = 320, _finish_sums_16 if fmt.group == 16 else _finish_sums_32
    if fmt.minima is None:
        size, finish = 288, _finish
    rows = make_rows(LANES_8, -(-fmt.block_bytes // 64), Part(256, add_one, fmt.block_bytes, size))
    return RowKernel(make_q8k_pack(size, lambda sub: 32 * sub, finish), rows, records(256, size))
