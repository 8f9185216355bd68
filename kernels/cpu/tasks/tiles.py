"""Small blocks (*tiles*) of float dot products or weighted sums, computed in registers: 16 accumulators, as portable
LLVM vectors.

An accumulator has 16 lanes, on AArch64 (tier N) four: there 16 of them and 8 operands fit into 32 registers of 128
bits.
"""

from __future__ import annotations

from numba import njit, types

from ..simd.tiers import NEON_TIER
from ..simd.vec import JIT, F32x16, Float, I16x16, Int, Vec, inline
from ..sizes import ROW_BLOCK
from .lang import f32p, load_f16

LANES = 4 if NEON_TIER else 16
VECTOR = 4 * LANES
WIDTH = 4 * LANES
"""Number of columns in a tile of weighted sums."""
Lanes = Vec("f32", LANES)
Acc = types.UniTuple(Lanes, 16)
_WIDENED = 16


@inline(Acc)
def zeros(k):
    """Return 16 accumulators of 0."""
    return tuple([k.zero(Lanes)] * 16)


@inline(Acc, Acc, Int, Int, Int, Int, Int, Int, Int, Int, Int)
def dots(k, acc, a0, a1, a2, a3, b0, b1, b2, b3, offset):
    """Update acc[4 i + j] += a_i[offset..] * b_j[offset..], LANES floats of each."""
    a = [k.load(Lanes, x + offset) for x in (a0, a1, a2, a3)]
    b = [k.load(Lanes, x + offset) for x in (b0, b1, b2, b3)]
    acc = k.members(acc)
    return tuple(k.fma(a[n // 4], b[n % 4], acc[n]) for n in range(16))


@inline(Acc, Acc, Int, Int, Int, Int, Int)
def outer(k, acc, s0, s1, s2, s3, v):
    """Update acc[4 i + j] += (the float at s_i) * (vector j of the floats at v)."""
    scalars = [k.load(Float, s).splat(Lanes) for s in (s0, s1, s2, s3)]
    vectors = [k.load(Lanes, v + VECTOR * j) for j in range(4)]
    acc = k.members(acc)
    return tuple(k.fma(scalars[n // 4], vectors[n % 4], acc[n]) for n in range(16))


@inline(Acc, Int, Int, Int, Int, Int)
def load_scaled(k, o0, o1, o2, o3, scales):
    """Load acc[4 i + j] = (vector j of the floats at o_i) * (float i at scales)."""
    rows = []
    for i, o in enumerate((o0, o1, o2, o3)):
        factor = k.load(Float, scales + 4 * i).splat(Lanes)
        rows += [k.load(Lanes, o + VECTOR * j) * factor for j in range(4)]
    return tuple(rows)


@inline(types.none, Acc, Int, Int, Int, Int)
def store(k, acc, o0, o1, o2, o3):
    """Store accumulators to the rows that ``load_scaled`` loads."""
    for n, member in enumerate(k.members(acc)):
        k.store((o0, o1, o2, o3)[n // 4] + VECTOR * (n % 4), member)


def _sums(members):
    """Reduce as many vectors as they have lanes to one whose lane i is the sum of vector i."""
    count = lanes = len(members)
    while lanes > 1:
        half = lanes // 2
        groups = count // lanes
        low = [g * lanes + i for v in (0, count) for g in range(groups) for i in _shift(v, range(half))]
        high = [lane + half for lane in low]
        members = [a.shuffle(low, b) + a.shuffle(high, b) for a, b in zip(members[::2], members[1::2], strict=True)]
        lanes = half
    return members[0]


def _shift(base, indices):
    return [base + i for i in indices]


@inline(F32x16, Acc)
def sums(k, acc):
    """Return a vector whose lane n is the sum over the lanes of acc[n]."""
    members = k.members(acc)
    parts = [_sums(members[at : at + LANES]) for at in range(0, 16, LANES)]
    while len(parts) > 1:
        parts = [low.cat(high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@inline(F32x16, Acc, Float)
def scaled_sums(k, acc, scale):
    """Return ``sums`` times ``scale``."""
    return sums.emitter(k, acc) * scale.splat(F32x16)


@inline(types.none, Int, F32x16)
def put_rows(k, address, value):
    """Store each four of 16 floats in a row of a block of scores, the first at ``address``."""
    for i in range(4):
        k.store(address + 4 * ROW_BLOCK * i, value.shuffle(range(4 * i, 4 * i + 4)))


@inline(types.none, Int, F32x16)
def put(k, address, value):
    """Store 16 floats at ``address``."""
    k.store(address, value)


@inline(types.none, Acc, Int, Int)
def relu_weighted(k, acc, weights, out):
    """Update out[i] += sum over j and lanes of max(0, acc[4 i + j]) * (vector j of the floats at weights), i =
    0..3."""
    w = [k.load(Lanes, weights + VECTOR * j) for j in range(4)]
    members = [k.maximum(k.zero(Lanes), a) for a in k.members(acc)]  # this operand order keeps NaN
    for i in range(4):
        total = members[4 * i] * w[0]
        for j in range(1, 4):
            total = k.fma(members[4 * i + j], w[j], total)
        place = out + 4 * i
        k.store(place, k.load(Float, place) + k.hsum(total))


_widen_vector = inline(types.none, Int, Int)(lambda k, x, out: k.store(out, k.half_to_float(k.load(I16x16, x))))


@njit(**JIT)
def widen(x, out, n):
    """Convert n binary16 values at address ``x`` to float32 at address ``out``.

    It uses explicit vectors, because LLVM may not vectorize the plain loop.
    """
    full = n // _WIDENED * _WIDENED
    for i in range(0, full, _WIDENED):
        _widen_vector(x + 2 * i, out + 4 * i)
    for i in range(full, n):
        f32p(out)[i] = load_f16(x + 2 * i)
