"""Choosing experts, and the activation functions of FFNs (docs/explanation/model.md 8)."""

from __future__ import annotations

import numpy as np
from numba import njit

from .. import tasktable as t
from .lang import JIT, exp32, f32p, i32p, i64p, log1p, sigmoid32, will_need
from .registry import body

ZERO = np.float32(0)
LINEAR_ABOVE, EXP_BELOW = np.float32(20), np.float32(-20)
TANGENT, CUBIC = np.float32(2 * np.sqrt(2 / np.pi)), np.float32(0.044715)
FLOOR, TINY = np.float32(2.0**-14), np.float32(1e-20)


@njit(**JIT)
def softplus32(x):
    """Return log(1 + e^x) without overflow."""
    if x > LINEAR_ABOVE:
        return x
    if x < EXP_BELOW:
        return exp32(x)
    return log1p(exp32(x))


@body(t.ROUTE, exact=True)
def route(args, first, last, thread):
    """Choose experts; items are tokens. Repeated arg-max with strict >: ties go to the lower id, order is
    descending."""
    E, K = args.experts, args.k
    for token in range(first, last):
        logits, probs = f32p(args.logits + 4 * E * token), f32p(args.probs + 4 * E * token)
        ids, weights = i32p(args.ids + 4 * K * token), f32p(args.weights + 4 * K * token)
        for e in range(E):
            probs[e] = np.sqrt(softplus32(logits[e]))
        if args.hash_ids != 0:
            hashed = i32p(args.hash_ids + 4 * K * token)
            for i in range(K):
                if hashed[i] < 0 or hashed[i] >= E:
                    i64p(args.error)[0] = 1
                    return
                ids[i] = hashed[i]
        else:
            for i in range(K):
                best, at = np.float32(-np.inf), -1
                for e in range(E):
                    value = probs[e]
                    if args.bias != 0:
                        value += f32p(args.bias)[e]
                    if value > best or at < 0:
                        taken = False
                        for j in range(i):
                            taken = taken or ids[j] == e
                        if not taken:
                            best, at = value, e
                ids[i] = at
        total = ZERO
        for i in range(K):
            total += probs[ids[i]]
        total = max(total, FLOOR) if args.floor != 0 else total + TINY
        for i in range(K):
            weights[i] = probs[ids[i]] / total * np.float32(args.scale)


@body(t.SWIGLU, exact=True)
def swiglu(args, first, last, thread):
    """Compute SwiGLU; items are rows of n values."""
    n = args.n
    limit = np.float32(args.limit)
    for r in range(first, last):
        gate, up, out = f32p(args.gate + 4 * n * r), f32p(args.up + 4 * n * r), f32p(args.out + 4 * n * r)
        weight = np.float32(1)
        if args.weight != 0:
            weight = f32p(args.weight)[r]
        for i in range(n):
            g = min(gate[i], limit)
            u = min(max(up[i], -limit), limit)
            out[i] = g * sigmoid32(g) * u * weight


@body(t.GEGLU, exact=True)
def geglu(args, first, last, thread):
    """Compute gelu(gate) * up with the tanh approximation of GELU; items are numbers."""
    gate, up, out = f32p(args.gate), f32p(args.up), f32p(args.out)
    for i in range(first, last):
        g = gate[i]
        out[i] = g * sigmoid32(TANGENT * (g + CUBIC * g * g * g)) * up[i]


@body(t.COUNT, exact=True)
def count(args, first, last, thread):
    """Count each expert's uses; items are positions in ids."""
    ids, counts = i32p(args.ids), i64p(args.counts)
    for item in range(first, last):
        if 0 <= ids[item] < args.experts:
            counts[ids[item]] += 1


@njit(**JIT)
def announce(begin, size, page):
    """Request the pages of ``size`` bytes."""
    start = begin // page * page
    will_need(start, begin + size - start)


@body(t.ADVISE, exact=True)
def advise_experts(args, first, last, thread):
    """Request the pages of the used experts (a table of GROUP_PAIRS) unless there are more than ``most``; one item.

    The system reads the pages while something else is computed. With ``scale_bytes`` an expert's place is that of two
    addresses, codes and scales.
    """
    used = i32p(args.used)
    if used[0] > args.most:
        return
    for u in range(used[0]):
        begin = args.weight + args.expert_bytes * used[1 + u]
        if args.scale_bytes != 0:
            pair = i64p(begin)
            announce(pair[1], args.scale_bytes, args.page)
            begin = pair[0]
        announce(begin, args.code_bytes, args.page)
