"""Choosing the GEMM for products with many tokens, on processors that have one (``tasks/gemm.py``, ``simd/gemm.py``).

Inputs are packed in groups of four tokens (a *panel* holds them all); each group of weight rows is decoded once and
multiplied by all inputs. A token's result does not depend on the other tokens, but except in tier B (AVX2) the GEMM
sums in another order than the row kernels, so results of prefill and decode differ in the last bits, and where values
are then rounded to few bits some round to the other neighbour. ``DS4_GEMM=0`` turns the GEMM off: results are then
bit-identical, and prefill is several times slower.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from ..formats import APART
from ..formats.matrix import Matrix
from .library import KernelError, available, entry, entry_address
from .sizes import AMX, TILE_TOKENS, gemm_bytes
from .workers import address

MIN_TOKENS = 9
"""Number of tokens below which row kernels are used: they are faster then, and each token gets the same bits as if it
were computed alone."""

MIN_PER_EXPERT = 4
"""Mean number of tokens per expert below which products with experts use the row kernels."""

BLOCK_ROWS = 60
"""Rows of an expert's matrix per item of work, about, so that the item's outputs for all its tokens stay in the L2
cache."""

MIN_AMX_TOKENS = 16
"""Number of tokens, mean of those of an expert, below which tier A's tiles are faster, by counted instructions: no rows
need be transposed for them."""

ENABLED = os.environ.get("DS4_GEMM", "1") != "0"


@dataclass(frozen=True)
class Parts:
    """The compiled functions of the GEMM for one weight format and one rounding of the inputs, and their sizes.

    pack      address of the function that packs inputs
    table     int64 array of what the task ``gemm`` needs: addresses of the decoder and products, sizes, whether codes
              and scales are stored apart
    rounding  "a8" or "q8k" if inputs must be rounded before packing; "" if packing rounds them or they stay exact
    others    as in ``simd.gemm.Gemm``
    """

    pack: int
    table: np.ndarray
    chunk: int
    chunk_bytes: int
    record: int
    rows: int
    chunks_at_once: int
    tokens_at_once: int
    group: int
    rows_at_once: int
    rounding: str = field(default="", kw_only=True)

    def group_bytes(self, n: int) -> int:
        """Return the bytes of four packed tokens of n inputs each."""
        return -(-n // self.chunk) * self.chunk_bytes

    def panel_bytes(self, tokens: int, n: int) -> int:
        """Return the bytes of ``tokens`` packed tokens of n inputs each."""
        beyond = self.group - TILE_TOKENS  # tiles of 16 tokens read so many after the last
        return -(-(tokens + beyond) // TILE_TOKENS) * self.group_bytes(n)

    def work_bytes(self, n: int) -> int:
        """Return the bytes of work area that each thread needs."""
        return gemm_bytes(n, self.chunk, self.record, self.rows, self.tokens_at_once, self.rows_at_once)


@cache
def parts(fmt: str, act: str) -> Parts | None:
    """Return the compiled functions for weights of format ``fmt`` and input rounding ``act``, or None if the row
    kernels are to be used instead."""
    name = f"{fmt}.{act}"
    if not ENABLED:
        return None
    if not available(f"gemm_decode.{name}"):
        # row kernels on integers are faster than a GEMM on floats, except on processors that also have a GEMM on
        # integers (for other formats)
        rounded = act != "float" and (not available(f"rows.{name}") or available("gemm_of_integers"))
        floats = parts(fmt, "float") if rounded else None
        return floats and replace(floats, rounding=act)
    tile = name if available(f"gemm_pack.{name}") else "floats"
    sizes = np.zeros(8, np.int64)
    entry(f"gemm_sizes.{tile}", 1)(address(sizes))
    products = [entry_address(f"gemm_multiply.{tile}.{tokens}") for tokens in range(1, TILE_TOKENS + 1)]
    table = np.array([entry_address(f"gemm_decode.{name}"), *products, *sizes, fmt in APART], np.int64)
    return Parts(entry_address(f"gemm_pack.{tile}"), table, *map(int, sizes))


def parts_for(tokens: int, w: Matrix, act: str) -> Parts | None:
    """Return the GEMM's functions for ``tokens`` inputs of the matrix ``w``, or None to use the row kernels."""
    if tokens < MIN_TOKENS:
        return None
    if amx := _amx_parts(tokens, w, act):
        return amx
    made = parts(w.layout, act)
    if made and act == "float" and w.cols % made.chunk and available(f"gemm_decode.{w.layout}.floats"):
        return parts(w.layout, "floats")
    return made


def expert_parts_for(tokens: int, K: int, w: Matrix, act: str) -> Parts | None:
    """Return the GEMM's functions for K experts per token out of the stack ``w``, or None to use the row kernels."""
    if tokens < MIN_TOKENS or tokens * K < MIN_PER_EXPERT * w.experts:
        return None
    return _amx_parts(tokens * K // w.experts, w, act) or parts(w.layout, act)


def _amx_parts(tokens: int, w: Matrix, act: str) -> Parts | None:
    """Return the functions for AMX if they exist and ``tokens`` per matrix are enough, else None: with the same
    results, to the bit, as the other tiles of that tier."""
    if tokens < MIN_AMX_TOKENS or not ENABLED or not available(f"gemm_decode.{w.layout}.{act}{AMX}"):
        return None
    made = parts(w.layout, act + AMX)
    return made if made and w.cols % made.chunk == 0 and amx_permitted() else None


@cache
def amx_permitted() -> bool:
    """Ask Linux, once for all threads, for the registers of AMX. Raise KernelError if it refuses them."""
    request, tile_data = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA (arch_prctl(2))
    if sys.platform != "linux" or ctypes.CDLL(None, use_errno=True).syscall(158, request, tile_data):
        raise KernelError("DS4_SIMD_TIER=X: the operating system does not permit AMX; choose tier A")
    return True
