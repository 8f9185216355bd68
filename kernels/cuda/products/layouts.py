"""How mat-vec kernels partition their work into rows, chunks and warps, by format and number of rows.

A warp takes one, two or four rows at a time. More rows that share inputs and bookkeeping mean less to compute, but
fewer warps with work: ``choose`` takes the first layout that keeps the GPU busy. Where rows are few, warps of a block
share a group of rows, each with a part of its chunks. docs/explanation/cuda.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..driver.shim import multiprocessors, shared_limit
from .decoding import Unit
from .units import UNITS


class Layout(NamedTuple):
    """How a mat-vec kernel divides its work: ``rows`` that a warp takes at a time, units of 32 weights of each row that
    a lane decodes per chunk (``passes``), chunks in shared memory at once (``stages``), warps per block, blocks per
    multiprocessor, registers per thread."""

    rows: int
    passes: int
    stages: int
    warps: int
    blocks: int
    registers: int


LAYOUTS = {
    "Q8_0": (Layout(2, 1, 2, 4, 8, 64), Layout(1, 1, 3, 4, 8, 64)),
    "Q2_K": (Layout(4, 2, 2, 4, 5, 96), Layout(2, 2, 2, 4, 6, 80), Layout(1, 2, 3, 4, 6, 80)),
    "Q4_K": (Layout(4, 1, 2, 4, 6, 80), Layout(2, 1, 3, 4, 6, 80), Layout(1, 1, 3, 4, 6, 80)),
    "IQ2_XXS": (
        Layout(4, 4, 2, 16, 1, 96),
        Layout(4, 2, 2, 16, 1, 96),
        Layout(2, 4, 2, 16, 1, 96),
        Layout(2, 2, 2, 16, 1, 96),
        Layout(1, 4, 2, 16, 1, 96),
    ),
}
"""Layouts of the formats that matter most, from many rows at a time to one."""

ANY_FORMAT = Layout(2, 2, 2, 4, 6, 80), Layout(1, 2, 3, 4, 6, 80)
"""Layouts of all other formats. The last layout of a format fits every GPU."""

FLOAT_ROWS, FLOAT_REGISTERS = 2, 80
"""With float inputs more values must stay in registers: at most FLOAT_ROWS rows at a time, and at least FLOAT_REGISTERS
registers per thread."""

BUSY = 0.7
"""Share of the GPU's warps that must have work; with less, rows are taken in smaller groups."""
ENOUGH_WARPS = 12
"""Number of warps per multiprocessor that is about enough to hide memory latency."""


def bits_of(power: int) -> int:
    """Return the logarithm of a power of two."""
    assert power == 1 << power.bit_length() - 1
    return power.bit_length() - 1


def layouts_of(fmt: str) -> Sequence[Layout]:
    """Return the layouts of a format, from many rows at a time to one."""
    return LAYOUTS.get(fmt, ANY_FORMAT)


def chunk_bytes(unit: Unit, layout: Layout) -> int:
    """Return the bytes of one row in a chunk, which a warp takes at a time."""
    return 32 * layout.passes // unit.per_block * unit.block_bytes


def pitch(unit: Unit, layout: Layout) -> int:
    """Return the words in shared memory from one row of a chunk to the next: the chunk itself, what comes before it in
    its first 16 bytes, and what decoding reads after the last block."""
    return (chunk_bytes(unit, layout) + 15 + 16 + 15) // 16 * 4


def table_words(unit: Unit) -> int:
    return 0 if unit.table is None else 32 * len(unit.table)


def shared_bytes(unit: Unit, layout: Layout) -> int:
    """Return the bytes of shared memory that a block needs."""
    return 4 * (table_words(unit) + layout.warps * layout.stages * layout.rows * pitch(unit, layout))


def is_whole(unit: Unit, layout: Layout, n: int) -> bool:
    """Return whether rows of n weights start at multiples of 16 bytes and consist of whole chunks."""
    row_bytes, size = n // 32 // unit.per_block * unit.block_bytes, chunk_bytes(unit, layout)
    return row_bytes % 16 == 0 and size % 16 == 0 and row_bytes % size == 0


def busy(layout: Layout, pieces: int, split_bits: int = 0) -> float:
    """Return how well ``pieces`` groups of rows, with ``2^split_bits`` warps each, fill the GPU; 1 means fully."""
    resident = multiprocessors() * layout.blocks
    blocks = -(-(pieces << split_bits) // layout.warps)
    if blocks >= resident:
        warps = resident * layout.warps
        return pieces / (-(-pieces // warps) * warps)
    per_sm = -(-blocks // multiprocessors())
    return blocks / (per_sm * multiprocessors()) * min(1.0, per_sm * layout.warps / ENOUGH_WARPS)


def choose(fmt: str, act: str, rows: Sequence[int], n: int, pairs: int, slots: int = 1) -> tuple[Layout, int]:
    """Return the layout, and the logarithm to base 2 of the number of warps that share a group of rows, for ``pairs``
    products with matrices of so many ``rows`` of n weights. That number determines the order of sums, so it is the one
    that would be chosen for the first matrix alone (``matvec.together``)."""
    first_choice = _chosen(fmt, act, rows[:1], n, pairs, slots, range(layouts_of(fmt)[0].warps.bit_length()))
    return first_choice if len(rows) == 1 else _chosen(fmt, act, rows, n, pairs, slots, (first_choice[1],))


def _chosen(
    fmt: str, act: str, rows: Sequence[int], n: int, pairs: int, slots: int, splits: Sequence[int]
) -> tuple[Layout, int]:  # fmt: skip
    """Return the first layout and split that keep the GPU busy enough, else those that keep it busiest."""
    unit = UNITS[fmt]
    most = FLOAT_ROWS if act == "float" else layouts_of(fmt)[0].rows
    layouts = [layout for layout in layouts_of(fmt) if layout.rows <= most]
    fitting = [layout for layout in layouts if shared_bytes(unit, layout) <= shared_limit()]
    fitting = [layout for layout in fitting if is_whole(unit, layout, n)] or fitting
    best, best_share = (fitting[-1], splits[0]), 0.0
    for layout in fitting:
        pieces = sum(pairs * -(-height // layout.rows) for height in rows)
        turns, warps = slots * -(-n // (1024 * layout.passes)), multiprocessors() * layout.blocks * layout.warps
        for split_bits in splits:
            if 1 << split_bits > layout.warps or split_bits and 1 << split_bits > turns:
                continue
            if len(splits) > 1 and split_bits and pieces << split_bits > warps:
                continue
            share = busy(layout, pieces, split_bits)
            if share > best_share:
                best, best_share = (layout, split_bits), share
            if best_share >= BUSY:
                break
        if best_share >= BUSY:
            break
    return best
