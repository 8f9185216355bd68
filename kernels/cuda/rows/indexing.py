"""The indexer, which chooses the compressed rows that attention reads: scores, and deterministic top-k selection
(docs/explanation/model.md 7)."""

from __future__ import annotations

import numpy as np

from ..driver.grids import MOST_THREADS, blocks_for, per_value
from ..driver.intrinsics import divide, float_bits, lane_value, shift_left, shift_right
from ..driver.shim import cuda, f32, i32

F32, I32, U64 = np.float32, np.int32, np.uint64
SIDE = 16
"""Threads of a block along rows and along heads; each computes 4 x 4 products."""
TILE = 4 * SIDE
CHUNK, CHUNK_BITS = 32, 5
APART = SIDE * SIDE // CHUNK
"""Distance of the rows that one thread copies to shared memory."""
PITCH = CHUNK + 1
"""Floats from one row in shared memory to the next: one more than a chunk, so that 32 threads use 32 banks."""
STAGED, PARTS = TILE * PITCH, TILE * SIDE
"""Sizes of shared arrays; they have names because compiled kernels do not accept products there."""

MOST = MOST_THREADS
MOST_WARPS = MOST // 32
DIGITS, DIGIT_BITS, TOP_SHIFT = 256, 8, 24
MANY = 128
"""Number of tokens that fill a GPU with small thread blocks, which wait less at barriers."""
SIGN = np.int32(-0x80000000)
LOWEST, GREATEST = F32(-np.inf), F32(np.inf)


