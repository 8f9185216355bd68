"""Sizes that Python and compiled code must agree on, each written once. Plain Python: both sides import it.

If the two sides disagreed, compiled code would write past the end of an array, so no block, tile or work-area size may
be spelled out anywhere else.
"""

from __future__ import annotations

E4M3_BLOCK, E2M1_BLOCK = 64, 32
A8_BLOCK, Q8K_BLOCK, Q8K_SUM = 32, 256, 16

READ_LINE = 256
"""Bytes an item of the read task."""

POOL_CHANNELS = 64
"""Channels of a compressor window per item: their running maxima and sums stay in the first-level cache."""

HEAD_GROUP = 8
"""Attention heads per item at most; of keys and values of their own, heads times tokens."""

ROW_BLOCK = 64
"""Rows an attention item visits at a time: 128 KB of 512-wide rows, which stay in the second-level cache."""

INDEX_LANES = 64
"""Indexer heads per tile: they are the lanes, so queries are stored transposed and padded with zeros."""

INDEX_BLOCK = 256
"""Index rows per item: 128 KB of 128-wide rows."""

INDEX_ROWS = 4
"""Index rows scored together."""

RANK_BLOCK = 512
"""Values of a row of which ``top`` keeps the greatest. A block is read again for each of the chosen that is in it, and
the greatest of all blocks are compared for each (docs/LOG.md)."""

WIDENED = 4 * HEAD_GROUP * (ROW_BLOCK + 2)
"""Where in an attention work area the widened rows begin: behind the scores and two numbers for each head."""


def attention_bytes(dim: int) -> int:
    """Work area of a thread in attention over rows of ``dim`` values."""
    return WIDENED + 4 * ROW_BLOCK * dim


def attend_bytes(dim: int) -> int:
    """The same over keys and values of their own: queries and sums of several tokens lie behind the widened rows."""
    return attention_bytes(dim) + 2 * 4 * HEAD_GROUP * dim


def index_bytes(dim: int) -> int:
    """Work area of a thread in index scores: a few rows of ``dim`` values, widened."""
    return 4 * INDEX_ROWS * dim


def index_query_floats(heads: int, dim: int) -> int:
    """Floats of one token's packed indexer queries and head weights."""
    return -(-heads // INDEX_LANES) * INDEX_LANES * (dim + 1)


# Matrix products for many tokens

TILE_TOKENS, TILE_ROWS = 4, 3
ROWS_AT_ONCE = 12
"""Decoded rows that a group of tokens meets while it is in the first-level cache."""

SUMS_BYTES = 64 * TILE_TOKENS * TILE_ROWS
"""Partial sums of one tile."""

SPARE_BYTES = 1024
"""A last chunk that is not full is decoded from a copy with zeros behind it."""


def gemm_bytes(n: int, chunk: int, record: int, rows: int, tokens_at_once: int) -> int:
    """Work area of a thread in a product with n inputs a row; the other numbers describe the parts (``simd.gemm``)."""
    decoded = ROWS_AT_ONCE // rows * -(-n // chunk) * record
    sums = tokens_at_once // TILE_TOKENS * ROWS_AT_ONCE // TILE_ROWS * SUMS_BYTES
    return -(-(64 + decoded + SPARE_BYTES + sums) // 128) * 128


def first_slot(start: int, expert: int) -> int:
    """Where the panel of the ``expert``-th used expert begins, in tokens, if ``start`` pairs lie before it: a multiple
    of a tile's tokens that the panel before it does not reach."""
    return (start + (TILE_TOKENS - 1) * expert + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS


def panel_slots(pairs: int, used: int) -> int:
    """Slots that the panels of ``used`` experts take together, at most."""
    return first_slot(pairs, used)
