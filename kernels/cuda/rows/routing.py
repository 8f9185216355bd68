"""Choosing experts, counting them, and the activation functions of FFNs (docs/explanation/model.md 8)."""

from __future__ import annotations

import numpy as np

from ..driver.grids import per_value, threads_for
from ..driver.intrinsics import shuffle_xor
from ..driver.shim import cuda, f32, i32
from .maths import INFINITY, sigmoid32, softplus32, sqrt32

F32 = np.float32
I32, U64 = np.int32, np.uint64
ONE = F32(1)
FLOOR, TINY = F32(2.0**-14), F32(1e-20)
TANGENT, CUBIC = F32(2 * np.sqrt(2 / np.pi)), F32(0.044715)
WARP, MOST = 32, 256
MOST_WARPS = MOST // WARP
ROOM = 2 * MOST_WARPS
MOST_CHOSEN = 256
"""Maximum number of experts per token."""


@cuda.jit(device=True)
def comes_first(a, i, b, j):
    """Return whether value a of expert i ranks before value b of expert j: larger, or equal and lower in number."""
    return a > b or (a == b and i < j)


@cuda.jit(device=True)
def first_of_warp(value, number):
    """Return, in every lane, that one of all lanes' (value, expert) which ranks first."""
    mask = WARP >> 1
    while mask > 0:
        other, its = shuffle_xor(value, mask), shuffle_xor(number, mask)
        if comes_first(other, its, value, number):
            value, number = other, its
        mask >>= 1
    return value, number


@cuda.jit
def route_kernel(
    probs, ids, weights, error, logits, bias, hash_ids, E, k, scale, floor, biased, hashed, code
):  # fmt: skip
    """Route one token per block. The i-th choice is the first in order after the previous choice."""
    best = cuda.shared.array(ROOM, f32)
    where = cuda.shared.array(ROOM, i32)
    chosen = cuda.shared.array(MOST_CHOSEN, i32)
    values = cuda.shared.array(MOST_CHOSEN, f32)
    totals = cuda.shared.array(1, f32)
    token, t, step = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    for e in range(t, E, step):
        probs[token * E + e] = sqrt32(softplus32(logits[token * E + e]))
    cuda.syncthreads()
    if hashed:
        for i in range(t, k, step):
            expert = hash_ids[token * k + i]
            if expert < 0 or expert >= E:
                expert = 0
                error[0] = code
            chosen[i] = expert
    else:
        last, before = INFINITY, I32(-1)
        for i in range(k):
            top, at = -INFINITY, I32(E)
            for e in range(t, E, step):
                value = probs[token * E + e]
                if biased:
                    value = F32(value + bias[e])
                if not value == value:
                    value = -INFINITY
                if comes_first(last, before, value, e) and comes_first(value, e, top, at):
                    top, at = value, I32(e)
            top, at = first_of_warp(top, at)
            half = (i & 1) * MOST_WARPS  # the next choice writes to the half that no thread reads any more
            if t % WARP == 0:
                best[half + t // WARP], where[half + t // WARP] = top, at
            cuda.syncthreads()
            last, before = best[half], where[half]
            for warp in range(1, step // WARP):
                if comes_first(best[half + warp], where[half + warp], last, before):
                    last, before = best[half + warp], where[half + warp]
            if t == 0:
                chosen[i] = min(before, I32(E - 1))
    cuda.syncthreads()
    for i in range(t, k, step):
        expert = chosen[i]
        ids[token * k + i] = expert
        values[i] = probs[token * E + expert]
    cuda.syncthreads()
    if t == 0:
        total = F32(0)
        for i in range(k):
            total += values[i]
        if floor:
            total = FLOOR if total < FLOOR else total
        else:
            total += TINY
        totals[0] = total
    cuda.syncthreads()
    for i in range(t, k, step):
        weights[token * k + i] = F32(F32(values[i] / totals[0]) * scale)


def route(
    stream, probs, ids, weights, error, logits, bias, hash_ids, tokens, E, k, scale, floor, biased, hashed, code
):  # fmt: skip
    """Compute probs, the k chosen experts and their weights from logits (tokens, E).

    ``bias`` is read only if ``biased``, ``hash_ids`` only if ``hashed``.
    """
    route_kernel[tokens, threads_for(E, MOST, 1), stream](
        probs, ids, weights, error, logits, bias, hash_ids, E, k, F32(scale), floor, biased, hashed, code
    )


@per_value()
def count(counts, ids, size, E):
    """Add to counts[e] the number of times that e occurs in ids."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        e = ids[i]
        if e >= 0 and e < E:
            cuda.atomic.add(counts, e, 1)


@per_value()
def check_ids(error, ids, size, E, code):
    """Set ``error[0]`` to ``code`` unless all ids are in 0 .. E - 1."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        if ids[i] < 0 or ids[i] >= E:
            error[0] = code


@per_value()
def geglu(out, gate, up, size):
    """Compute gelu(gate) * up with the tanh approximation of GELU."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        g = gate[i]
        inner = F32(g + F32(F32(F32(CUBIC * g) * g) * g))
        out[i] = F32(F32(g * sigmoid32(F32(TANGENT * inner))) * up[i])


@per_value()
def swiglu(out, gate, up, weight, size, n, limit, weighted):
    """Compute silu(min(gate, limit)) * clip(up, -limit, limit), times the weight of each row of n values if
    ``weighted``."""
    for i in range(cuda.grid(1), size, cuda.gridsize(1)):
        g, u = gate[i], up[i]
        g = limit if g > limit else g
        u = limit if u > limit else u
        u = -limit if u < -limit else u
        mid = F32(F32(g * sigmoid32(g)) * u)
        out[i] = F32(mid * weight[i // n]) if weighted else mid
