"""GEMM for many tokens: inputs are packed in panels, weights decoded once per group of rows (``simd.gemm``)."""

from __future__ import annotations

import numpy as np
from numba import njit

from .. import sizes
from .. import tasktable as t
from ..simd.gemm import APART_GEMMS, GEMMS, gemm_rows, pack_float_panel
from ..sizes import TILE_TOKENS as TILE
from .lang import JIT, call_address, expert_at, f32p, i32p, i64p
from .linear import add_slots
from .registry import ENTRIES, body, export

call_panel_pack = call_address(4)
SIZES = 1 + TILE
"""Index of the first size in ``gemm.Parts.table``, after the addresses of the decoder and of the products."""

first_slot = njit(**JIT)(sizes.first_slot)


@njit(**JIT)
def multiply(parts, weight, first, last, row_bytes, n, panel, tokens, out, stride, scratch):
    """Call ``gemm_rows`` with the addresses and sizes in the table at address ``parts``.

    The table holds the decoder, a product for each number of tokens of a tile, eight sizes, and whether ``weight`` is
    the address of a pair of addresses, of codes and of scales.
    """
    p = i64p(parts)
    gemm_rows(
        p[0], parts + 8, p[SIZES], p[SIZES + 1], p[SIZES + 2], p[SIZES + 3], p[SIZES + 4], p[SIZES + 5],
        p[SIZES + 6], p[SIZES + 7], i64p(weight)[0] if p[SIZES + 8] else weight,
        weight, first, last, row_bytes, n, panel, tokens, out, stride, scratch,
    )  # fmt: skip


@body(t.GEMM_PACK)
def gemm_pack(args, first, last, thread):
    """Pack inputs; items are (token, group) inputs of n floats, and each group has its own panel."""
    for item in range(first, last):
        token, group = item // args.groups, item % args.groups
        call_panel_pack(args.pack, args.x + 4 * args.n * item, args.n, args.panel + args.panel_bytes * group, token)


@body(t.GEMM)
def gemm(args, first, last, thread):
    """Multiply packed inputs by weight rows (the items); a row's group selects its panel."""
    scratch = args.work + args.work_bytes * thread
    row = first
    while row < last:
        group = row // args.group_rows
        end = min(last, (group + 1) * args.group_rows)
        panel = args.panel + args.panel_bytes * group
        multiply(
            args.parts, args.weight, row, end, args.row_bytes, args.n, panel,
            args.tokens, args.out, 4 * args.out_rows, scratch,
        )  # fmt: skip
        row = end


@body(t.GEMM_PACK_PAIRS)
def gemm_pack_pairs(args, first, last, thread):
    """Pack the inputs of each expert in use (the items) side by side; pair p has input p // divisor."""
    order, starts, used = i32p(args.order), i32p(args.starts), i32p(args.used)
    for u in range(first, min(last, np.int64(used[0]))):
        begin = np.int64(starts[u])
        panel = args.panel + first_slot(begin, u) // TILE * args.group_bytes
        for k in range(begin, starts[u + 1]):
            source = args.x + 4 * args.n * (np.int64(order[k]) // args.divisor)
            call_panel_pack(args.pack, source, args.n, panel, k - begin)


@body(t.EXPERT_GEMM)
def expert_gemm(args, first, last, thread):
    """Multiply the inputs of all pairs of an expert by a block of its rows, then copy the results to where they belong
    in ``out``, which is in the order of the pairs.

    Items are (expert in use, block of its rows).
    """
    order, starts, used = i32p(args.order), i32p(args.starts), i32p(args.used)
    rows, block = args.expert_rows, args.block
    scratch = args.work + args.work_bytes * thread
    part = scratch + args.part_offset
    for item in range(first, last):
        u = item // args.blocks
        if u >= used[0]:
            return
        r0 = (item % args.blocks) * block
        r1 = min(r0 + block, rows)
        begin = np.int64(starts[u])
        count = np.int64(starts[u + 1]) - begin
        weight = expert_at(args.weight, args.expert_bytes, used[1 + u])
        panel = args.panel + first_slot(begin, u) // TILE * args.group_bytes
        multiply(args.parts, weight, r0, r1, args.row_bytes, args.n, panel, count, part - 4 * r0, 4 * block, scratch)
        for k in range(count):
            source = f32p(part + 4 * block * k)
            target = f32p(args.out + 4 * (rows * np.int64(order[begin + k]) + r0))
            for i in range(r1 - r0):
                target[i] = source[i]


@body(t.SUM_SLOTS, exact=True)
def sum_slots(args, first, last, thread):
    """Add up the K rows of each token (the items), in the order of its experts."""
    n, K = args.n, args.K
    for token in range(first, last):
        add_slots(args.x + 4 * n * K * token, args.out + 4 * n * token, K, 4 * n, n)


def _sizes_writer(*values: int):
    chunk, chunk_bytes, record, rows, chunks_at_once, tokens_at_once, group, rows_at_once = values

    @njit(**JIT)
    def write_sizes(out):
        sizes_out = i64p(out)
        sizes_out[0], sizes_out[1], sizes_out[2], sizes_out[3] = chunk, chunk_bytes, record, rows
        sizes_out[4], sizes_out[5], sizes_out[6], sizes_out[7] = chunks_at_once, tokens_at_once, group, rows_at_once

    return write_sizes


if ("Q8_0", "a8") in GEMMS:
    export("gemm_of_integers", 1)(_sizes_writer(*GEMMS["Q8_0", "a8"][3:]))  # tells that this tier has one

for (fmt, act), parts in (GEMMS | {(name, "float"): parts for name, parts in APART_GEMMS.items()}).items():
    name = f"{fmt}.{act}"
    export(f"gemm_decode.{name}", 7)(parts.decode_row)
    name = "floats" if parts.pack is pack_float_panel else name  # float formats share all other parts
    if f"gemm_pack.{name}" not in ENTRIES:
        export(f"gemm_pack.{name}", 4)(parts.pack)
        for tokens, multiply_tokens in enumerate(parts.multiply, 1):
            export(f"gemm_multiply.{name}.{tokens}", 7)(multiply_tokens)
        export(f"gemm_sizes.{name}", 1)(_sizes_writer(*parts[3:]))
