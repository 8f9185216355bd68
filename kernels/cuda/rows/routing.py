"""Expert routing, expert counts and SwiGLU (docs/explanation/model.md 8)."""

from __future__ import annotations

import numpy as np

from ..driver.grids import blocks_for, threads_for
from ..driver.shim import cuda, f32, i32
from .maths import INFINITY, sigmoid32, softplus32, sqrt32

F32 = np.float32
FLOOR, TINY = F32(2.0**-14), F32(1e-20)
MOST = 256


@cuda.jit(device=True)
def comes_first(a, i, b, j):
    """Return whether value a of expert i ranks before value b of expert j: larger, or equal and lower in number."""
    return a > b or (a == b and i < j)


@cuda.jit
def route_kernel(probs, ids, weights, error, logits, bias, hash_ids, E, k, scale, floor, biased, hashed, code):
    """Route one token per block. The i-th choice is the first in order after the previous choice."""
    best = cuda.shared.array(MOST, f32)
    where = cuda.shared.array(MOST, i32)
    token, t, step = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    for e in range(t, E, step):
        probs[token * E + e] = sqrt32(softplus32(logits[token * E + e]))
    cuda.syncthreads()
    last, before = INFINITY, -1
    for i in range(k):
        if hashed:
            chosen = hash_ids[token * k + i]
            if chosen < 0 or chosen >= E:
                chosen = 0
                if t == 0:
                    error[0] = code
            if t == 0:
                ids[token * k + i] = chosen
        else:
            top, at = -INFINITY, E
            for e in range(t, E, step):
                value = probs[token * E + e]
                if biased:
                    value = F32(value + bias[e])
                if not value == value:
                    value = -INFINITY
                if comes_first(last, before, value, e) and comes_first(value, e, top, at):
                    top, at = value, e
            best[t], where[t] = top, at
            cuda.syncthreads()
            width = step >> 1
            while width > 0:
                if t < width and comes_first(best[t + width], where[t + width], best[t], where[t]):
                    best[t], where[t] = best[t + width], where[t + width]
                cuda.syncthreads()
                width >>= 1
            last, before = best[0], where[0]
            cuda.syncthreads()
            if t == 0:
                ids[token * k + i] = min(before, E - 1)
    cuda.syncthreads()
    if t == 0:
        total = F32(0)
        for i in range(k):
            total += probs[token * E + ids[token * k + i]]
        if floor:
            total = FLOOR if total < FLOOR else total
        else:
            total += TINY
        for i in range(k):
            weights[token * k + i] = F32(F32(probs[token * E + ids[token * k + i]] / total) * scale)


def route(
    stream, probs, ids, weights, error, logits, bias, hash_ids, tokens, E, k, scale, floor, biased, hashed, code
):  # fmt: skip
    """Compute probs, the k chosen experts and their weights from logits (tokens, E).

    Without ``biased`` (``hashed``) the operand bias (hash_ids) is not read.
    """
    route_kernel[tokens, threads_for(E, MOST, 1), stream](
        probs, ids, weights, error, logits, bias, hash_ids, E, k, F32(scale), floor, biased, hashed, code
    )


@cuda.jit
def count_kernel(counts, ids, size, E):
    """Count experts in a grid-stride loop over ids."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        e = ids[i]
        if e >= 0 and e < E:
            cuda.atomic.add(counts, e, 1)


def count(stream, counts, ids, size, E):
    """Add to counts[e] the number of times e is among ids."""
    threads = threads_for(size, 256, 1)
    count_kernel[blocks_for(size, threads), threads, stream](counts, ids, size, E)


@cuda.jit
def check_kernel(error, ids, size, E, code):
    """Check one id per thread; set ``error`` if it is out of range."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        if ids[i] < 0 or ids[i] >= E:
            error[0] = code


def check_ids(stream, error, ids, size, E, code):
    """Set ``error[0]`` to ``code`` unless all ids are in 0 .. E - 1."""
    threads = threads_for(size, 256, 1)
    check_kernel[blocks_for(size, threads), threads, stream](error, ids, size, E, code)


@cuda.jit(device=True)
def gated(g, u, limit):
    """Return silu(min(g, limit)) clip(u, -limit, limit)."""
    g = limit if g > limit else g
    u = limit if u > limit else u
    u = -limit if u < -limit else u
    return F32(F32(g * sigmoid32(g)) * u)


@cuda.jit
def swiglu_kernel(out, gate, up, weight, size, n, limit, weighted):
    """Compute SwiGLU in a grid-stride loop."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        mid = gated(gate[i], up[i], limit)
        if weighted:
            mid = F32(mid * weight[i // n])
        out[i] = mid


def swiglu(stream, out, gate, up, weight, rows, n, limit, weighted):
    """Compute silu(min(gate, limit)) clip(up, -limit, limit), times the row's weight."""
    threads = threads_for(rows * n, 256, 1)
    swiglu_kernel[blocks_for(rows * n, threads), threads, stream](
        out, gate, up, weight, rows * n, n, F32(limit), weighted
    )
