"""Matrix products of few inputs with weight rows as they are stored in the file (row kernels).

Each input is packed once by the format's function ``pack``; its function ``rows`` then multiplies a range of rows by a
few packed inputs, decoding each row once for up to four of them. Both are called by address, so one task serves every
format. A result depends on its weight row and its input alone, so results do not depend on threads, chunks or batch
size.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .. import tasktable as t
from .lang import JIT, call_pack, call_rows, expert_at, f32p, i32p, i64p, local
from .registry import body

REUSE_BYTES = 128 * 1024
"""Bytes of weights that stay in the L2 cache while all tokens are multiplied with them."""

INPUTS = 16
"""Maximum number of inputs per call of a row kernel."""

_table = local(16 * INPUTS)


@njit(**JIT)
def _multiply(rows, weight, r0, r1, row_bytes, n, order, begin, end, packed, packed_bytes, divisor, out, out_bytes):
    """Multiply weight rows r0..r1-1 by inputs number begin..end-1 or, if ``order`` is not 0, by the inputs with the
    numbers order[begin..end-1].

    Input number i is at address packed + packed_bytes * (i // divisor), its results at out + out_bytes * i.
    """
    table = _table()
    for start in range(begin, end, INPUTS):
        count = min(INPUTS, end - start)
        for i in range(count):
            number = np.int64(i32p(order)[start + i]) if order else start + i
            pair = i64p(table + 16 * i)
            pair[0] = packed + packed_bytes * (number // divisor)
            pair[1] = out + out_bytes * number
        call_rows(rows, weight, r0, r1, row_bytes, n, table, count)


@body(t.PACK)
def pack_inputs(args, first, last, thread):
    """Pack inputs; items are input vectors of n floats."""
    for item in range(first, last):
        call_pack(args.pack, args.x + 4 * args.n * item, args.n, args.packed + args.packed_bytes * item)


@body(t.LINEAR)
def linear_rows(args, first, last, thread):
    """Multiply inputs by weight rows (the items); row r uses only the input of group r // group_rows."""
    groups, size = args.groups, args.packed_bytes
    step = max(1, REUSE_BYTES // args.row_bytes)
    r0 = first
    while r0 < last:
        group = r0 // args.group_rows
        r1 = min(r0 + step, last, (group + 1) * args.group_rows)
        _multiply(
            args.rows, args.weight, r0, r1, args.row_bytes, args.n, 0, 0, args.tokens,
            args.packed + size * group, size * groups, 1, args.out, 4 * args.out_rows,
        )  # fmt: skip
        r0 = r1


@body(t.GROUP_PAIRS)
def group_pairs(args, first, last, thread):
    """Sort the (token, expert) pairs by expert, stably; one item.

    order   (pairs,) int32: pair numbers, grouped by expert
    used    (1 + experts,) int32: number of experts in use, then their ids ascending
    starts  (experts + 1,) int32: where the group of used expert u begins in ``order``
    error   set to 1 if an id is out of range; then no expert is in use
    """
    pairs, experts = args.pairs, args.experts
    ids, order, starts, used = i32p(args.ids), i32p(args.order), i32p(args.starts), i32p(args.used)
    used[0] = 0
    starts[0] = 0
    for e in range(experts + 1):
        starts[e] = 0
    for p in range(pairs):
        e = ids[p]
        if e < 0 or e >= experts:
            i64p(args.error)[0] = 1
            return
        starts[e] += 1
    begin, count = 0, 0
    for e in range(experts):
        size = starts[e]
        starts[e] = begin  # running position of expert e while distributing
        begin += size
        if size > 0:
            count += 1
            used[count] = e
    for p in range(pairs):
        e = ids[p]
        order[starts[e]] = p
        starts[e] += 1
    begin = 0
    for u in range(count):
        end = starts[used[1 + u]]
        starts[u] = begin
        begin = end
    starts[count] = begin
    used[0] = count


@body(t.EXPERT_LINEAR)
def expert_linear_rows(args, first, last, thread):
    """Multiply inputs by the matrices of their experts; items are (expert in use, block of its rows). Items beyond the
    last expert in use do nothing."""
    starts, used, rows = i32p(args.starts), i32p(args.used), args.expert_rows
    for item in range(first, last):
        u = item // args.blocks
        if u >= used[0]:
            return
        r0 = (item % args.blocks) * args.block
        r1 = min(r0 + args.block, rows)
        weight = expert_at(args.weight, args.expert_bytes, used[1 + u])
        _multiply(
            args.rows, weight, r0, r1, args.row_bytes, args.n, args.order, np.int64(starts[u]), np.int64(starts[u + 1]),
            args.packed, args.packed_bytes, args.K, args.out, 4 * rows,
        )  # fmt: skip


@njit(**JIT)
def add_slots(x, out, slots, stride, n):
    """Add up ``slots`` rows of n floats, ``stride`` bytes apart from address ``x`` on, in order; store the sum at
    ``out``."""
    total = f32p(out)
    for slot in range(slots):
        part = f32p(x + stride * slot)
        if slot == 0:
            for i in range(n):
                total[i] = part[i]
        else:
            for i in range(n):
                total[i] += part[i]


@body(t.EXPERT_SUM, exact=True)
def expert_sum_rows(args, first, last, thread):
    """Multiply the input of every (token, expert) pair by a block of its expert's rows (the items), then add up each
    token's results in the order of its experts."""
    starts, used = i32p(args.starts), i32p(args.used)
    rows, K, block = args.expert_rows, args.K, args.block
    scratch = args.work + args.work_bytes * thread
    for item in range(first, last):
        r0 = item * block
        r1 = min(r0 + block, rows)
        for u in range(used[0]):
            weight = expert_at(args.weight, args.expert_bytes, used[1 + u])
            _multiply(
                args.rows, weight, r0, r1, args.row_bytes, args.n, args.order,
                np.int64(starts[u]), np.int64(starts[u + 1]),
                args.packed, args.packed_bytes, 1, scratch - 4 * r0, 4 * block,
            )  # fmt: skip
        for token in range(args.T):
            add_slots(scratch + 4 * block * token * K, args.out + 4 * (rows * token + r0), K, 4 * block, r1 - r0)
