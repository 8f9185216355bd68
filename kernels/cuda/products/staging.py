"""Bring weights and inputs of a step into shared memory (``matmat``): asynchronous copies of raw rows and of packed
inputs, and decoding.

A step is STEP weights of every row: four units. Its raw bytes come in pieces of 16, from the multiple of 16 at or
before the first one; of formats with blocks of 256 weights, a whole block comes before the first of its two steps.
Copies for the next step are under way while tensor cores work on this one: inputs have two places, raw bytes one, for
they are decoded first.

Words of codes and inputs lie in rows of PITCH, so that eight rows' pieces of 16 bytes are in different banks. Scales
lie as lanes read them, those of four rows or two inputs at a time (``place_of_row``, ``place_of_input``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..driver.intrinsics import (
    add_halves,
    copy4,
    copy16,
    divide,
    element,
    float_bits,
    halves_of_ints,
    permute_bytes,
    put4,
)
from ..driver.shim import cuda
from .decoding import Unit, straight

F32, I32, I64, U64 = np.float32, np.int32, np.int64, np.uint64
ZERO = F32(0)

ROWS, STEP, ROW_WARPS = 128, 128, 4
"""Rows of a block, weights of a step, and warps that share the rows, 32 each."""
PITCH = STEP // 4 + 4
SHORT_PITCH = 12
"""Words from one row of minima, or of an input's sums, to the next: 8 are used."""
RESULT_PITCH = ROWS + 4
"""Words from one input's results to the next."""
EXPONENT_10, MINUS_1024 = I32(0x64646464), I32(-0x1BFF1C00)
"""Bytes of the binary16 1024, whose low bits a minimum becomes, and twice the binary16 -1024."""


class Plan(NamedTuple):
    """Sizes of a block, and words of shared memory at which things begin.

    inputs      of a tile
    groups      of eight inputs that a warp multiplies, at most
    across      warps that share the inputs: warp w has groups w // ROW_WARPS + i across
    stage       bytes of a row that are copied at a time
    raw_pitch   words from one row's bytes to the next
    scales_at   [unit of the step][row]: d of formats with blocks of 32, else s, and t behind it
    shares_at   [unit of the step][input], twice, for blocks of 32; else [input]
    d_at, low_at, minima_at, sums_at, totals_at    [row], [row], [row][unit], [input][unit] as they came, and as halves
    """

    inputs: int
    groups: int
    across: int
    stage: int
    raw_pitch: int
    raw_at: int
    codes_at: int
    inputs_at: int
    scales_at: int
    shares_at: int
    d_at: int
    low_at: int
    minima_at: int
    sums_at: int
    totals_at: int
    words: int

    @property
    def warps(self) -> int:
        return ROW_WARPS * self.across

    @property
    def threads(self) -> int:
        return 32 * self.warps


