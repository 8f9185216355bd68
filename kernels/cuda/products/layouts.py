"""How mat-vec kernels cut their work: rows, chunks and warps, by the format and by how many rows there are.

A warp takes one, two or four rows at a time. The more rows share inputs and bookkeeping, the less there is to compute,
and the fewer warps have work: ``chosen`` takes the first layout that keeps the GPU busy. Where rows are few, warps of a
block share a group of rows, each with a part of its chunks. docs/explanation/cuda.md says what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..driver.shim import multiprocessors, shared_limit
from .decoding import Unit
from .units import UNITS


class Layout(NamedTuple):
    """How a kernel cuts its work: rows a warp takes at a time, units a lane decodes of each in a chunk, chunks in
    shared memory, warps of a block, blocks a multiprocessor takes, registers a thread may have."""

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
"""Of hot formats, from many rows at a time to one."""

ANY_FORMAT = Layout(2, 2, 2, 4, 6, 80), Layout(1, 2, 3, 4, 6, 80)
"""Of all others. The last layout of a format fits every GPU."""

FLOAT_ROWS, FLOAT_REGISTERS = 2, 80
"""With float inputs more is alive: rows at a time at most, and registers that a thread may have at least."""

BUSY = 0.7
"""Share of warps with work below which rows are taken in smaller groups."""
ENOUGH_WARPS = 12
"""Warps that keep a multiprocessor busy while others wait, about."""


def bits_of(power: int) -> int:
    """Logarithm of a power of two."""
    assert power == 1 << power.bit_length() - 1
    return power.bit_length() - 1


def layouts_of(fmt: str) -> Sequence[Layout]:
    """The layouts of a format, from many rows at a time to one."""
    return LAYOUTS.get(fmt, ANY_FORMAT)


def chunk_bytes(unit: Unit, layout: Layout) -> int:
    """Bytes of a row that a warp takes at a time."""
    return 32 * layout.passes // unit.per_block * unit.block_bytes


def pitch(unit: Unit, layout: Layout) -> int:
    """Words from one row of a chunk to the next: the chunk, what is before it in its first 16 bytes, and what decoding
    reads behind the last block."""
    return (chunk_bytes(unit, layout) + 15 + 16 + 15) // 16 * 4


def table_words(unit: Unit) -> int:
    return 0 if unit.table is None else 32 * len(unit.table)


def shared_bytes(unit: Unit, layout: Layout) -> int:
    """Shared memory of a block."""
    return 4 * (table_words(unit) + layout.warps * layout.stages * layout.rows * pitch(unit, layout))


def is_whole(unit: Unit, layout: Layout, n: int) -> bool:
    """Whether rows of n weights start at multiples of 16 bytes and have whole chunks."""
    row_bytes, size = n // 32 // unit.per_block * unit.block_bytes, chunk_bytes(unit, layout)
    return row_bytes % 16 == 0 and size % 16 == 0 and row_bytes % size == 0


def busy(layout: Layout, pieces: int, split_bits: int = 0) -> float:
    """How well ``pieces`` groups of rows, ``2^split_bits`` warps each, fill the GPU: all of it is 1."""
    held = multiprocessors() * layout.blocks
    blocks = -(-(pieces << split_bits) // layout.warps)
    if blocks >= held:
        warps = held * layout.warps
        return pieces / (-(-pieces // warps) * warps)
    each = -(-blocks // multiprocessors())
    return blocks / (each * multiprocessors()) * min(1.0, each * layout.warps / ENOUGH_WARPS)


def choose(fmt: str, act: str, rows: Sequence[int], n: int, pairs: int, slots: int = 1) -> tuple[Layout, int]:
    """Layout and logarithm of the warps that share a group of rows, for ``pairs`` products with matrices of so many
    rows of n weights. How many share decides the order of sums, so it is what the first matrix has by itself
    (``together``)."""
    alone = _chosen(fmt, act, rows[:1], n, pairs, slots, range(layouts_of(fmt)[0].warps.bit_length()))
    return alone if len(rows) == 1 else _chosen(fmt, act, rows, n, pairs, slots, (alone[1],))


def together(fmt: str, act: str, rows: Sequence[int], n: int, pairs: int, slots: int = 1) -> bool:
    """Whether products with these matrices give the same bits in one launch as in one each."""
    return len({choose(fmt, act, [each], n, pairs, slots)[1] for each in rows}) == 1


def _chosen(
    fmt: str, act: str, rows: Sequence[int], n: int, pairs: int, slots: int, splits: Sequence[int]
) -> tuple[Layout, int]:  # fmt: skip
    """Of the layouts, with some of the warps sharing rows, the first that is busy enough, else the busiest."""
    unit = UNITS[fmt]
    most = FLOAT_ROWS if act == "float" else layouts_of(fmt)[0].rows
    layouts = [layout for layout in layouts_of(fmt) if layout.rows <= most]
    fitting = [layout for layout in layouts if shared_bytes(unit, layout) <= shared_limit()]
    fitting = [layout for layout in fitting if is_whole(unit, layout, n)] or fitting
    best, most_busy = (fitting[-1], splits[0]), 0.0
    for layout in fitting:
        pieces = sum(pairs * -(-each // layout.rows) for each in rows)
        turns, warps = slots * -(-n // (1024 * layout.passes)), multiprocessors() * layout.blocks * layout.warps
        for split_bits in splits:
            if 1 << split_bits > layout.warps or split_bits and 1 << split_bits > turns:
                continue
            if len(splits) > 1 and split_bits and pieces << split_bits > warps:
                continue
            now = busy(layout, pieces, split_bits)
            if now > most_busy:
                best, most_busy = (layout, split_bits), now
            if most_busy >= BUSY:
                break
        if most_busy >= BUSY:
            break
    return best
