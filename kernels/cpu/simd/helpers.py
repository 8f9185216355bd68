"""Inlined functions and emit helpers that kernels of every tier share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba import njit, types

from . import neon, x86
from .tiers import NEON_TIER, TIER, X86_TIER
from .vec import (
    JIT,
    Emit,
    F32x32,
    Float,
    I8x16,
    I8x32,
    I16x8,
    I16x16,
    I16x32,
    I32x8,
    I32x16,
    I32x32,
    Int,
    Val,
    Vec,
    inline,
)

# Prefetch distance in bytes ahead of the weights in use. 2 to 12 KiB measure the same.
AHEAD = 8192
# Second distance of kernels that compute nearly as long as their weights take to come: into L2 early, then into L1.
NEAR = 2048


@inline(types.none, Int)
def prefetch(k, address):
    """Prefetch the cache line at ``address``."""
    k.prefetch(address)


def prefetch_lines(lines: int, twice: bool = False) -> Any:
    """Make a function that prefetches ``lines`` cache lines, ``AHEAD`` bytes after an address; if ``twice``, those only
    into L2, and as many lines ``NEAR`` bytes after the address into L1."""

    @inline(types.none, Int)
    def fetch_ahead(k, address):
        for line in range(lines):
            k.prefetch(address + (AHEAD + 64 * line), 2 if twice else 3)
            if twice:
                k.prefetch(address + (NEAR + 64 * line))

    return fetch_ahead


@inline(types.none, Int)
def fetch_near(k, address):
    """Prefetch the cache line at ``address`` into the L2 cache, for code that computes long before it needs it."""
    k.fetch(address, 2)


@inline(Float, Int)
def load_float(k, address):
    """Load the float at ``address``."""
    return k.load(Float, address)


@inline(Int, Int)
def load_int(k, address):
    """Load the int64 at ``address``."""
    return k.load(Int, address)


@inline(types.none, Int, Float)
def store_float(k, address, value):
    """Store a float at ``address``."""
    k.store(address, value)


@inline(types.none, Int, types.int32)
def store_int(k, address, value):
    """Store an int32 at ``address``."""
    k.store(address, value)


@inline(types.none, Int, Int)
def copy_32(k, target, source):
    """Copy 32 floats."""
    k.store(target, k.load(F32x32, source))


@njit(**JIT)
def pack_floats(x, n, buffer):
    """Copy n floats unchanged."""
    for _ in range(n >> 5):
        copy_32(buffer, x)
        buffer += 128
        x += 128
    for i in range(n & 31):
        store_float(buffer + 4 * i, load_float(x + 4 * i))


_clear_line = inline(types.none, Int)(lambda k, target: k.store(target, k.zero(I32x16)))


_copy_byte = inline(types.none, Int, Int)(lambda k, target, source: k.store(target, k.load(types.int8, source)))


@njit(**JIT)
def copy_bytes(target, source, size):
    """Copy ``size`` bytes."""
    for i in range(size):
        _copy_byte(target + i, source + i)


@njit(**JIT)
def copy_with_zeros(target, source, size):
    """Copy up to 1024 bytes and pad with zeros to 1024."""
    for line in range(0, 1024, 64):
        _clear_line(target + line)
    copy_bytes(target, source, size)


# -- look-ups
def look_up_16(k: Emit, values: Sequence[int], index: Val) -> Val:
    """Return values[i] for each byte i of ``index``, all below 16."""
    kind = Vec("i8", index.ir.type.count)
    if X86_TIER and kind.lanes in x86.SHUFFLES:
        return x86.shuffle_bytes(k, k.const(kind, [*values] * (kind.lanes // 16)), index)
    if NEON_TIER and kind.lanes % 16 == 0:
        return neon.look_up(k, k.const(I8x16, values), index)
    chosen = [k.const(kind, value) for value in values]
    for bit in range(4):  # halve the candidates by each bit of the index
        odd = (index & (1 << bit)).compare("!=", 0)
        chosen = [k.select(odd, high, low) for low, high in zip(chosen[::2], chosen[1::2], strict=True)]
    return chosen[0]


# -- int8 dot products of 32 bytes
def madd(k: Emit, a: Val, b: Val) -> Val:
    """Multiply i16 * i16 and add adjacent products into half as many i32 lanes."""
    if X86_TIER and a.ir.type.count == 16:
        return x86.madd_256(k, a, b)
    lanes = a.ir.type.count
    wide = I32x32 if lanes == 32 else I32x16
    products = a.sext(wide) * b.sext(wide)  # the shape that LLVM turns into pmaddwd or its like
    return products.shuffle(range(0, lanes, 2)) + products.shuffle(range(1, lanes, 2))


def magnitude(k: Emit, codes: Val) -> Val:
    """Return the magnitudes of s8 codes as u8: -128 becomes 128."""
    return k.select(codes.compare("<", 0), k.zero(I8x32) - codes, codes)


def dots(k: Emit, weights: Val, codes: Val, scale: Val | None, signed: bool) -> Val:
    """Multiply weights, s8 codes (I8x32 each) and ``scale``; sum four products per lane of I32x8.

        signed  weights are s8, not u8
        scale   I16x16, one per two adjacent weights; None: 1

    Which lane a product goes to differs between tiers. No overflow for |codes| <= 127, u8 weights < 128 and |weights *
    scale| < 2^15. Four adjacent weights have one scale.
    """
    if X86_TIER:
        if signed:
            codes = x86.sign_bytes_256(k, codes, weights)
            weights = magnitude(k, weights)
        return x86.madd_256(k, x86.madd_bytes_256(k, weights, codes), k.const(I16x16, 1) if scale is None else scale)
    if NEON_TIER:
        lanes = neon.dots_of_four(k, k.zero(I32x8), weights, codes)
        return lanes if scale is None else lanes * scale.shuffle(range(0, 16, 2)).sext(I32x8)
    wide = weights.sext(I16x32) if signed else weights.zext(I16x32)
    wide = wide if scale is None else wide * scale.shuffle([i // 2 for i in range(32)])
    lanes = madd(k, wide, codes.sext(I16x32))
    return lanes.shuffle(range(8)) + lanes.shuffle(range(8, 16))


def broadcast_half(k: Emit, address: Val, kind: Vec) -> Val:
    """Return the f16 at ``address`` as float32 in every lane of ``kind``.

    Broadcast first: a scalar conversion would merge into a register that may still be in use elsewhere.
    """
    if not k.native_half:
        return k.half_to_float(k.load(types.int16, address)).splat(kind)
    lanes = min(kind.lanes, 16 if TIER == "A" else 8)
    converted = k.half_to_float(k.load(types.int16, address).splat(I16x16 if lanes == 16 else I16x8))
    return converted.shuffle(list(range(lanes)) * (kind.lanes // lanes))
