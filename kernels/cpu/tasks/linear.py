"""Matrix products on raw rows, as stored in the file.

The inputs are packed once per token by the format's ``pack``; its ``rows`` then multiplies a range of rows with a few
packed inputs, decoding each row once for up to four of them. Both are called by address, so one task serves every
format. A row's result depends on its weights and its input alone, so results do not depend on threads, chunks or batch
size.
"""

from __future__ import annotations

from numba import njit

from .. import tasktable as t
from .lang import JIT, call_pack, call_rows, expert_at, f32p, i32p, i64p, local
from .registry import body

REUSE_BYTES = 128 * 1024
"""Bytes of weights that stay in the L2 cache while all tokens are multiplied with them."""

INPUTS = 16
"""Inputs per call of a row kernel, at most."""

TABLE_BYTES = 16 * INPUTS
_table = local(TABLE_BYTES)


@njit(**JIT)
def _enter(table, place, packed, out):
    """Enter one input of a row kernel and the address of its results."""
    pair = i64p(table + 16 * place)
    pair[0] = packed
    pair[1] = out


@body(t.PACK)
def pack_inputs(args, first, last, thread):
    """Pack inputs; items are input vectors of n floats."""
    for item in range(first, last):
        call_pack(args.pack, args.x + 4 * args.n * item, args.n, args.packed + args.packed_bytes * item)


@body(t.LINEAR)
def linear_rows(args, first, last, thread):
    """Multiply inputs by weight rows (the items); row r uses only the input of group r // group_rows."""
    tokens, groups, group_rows, size = args.tokens, args.groups, args.group_rows, args.packed_bytes
    table = _table()
    step = max(1, REUSE_BYTES // args.row_bytes)
    r0 = first
    while r0 < last:
        group = r0 // group_rows
        r1 = min(r0 + step, last, (group + 1) * group_rows)
        for start in range(0, tokens, INPUTS):
            count = min(INPUTS, tokens - start)
            for i in range(count):
                token = start + i
                packed = args.packed + size * (token * groups + group)
                _enter(table, i, packed, args.out + 4 * args.out_rows * token)
            call_rows(args.rows, args.weight, r0, r1, args.row_bytes, args.n, table, count)
        r0 = r1


@body(t.GROUP_PAIRS)
def group_pairs(args, first, last, thread):
    """Sort the (token, slot) pairs by expert, stably; one item.

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
    """Multiply inputs by their experts; items are (used expert, row block), empty past the last used expert."""
    order, starts, used = i32p(args.order), i32p(args.starts), i32p(args.used)
    rows, K, size = args.expert_rows, args.K, args.packed_bytes
    table = _table()
    for item in range(first, last):
        u = item // args.blocks
        if u >= used[0]:
            return
        r0 = (item % args.blocks) * args.block
        r1 = min(r0 + args.block, rows)
        weight = expert_at(args.weight, args.expert_bytes, used[1 + u])
        for start in range(starts[u], starts[u + 1], INPUTS):
            count = min(INPUTS, starts[u + 1] - start)
            for i in range(count):
                pair = order[start + i]
                _enter(table, i, args.packed + size * (pair // K), args.out + 4 * rows * pair)
            call_rows(args.rows, weight, r0, r1, args.row_bytes, args.n, table, count)


@body(t.EXPERT_SUM, exact=True)
def expert_sum_rows(args, first, last, thread):
    """Compute every pair's product for a row block (the items) into scratch, then sum per token in slot order."""
    order, starts, used = i32p(args.order), i32p(args.starts), i32p(args.used)
    rows, K, block, size = args.expert_rows, args.K, args.block, args.packed_bytes
    scratch, table = args.work + args.work_bytes * thread, _table()
    for item in range(first, last):
        r0 = item * block
        r1 = min(r0 + block, rows)
        for u in range(used[0]):
            weight = expert_at(args.weight, args.expert_bytes, used[1 + u])
            for start in range(starts[u], starts[u + 1], INPUTS):
                count = min(INPUTS, starts[u + 1] - start)
                for i in range(count):
                    pair = order[start + i]
                    _enter(table, i, args.packed + size * pair, scratch + 4 * (block * pair - r0))
                call_rows(args.rows, weight, r0, r1, args.row_bytes, args.n, table, count)
        for token in range(args.T):
            out = f32p(args.out + 4 * (rows * token + r0))
            for slot in range(K):
                part = f32p(scratch + 4 * block * (token * K + slot))
                if slot == 0:
                    for i in range(r1 - r0):
                        out[i] = part[i]
                else:
                    for i in range(r1 - r0):
                        out[i] += part[i]
