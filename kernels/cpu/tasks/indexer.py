"""The indexer, which chooses the compressed rows that attention reads: scores, and deterministic top-k selection
(docs/explanation/model.md 7)."""

from __future__ import annotations

import numpy as np
from numba import njit

from .. import tasktable as t
from ..sizes import INDEX_BLOCK, INDEX_ROWS
from ..sizes import INDEX_LANES as HEADS
from .lang import JIT, f32p, i32p, local, order_key
from .registry import body
from .tiles import WIDTH, outer, relu_weighted, widen, zeros

PARTS = HEADS // WIDTH
"""Number of tiles that a group of heads is divided into."""

BINS = 2048
HISTOGRAM, SCORES4 = local(4 * BINS), local(16)


@body(t.INDEX_PACK, exact=True)
def index_pack(args, first, last, thread):
    """Pack iq (heads, dim) to (ceil(heads/64), dim, 64), followed by weights (ceil(heads/64), 64); items are tokens."""
    heads, dim = args.heads, args.dim
    groups = (heads + HEADS - 1) // HEADS
    for token in range(first, last):
        iq, w = f32p(args.iq + 4 * heads * dim * token), f32p(args.w + 4 * heads * token)
        out = f32p(args.out + 4 * groups * HEADS * (dim + 1) * token)
        for i in range(groups * HEADS * (dim + 1)):
            out[i] = np.float32(0)
        for h in range(heads):
            base = (h // HEADS) * dim * HEADS + h % HEADS
            for d in range(dim):
                out[base + d * HEADS] = iq[h * dim + d]
            out[groups * dim * HEADS + h] = w[h]


@njit(**JIT)
def score_rows(query, groups, dim, base, end, row_sums):
    """Score ``INDEX_ROWS`` rows of float32 from address ``base`` on; rows past the one at ``end`` repeat that one."""
    r1, r2, r3 = min(base + 4 * dim, end), min(base + 8 * dim, end), min(base + 12 * dim, end)
    for i in range(4):
        f32p(row_sums)[i] = np.float32(0)
    for part in range(groups * PARTS):
        g, first_head = part // PARTS, part % PARTS * WIDTH
        acc = zeros()
        vectors = query + 4 * (HEADS * dim * g + first_head)
        for d in range(dim):
            acc = outer(acc, base + 4 * d, r1 + 4 * d, r2 + 4 * d, r3 + 4 * d, vectors + 4 * HEADS * d)
        relu_weighted(acc, query + 4 * (HEADS * (groups * dim + g) + first_head), row_sums)


@body(t.INDEX_SCORES, exact=True)
def index_scores(args, first, last, thread):
    """Score the first ``count`` rows; items are (row block, token), tokens innermost so that a block is read once."""
    n, dim, tokens, block = args.n, args.dim, args.tokens, INDEX_BLOCK
    groups = (args.heads + HEADS - 1) // HEADS
    row_sums = SCORES4()
    for item in range(first, last):
        token = item % tokens
        start = (item // tokens) * block
        query = args.packed + 4 * groups * HEADS * (dim + 1) * token
        out = f32p(args.out + 4 * n * token)
        limit = min(n, np.int64(i32p(args.count)[0]))
        for row in range(start, min(start + block, limit), INDEX_ROWS):
            base = args.rows + 4 * dim * row
            end = args.rows + 4 * dim * (limit - 1)  # tile rows past the end repeat the last one
            if args.half != 0:
                base = args.work + args.work_bytes * thread
                count = min(INDEX_ROWS, limit - row)
                widen(args.rows + 2 * dim * row, base, count * dim)
                end = base + 4 * dim * (count - 1)
            score_rows(query, groups, dim, base, end, row_sums)
            for i in range(min(INDEX_ROWS, limit - row)):
                out[row + i] = f32p(row_sums)[i]


@body(t.BLOCK_SCORES, exact=True)
def block_scores(args, first, last, thread):
    """Score the rows of blocks; items are (token, block)."""
    n, dim, size = args.n, args.dim, args.size
    groups = (args.heads + HEADS - 1) // HEADS
    row_sums = SCORES4()
    for item in range(first, last):
        query = args.packed + 4 * groups * HEADS * (dim + 1) * (item // args.count)
        start = size * np.int64(i32p(args.blocks)[item])
        limit = max(start, min(start + size, n)) if start >= 0 else start
        out = f32p(args.out + 4 * size * item)
        for row in range(start, limit, INDEX_ROWS):
            base = args.rows + 4 * dim * row
            end = args.rows + 4 * dim * (limit - 1)
            if args.half != 0:
                base = args.work + args.work_bytes * thread
                count = min(INDEX_ROWS, limit - row)
                widen(args.rows + 2 * dim * row, base, count * dim)
                end = base + 4 * dim * (count - 1)
            score_rows(query, groups, dim, base, end, row_sums)
            for i in range(min(INDEX_ROWS, limit - row)):
                out[row - start + i] = f32p(row_sums)[i]
        for i in range(limit - start, size):
            out[i] = np.float32(-np.inf)


@body(t.BLOCK_MAXIMA, exact=True)
def block_maxima(args, first, last, thread):
    """Find the greatest visible score of blocks; items are (token, block). A NaN counts as the greatest."""
    n, size, count = args.n, args.size, args.count
    for item in range(first, last):
        token, start = item // count, item % count * size
        scores = f32p(args.scores + 4 * n * token)
        visible = min(np.int64(i32p(args.visible)[token]), n)
        best = np.float32(-np.inf)
        for i in range(start, min(start + size, visible)):
            if scores[i] > best or scores[i] != scores[i]:
                best = scores[i]
        f32p(args.out)[item] = np.float32(np.inf) if start < visible <= start + size else best


@body(t.BLOCK_ROWS, exact=True)
def block_rows(args, first, last, thread):
    """Find the rows of places in the scores of blocks; items are (token, place)."""
    for item in range(first, last):
        place = np.int64(i32p(args.picks)[item])
        row = -1
        if 0 <= place < args.size * args.count:
            block = np.int64(i32p(args.blocks)[item // args.k * args.count + place // args.size])
            row = block * args.size + place % args.size
        i32p(args.out)[item] = np.int32(row)


@njit(**JIT)
def narrow(scores, n, prefix, shift, width, rank):
    """Do one pass of a radix selection over n scores: count the digits (``width`` bits from bit ``shift`` on) of the
    keys whose higher bits equal ``prefix``.

    Return the digit of the ``rank``-th largest of them, and how many of them have a larger digit.
    """
    bins = i32p(HISTOGRAM())
    size = 1 << width
    for b in range(size):
        bins[b] = 0
    for i in range(n):
        key = order_key(scores + 4 * i)
        if (key >> (shift + width)) == prefix:
            bins[(key >> shift) & (size - 1)] += 1
    above, digit = 0, size - 1
    while digit > 0 and above + bins[digit] < rank:
        above += bins[digit]
        digit -= 1
    return digit, above


@body(t.SELECT_ROWS, exact=True)
def select_rows(args, first, last, thread):
    """Select the k best rows of each token (the items), in ascending order.

    Three passes find the k-th largest key; then all rows above it are taken, and the lowest rows equal to it that still
    fit.
    """
    k = args.k
    for token in range(first, last):
        out = i32p(args.out + 4 * k * token)
        visible = min(np.int64(i32p(args.visible)[token]), args.n)
        if visible <= k:
            for i in range(k):
                out[i] = np.int32(i) if i < visible else np.int32(-1)
            continue
        scores = args.scores + 4 * args.n * token
        high, above_high = narrow(scores, visible, 0, 21, 11, k)
        remaining = k - above_high
        middle, above_middle = narrow(scores, visible, high, 10, 11, remaining)
        remaining -= above_middle
        low, above_low = narrow(scores, visible, (high << 11) | middle, 0, 10, remaining)
        equal = remaining - above_low
        threshold = (((high << 11) | middle) << 10) | low
        taken = 0
        for i in range(visible):
            key = order_key(scores + 4 * i)
            if key >= threshold:
                if key == threshold:
                    if equal == 0:
                        continue
                    equal -= 1
                out[taken] = i
                taken += 1
                if taken == k:
                    break
