"""Matrix products for many tokens: raw rows of a weight matrix times a panel of packed inputs.

``gemm(fmt, act)`` gives a ``Gemm``. In tier A the block formats run int8 tiles of 4 rows x 4 tokens (``gemm_tile``): a
group of four rows is decoded once and multiplied with all tokens. F16, BF16 and F32 run float tiles (``gemm_float``).
The other tiers take the row kernels, token by token, on as many rows as stay in the second-level cache.

All tokens of a row are computed by one call, so threads share the work by rows (a multiple of 4 is best). A token's
result does not depend on the other tokens of its panel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from . import gemm_float, gemm_weights
from .gemm_inputs import ORDERS, chunk_bytes, make_clear, make_pack
from .gemm_tile import (
    CHUNK,
    INPUT_RECORD,
    MIN_BYTES,
    TILE,
    TILES,
    clear_sums,
    copy_float,
    put_float,
    reduce_sums,
    weight_record,
)
from .ops import copy_with_zeros, prefetch
from .row_kernel import RowKernel
from .tiers import TIER
from .vec import JIT

TOKENS_AT_ONCE = 128  # their panels stay in the second-level cache while the rows pass by
FLOAT_TOKENS_AT_ONCE = 32
CHUNKS_AT_ONCE = 4  # panels of four rows and four tokens that share the first-level cache


class Gemm(NamedTuple):
    """A product for many tokens. Addresses and sizes are int64; nothing needs alignment, 64 bytes is faster.

    panel_bytes(tokens, n) -> int
        size of the packed inputs
    scratch_bytes(n) -> int
        size of the work space one call of ``rows`` needs
    pack(x, n, panel, slot)
        n float32 at ``x`` -> token number ``slot`` of the panel. Different slots may be packed by different threads.
    pad(n, panel, tokens)
        to be called once when ``tokens`` slots are packed, before ``rows``: completes the last group
    rows(weights, first, last, row_bytes, n, panel, tokens, out, stride, scratch)
        the float32 at ``out + stride * token + 4 * row`` for rows first .. last-1 and every token
    """

    panel_bytes: Any
    scratch_bytes: Any
    pack: Any
    pad: Any
    rows: Any


BLOCKS = {"Q8_0": (32, 34), "Q4_K": (256, 144), "Q2_K": (256, 84), "IQ2_XXS": (256, 66)}
_DECODERS = {
    "Q8_0": gemm_weights.decode_q8_0,
    "Q4_K": gemm_weights.decode_q4_k,
    "Q2_K": gemm_weights.decode_q2_k,
    "IQ2_XXS": gemm_weights.decode_iq2_xxs,
}
ROW_BYTES_AT_ONCE = 128 * 1024  # row kernels: weights that stay in the second-level cache for all tokens
SUMS_BYTES = 64 * TILE * TILE
SPARE_BYTES = 1024  # a last chunk that is not full is decoded from a copy with zeros behind it


def tile_gemm(fmt: str, act: str) -> Gemm:
    """The int8 tile product of a block format."""
    decode = _DECODERS[fmt]
    block, block_bytes = BLOCKS[fmt]
    passes = 3 if act == "float" else 1
    mins = 2 if fmt == "Q2_K" else ORDERS[fmt].mins
    half_chunk = CHUNK // 2 // block * block_bytes
    chunk_size, record = chunk_bytes(mins, passes), weight_record(mins)
    first_pass, last_pass = TILES[0], TILES[mins]
    clear, pack_chunk = make_clear(mins, passes), make_pack(fmt, act)

    @njit(**JIT)
    def decode_row(weights, n, target, place, spare):
        """All chunks of one row into the panel of its row group."""
        for _ in range(n // CHUNK):
            prefetch(weights + 2048)
            decode(weights, weights + half_chunk, target, place)
            weights += 2 * half_chunk
            target += record
        if n % CHUNK:
            copy_with_zeros(spare, weights, n % CHUNK // block * block_bytes)
            decode(spare, spare + half_chunk, target, place)

    @njit(**JIT)
    def multiply(weights, inputs, chunks, sums):
        """Add ``chunks`` chunks of a row group and a token group to the 16 sums."""
        for _ in range(chunks):
            for _ in range(passes - 1):
                first_pass(weights, inputs, inputs, sums)
                inputs += INPUT_RECORD
            last_pass(weights, inputs, inputs + INPUT_RECORD, sums)
            inputs += INPUT_RECORD + mins * MIN_BYTES
            weights += record

    return make_gemm(CHUNK, chunk_size, record, TOKENS_AT_ONCE, clear, pack_chunk, decode_row, multiply)


def plain_gemm(fmt: str) -> Gemm:
    """The float tile product of F32, F16 or BF16 weights."""
    size, chunk, record = gemm_float.SIZES[fmt], gemm_float.CHUNK, gemm_float.RECORD
    decode, spread, tile = gemm_float.spread(fmt), gemm_float.spread("F32"), gemm_float.float_tile
    clear_place = gemm_float.clear_place

    @njit(**JIT)
    def clear(target, token):
        clear_place(target, token)

    @njit(**JIT)
    def pack_chunk(target, token, x, count):
        if count == chunk:
            spread(x, target, token)
        else:
            for i in range(count):
                copy_float(target + 64 * (TILE * (i // 16) + token) + 4 * (i % 16), x + 4 * i)

    @njit(**JIT)
    def decode_row(weights, n, target, place, spare):
        for _ in range(n // chunk):
            prefetch(weights + 2048)
            decode(weights, target, place)
            weights += chunk * size
            target += record
        if n % chunk:
            copy_with_zeros(spare, weights, n % chunk * size)
            decode(spare, target, place)

    @njit(**JIT)
    def multiply(weights, inputs, chunks, sums):
        for _ in range(chunks):
            tile(weights, inputs, sums)
            inputs += record
            weights += record

    return make_gemm(chunk, record, record, FLOAT_TOKENS_AT_ONCE, clear, pack_chunk, decode_row, multiply)


def make_gemm(chunk, chunk_size, record, tokens_at_once, clear, pack_chunk, decode_row, multiply) -> Gemm:
    """A ``Gemm`` from the four parts of a tile product.

    chunk, chunk_size, record   inputs a chunk; its bytes in a panel and in the decoded rows
    clear(chunk, token)         zeros for one token of a chunk
    pack_chunk(chunk, token, x, count)
    decode_row(weights, n, target, place, spare)
    multiply(weights, inputs, chunks, sums)
    """

    @njit(**JIT)
    def panel_bytes(tokens, n):
        return (tokens + TILE - 1) // TILE * ((n + chunk - 1) // chunk) * chunk_size

    @njit(**JIT)
    def scratch_bytes(n):
        return (n + chunk - 1) // chunk * record + SUMS_BYTES + SPARE_BYTES + 64

    @njit(**JIT)
    def pack(x, n, panel, slot):
        chunks = (n + chunk - 1) // chunk
        target = panel + slot // TILE * (chunks * chunk_size)
        for c in range(chunks):
            count = min(chunk, n - chunk * c)
            if count < chunk:
                clear(target, slot % TILE)
            pack_chunk(target, slot % TILE, x + 4 * chunk * c, count)
            target += chunk_size

    @njit(**JIT)
    def pad(n, panel, tokens):
        chunks = (n + chunk - 1) // chunk
        for slot in range(tokens, (tokens + TILE - 1) // TILE * TILE):
            target = panel + slot // TILE * (chunks * chunk_size)
            for _ in range(chunks):
                clear(target, slot % TILE)
                target += chunk_size

    @njit(**JIT)
    def rows(weights, first, last, row_bytes, n, panel, tokens, out, stride, scratch):
        chunks = (n + chunk - 1) // chunk
        group_bytes = chunks * chunk_size
        scratch = (scratch + 63) // 64 * 64
        sums = scratch + chunks * record
        spare = sums + SUMS_BYTES
        for start in range(0, tokens, tokens_at_once):
            end = min(start + tokens_at_once, tokens)
            for row in range(first, last, TILE):
                for place in range(TILE):  # a row group that is not full repeats its last row
                    decode_row(weights + min(row + place, last - 1) * row_bytes, n, scratch, place, spare)
                for c in range(0, chunks, CHUNKS_AT_ONCE):
                    count = min(CHUNKS_AT_ONCE, chunks - c)
                    for token in range(start, end, TILE):
                        clear_sums(sums)
                        inputs = panel + token // TILE * group_bytes + c * chunk_size
                        multiply(scratch + c * record, inputs, count, sums)
                        target = out + stride * token + 4 * row
                        if row + TILE <= last and token + TILE <= end:
                            reduce_sums(sums, target, stride, c)
                        else:
                            reduce_sums(sums, spare, 4 * TILE, 0)
                            for t in range(min(TILE, end - token)):
                                for r in range(min(TILE, last - row)):
                                    put_float(target + stride * t + 4 * r, spare + 4 * (TILE * t + r), c)

    return Gemm(panel_bytes, scratch_bytes, pack, pad, rows)


def row_gemm(kernel: RowKernel) -> Gemm:
    """The product by the row kernel, one token after the other on rows that stay in the second-level cache."""
    packed_bytes, row_pack, row_rows = kernel.packed_bytes, kernel.pack, kernel.rows

    @njit(**JIT)
    def panel_bytes(tokens, n):
        return tokens * packed_bytes(n)

    @njit(**JIT)
    def scratch_bytes(n):
        return 0

    @njit(**JIT)
    def pack(x, n, panel, slot):
        row_pack(x, n, panel + slot * packed_bytes(n))

    @njit(**JIT)
    def pad(n, panel, tokens):
        pass

    @njit(**JIT)
    def rows(weights, first, last, row_bytes, n, panel, tokens, out, stride, scratch):
        size = packed_bytes(n)
        at_once = max(1, ROW_BYTES_AT_ONCE // row_bytes)
        for start in range(first, last, at_once):
            end = min(start + at_once, last)
            for token in range(tokens):
                row_rows(weights, start, end, row_bytes, n, panel + size * token, out + stride * token)

    return Gemm(panel_bytes, scratch_bytes, pack, pad, rows)


def make_gemms(kernels: dict[tuple[str, str], RowKernel]) -> dict[tuple[str, str], Gemm]:
    """The fastest product of this tier for every row kernel."""

    def best(fmt: str, act: str, kernel: RowKernel) -> Gemm:
        if TIER != "A":
            return row_gemm(kernel)
        if fmt in gemm_float.SIZES:
            return plain_gemm(fmt)
        return tile_gemm(fmt, act) if fmt in BLOCKS else row_gemm(kernel)

    return {(fmt, act): best(fmt, act, kernel) for (fmt, act), kernel in kernels.items()}
