"""Tiles, packed inputs and weight decoders of the int8 GEMM with AMX (tier X): 16 weight rows by up to 16 tokens.

A tile register holds 16 rows of 64 bytes. ``tdpbsud`` multiplies the 32 inputs of a scale group of 16 tokens by the 32
weights of 16 rows: 256 int32, what tier A's tiles keep in one 32-bit lane (``gemm_tile``). The integers are the same,
and floats are added in the same order, so that results equal tier A's to the bit.

    weights   chunk of 512 inputs of 16 rows: 8 slices of [16 lanes][16 rows][4 bytes] uint8 | [16 lanes][16 rows] f32
              scales, then minima like them. Tier A's decoders decode rows; slices are transposed after the 16th.
    inputs    chunk of a token: [16 lanes][32 bytes] int8 | [16] f32 scales | [16] i32 offsets | sums for the minima.
              The chunks of a token are adjacent, so that a tile of any 16 adjacent tokens has one stride.

Work per 8,192 products: one ``tdpbsud`` (16 cycles) and two loads of tiles (8 each), 16 lines stored and loaded again,
and 64 vector operations (offset, conversion, two scales, multiply-add), which take 32 cycles on two ports: they bind.
Tier A needs 128 ``vpdpbusd`` and 48 vector operations for as many. A chunk of 16 rows takes 1,100 to 1,700 instructions
to decode and 1,200 to 1,400 to transpose, about two tiles' time. Not measured: no machine with AMX was at hand.
"""

from __future__ import annotations

import struct
from typing import Any

from llvmlite import ir
from numba import njit, types

from ..sizes import SPARE_BYTES
from .gemm_inputs import ORDERS, Order
from .gemm_tile import CHUNK, SLICES, TOKENS, WEIGHT_CODES, totals, weight_record
from .gemm_tile import ROWS as DECODED_ROWS
from .quantize import a8_scale, q8k_scale, round_to_codes, sixteen_sums
from .vec import JIT, Emit, F32x16, F32x32, Float, I32x8, I32x16, Int, Val, inline

SIDE, LANES, GROUP = 16, 16, 32
"""Weight rows, and tokens, of a tile; scale groups of a chunk; inputs of a scale group."""
COUNTS = tuple(range(TOKENS, SIDE + 1, TOKENS))
"""Numbers of tokens for which there is a function."""
_LINE, _BLOCK = 4 * SIDE, 4 * SIDE * LANES
_SCALES, _OFFSETS, _SUMS = CHUNK, CHUNK + 64, CHUNK + 128
_DOTS, _TOKENS, _WEIGHTS = range(3)


def record_bytes(mins: int) -> int:
    """Return the bytes of a decoded chunk of 16 rows."""
    return (SLICES + 1 + mins) * _BLOCK


def token_bytes(mins: int) -> int:
    """Return the bytes of a packed chunk of one token."""
    return _SUMS + 64 * mins


# -- instructions
def _tile(k: Emit, name: str, *args: Val | int) -> None:
    """Emit a tile instruction; ints are numbers of tile registers, then come an address and a stride."""
    values = [ir.Constant(ir.IntType(8), a) if isinstance(a, int) else a.ir for a in args]
    if len(args) == 3 and isinstance(args[1], Val):
        values[1] = k.builder.inttoptr(values[1], ir.IntType(8).as_pointer())
    k.builder.call(k._declare(f"llvm.x86.{name}", ir.VoidType(), [v.type for v in values]), values)


def hold(k: Emit, value: Val) -> Val:
    """Return ``value``, computed before anything that follows is loaded: LLVM would multiply the scales of all tokens
    first, and has no registers for them."""
    kind = value.ir.type
    barrier = ir.InlineAsm(ir.FunctionType(kind, [kind]), "", "=v,0,~{memory}", side_effect=True)
    return Val(k, k.builder.call(barrier, [value.ir]))


@inline(types.none)
def configure(k):
    """Set the shapes of the tile registers of this thread: rows and bytes of a row."""
    shapes = {_DOTS: (SIDE, _LINE), _TOKENS: (SIDE, GROUP), _WEIGHTS: (SLICES, _LINE)}
    widths, rows = ([shapes.get(i, (0, 0))[part] for i in range(16)] for part in (1, 0))
    table = k.table("tile_shapes", "i8", struct.pack("<2B14x16H16B", 1, 0, *widths, *rows))
    pointer = k.builder.inttoptr(table.ir, ir.IntType(8).as_pointer())
    k.builder.call(k._declare("llvm.x86.ldtilecfg", ir.VoidType(), [pointer.type]), [pointer])


