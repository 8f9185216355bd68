"""GEMM for many tokens (see ``tiers``): raw rows of a weight matrix times packed inputs (a *panel*).

``GEMMS[fmt, act]`` holds the functions for a weight format and a rounding of the inputs. Formats in ``_DECODERS`` are
multiplied as int8 in tier A, in tiles of 3 rows x 4 tokens (``gemm_tile``). All others are multiplied as floats, in
tiles of 6 x 4 (``gemm_float``), and their decoders are generated; tier N has only those. With rounding "floats", Q8_0
is, too: rows of an odd length waste part of a chunk of limbs. Tier X has tiles of 16 x 16 besides, for rows of whole
chunks (``gemm_amx``; the rounding's name ends in ``AMX``). Tier B multiplies four formats with rounded inputs as int8
(``gemm_avx2``, ``q8_0_avx2``). All other pairs use the row kernels, four tokens at a time on rows that stay in the L2
cache.

One call of ``gemm_rows`` decodes each block of rows once and multiplies it by all tokens, so threads divide the work
by rows (multiples of ``rows_at_once`` are best), each with its own scratch memory. A token's result does not depend on
the others of its panel. ``gemm_rows`` takes the functions by address, so that all formats share it and the tiles.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

from numba import njit, types

from ...formats import APART, FORMATS, Format
from ..sizes import AMX, ROWS_AT_ONCE, SPARE_BYTES, SUMS_BYTES
from . import codebook_avx2, gemm_amx, gemm_avx2, gemm_float, gemm_weights, k_avx2, q8_0_avx2, tiers
from .blocks_32 import CODES
from .gemm_inputs import ORDERS, chunk_bytes, make_clear, make_pack
from .gemm_tile import (
    CHUNK,
    COUNTS,
    REDUCE,
    ROWS,
    SHORT,
    SHORT_INPUT,
    SHORT_MOST,
    SHORT_TILES,
    SHORT_WEIGHT,
    TILES,
    TOKENS,
    TOTALS,
    Totals,
    copy_float,
    weight_record,
)
from .helpers import copy_bytes, copy_with_zeros, fetch_near, load_int, prefetch
from .tiers import NEON_TIER, TIER
from .vec import JIT, Int, inline

PANEL_BYTES_AT_ONCE = 640 * 1024  # tokens whose panels share the second-level cache


class Gemm(NamedTuple):
    """The functions and sizes of the GEMM for one weight format and rounding of the inputs. Compiled functions take
    int64 addresses; 64-byte alignment is faster, but not needed.

    pack(x, n, panel, slot)
        pack the n float32 at ``x`` as token number ``slot`` of the panel. Threads may pack different slots. Slots
        beyond the last token, up to a multiple of 4, may stay uninitialised.
    decode_row(weights, row, row_bytes, n, target, place, spare)
        decode raw row ``row`` of the matrix as row ``place`` (0 .. ``rows`` - 1) of the row group at ``target``
    multiply[tokens - 1](weights, inputs, count, sums, fresh, out, stride)
        add ``count`` inputs, in whole chunks unless they are the last, of a row group and of the first ``tokens`` (1 to
        4) of a token group to the vectors of sums, which start from zero if ``fresh``; if ``out`` is not 0, reduce them
        to ``out + stride * token + 4 * row``. For groups of 16 tokens there are functions for 4, 8, 12 and 16
    chunk, chunk_bytes, record
        inputs per chunk; bytes of a chunk of four packed tokens, and of a decoded row group
    rows
        rows of a row group: 3 or a multiple of it or 16, and a divisor of ``rows_at_once``
    chunks_at_once
        chunks of all decoded rows and of one token group that share the L1 cache
    tokens_at_once
        most tokens (a multiple of a group) to multiply with the decoded rows before the next
    group, rows_at_once
        tokens of a group, 4 or 16; rows that are decoded before the first is multiplied
    """

    pack: Any
    decode_row: Any
    multiply: Any
    chunk: int
    chunk_bytes: int
    record: int
    rows: int
    chunks_at_once: int
    tokens_at_once: int
    group: int = TOKENS
    rows_at_once: int = ROWS_AT_ONCE


@inline(types.none, *[Int] * 8)
def _call_decode(k, function, weights, row, row_bytes, n, target, place, spare):
    k.call_address(function, weights, row, row_bytes, n, target, place, spare)


@inline(types.none, *[Int] * 8)
def _call_multiply(k, function, weights, inputs, count, sums, fresh, out, stride):
    k.call_address(function, weights, inputs, count, sums, fresh, out, stride)


if tiers.AMX:
    configure, release = gemm_amx.configure, gemm_amx.release
else:
    configure = release = inline(types.none)(lambda k: None)


@njit(**JIT)
def gemm_rows(
    decode_row, multiply, chunk, chunk_bytes, record, rows, chunks_at_once, tokens_at_once, group, rows_at_once,
    lines, weights, first, last, row_bytes, n, panel, tokens, out, stride, scratch,
):  # fmt: skip
    """Store the float32 result at ``out + stride * token + 4 * row`` for rows first .. last-1 and every token.

    The first ten arguments are the parts of a ``Gemm``: ``decode_row`` as its address, ``multiply`` as that of the
    four addresses, since a further argument and a branch in the callee cost every full tile 2 %. ``panel`` holds the
    packed tokens.
    ``lines`` is where the rows lie, ``row_bytes`` apart, to be prefetched; the decoder takes ``weights``.
    """
    if group > TOKENS:
        configure()
    chunks = (n + chunk - 1) // chunk
    input_bytes, group_bytes = group // TOKENS * chunks * chunk_bytes, chunks * record
    sums_bytes = rows // ROWS * SUMS_BYTES * (TOKENS // group)  # groups of 16 tokens keep no sums
    scratch = (scratch + 63) // 64 * 64
    spare = scratch + rows_at_once // rows * group_bytes
    all_sums = spare + SPARE_BYTES
    at_once = min(tokens_at_once, max(2, PANEL_BYTES_AT_ONCE // input_bytes) * group)
    turns = (tokens + at_once - 1) // at_once
    at_once = (tokens + group * turns - 1) // (group * turns) * group
    steps = (chunks + chunks_at_once - 1) // chunks_at_once
    start = 0
    while start < tokens:  # a range whose step is not constant could raise, and compiled code must not
        end = min(start + at_once, tokens)
        passes = steps * ((end - start + group - 1) // group)
        row = first
        while row < last:
            stop = min(row + rows_at_once, last)
            groups = (stop - row + rows - 1) // rows
            # prefetch the next rows while these are multiplied
            ahead, ahead_end = lines + stop * row_bytes, lines + min(stop + rows_at_once, last) * row_bytes
            share = ((ahead_end - ahead) // passes + 127) // 64 * 64
            for place in range(groups * rows):  # a partial row group repeats its last row
                source, target = min(row + place, last - 1), scratch + place // rows * group_bytes
                _call_decode(decode_row, weights, source, row_bytes, n, target, place % rows, spare)
            c = 0
            while c < chunks:
                sums = all_sums
                inputs = panel + start // group * input_bytes + c * chunk_bytes
                count = min(chunks_at_once * chunk, n - c * chunk)
                token = start
                while token < end:
                    for line in range(ahead, min(ahead + share, ahead_end), 64):
                        fetch_near(line)
                    ahead += share
                    decoded, here = scratch + c * record, min(group, end - token)
                    function = load_int(multiply + 8 * ((here - 1) * TOKENS // group))
                    at = row
                    while at < stop:
                        target, step = 0, stride
                        if c + chunks_at_once >= chunks:
                            target = out + stride * token + 4 * at
                            if at + rows > last or (group > TOKENS and here % TOKENS):
                                target, step = spare, 4 * rows
                        _call_multiply(function, decoded, inputs, count, sums, c == 0, target, step)
                        if target == spare:
                            target = out + stride * token + 4 * at
                            for t in range(here):
                                for r in range(min(rows, last - at)):
                                    copy_float(target + stride * t + 4 * r, spare + 4 * (rows * t + r))
                        decoded += group_bytes
                        sums += sums_bytes
                        at += rows
                    inputs += input_bytes
                    token += group
                c += chunks_at_once
            row = stop
        start = end
    if group > TOKENS:
        release()


# -- int8 tiles of tier A
WITH_LIMBS = "Q8_0", "Q4_K", "Q2_K", "IQ2_XXS"
"""Formats that are multiplied with three limbs of float inputs; for the others that takes as long as with floats."""
_MINS = {fmt: order.mins for fmt, order in ORDERS.items()} | {"Q2_K": 2}
_SHORT = {name: gemm_weights.decode_short(FORMATS[name]) for name in CODES}
_DECODERS = {name: gemm_weights.decode_32(FORMATS[name]) for name in CODES} | {
    "Q8_0": gemm_weights.decode_q8_0,
    "Q4_K": gemm_weights.decode_q4_k,
    "Q2_K": gemm_weights.decode_q2_k,
    "IQ2_XXS": gemm_weights.decode_iq2_xxs,
}


@inline(types.none, Int, Int, Int)
def _no_short(k, weights, target, place):
    """Stand for a function that is never called."""


def _row_decoder(chunk: int, fmt: Format, record: int, decode: Any, high: int = 0, short: Any = None) -> Any:
    """Make ``decode_row`` from ``decode(weights, scales, target, place)``, which takes ``chunk`` weights.

    high   rows that share a row of scales, if ``weights`` is the address of two addresses, codes and scales
    short  function (weights, target, place) for a last chunk of up to ``SHORT_MOST`` weights
    """
    short, most = (short, SHORT_MOST) if short else (_no_short, 0)

    block, block_bytes, blocks = fmt.block_elems, fmt.block_bytes, chunk // fmt.block_elems

    @njit(**JIT)
    def decode_row(weights, row, row_bytes, n, target, place, spare):
        scales = load_int(weights + 8) + row // high * (n // block) if high else weights
        codes = (load_int(weights) if high else weights) + row * row_bytes
        for _ in range(n // chunk):
            prefetch(codes + 2048)
            decode(codes, scales, target, place)
            codes += blocks * block_bytes
            scales += blocks
            target += record
        if n % chunk:
            copy_with_zeros(spare, codes, n % chunk // block * block_bytes)
            if high:
                copy_bytes(spare + SPARE_BYTES // 2, scales, n % chunk // block)
            if n % chunk <= most:
                short(spare, target, place)
            else:
                decode(spare, spare + SPARE_BYTES // 2, target, place)

    return decode_row


def _multiply(
    tiles: Any, totals: dict[int, Totals], reduces: Any, record: int, size: int, chunk: int, parts: int = 1,
    shorts: Any = None,
) -> Any:  # fmt: skip
    """Make the four ``multiply`` from tiles, totals and reductions by number of tokens; ``parts`` tiles are a chunk.

    shorts  tiles for the records of a last chunk of up to ``SHORT_MOST`` inputs
    """
    shift, most = chunk.bit_length() - 1, SHORT_MOST if shorts else 0

    def for_count(tokens: int) -> Any:
        tile, reduce = tiles[tokens], reduces[tokens]
        short = shorts[tokens] if shorts else tile
        _, zero, load, store = totals[tokens]

        @njit(**JIT)
        def multiply(weights, inputs, count, sums, fresh, out, stride):
            total = zero() if fresh else load(sums)
            last = count & (chunk - 1)
            few = last <= most
            for _ in range(((count if few else count + chunk - 1) >> shift) * parts):
                total = tile(total, weights, inputs)
                inputs += size // parts
                weights += record // parts
            if few:
                for _ in range((last + SHORT - 1) // SHORT):
                    total = short(total, weights, inputs)
                    inputs += SHORT_INPUT
                    weights += SHORT_WEIGHT
            if out:
                reduce(total, out, stride)
            else:
                store(sums, total)

        return multiply

    return tuple(for_count(tokens) for tokens in COUNTS)


@cache
def _multiply_blocks(mins: int, passes: int, short: bool) -> Any:
    shorts = SHORT_TILES[mins] if short else None
    sizes = weight_record(mins), chunk_bytes(mins, passes), CHUNK
    return _multiply(TILES[mins, passes], TOTALS, REDUCE, *sizes, shorts=shorts)


def _pack(chunk: int, size: int, clear: Any, pack_chunk: Any) -> Any:
    """Make ``pack`` from ``clear(chunk, token)`` and ``pack_chunk(chunk, token, x, count)``."""

    @njit(**JIT)
    def pack(x, n, panel, slot):
        target = panel + slot // TOKENS * ((n + chunk - 1) // chunk * size)
        for start in range(0, n, chunk):
            count = min(chunk, n - start)
            if count < chunk:
                clear(target, slot % TOKENS)
            pack_chunk(target, slot % TOKENS, x + 4 * start, count)
            target += size

    return pack


def _tile_gemm(fmt: Format, act: str) -> Gemm:
    mins, passes = _MINS[fmt.name], 3 if act == "float" else 1
    size = chunk_bytes(mins, passes)
    pack = _pack(CHUNK, size, make_clear(mins, passes), make_pack(fmt.name, act))
    short = _SHORT[fmt.name] if act == "a8" else None
    multiply, record = _multiply_blocks(mins, passes, short is not None), weight_record(mins)
    decode_row = _row_decoder(CHUNK, fmt, record, _DECODERS[fmt.name], short=short)
    return Gemm(pack, decode_row, multiply, CHUNK, size, record, ROWS, 4 if passes == 1 else 2, 128)


# -- int8 tiles of tier X
def amx_gemm(fmt: Format, act: str) -> Gemm:
    """Make the parts of a format that tier A multiplies as int8, for inputs in whole chunks."""
    mins, side = _MINS[fmt.name], gemm_amx.SIDE
    decode_row = gemm_amx.make_decode_row(fmt.block_elems, fmt.block_bytes, mins, _DECODERS[fmt.name])
    pack, multiply = gemm_amx.make_pack(fmt.name, act, mins), gemm_amx.make_multiply(mins)
    sizes = TOKENS * gemm_amx.token_bytes(mins), gemm_amx.record_bytes(mins), side
    return Gemm(pack, decode_row, multiply, CHUNK, *sizes, _ALL_CHUNKS, 128, side, side)


_ALL_CHUNKS = 1 << 32


# -- int8 tiles of tier B
def _avx2_gemm(name: str, pack_block: Any) -> Gemm:
    layout, chunk, rows = gemm_avx2.LAYOUTS[name], gemm_avx2.CHUNK, gemm_avx2.ROWS
    record, size = rows * layout.row_bytes, TOKENS * layout.token_bytes
    tile = partial(gemm_avx2.make_tile, layout)
    multiply = gemm_avx2.make_multiply(tile, layout.row_bytes, layout.token_bytes, chunk)
    pack = gemm_avx2.make_pack(layout, pack_block)
    decode_row = _row_decoder(chunk, FORMATS[name], record, gemm_avx2.make_decode(name))
    return Gemm(pack, decode_row, multiply, chunk, size, record, rows, 4, 128)


def _avx2_q8_0() -> Gemm:
    q8, rows = q8_0_avx2, gemm_avx2.ROWS
    multiply = gemm_avx2.make_multiply(q8.make_tile, q8.RECORD, q8.RECORD, q8.CHUNK)
    record, size = rows * q8.RECORD, TOKENS * q8.RECORD
    return Gemm(q8.pack, q8.make_decode_row(record), multiply, q8.CHUNK, size, record, rows, 8, 128)


_AVX2_KERNELS = {
    ("IQ2_XXS", "q8k"): codebook_avx2.KERNELS["IQ2_XXS", "q8k"],
    ("Q2_K", "q8k"): k_avx2.Q2_K,
    ("Q4_K", "q8k"): k_avx2.Q4_K,
}


# -- float tiles
_multiply_floats = _multiply(
    gemm_float.TILES,
    gemm_float.TOTALS,
    gemm_float.REDUCE,
    gemm_float.WEIGHT_RECORD,
    gemm_float.INPUT_RECORD,
    gemm_float.CHUNK,
    gemm_float.TILES_A_CHUNK,
)


@njit(**JIT)
def _clear_floats(target, token):
    gemm_float.clear_token(target, token)


@njit(**JIT)
def _pack_floats(target, token, x, count):
    if count == gemm_float.CHUNK:
        gemm_float.spread_inputs(x, x, target, token)
    else:
        for i in range(count):
            place = gemm_float.LINE * (TOKENS * (i // gemm_float.LANES) + token)
            copy_float(target + place + 4 * (i % gemm_float.LANES), x + 4 * i)


pack_float_panel = _pack(gemm_float.CHUNK, gemm_float.INPUT_RECORD, _clear_floats, _pack_floats)


@cache
def float_gemm(fmt: Format, high: int = 0) -> Gemm:
    """Make the parts of a format whose weights are decoded to floats, from its declaration; ``high`` as in
    ``_row_decoder``."""
    chunk, record = gemm_float.CHUNK, gemm_float.WEIGHT_RECORD
    unit = max(chunk, fmt.block_elems)  # a block of 256 fills two records
    decode_row = _row_decoder(unit, fmt, unit // chunk * record, gemm_float.spread_weights(fmt, bool(high)), high)
    size = gemm_float.INPUT_RECORD
    return Gemm(pack_float_panel, decode_row, _multiply_floats, chunk, size, record, gemm_float.ROWS, 4, 128)


def _all() -> dict[tuple[str, str], Gemm]:
    gemms = {(fmt.name, "float"): float_gemm(fmt) for fmt in FORMATS.values() if fmt.multiplies}
    if TIER == "A":
        gemms["Q8_0", "floats"] = gemms["Q8_0", "float"]
    for fmt in (FORMATS[name] for name in _DECODERS if TIER == "A"):
        acts = ("float", fmt.activation) if fmt.name in WITH_LIMBS else (fmt.activation,)
        gemms |= {(fmt.name, act): _tile_gemm(fmt, act) for act in acts}
        if tiers.AMX and fmt.name in WITH_LIMBS:
            gemms[fmt.name, fmt.activation + AMX] = amx_gemm(fmt, fmt.activation)
    return gemms


TILED = TIER == "A" or NEON_TIER
GEMMS: dict[tuple[str, str], Gemm] = _all() if TILED else {}
if TIER == "B":
    GEMMS = {pair: _avx2_gemm(pair[0], kernel.pack) for pair, kernel in _AVX2_KERNELS.items()}
    GEMMS["Q8_0", "a8"] = _avx2_q8_0()
APART_GEMMS = {name: float_gemm(layout.codes, layout.high) for name, layout in APART.items()} if TILED else {}
"""The GEMM, for float inputs, of each layout that stores codes and scales apart."""
