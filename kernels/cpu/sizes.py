"""Sizes that Python and compiled code must agree on, each defined once. Plain Python: both sides import it.

If the two sides disagreed, compiled code would write past the end of an array, so no block, tile or work-area size may
be spelled out anywhere else.
"""

from __future__ import annotations

E2M1_BLOCK, NVFP4_BLOCK = 32, 16
A8_BLOCK, Q8K_BLOCK, Q8K_SUM = 32, 256, 16

READ_LINE = 256
"""Bytes per item of the read task."""

POOL_CHANNELS = 64
"""Channels of a compression window that one item of ``pool`` takes: their maxima and sums stay in the L1 cache."""

HEAD_GROUP, QUERY_GROUP = 8, 12
"""Maximum number of heads that one item of attention takes; in grouped-query attention, of heads times tokens: a
multiple of 4, which are scored together."""

ROW_BLOCK = 64
"""Number of rows that an attention item processes at a time: 128 KB of 512-wide rows, which stay in the L2 cache."""

INDEX_LANES = 64
"""Indexer heads computed together, one per vector lane: queries are stored transposed, and padded with zeros to a
multiple of this many heads."""

INDEX_BLOCK = 256
"""Compressed rows that one item of the indexer scores: 128 KB of 128-wide rows."""

INDEX_ROWS = 4
"""Compressed rows that the indexer scores together."""

RANK_BLOCK = 512
"""Values per block in ``top``, which keeps each block's maximum: for each rank it compares the maxima of all blocks,
and then scans the block that the value came from again."""

WIDENED = 4 * QUERY_GROUP * (ROW_BLOCK + 2)
"""Offset in an attention work area of the rows converted to float32; before it are scores and two numbers per head."""


def attention_bytes(dim: int) -> int:
    """Return the bytes of work area that each thread needs in attention over rows of ``dim`` values."""
    return WIDENED + 4 * ROW_BLOCK * dim


def attend_bytes(dim: int) -> int:
    """Return the bytes of work area that each thread needs in grouped-query attention over rows of ``dim`` values.

    After the rows converted to float32 come queries and sums of several tokens.
    """
    return attention_bytes(dim) + 2 * 4 * QUERY_GROUP * dim


def index_bytes(dim: int) -> int:
    """Return the bytes of work area that each thread needs in the indexer, for a few rows of ``dim`` float32."""
    return 4 * INDEX_ROWS * dim


def index_query_floats(heads: int, dim: int) -> int:
    """Return the number of floats of one token's packed indexer queries and head weights."""
    return -(-heads // INDEX_LANES) * INDEX_LANES * (dim + 1)


# Matrix products for many tokens

TILE_TOKENS, TILE_ROWS = 4, 3
ROWS_AT_ONCE = 12
"""Number of decoded weight rows by which a group of tokens is multiplied while the group is in the L1 cache."""

SUMS_BYTES = 64 * TILE_TOKENS * TILE_ROWS
"""Bytes of the partial sums of one tile."""

SPARE_BYTES = 2304
"""Bytes of the zero-padded copy of a row's end, from which its last, incomplete chunk is decoded, or of what else lasts
for one call."""

AMX = "-amx"
"""End of the name of a rounding of inputs, in names of parts of the GEMM for AMX."""


def gemm_bytes(n: int, chunk: int, record: int, rows: int, tokens_at_once: int, rows_at_once: int) -> int:
    """Return the bytes of work area that each thread needs in a GEMM with n inputs per row; other arguments as in
    ``simd.gemm.Gemm``."""
    decoded = rows_at_once // rows * -(-n // chunk) * record
    sums = tokens_at_once // TILE_TOKENS * rows_at_once // TILE_ROWS * SUMS_BYTES
    return -(-(64 + decoded + SPARE_BYTES + sums) // 128) * 128


def first_slot(start: int, expert: int) -> int:
    """Return the first token slot of the inputs of the ``expert``-th expert in use, before which come ``start`` (token,
    expert) pairs of other experts.

    It is a multiple of the tile's tokens, after all slots of the previous expert.
    """
    return (start + (TILE_TOKENS - 1) * expert + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS


def panel_slots(pairs: int, used: int) -> int:
    """Return an upper bound on the token slots that ``pairs`` (token, expert) pairs of ``used`` experts take."""
    return first_slot(pairs, used)