release = inline(types.none)(lambda k: _tile(k, "tilerelease"))


# -- tiles
def _lane(mins: int, tokens: int) -> Any:
    """Make an inlined function that adds one scale group of 16 rows and ``tokens`` tokens to their sums.

    Arguments: sums, weights of the lane, its 32 bytes of the first token, its scale, bytes between tokens, work area.
    """
    kind = totals(tokens).kind

    @inline(kind, kind, Int, Int, Int, Int, Int)
    def add(k, sums, weights, codes, scale, stride, work):
        _tile(k, "tilezero", _DOTS)
        _tile(k, "tileloadd64", _TOKENS, codes, stride)
        _tile(k, "tileloadd64", _WEIGHTS, weights, k.const(Int, _BLOCK))
        _tile(k, "tdpbsud", _DOTS, _TOKENS, _WEIGHTS)
        _tile(k, "tilestored64", _DOTS, work, k.const(Int, _LINE))
        sums = k.members(sums)
        row_scales, *row_mins = (k.load(F32x16, weights + _BLOCK * (SLICES + i)) for i in range(1 + mins))
        for t in range(tokens):
            dots = k.load(I32x16, work + _LINE * t) + k.load(types.int32, scale + (_OFFSETS - _SCALES)).splat(I32x16)
            scales = row_scales * k.load(Float, scale).splat(F32x16)
            sums[t] = k.fma(dots.to_float(F32x16), scales, sums[t])
            for m, minimum in enumerate(row_mins):
                total = k.load(Float, scale + (_SUMS + 64 * m - _SCALES))
                sums[t] = k.fma(minimum, total.splat(F32x16), sums[t])
            sums[t], scale = hold(k, sums[t]), scale + stride
        return tuple(sums)

    return add


def _reduce(tokens: int) -> Any:
    """Make an inlined function that adds up the lanes of each token's rows, in tier A's order, to ``out``."""

    @inline(types.none, Int, Int, Int)
    def reduce(k, lanes, out, stride):
        for t in range(tokens):
            sums = [k.load(F32x16, lanes + _LINE * (tokens * lane + t)) for lane in range(LANES)]
            while len(sums) > 1:
                half = len(sums) // 2
                sums = [low + high for low, high in zip(sums[:half], sums[half:], strict=True)]
            k.store(out + stride * t, sums[0])

    return reduce


def make_multiply(mins: int) -> tuple[Any, ...]:
    """Make the functions ``multiply`` for 4, 8, 12 and 16 tokens (``gemm.Gemm``), which take all inputs at once."""
    record, token = record_bytes(mins), token_bytes(mins)

    def for_count(tokens: int) -> Any:
        add, reduce = _lane(mins, tokens), _reduce(tokens)
        _, zero, _, store = totals(tokens)

        @njit(**JIT)
        def multiply(weights, inputs, count, work, fresh, out, stride):
            chunks = count // CHUNK
            work = (work + 63) // 64 * 64
            lanes = work + SIDE * _LINE
            for lane in range(LANES):
                total, row, x = zero(), weights + _LINE * lane, inputs
                for _ in range(chunks):
                    total = add(total, row, x + GROUP * lane, x + _SCALES + 4 * lane, chunks * token, work)
                    row += record
                    x += token
                store(lanes + _LINE * tokens * lane, total)
            reduce(lanes, out, stride)

        return multiply

    return tuple(for_count(tokens) for tokens in COUNTS)


# -- weights
def _zip(vectors: list[Val]) -> list[Val]:
    """Interleave the lanes of the first half of the vectors with those of the second half."""
    lanes, half = vectors[0].ir.type.count, len(vectors) // 2
    order = [lane for i in range(lanes) for lane in (i, i + lanes)]
    pairs = zip(vectors[:half], vectors[half:], strict=True)
    return [a.shuffle(part, b) for a, b in pairs for part in (order[:lanes], order[lanes:])]


@inline(types.none, Int)
def _transpose(k, block):
    """Transpose 16 rows of 16 dwords in place."""
    lines = [k.load(I32x16, block + _LINE * i) for i in range(SIDE)]
    for _ in range(4):
        lines = _zip(lines)
    for i, line in enumerate(lines):
        k.store(block + _LINE * i, line)


