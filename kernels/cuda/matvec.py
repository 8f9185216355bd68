"""Products of one or a few input vectors with quantized matrices: decode is these, and their bound is memory.

One launch multiplies ``pairs`` inputs with matrices of ``rows`` rows each; which matrix and which input belong to a pair
is a matter of a few numbers (``launch``), so that plain, grouped and expert products are one kernel. A warp takes two
rows at a time and walks over them in chunks. Raw bytes of chunks ahead are on their way into shared memory (cp.async,
16 bytes a lane, across the ends of rows and of experts: a warp always has the next bytes under way) while a lane decodes
one unit of 32 weights of each of both rows (``units``) and multiplies it with the inputs, which both rows share:

    integer inputs (a8, q8k)   8 dp4a a unit, then its scale, and the minima times the sums of 16 codes
    float inputs               32 multiply-adds a unit; the numbers are those of the file, the sums float32

Rows need not start at a multiple of 16 bytes: a chunk is copied from the multiple below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .intrinsics import (
    bits_to_float,
    copy16,
    copy_commit,
    copy_wait0,
    copy_wait1,
    dp2a_low,
    dp4a,
    element,
    permute_bytes,
    read2,
    read4,
    sync_warp,
    warp_sum,
)
from .shim import SIMULATED, allow_shared, cuda, i32, multiprocessors
from .units import UNITS, Unit, straight

F32, I32 = np.float32, np.int32
ZERO = np.float32(0)


class Layout(NamedTuple):
    """How a kernel cuts its work: units a lane decodes in a chunk, chunks in shared memory, warps of a block, blocks a
    multiprocessor takes, registers a thread may have."""

    passes: int
    stages: int
    warps: int
    blocks: int
    registers: int = 64


LAYOUTS = {
    "Q8_0": Layout(1, 3, 4, 8),
    "Q4_0": Layout(2, 3, 4, 8),
    "Q2_K": Layout(2, 3, 8, 4),
    "Q4_K": Layout(1, 3, 4, 8),
    "Q6_K": Layout(1, 3, 4, 8),
    "IQ2_XXS": Layout(2, 3, 16, 2),
}

FLOAT_LAYOUTS = {"Q4_K": Layout(1, 3, 4, 6, 80)}
"""Where products with float inputs need more registers."""


class Kernel(NamedTuple):
    """A compiled kernel and what its launch needs besides operands."""

    run: Any
    layout: Layout
    shared_bytes: int


BYTE_BIAS, EXPONENT_23 = np.int32(-0x7F7F7F80), np.int32(0x4B000000)
BIASED = np.float32(2**23 + 128)


@cuda.jit(device=True)
def _signed_byte(biased, selector):
    """A byte as a float: it becomes the last bits of 2^23 + 128 + byte."""
    return bits_to_float(permute_bytes(biased, EXPONENT_23, selector)) - BIASED


@cuda.jit(device=True)
def _float_dot(q, x, total):
    """total + four signed bytes times four floats, given as words."""
    biased = np.int32(q ^ BYTE_BIAS)
    total += _signed_byte(biased, 0x7540) * bits_to_float(x[0])
    total += _signed_byte(biased, 0x7541) * bits_to_float(x[1])
    total += _signed_byte(biased, 0x7542) * bits_to_float(x[2])
    total += _signed_byte(biased, 0x7543) * bits_to_float(x[3])
    return total


def _fetcher(chunk_bytes: int, pitch: int) -> Callable[..., Any]:
    """A device function that begins to copy a chunk of one row: ``start`` is its first byte, ``size`` its bytes."""
    per_lane = -(-(chunk_bytes + 14) // 16) // 32 + 1

    @cuda.jit(device=True)
    def fetch(words, place, raw, start, size):
        lane = cuda.threadIdx.x
        begin = start & ~15
        count = (start - begin + size + 15) >> 4
        for k in range(per_lane):
            i = lane + 32 * k
            if i < count:
                copy16(words, place + 4 * i, raw, begin + 16 * i)

    return fetch


@cache
def kernel(fmt: str, act: str, layout: Layout | None = None) -> Kernel:
    """The kernel of a format and a rounding of the inputs (float, or the integer one that goes with the format)."""
    unit = UNITS[fmt]
    layout = layout or (act == "float" and FLOAT_LAYOUTS.get(fmt)) or LAYOUTS[fmt]
    if SIMULATED:
        layout = layout._replace(warps=2)
    chunk_units = 32 * layout.passes
    chunk_bytes = chunk_units // unit.per_block * unit.block_bytes
    pitch = (chunk_bytes + 14 + 16 + 15) // 16 * 4  # words: a skew, and what ``decode`` reads behind the last block
    table_words = 0 if unit.table is None else 32 * len(unit.table)
    shared = 4 * (table_words + layout.warps * layout.stages * 2 * pitch)
    return Kernel(_rows(unit, act, layout, chunk_units, chunk_bytes, pitch, table_words), layout, shared)


def _rows(
    unit: Unit, act: str, layout: Layout, chunk_units: int, chunk_bytes: int, pitch: int, table_words: int
) -> Any:
    decode, column, per_block, block_bytes = unit.decode, unit.column, unit.per_block, unit.block_bytes
    minima, halves, in_order, floats = unit.minima, unit.halves, unit.column is straight, act == "float"
    passes, stages, warps = layout.passes, layout.stages, layout.warps
    fetch = _fetcher(chunk_bytes, pitch)
    wait = copy_wait1 if stages == 3 else copy_wait0
    assert stages in (2, 3)
    block_weights = 32 * per_block
    table = np.zeros(1, np.int32) if unit.table is None else unit.table

    @cuda.jit(max_registers=layout.registers)
    def multiply(
        raw, row_bytes, ids, experts, groups, slots, share, codes, scales, sums, out, rows, n, pairs, error, failure
    ):
        lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
        words = cuda.shared.array(0, i32)
        if table_words > 0:
            looked_up = cuda.const.array_like(table)
            for i in range(warp * 32 + lane, table_words, warps * 32):
                words[i] = looked_up[i >> 5]
            cuda.syncthreads()
        own = I32(table_words + warp * (stages * 2 * pitch))

        # int32 wherever it is enough: Numba computes in int64, which takes two registers
        units = n >> 5
        chunks = I32((units + chunk_units - 1) // chunk_units)
        both = I32((rows + 1) >> 1)
        stride = I32(cuda.gridDim.x * warps)
        at = I32(cuda.blockIdx.x * warps + warp)
        steps = I32((pairs * both - at + stride - 1) // stride * (slots * chunks))

        # where the next chunk to fetch is, and the one to multiply
        ahead, ahead_slot, ahead_chunk = at, I32(0), I32(0)
        slot, chunk = I32(0), I32(0)
        sum_a, sum_b = ZERO, ZERO
        for step in range(I32(1 - stages), steps):
            if step >= 0:
                wait()
                sync_warp()
            if step + stages - 1 < steps:
                pair = I32(ahead // both)
                row = I32(2 * (ahead - pair * both))
                which = I32(pair % groups)
                if experts > 0:
                    which = I32(element(ids, pair * slots + ahead_slot))
                    if which < 0 or which >= experts:
                        error[0] = failure
                        which = I32(0)
                start = (np.int64(which) * rows + row) * row_bytes + ahead_chunk * chunk_bytes
                size = I32(min(chunk_bytes, row_bytes - ahead_chunk * chunk_bytes))
                place = I32(own + (step + stages - 1) % stages * (2 * pitch))
                fetch(words, place, raw, start, size)
                fetch(words, place + pitch, raw, start + (row_bytes if row + 1 < rows else 0), size)
                ahead_chunk = I32(ahead_chunk + 1)
                if ahead_chunk == chunks:
                    ahead_chunk = I32(0)
                    ahead_slot = I32(ahead_slot + 1)
                    if ahead_slot == slots:
                        ahead_slot = I32(0)
                        ahead = I32(ahead + stride)
            copy_commit()
            if step >= 0:
                pair = I32(at // both)
                row = I32(2 * (at - pair * both))
                which = I32(pair % groups)
                if experts > 0:
                    which = I32(element(ids, pair * slots + slot))
                    if which < 0 or which >= experts:
                        which = I32(0)
                skew_a = I32(((which * rows + row) * row_bytes + chunk * chunk_bytes) & 15)
                skew_b = I32((skew_a + (row_bytes if row + 1 < rows else 0)) & 15)
                place = I32(own + step % stages * (2 * pitch))
                vector = I32((pair * slots + slot) // share)
                for k in range(passes):
                    inside = I32(k * 32 + lane)
                    number = I32(chunk * chunk_units + inside)
                    if number < units:
                        block, j = I32(inside // per_block), I32(inside % per_block)
                        a0, a1, a2, a3, a4, a5, a6, a7, fa, ga, ma = decode(
                            words, 4 * place + skew_a + block * block_bytes, j, words
                        )
                        b0, b1, b2, b3, b4, b5, b6, b7, fb, gb, mb = decode(
                            words, 4 * (place + pitch) + skew_b + block * block_bytes, j, words
                        )
                        x = I32(vector * n + number // per_block * block_weights)
                        if floats:
                            p, q = ZERO, ZERO
                            x0 = read4(codes, x + column(j, 0))
                            p, q = _float_dot(a0, x0, p), _float_dot(b0, x0, q)
                            x1 = read4(codes, x + column(j, 1))
                            p, q = _float_dot(a1, x1, p), _float_dot(b1, x1, q)
                            x2 = read4(codes, x + column(j, 2))
                            p, q = _float_dot(a2, x2, p), _float_dot(b2, x2, q)
                            x3 = read4(codes, x + column(j, 3))
                            p, q = _float_dot(a3, x3, p), _float_dot(b3, x3, q)
                            if halves:
                                sum_a += fa * p
                                sum_b += fb * q
                                p, q = ZERO, ZERO
                            x4 = read4(codes, x + column(j, 4))
                            p, q = _float_dot(a4, x4, p), _float_dot(b4, x4, q)
                            x5 = read4(codes, x + column(j, 5))
                            p, q = _float_dot(a5, x5, p), _float_dot(b5, x5, q)
                            x6 = read4(codes, x + column(j, 6))
                            p, q = _float_dot(a6, x6, p), _float_dot(b6, x6, q)
                            x7 = read4(codes, x + column(j, 7))
                            p, q = _float_dot(a7, x7, p), _float_dot(b7, x7, q)
                            if halves:
                                sum_a += ga * p
                                sum_b += gb * q
                            elif minima:
                                t = read2(sums, 2 * (vector * units + number))
                                t0, t1 = bits_to_float(t[0]), bits_to_float(t[1])
                                sum_a += fa * p - ga * (F32(ma & 255) * t0 + F32(ma >> 8) * t1)
                                sum_b += fb * q - gb * (F32(mb & 255) * t0 + F32(mb >> 8) * t1)
                            else:
                                sum_a += fa * p
                                sum_b += fb * q
                        else:
                            x = I32(x >> 2)
                            if in_order:
                                x0, x1, x2, x3 = read4(codes, x + 8 * j)
                                x4, x5, x6, x7 = read4(codes, x + 8 * j + 4)
                            else:
                                x0, x1 = read2(codes, x + (column(j, 0) >> 2))
                                x2, x3 = read2(codes, x + (column(j, 2) >> 2))
                                x4, x5 = read2(codes, x + (column(j, 4) >> 2))
                                x6, x7 = read2(codes, x + (column(j, 6) >> 2))
                            scale = element(scales, vector * (units // per_block) + number // per_block)
                            i = dp4a(a3, x3, dp4a(a2, x2, dp4a(a1, x1, dp4a(a0, x0, 0))))
                            k2 = dp4a(b3, x3, dp4a(b2, x2, dp4a(b1, x1, dp4a(b0, x0, 0))))
                            if halves:
                                u = fa * F32(i) + ga * F32(dp4a(a7, x7, dp4a(a6, x6, dp4a(a5, x5, dp4a(a4, x4, 0)))))
                                v = fb * F32(k2) + gb * F32(dp4a(b7, x7, dp4a(b6, x6, dp4a(b5, x5, dp4a(b4, x4, 0)))))
                            else:
                                u = fa * F32(dp4a(a7, x7, dp4a(a6, x6, dp4a(a5, x5, dp4a(a4, x4, i)))))
                                v = fb * F32(dp4a(b7, x7, dp4a(b6, x6, dp4a(b5, x5, dp4a(b4, x4, k2)))))
                            if minima:
                                t = element(sums, vector * units + number)
                                u -= ga * F32(dp2a_low(t, ma, 0))
                                v -= gb * F32(dp2a_low(t, mb, 0))
                            sum_a += scale * u
                            sum_b += scale * v
                chunk = I32(chunk + 1)
                if chunk == chunks:
                    chunk = I32(0)
                    slot = I32(slot + 1)
                    if slot == slots:
                        slot = I32(0)
                        sum_a, sum_b = warp_sum(sum_a), warp_sum(sum_b)
                        if lane == 0:
                            out[pair * rows + row] = sum_a
                            if row + 1 < rows:
                                out[pair * rows + row + 1] = sum_b
                        sum_a, sum_b = ZERO, ZERO
                        at = I32(at + stride)

    return multiply


def launch(
    stream: Any, made: Kernel, raw: Any, row_bytes: int, operands: tuple[Any, ...], rows: int, n: int, pairs: int,
    error: Any, failure: int,
) -> None:  # fmt: skip
    """``operands``: ids, experts, groups, slots, share, codes, scales, sums, out. Of pair p, result o is the sum over
    slots s of row o of a matrix times input (p slots + s) // share. The matrix is number ids[p slots + s] of ``experts``;
    if there are none, p mod ``groups``."""
    layout = made.layout
    wanted = -(-(pairs * -(-rows // 2)) // layout.warps)
    grid = min(wanted, multiprocessors() * layout.blocks)
    run = made.run[grid, (32, layout.warps), stream, made.shared_bytes]
    allow_shared(made.run, made.shared_bytes, (raw, row_bytes, *operands, rows, n, pairs, error, failure))
    run(raw, row_bytes, *operands, rows, n, pairs, error, failure)
