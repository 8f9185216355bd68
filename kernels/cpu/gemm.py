"""Steps of matrix products for many tokens, where the tier has them (``tasks/gemm.py``, ``simd/gemm.py``).

Inputs are packed into panels of four tokens; a row group of the weights is decoded once and multiplied with all of
them. A token's result does not depend on the other tokens, but its sums run in another order than the row kernels',
so prefill and decode differ by float noise, and by single rounding flips in modes that round. ``DS4_GEMM=0`` turns
this path off: then everything is equal to the bit, and several times slower.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..formats.matrix import Matrix
from . import tasktable as t
from .library import library
from .workers import POOL, Step, address

MIN_TOKENS = 8
"""Fewer tokens are faster one by one: a tile is four tokens, and decoding has to pay for itself."""

MIN_PER_EXPERT = 4
"""Mean tokens per expert below which experts go pair by pair."""

TILE = 4
SPARE_BYTES = 1024
SUMS_BYTES = 768
ROWS_AT_ONCE = 12
BLOCK_ROWS = 60
"""Rows of an expert per item: its output block for all pairs stays in the second-level cache."""

ENABLED = os.environ.get("DS4_GEMM", "1") != "0"


@dataclass(frozen=True)
class Parts:
    """Compiled parts of one (format, activation) pair, and the sizes they work with."""

    pack: int
    table: np.ndarray
    chunk: int
    chunk_bytes: int
    record: int
    rows: int
    chunks_at_once: int
    tokens_at_once: int

    def group_bytes(self, n: int) -> int:
        """Bytes of four packed tokens."""
        return -(-n // self.chunk) * self.chunk_bytes

    def scratch_bytes(self, n: int) -> int:
        """Work space of one thread."""
        decoded = ROWS_AT_ONCE // self.rows * -(-n // self.chunk) * self.record
        sums = self.tokens_at_once // TILE * ROWS_AT_ONCE // 3 * SUMS_BYTES
        size = 64 + decoded + SPARE_BYTES + sums
        return -(-size // 128) * 128


@cache
def parts(fmt: str, act: str) -> Parts | None:
    """The compiled parts of a pair; None where rows one by one are all there is."""
    name, code = f"{fmt}.{act}", library()
    if not ENABLED or f"gemm_pack.{name}" not in code:
        return None
    sizes = np.zeros(6, np.int64)
    code.function(f"gemm_sizes.{name}", 1)(address(sizes))
    addresses = [code.address(f"gemm_{part}.{name}") for part in ("decode", "multiply")]
    return Parts(code.address(f"gemm_pack.{name}"), np.array([*addresses, *sizes], np.int64), *map(int, sizes))


def wanted(tokens: int, w: Matrix, act: str) -> Parts | None:
    """The parts to use for ``tokens`` inputs of ``w``, or None for row by row."""
    return parts(w.fmt, act) if tokens >= MIN_TOKENS else None


def expert_wanted(tokens: int, K: int, w: Matrix, act: str) -> Parts | None:
    """The same for K experts a token out of ``w``'s stack."""
    return parts(w.fmt, act) if tokens >= MIN_TOKENS and tokens * K >= MIN_PER_EXPERT * w.experts else None


def areas(g: Parts, tokens: int, groups: int, n: int) -> tuple[int, int]:
    """Bytes of the panels and of the threads' work space for ``gemm_steps``."""
    return groups * -(-tokens // TILE) * g.group_bytes(n), g.scratch_bytes(n) * POOL.threads


def gemm_steps(
    g: Parts, x: int, tokens: int, groups: int, w: Matrix, weight: int, panel: int, scratch: int, out: int
) -> tuple[Step, Step]:
    """Pack (tokens, groups) inputs at ``x``, multiply all rows of ``w``."""
    n, panel_bytes = w.cols, -(-tokens // TILE) * g.group_bytes(w.cols)
    chunk = max(1, min(5, w.rows // (4 * POOL.threads * ROWS_AT_ONCE))) * ROWS_AT_ONCE
    values = (
        address(g.table), weight, w.row_bytes, n, panel, panel_bytes, tokens, w.rows // groups, out, w.rows,
        scratch, g.scratch_bytes(n),
    )  # fmt: skip
    return (
        (t.GEMM_PACK, tokens * groups, max(1, 16384 // n), (g.pack, x, n, panel, panel_bytes, groups)),
        (t.GEMM, w.rows, chunk, values),
    )


def expert_areas(g: Parts, tokens: int, K: int, w: Matrix) -> tuple[int, int]:
    """Bytes of the panels and of the threads' work space for ``expert_steps``."""
    slots = tokens * K + 4 * min(tokens * K, w.experts) + TILE
    return -(-slots // TILE) * g.group_bytes(w.cols), _expert_scratch(g, tokens * K, w) * POOL.threads


def _expert_scratch(g: Parts, pairs: int, w: Matrix) -> int:
    # all pairs may want the same expert
    return g.scratch_bytes(w.cols) + 4 * BLOCK_ROWS * (pairs + TILE)


def expert_steps(
    g: Parts, x: int, tokens: int, K: int, shared: bool, w: Matrix, weight: int,
    tables: tuple[int, int, int], panel: int, scratch: int, out: int,
) -> tuple[Step, Step]:  # fmt: skip
    """Inputs of all (token, slot) pairs through their experts -> out (tokens, K, rows).

    ``shared``: the K slots of a token have one input. ``tables`` are order, starts and used of GROUP_PAIRS, which has
    run before.
    """
    n, group_bytes = w.cols, g.group_bytes(w.cols)
    most, blocks = min(tokens * K, w.experts), -(-w.rows // BLOCK_ROWS)
    values = (
        address(g.table), weight, w.row_bytes, w.rows, n, panel, group_bytes, *tables, BLOCK_ROWS, blocks, out,
        scratch, _expert_scratch(g, tokens * K, w), g.scratch_bytes(n),
    )  # fmt: skip
    return (
        (t.GEMM_PACK_PAIRS, most, 1, (g.pack, x, n, panel, group_bytes, K if shared else 1, *tables)),
        (t.EXPERT_GEMM, most * blocks, 1, values),
    )