@cuda.jit
def scores_kernel(out, iq, rows, w, count, n, heads, dim, tiles):
    """Score TILE rows for one token per block: a product of rows and heads, chunk of channels by chunk, then relu and
    head weights; further heads follow in further rounds."""
    row_tile = cuda.shared.array(STAGED, f32)
    head_tile = cuda.shared.array(STAGED, f32)
    parts = cuda.shared.array(PARTS, f32)
    token = divide(I32(cuda.blockIdx.x), tiles)
    first = I32(cuda.blockIdx.x - token * tiles) * TILE
    limit = min(n, int(count[0]))
    if first >= limit:
        return
    t = cuda.threadIdx.x
    step, of_rows, of_heads = cuda.blockDim.x, t // SIDE, t % SIDE
    row_at, head_at = of_rows * PITCH, of_heads * PITCH
    s = cuda.local.array(4, f32)
    a, x, y = cuda.local.array(16, f32), cuda.local.array(4, f32), cuda.local.array(4, f32)
    for i in range(4):
        s[i] = F32(0)
    for h0 in range(0, heads, TILE):
        for i in range(16):
            a[i] = F32(0)
        for d0 in range(0, dim, CHUNK):
            # a thread has one channel of every eighth row and head
            d, r = d0 + (t & (CHUNK - 1)), t >> CHUNK_BITS
            at_row, at_head = (first + r) * dim + d, (token * heads + h0 + r) * dim + d
            to = r * PITCH + d - d0
            for _ in range(TILE // APART):
                row_tile[U64(to)] = F32(rows[U64(at_row)]) if d < dim and first + r < limit else F32(0)
                head_tile[U64(to)] = iq[U64(at_head)] if d < dim and h0 + r < heads else F32(0)
                r += APART
                at_row += APART * dim
                at_head += APART * dim
                to += APART * PITCH
            cuda.syncthreads()
            for d in range(CHUNK):
                for i in range(4):
                    x[i] = row_tile[U64(row_at + i * SIDE * PITCH + d)]
                    y[i] = head_tile[U64(head_at + i * SIDE * PITCH + d)]
                for i in range(4):
                    for j in range(4):
                        a[4 * i + j] += x[i] * y[j]
            cuda.syncthreads()
        for j in range(4):
            y[j] = weight_of(w, token, h0 + of_heads + j * SIDE, heads)
        for i in range(4):
            k = 4 * i
            s[i] += relu(a[k]) * y[0] + relu(a[k + 1]) * y[1] + relu(a[k + 2]) * y[2] + relu(a[k + 3]) * y[3]
    for i in range(4):
        parts[(of_rows + i * SIDE) * SIDE + of_heads] = s[i]
    cuda.syncthreads()
    for r in range(t, TILE, step):
        if first + r < limit:
            total = F32(0)
            for i in range(SIDE):
                total += parts[r * SIDE + i]
            out[token * n + first + r] = total


@cuda.jit(device=True)
def relu(x):
    """Return max(x, 0); NaN stays NaN."""
    return F32(0) if x < F32(0) else x


@cuda.jit(device=True)
def weight_of(w, token, h, heads):
    """Return the weight of head h of a token; 0 for heads beyond the last, which only pad a tile."""
    return w[token * heads + h] if h < heads else F32(0)


def index_scores(stream, out, iq, rows, w, count, tokens, n, heads, dim):
    """Compute sum_h relu(iq_h . row) w_h, (tokens, n), of the first ``count`` rows, which are float32 or binary16."""
    tiles = blocks_for(n, TILE)
    scores_kernel[tokens * tiles, SIDE * SIDE, stream](out, iq, rows, w, count, n, heads, dim, tiles)


@cuda.jit(device=True)
def order_key(x):
    """Map a float to a word; as unsigned integers, words are in the order of the floats, and both zeros are equal."""
    bits = float_bits(F32(x + F32(0)))
    return I32(bits ^ ((bits >> 31) | SIGN))


@cuda.jit(device=True)
def suffix_sum(value, totals):
    """Return the sum of the values of this thread and of all threads with higher numbers in the block; ``totals`` is
    shared memory, one int32 per warp."""
    t = I32(cuda.threadIdx.x)
    lane, warp, warps = t & 31, t >> 5, I32(cuda.blockDim.x) >> 5
    distance = I32(1)
    while distance < 32:
        other = lane_value(value, lane + distance)
        value += other if lane + distance < 32 else I32(0)
        distance <<= 1
    cuda.syncthreads()  # until all threads have read the totals of an earlier call
    if lane == 0:
        totals[U64(warp)] = value
    cuda.syncthreads()
    warp += I32(1)
    while warp < warps:
        value += totals[U64(warp)]
        warp += I32(1)
    return value


@cuda.jit
def select_kernel(out, scores, visible, n, k):
    """Select rows for one token per block: find the k-th largest key digit by digit, then take rows in ascending order:
    all above it, and as many equal to it, lowest first, as still fit. Each thread scans a run of rows."""
    bins = cuda.shared.array(DIGITS, i32)
    totals = cuda.shared.array(MOST_WARPS, i32)
    digit_and_above = cuda.shared.array(2, i32)
    token, t, step = I32(cuda.blockIdx.x), I32(cuda.threadIdx.x), I32(cuda.blockDim.x)
    count, base = min(I32(visible[token]), I32(n)), np.int64(token) * n
    if count <= k:
        i = t
        while i < k:
            out[U64(token * k + i)] = i if i < count else I32(-1)
            i += step
        return
    # keys are compared as signed words: the sign bit is flipped back
    prefix, remaining, shift = I32(0), I32(k), I32(32)
    while shift > 0:
        shift -= I32(DIGIT_BITS)
        if t < DIGITS:
            bins[U64(t)] = I32(0)
        cuda.syncthreads()
        i = t
        while i < count:
            key = order_key(scores[U64(base + i)])
            if shift == TOP_SHIFT or shift_right(key, shift + I32(DIGIT_BITS)) == prefix:
                cuda.atomic.add(bins, U64(shift_right(key, shift) & I32(DIGITS - 1)), 1)
            i += step
        cuda.syncthreads()
        own = bins[U64(t)] if t < DIGITS else I32(0)
        here = suffix_sum(own, totals)
        if t < DIGITS and here >= remaining and here - own < remaining:
            digit_and_above[0], digit_and_above[1] = t, I32(here - own)
        cuda.syncthreads()
        prefix = I32(shift_left(prefix, I32(DIGIT_BITS)) | digit_and_above[0])
        remaining -= digit_and_above[1]
    limit = I32(prefix ^ SIGN)
    run = divide(I32(count + step - 1), step)
    first, last = min(count, I32(t * run)), min(count, I32((t + 1) * run))
    above, equal, i = I32(0), I32(0), first
    while i < last:
        key = I32(order_key(scores[U64(base + i)]) ^ SIGN)
        above += I32(1) if key > limit else I32(0)
        equal += I32(1) if key == limit else I32(0)
        i += I32(1)
    # how many there are in front of this thread's: all of the block's less those from here on
    all_above = I32(k - remaining)
    above_before = I32(all_above - suffix_sum(above, totals))
    equal_from = suffix_sum(equal, totals)
    if t == 0:
        digit_and_above[0] = equal_from
    cuda.syncthreads()
    equal_before = I32(digit_and_above[0] - equal_from)
    place = I32(above_before + min(equal_before, remaining))
    i = first
    while i < last:
        key = I32(order_key(scores[U64(base + i)]) ^ SIGN)
        if key > limit or (key == limit and equal_before < remaining):
            out[U64(token * k + place)] = i
            place += I32(1)
        if key == limit:
            equal_before += I32(1)
        i += I32(1)


def select_rows(stream, out, scores, visible, tokens, n, k):
    """Select the k best of the first ``visible`` rows, ascending, -1 at the end; ties go to the lower row."""
    select_kernel[tokens, MOST if tokens < MANY else DIGITS, stream](out, scores, visible, n, k)


# --- blocks of rows


@per_value()
def block_maxima(out, scores, visible, size, n, length, count):
    """Find the greatest visible score of each of ``size`` blocks, ``count`` a token, of ``length`` rows. A NaN counts
    as the greatest, the last visible block as infinite."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        token, start = i // count, i % count * length
        limit = min(int(visible[token]), n)
        best = LOWEST
        for row in range(start, min(start + length, limit)):
            score = scores[token * n + row]
            best = score if score > best or score != score else best
        out[i] = GREATEST if start < limit and limit <= start + length else best


@per_value(64)
def block_scores(out, iq, rows, w, blocks, size, n, heads, dim, length, count):
    """Compute sum_h relu(iq_h . row) w_h, ``size`` values, for the rows of each token's ``count`` blocks of ``length``
    rows."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        token, place = i // (count * length), i % (count * length)
        block = int(blocks[token * count + place // length])
        row = block * length + place % length
        if block < 0 or row >= n:
            out[i] = LOWEST
        else:
            total = F32(0)
            for h in range(token * heads, token * heads + heads):
                product = F32(0)
                for d in range(dim):
                    product += F32(iq[h * dim + d] * F32(rows[row * dim + d]))
                total += F32(relu(product) * w[h])
            out[i] = total


@per_value()
def block_rows(out, picks, blocks, size, k, length, count):
    """Find the row of each of ``size`` places, ``k`` a token, in the scores of blocks of ``length`` rows."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        place = int(picks[i])
        row = -1
        if place >= 0 and place < count * length:
            row = int(blocks[i // k * count + place // length]) * length + place % length
        out[i] = row