def _move(mins: int) -> Any:
    """Make an inlined function that copies a row of tier A's decoders to its place among the 16."""
    sources = [64 * DECODED_ROWS * s for s in range(SLICES)]
    sources += [WEIGHT_CODES + 64 * DECODED_ROWS * i for i in range(1 + mins)]

    @inline(types.none, Int, Int, Int)
    def move(k, source, target, place):
        for i, at in enumerate(sources):
            k.store(target + place * _LINE + _BLOCK * i, k.load(I32x16, source + at))

    return move


def make_decode_row(block_elems: int, block_bytes: int, mins: int, decode: Any) -> Any:
    """Make ``decode_row`` (``gemm.Gemm``) from tier A's decoder of 512 weights."""
    record, blocks = record_bytes(mins), record_bytes(mins) // _BLOCK
    step, move = CHUNK // block_elems * block_bytes, _move(mins)

    @njit(**JIT)
    def decode_row(weights, row, row_bytes, n, target, place, spare):
        codes, here = weights + row * row_bytes, target
        for _ in range(n // CHUNK):
            decode(codes, codes, spare, 0)
            move(spare, here, place)
            codes += step
            here += record
        if place == SIDE - 1:
            for block in range(n // CHUNK * blocks):
                _transpose(target + _BLOCK * block)

    return decode_row


assert weight_record(2) <= SPARE_BYTES


# -- inputs
def _ordered(order: Order) -> Any:
    """Make an inlined function that packs 32 inputs as one lane (``gemm_inputs.Order``)."""

    @inline(types.none, Int, Int, Int, Float, Float)
    def pack(k, chunk, group, x, scale, inverse):
        codes, lane = round_to_codes(k, k.load(F32x32, x), inverse), order.lane(group)
        low, high = sixteen_sums(k, codes)
        total = low.sext(types.int32) + high.sext(types.int32)
        if order.octets:
            codes = codes.shuffle([8 * octet + i for i in range(8) for octet in range(4)])
        k.store(chunk + lane * GROUP, codes)
        k.store(chunk + lane * 4 + _SCALES, scale * order.scale)
        k.store(chunk + lane * 4 + _OFFSETS, total * -order.bias)
        if order.mins:
            k.store(chunk + group * 4 + _SUMS, total.to_float(Float) * scale)

    return pack


@inline(types.none, Int, Int, Int, Float, Float)
def _q2_k(k, chunk, block, x, scale, inverse):
    """Pack 256 inputs as 8 lanes, which hold four adjacent inputs of each run of 32."""
    lanes = chunk + block * (8 * GROUP)
    for sub in range(8):
        codes = round_to_codes(k, k.load(F32x32, x + 128 * sub), inverse)
        dwords, piece = codes.bits(I32x8), 2 * (sub & 3) + (sub >> 2)
        for lane in range(8):
            k.store(lanes + (GROUP * lane + 4 * piece), dwords.lane(lane))
        for half, total in enumerate(sixteen_sums(k, codes)):
            value = total.sext(types.int32).to_float(Float) * scale
            k.store(chunk + block * 64 + (_SUMS + 8 * sub + 4 * half), value)
    for lane in range(8):
        k.store(chunk + block * 32 + (_SCALES + 4 * lane), scale)
        k.store(chunk + block * 32 + (_OFFSETS + 4 * lane), k.const(types.int32, 0))


def make_pack(fmt: str, act: str, mins: int) -> Any:
    """Make ``pack`` (``gemm.Gemm``)."""
    size = token_bytes(mins)
    scale_of, inputs = {"a8": (a8_scale, 32), "q8k": (q8k_scale, 256)}[act]
    step, steps, width = (_q2_k, 1, 256) if fmt == "Q2_K" else (_ordered(ORDERS[fmt]), inputs // GROUP, GROUP)

    @njit(**JIT)
    def pack(x, n, panel, slot):
        chunk = panel + slot * (n // CHUNK * size)
        for _ in range(n // CHUNK):
            for number in range(CHUNK // inputs):
                scale, inverse = scale_of(x + 4 * inputs * number)
                for part in range(steps * number, steps * (number + 1)):
                    step(chunk, part, x + 4 * width * part, scale, inverse)
            x += 4 * CHUNK
            chunk += size

    return pack