def plan_of(unit: Unit, inputs: int, groups: int) -> Plan:
    """Lay out a block's shared memory; every part is a multiple of 16 bytes."""
    alone = unit.per_block == 1
    stage = unit.block_bytes * (STEP // 32 if alone else 1)
    skew = 16 - math.gcd(unit.block_bytes, 16)  # at most, as rows are whole blocks
    raw_pitch = 4 * ((stage + skew + 15) // 16 | 1)
    sizes = {
        "tables": 0 if unit.table is None else 32 * len(unit.table),
        "raw": ROWS * raw_pitch,
        "codes": ROWS * PITCH,
        "inputs": 2 * inputs * PITCH,
        "scales": (4 * ROWS if alone or unit.scaled else 0) * (2 if unit.halves else 1),
        "shares": 2 * 4 * inputs if alone else inputs,
        "d": 0 if alone else ROWS,
        "low": ROWS if unit.minima else 0,
        "minima": ROWS * SHORT_PITCH if unit.minima else 0,
        "sums": 8 * inputs if unit.minima else 0,
        "totals": inputs * SHORT_PITCH if unit.minima else 0,
    }
    at, places = 0, []
    for size in sizes.values():
        places.append(at)
        at += size
    places.append(max(at, inputs * RESULT_PITCH))
    return Plan(inputs, groups, inputs // (8 * groups), stage, raw_pitch, *places[1:])


@cuda.jit(device=True)
def place_of_row(row):
    """Return where a row's scale lies: of 32, rows r, r + 8, r + 16 and r + 24 are adjacent."""
    return I32((row & ~31) + 4 * (row & 7) + ((row >> 3) & 3))


def _place_of_input(plan: Plan) -> Callable[..., Any]:
    across, groups = plan.across, plan.groups

    @cuda.jit(device=True)
    def place(i):
        """Return where an input's scale lies: a warp's groups are behind one another."""
        group = I32(i >> 3)
        turn = I32(divide(group, across))
        return I32(8 * ((group - turn * across) * groups + turn) + (i & 7))

    return place


def row_copier(unit: Unit, plan: Plan) -> Callable[..., Any]:
    """Make a device function: begin to copy what a stage needs of this thread's row, which is ``row_bytes`` long and
    begins at byte ``row_start`` of raw, from its byte ``offset`` on."""
    each = plan.threads // ROWS
    rounds = -(-(plan.raw_pitch // 4) // each)
    stage, raw_at, raw_pitch = plan.stage, plan.raw_at, plan.raw_pitch
    each_bits = each.bit_length() - 1

    @cuda.jit(device=True)
    def copy_rows(store, raw, row_start, offset, row_bytes, t):
        start = row_start + offset
        skew = I32(start) & 15
        piece = I32(t & (each - 1))
        begin = start - skew + 16 * piece
        rest = I32((skew + min(I32(stage), I32(row_bytes - offset)) + 15) >> 4) - piece
        to = I32(raw_at + (t >> each_bits) * raw_pitch + 4 * piece)
        for i in range(rounds):
            if each * i < rest:
                copy16(store, to + 4 * each * i, raw, begin + 16 * each * i)

    return copy_rows


def decoder(unit: Unit, plan: Plan) -> Callable[..., Any]:
    """Make a device function: decode the step that begins with unit ``base``, whose bytes begin at byte ``skew`` + row
    ``row_bytes`` of raw, of which the low four bits count. Units from ``units`` on become zeros."""
    decode, column, per_block, block_bytes = unit.decode, unit.column, unit.per_block, unit.block_bytes
    alone, in_order = per_block == 1, unit.column is straight
    scaled, halves, minima = unit.scaled, unit.halves, unit.minima
    raw_at, raw_pitch, codes_at, scales_at = plan.raw_at, plan.raw_pitch, plan.codes_at, plan.scales_at
    d_at, low_at, minima_at = plan.d_at, plan.low_at, plan.minima_at
    rounds, apart = 4 * ROWS // plan.threads, plan.threads >> 2
    aligned = block_bytes % 16 == 0

    @cuda.jit(device=True)
    def put(store, to, u, j, q0, q1, q2, q3, q4, q5, q6, q7):
        if in_order:
            put4(store, to + 8 * u, q0, q1, q2, q3)
            put4(store, to + 8 * u + 4, q4, q5, q6, q7)
        else:
            store[U64(to + ((column(j, 0) >> 2) & 31))] = q0
            store[U64(to + ((column(j, 1) >> 2) & 31))] = q1
            store[U64(to + ((column(j, 2) >> 2) & 31))] = q2
            store[U64(to + ((column(j, 3) >> 2) & 31))] = q3
            store[U64(to + ((column(j, 4) >> 2) & 31))] = q4
            store[U64(to + ((column(j, 5) >> 2) & 31))] = q5
            store[U64(to + ((column(j, 6) >> 2) & 31))] = q6
            store[U64(to + ((column(j, 7) >> 2) & 31))] = q7

    @cuda.jit(device=True)
    def decode_step(store, base, units, first_row, rows, skew, row_bytes, t):
        u = I32(t & 3)
        number = I32(base + u)
        j = I32(number & (per_block - 1))
        row_0 = I32(t >> 2)
        to, at_0 = I32(codes_at + row_0 * PITCH), I32(4 * raw_at + row_0 * (4 * raw_pitch))
        place, minima_to = place_of_row(row_0), I32(minima_at + row_0 * SHORT_PITCH + j)
        for k in range(rounds):
            q0, q1, q2, q3, q4, q5, q6, q7 = I32(0), I32(0), I32(0), I32(0), I32(0), I32(0), I32(0), I32(0)
            d, s, s_2, low, m = ZERO, I32(0), I32(0), ZERO, I32(0)
            if not alone or number < units:
                at = I32(at_0 + k * apart * (4 * raw_pitch))
                if not aligned:
                    row = I32(min(I32(first_row + row_0 + k * apart), I32(rows - 1)))
                    at = I32(at + (I32(skew + row * row_bytes) & 15))
                if alone:
                    at = I32(at + u * block_bytes)
                q0, q1, q2, q3, q4, q5, q6, q7, d, s, s_2, low, m = decode(store, I32(at & ~3), I32(at & 3), j, store)
            put(store, I32(to + k * apart * PITCH), u, j, q0, q1, q2, q3, q4, q5, q6, q7)
            if alone:
                store[U64(scales_at + ROWS * u + place + k * apart)] = float_bits(d)
            elif scaled:
                store[U64(scales_at + ROWS * u + place + k * apart)] = s
                if halves:
                    store[U64(scales_at + ROWS * (4 + u) + place + k * apart)] = s_2
            if not alone:
                if j == 0:
                    store[U64(d_at + place + k * apart)] = float_bits(d)
                    if minima:
                        store[U64(low_at + place + k * apart)] = float_bits(low)
                if minima:
                    both = add_halves(permute_bytes(m, EXPONENT_10, 0x4140), MINUS_1024)
                    store[U64(minima_to + k * apart * SHORT_PITCH)] = both

    return decode_step


def input_copier(unit: Unit, plan: Plan) -> tuple[int, Callable[..., Any], Callable[..., Any]]:
    """Make two device functions, and say how many int64 the first one remembers for the second one in a local array:
    where this thread finds what it copies; and: begin to copy ``codes`` and ``scales`` of the step that begins with
    unit ``base`` of all ``eights`` of inputs, into place ``turn`` (0 or 1); of a block of 256, scales and ``sums`` with
    its second step. Of units from ``units`` on, whose weights are zero, anything will do."""
    inputs, threads, inputs_at, shares_at, sums_at = (
        plan.inputs, plan.threads, plan.inputs_at, plan.shares_at, plan.sums_at,
    )  # fmt: skip
    alone, minima = unit.per_block == 1, unit.minima
    place_of_input = _place_of_input(plan)
    of_codes, apart = inputs * 8 // threads, threads >> 3
    of_scales, scales_apart = 4 * inputs // threads if alone else 0, threads >> 2

    @cuda.jit(device=True)
    def find_inputs(sources, vectors_of, n, t):
        if alone:
            for i in range(of_codes):
                sources[i] = I64(element(vectors_of, (t >> 3) + i * apart)) * (n >> 2) + 4 * (t & 7)
            for i in range(of_scales):
                sources[of_codes + i] = I64(element(vectors_of, (t >> 2) + i * scales_apart)) * (n >> 5) + (t & 3)

    @cuda.jit(device=True)
    def copy_inputs(store, sources, vectors_of, codes, scales, sums, base, units, turn, eights, t):
        # past the end: the vector's first words, which are there however short it is
        word = I32(8 * base) if I32(base + ((t & 7) >> 1)) < units else I32(-4 * (t & 7))
        to = I32(inputs_at + turn * (inputs * PITCH) + (t >> 3) * PITCH + 4 * (t & 7))
        for i in range(of_codes):
            if (t >> 6) + i * (apart >> 3) < eights:
                if alone:
                    copy16(store, I32(to + i * apart * PITCH), codes, sources[i] + word)
                else:
                    vector = element(vectors_of, (t >> 3) + i * apart)
                    source = I64(vector) * I64(8 * units) + I32(word + 4 * (t & 7))
                    copy16(store, I32(to + i * apart * PITCH), codes, source)
        if alone:
            u = I32(t & 3)
            number = base if I32(base + u) < units else I32(-u)
            for i in range(of_scales):
                token = I32((t >> 2) + i * scales_apart)
                if token >> 3 < eights:
                    at = I32(shares_at + turn * (4 * inputs) + u * inputs + place_of_input(token))
                    copy4(store, at, scales, sources[of_codes + i] + number)
        elif base & 4:
            if t >> 3 < eights:
                vector = I64(element(vectors_of, t))
                copy4(store, I32(shares_at + place_of_input(t)), scales, vector * (units >> 3) + (base >> 3))
            if minima:
                if t >> 4 < eights:  # a block has at least two threads per input
                    vector = I64(element(vectors_of, t >> 1))
                    copy16(store, I32(sums_at + 4 * t), sums, vector * units + (base & ~7) + 4 * (t & 1))

    return of_codes + of_scales if alone else 1, find_inputs, copy_inputs


def sums_converter(plan: Plan) -> Callable[..., Any]:
    """Make a device function: convert the sums of ``eights`` of inputs over a block of 256 to binary16, exactly: one of
    16 bytes is at most 2048."""
    sums_at, totals_at, threads = plan.sums_at, plan.totals_at, plan.threads
    rounds = 8 * plan.inputs // threads

    @cuda.jit(device=True)
    def convert_sums(store, eights, t):
        to = I32(totals_at + (t >> 3) * SHORT_PITCH + (t & 7))
        for k in range(rounds):
            if (t >> 6) + k * (threads >> 6) < eights:
                both = halves_of_ints(element(store, I32(sums_at + t + k * threads)))
                store[U64(to + k * (threads >> 3) * SHORT_PITCH)] = both

    return convert_sums
