"""Attention over shared K = V rows, blocked, with an online softmax (docs/explanation/model.md 4).

Raw rows are in a ring buffer: that of ``position`` is at index ``position % raw_rows``. Rows are processed in blocks of
64 in a fixed order, raw then compressed, whatever the batch or the number of threads. A block's scores for a group of
heads are a small matrix product; so is its contribution to the output. The running maximum starts at the sink, whose
weight enters the denominator only. The number of rows is not limited. Compressed rows stored as binary16 are converted
to float32, a block at a time, in the thread's work area.

``attend`` is grouped-query attention without sinks: the heads of a group, and adjacent tokens, share keys and values.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .. import tasktable as t
from ..simd.helpers import fetch_near
from ..sizes import QUERY_GROUP as GROUP
from ..sizes import ROW_BLOCK as BLOCK
from ..sizes import WIDENED
from .lang import FAST, exp32, f32p, i32p, i64p, local
from .registry import body
from .tiles import LANES, WIDTH, dots, load_scaled, outer, put, put_rows, scaled_sums, store, sums, widen, zeros

LOWEST = np.float32(-1e30)
LINE = 64
ADDRESSES, SIXTEEN, FACTORS = local(8 * BLOCK), local(64), local(4 * GROUP)


@njit(**FAST)
def score_block(q, heads, dim, rows, count, scale, scores):
    """Compute scores[h, r] = scale * q_h . row_r for all heads and rows of the block, 4 x 4 at a time.

    Tile entries past the end repeat the last head or row; their results are dropped, or not read.
    """
    full = dim // LANES * LANES
    address, room = i64p(rows), SIXTEEN()
    tile = f32p(room)
    for r in range(0, count, 4):
        b0, b1 = address[r], address[min(r + 1, count - 1)]
        b2, b3 = address[min(r + 2, count - 1)], address[min(r + 3, count - 1)]
        for h in range(0, heads, 4):
            top = heads - 1
            a0, a1 = q + 4 * dim * h, q + 4 * dim * min(h + 1, top)
            a2, a3 = q + 4 * dim * min(h + 2, top), q + 4 * dim * min(h + 3, top)
            acc = zeros()
            for c in range(0, 4 * full, 4 * LANES):
                acc = dots(acc, a0, a1, a2, a3, b0, b1, b2, b3, c)
            if full == dim:
                put_rows(scores + 4 * (BLOCK * h + r), scaled_sums(acc, scale))
                continue
            put(room, sums(acc))
            for i in range(min(4, heads - h)):
                for j in range(min(4, count - r)):
                    total = tile[4 * i + j]
                    x, y = f32p(q + 4 * dim * (h + i)), f32p(address[r + j])
                    for c in range(full, dim):
                        total += x[c] * y[c]
                    f32p(scores)[BLOCK * (h + i) + r + j] = total * scale


@njit(**FAST)
def online_softmax(scores, count, top, total):
    """Turn the scores of one head into weights in place; return the new maximum and denominator and the factor for old
    sums."""
    s = f32p(scores)
    new_top = top
    for r in range(count):
        new_top = max(new_top, s[r])
    block_total = np.float32(0)
    for r in range(count):
        weight = exp32(s[r] - new_top)
        s[r] = weight
        block_total += weight
    factor = exp32(top - new_top)
    return new_top, total * factor + block_total, factor


@njit(**FAST)
def add_block(out, heads, dim, rows, count, weights, factors):
    """Update out_h = out_h * factor_h + sum_r weights[h, r] * row_r, 4 heads x WIDTH channels at a time."""
    full = dim // WIDTH * WIDTH
    address = i64p(rows)
    for c in range(0, 4 * full, 4 * WIDTH):
        for h in range(0, heads, 4):
            top = heads - 1
            h1, h2, h3 = min(h + 1, top), min(h + 2, top), min(h + 3, top)
            o0, o1 = out + 4 * dim * h + c, out + 4 * dim * h1 + c
            o2, o3 = out + 4 * dim * h2 + c, out + 4 * dim * h3 + c
            w0, w1 = weights + 4 * BLOCK * h, weights + 4 * BLOCK * h1
            w2, w3 = weights + 4 * BLOCK * h2, weights + 4 * BLOCK * h3
            acc = load_scaled(o0, o1, o2, o3, factors + 4 * h)
            for r in range(count):
                acc = outer(acc, w0 + 4 * r, w1 + 4 * r, w2 + 4 * r, w3 + 4 * r, address[r] + c)
            store(acc, o0, o1, o2, o3)
    for h in range(heads):
        o, w = f32p(out + 4 * dim * h), f32p(weights + 4 * BLOCK * h)
        for c in range(full, dim):
            total = o[c] * f32p(factors)[h]
            for r in range(count):
                total += w[r] * f32p(address[r])[c]
            o[c] = total


@njit(**FAST)
def score_rows(q, heads, dim, rows, count, scale, scores, maxima, totals, factors):
    """Score queries against the keys at ``rows`` and update the online softmax.

    Scores become weights in place; ``factors`` are set to the factors for the earlier sums.
    """
    score_block(q, heads, dim, rows, count, scale, scores)
    for h in range(heads):
        maxima[h], totals[h], f32p(factors)[h] = online_softmax(scores + 4 * BLOCK * h, count, maxima[h], totals[h])
    for h in range(heads, GROUP):  # entries past the last head repeat it
        f32p(factors)[h] = f32p(factors)[heads - 1]


@body(t.ATTENTION)
def attention(args, first, last, thread):
    """Attend over raw and compressed rows; items are (token, group of heads). Row numbers out of range set
    ``error``."""
    dim = args.dim
    scale = np.float32(args.scale)
    scores = args.work + args.work_bytes * thread
    maxima, totals = f32p(scores + 4 * BLOCK * GROUP), f32p(scores + 4 * (BLOCK + 1) * GROUP)
    rows, factors = ADDRESSES(), FACTORS()
    wide = scores + WIDENED
    comp_bytes = 2 * dim if args.comp_half != 0 else 4 * dim
    for item in range(first, last):
        token, h0 = item // args.groups, (item % args.groups) * args.group
        heads = min(args.group, args.heads - h0)
        q = args.q + 4 * dim * (args.heads * token + h0)
        out = args.out + 4 * dim * (args.heads * token + h0)
        for i in range(heads * dim):
            f32p(out)[i] = np.float32(0)
        for h in range(heads):
            maxima[h] = max(f32p(args.sinks)[h0 + h], LOWEST)
            totals[h] = np.float32(1)
        raw_first, raw_count = np.int64(i32p(args.raw_first)[token]), np.int64(i32p(args.raw_count)[token])
        comp_count = np.int64(0)
        if args.comp != 0:
            comp_count = args.picks if args.selected != 0 else np.int64(i32p(args.comp_count)[token])
        if raw_first < 0 or raw_count < 0 or raw_count > args.raw_rows:
            i64p(args.error)[0] = 1
            return
        if args.selected == 0 and (comp_count < 0 or comp_count > args.comp_rows):
            i64p(args.error)[0] = 1
            return
        visited = 0
        while visited < raw_count + comp_count:
            count = 0
            while visited < raw_count + comp_count and count < BLOCK:
                row = np.int64(-1)
                if visited < raw_count:
                    row = args.raw + 4 * dim * ((raw_first + visited) % args.raw_rows)
                elif args.selected == 0:
                    row = args.comp + comp_bytes * (visited - raw_count)
                else:
                    pick = np.int64(i32p(args.selected)[args.picks * token + visited - raw_count])
                    if pick >= args.comp_rows:
                        i64p(args.error)[0] = 1
                        return
                    if pick >= 0:
                        row = args.comp + comp_bytes * pick
                if row >= 0 and args.comp_half != 0 and visited >= raw_count:
                    widen(row, wide + 4 * dim * count, dim)
                    row = wide + 4 * dim * count
                visited += 1
                if row >= 0:
                    i64p(rows)[count] = row
                    count += 1
            if count == 0:
                break
            score_rows(q, heads, dim, rows, count, scale, scores, maxima, totals, factors)
            add_block(out, heads, dim, rows, count, scores, factors)
        for h in range(heads):
            o = f32p(out + 4 * dim * h)
            for c in range(dim):
                o[c] /= totals[h]


@njit(**FAST)
def row_addresses(rows, start, at, count, ring, stride, half, dim, wide, ahead):
    """Store in ``rows`` the addresses of ``count`` rows, from position ``at`` on, of a ring of ``ring`` rows.

    Binary16 rows are first widened to ``wide``; meanwhile what lies ``ahead`` bytes after them is prefetched.
    """
    place = at % ring
    for i in range(count):
        row = start + stride * place
        if half != 0:
            for line in range(0, 2 * dim, LINE):
                fetch_near(row + ahead + line)
            widen(row, wide + 4 * dim * i, dim)
            row = wide + 4 * dim * i
        i64p(rows)[i] = row
        place = place + 1 if place + 1 < ring else 0


@njit(**FAST)
def copy_floats(target, source, count):
    """Copy ``count`` floats."""
    for i in range(count):
        f32p(target)[i] = f32p(source)[i]


@body(t.ATTEND)
def attend(args, first, last, thread):
    """Attend with grouped queries; items are (some tokens, KV head, group of its query heads).

    Row numbers out of range set ``error``. Tokens whose rows begin at the same position share the full blocks that all
    of them attend to, as if they were more heads; the remaining rows are processed token by token. The sums equal those
    of a token by itself, bit for bit.
    """
    dim, shared, sharing = args.dim, args.shared, args.sharing
    scale = np.float32(args.scale)
    scores = args.work + args.work_bytes * thread
    top, bottom = scores + 4 * BLOCK * GROUP, scores + 4 * (BLOCK + 1) * GROUP
    rows, factors = ADDRESSES(), FACTORS()
    wide = scores + WIDENED
    queries = wide + 4 * BLOCK * dim
    sums_at = queries + 4 * GROUP * dim
    key_bytes = 2 * dim if args.key_half != 0 else 4 * dim
    value_bytes = 2 * dim if args.value_half != 0 else 4 * dim
    key_step, value_step = shared * key_bytes, shared * value_bytes
    first_rows, row_counts = i32p(args.first), i32p(args.row_counts)
    for item in range(first, last):
        token, rest = item // (shared * args.groups) * args.tile, item % (shared * args.groups)
        head, h0 = rest // args.groups, rest % args.groups * args.group
        heads, tokens = min(args.group, sharing - h0), min(args.tile, args.tokens - token)
        place = 4 * dim * (sharing * (shared * token + head) + h0)
        step, token_floats = 4 * dim * sharing * shared, heads * dim
        begin, shared_rows = np.int64(first_rows[token]), np.int64(row_counts[token])
        for j in range(tokens):
            at, visible = np.int64(first_rows[token + j]), np.int64(row_counts[token + j])
            if at < 0 or visible < 0 or visible > args.rows:
                i64p(args.error)[0] = 1
                return
            shared_rows = min(shared_rows, visible) if at == begin else np.int64(0)
            copy_floats(queries + 4 * token_floats * j, args.q + place + step * j, token_floats)
        for i in range(tokens * token_floats):
            f32p(sums_at)[i] = np.float32(0)
        for h in range(tokens * heads):
            f32p(top)[h] = LOWEST
            f32p(bottom)[h] = np.float32(0)
        common = shared_rows // BLOCK * BLOCK if tokens > 1 else np.int64(0)
        keys, values = args.keys + key_bytes * head, args.values + value_bytes * head
        next_keys = keys - values + BLOCK * key_step
        for j in range(-1, tokens):  # -1: all tokens at once, over the rows that they have in common
            at = np.int64(0) if j < 0 else common
            end = common if j < 0 else np.int64(row_counts[token + j])
            start = begin if j < 0 else np.int64(first_rows[token + j])
            first_query, query_count = max(j, 0), tokens * heads if j < 0 else heads
            x, y = queries + 4 * token_floats * first_query, sums_at + 4 * token_floats * first_query
            maxima, totals = f32p(top + 4 * heads * first_query), f32p(bottom + 4 * heads * first_query)
            while at < end:
                count = min(BLOCK, end - at)
                row_addresses(
                    rows, keys, start + at, count, args.rows, key_step, args.key_half, dim, wide, values - keys
                )
                score_rows(x, query_count, dim, rows, count, scale, scores, maxima, totals, factors)
                row_addresses(
                    rows, values, start + at, count, args.rows, value_step, args.value_half, dim, wide, next_keys
                )
                add_block(y, query_count, dim, rows, count, scores, factors)
                at += BLOCK
        for j in range(tokens):
            out = args.out + place + step * j
            for h in range(heads):
                o, sums = f32p(out + 4 * dim * h), f32p(sums_at + 4 * dim * (heads * j + h))
                total = f32p(bottom)[heads * j + h]
                for c in range(dim):
                    o[c] = sums[c] / total
