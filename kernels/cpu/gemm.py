"""The GEMM path for many tokens, on tiers that have it (``tasks/gemm.py``, ``simd/gemm.py``).

Inputs are packed into panels of four tokens; each group of weight rows is decoded once and multiplied with all of them.
A token's result does not depend on the other tokens, but the GEMM sums in another order than the row kernels, so
prefill and decode differ by float noise, and by single rounding flips in modes that round. ``DS4_GEMM=0`` turns this
path off: results are then bit-identical, and prefill several times slower.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from ..formats import APART
from ..formats.matrix import Matrix
from .library import library
from .sizes import TILE_TOKENS, gemm_bytes
from .workers import address

MIN_TOKENS = 9
"""Number of tokens below which row kernels are used: they are faster, and give each token the sums that it has
alone."""

MIN_PER_EXPERT = 4
"""Mean number of tokens per expert below which (token, expert) pairs use the row kernels."""

BLOCK_ROWS = 60
"""Rows of an expert per item: the item's output block for all pairs then stays in the L2 cache."""

ENABLED = os.environ.get("DS4_GEMM", "1") != "0"


@dataclass(frozen=True)
class Parts:
    """Compiled parts of the GEMM of one (format, activation) pair, and their sizes (``simd.gemm.Gemm``).

    rounding  activation format to which inputs are rounded before packing; "": the parts take unrounded inputs
    """

    pack: int
    table: np.ndarray
    chunk: int
    chunk_bytes: int
    record: int
    rows: int
    chunks_at_once: int
    tokens_at_once: int
    rounding: str = field(default="", kw_only=True)

    def group_bytes(self, n: int) -> int:
        """Return the bytes of four packed tokens."""
        return -(-n // self.chunk) * self.chunk_bytes

    def panel_bytes(self, tokens: int, n: int) -> int:
        """Return the bytes of the packed inputs of ``tokens`` tokens."""
        return -(-tokens // TILE_TOKENS) * self.group_bytes(n)

    def work_bytes(self, n: int) -> int:
        """Return the bytes of work area that each thread needs."""
        return gemm_bytes(n, self.chunk, self.record, self.rows, self.tokens_at_once)


@cache
def parts(fmt: str, act: str) -> Parts | None:
    """Return the compiled parts of a (format, activation) pair, or None where only row kernels exist."""
    name, code = f"{fmt}.{act}", library()
    if not ENABLED:
        return None
    if f"gemm_decode.{name}" not in code:
        # integer rows are faster than float tiles, but where there are integer tiles: of other formats
        rounded = act != "float" and (f"rows.{name}" not in code or "gemm_decode.Q8_0.a8" in code)
        floats = parts(fmt, "float") if rounded else None
        return floats and replace(floats, rounding=act)
    tile = name if f"gemm_pack.{name}" in code else "floats"
    sizes = np.zeros(6, np.int64)
    code.function(f"gemm_sizes.{tile}", 1)(address(sizes))
    products = [code.address(f"gemm_multiply.{tile}.{tokens}") for tokens in range(1, TILE_TOKENS + 1)]
    table = np.array([code.address(f"gemm_decode.{name}"), *products, *sizes, fmt in APART], np.int64)
    return Parts(code.address(f"gemm_pack.{tile}"), table, *map(int, sizes))


def parts_for(tokens: int, w: Matrix, act: str) -> Parts | None:
    """Return the parts for ``tokens`` inputs of ``w``, or None to use the row kernels."""
    return parts(w.layout, act) if tokens >= MIN_TOKENS else None


def expert_parts_for(tokens: int, K: int, w: Matrix, act: str) -> Parts | None:
    """Return the parts for K experts per token out of the stack ``w``, or None to use the row kernels."""
    return parts(w.layout, act) if tokens >= MIN_TOKENS and tokens * K >= MIN_PER_EXPERT * w.experts else None
