"""Primitives that compiled tasks are written with: raw pointers, atomics, calls through addresses, operations on the
bits of floats.

Tasks see memory as int64 addresses; ``f32p(address)[i]`` is element i of the float32 array there, and so on. Everything
here is portable LLVM except the spin-wait hint.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types

from ..numba_internals import declare_function
from ..numba_internals import make_intrinsic as op
from ..simd.tiers import IS_AARCH64, IS_X86
from ..simd.vec import JIT, inline

FAST: dict[str, Any] = {**JIT, "fastmath": {"reassoc", "contract", "nsz"}}
"""Numba options for reductions: sums may be reordered (always in the same way); NaN and infinity keep their meaning."""

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32 = ir.FloatType()


def external(builder: ir.IRBuilder, name: str, result: ir.Type, values: list[ir.Value]) -> ir.Value:
    """Call the LLVM intrinsic or C function ``name``."""
    return builder.call(declare_function(builder.module, name, result, [value.type for value in values]), values)


def _cast(kind: types.Type, element: ir.Type) -> Any:
    return op(types.CPointer(kind), [types.int64], lambda b, v: b.inttoptr(v[0], element.as_pointer()))


f32p = _cast(types.float32, F32)
i8p = _cast(types.int8, I8)
i32p = _cast(types.int32, I32)
i64p = _cast(types.int64, I64)


def local(count: int) -> Any:
    """Make an intrinsic that returns the address of ``count`` uninitialised bytes on the stack, 64-byte aligned.

    Each place in the code that calls it has its own bytes.
    """

    def emit(builder: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
        with builder.goto_entry_block():  # not cgutils.alloca_once: it clears the memory, one store per byte
            buffer = builder.alloca(ir.ArrayType(I8, count))
        buffer.align = 64
        return builder.ptrtoint(buffer, I64)

    return op(types.int64, [], emit)


# ---- atomics, all sequentially consistent ----


def _at(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, I64.as_pointer())


atomic_add = op(types.int64, [types.int64] * 2, lambda b, v: b.atomic_rmw("add", _at(b, v[0]), v[1], "seq_cst"))
atomic_swap = op(types.int64, [types.int64] * 2, lambda b, v: b.atomic_rmw("xchg", _at(b, v[0]), v[1], "seq_cst"))
atomic_load = op(types.int64, [types.int64], lambda b, v: b.load_atomic(_at(b, v[0]), "seq_cst", 8))


def _atomic_store(builder: ir.IRBuilder, values: list[ir.Value]) -> None:
    builder.store_atomic(values[1], _at(builder, values[0]), "seq_cst", 8)


atomic_store = op(types.none, [types.int64] * 2, _atomic_store)


def _spin_hint(builder: ir.IRBuilder, values: list[ir.Value]) -> None:
    if IS_X86:
        external(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
    elif IS_AARCH64:
        # "yield" is a no-op on cores without hyper-threads; an instruction barrier waits for the pipeline
        external(builder, "llvm.aarch64.isb", ir.VoidType(), [ir.Constant(I32, 15)])


spin_hint = op(types.none, [], _spin_hint)
yield_core = op(types.int32, [], lambda b, v: external(b, "sched_yield", I32, []))
sleep_us = op(types.int32, [types.uint32], lambda b, v: external(b, "usleep", I32, v))


will_need = op(types.int32, [types.int64] * 2, lambda b, v: external(b, "madvise", I32, [*v, ir.Constant(I32, 3)]))
"""madvise(start, bytes, MADV_WILLNEED): prefetch mapped pages without waiting; ``start`` on a page boundary."""


ticks = op(types.int64, [], lambda b, v: external(b, "llvm.readcyclecounter", I64, []))
"""Read a clock that costs a few nanoseconds and runs at a constant rate on current processors.

x86: rdtsc. AArch64: LLVM reads CNTVCT_EL0 (the real cycle counter, PMCCNTR_EL0, traps in user mode), with a tick of 42
ns on Apple's M1; llvm.readsteadycounter is not implemented there and gives 0.
"""


# ---- calls through addresses ----


def call_address(count: int) -> Any:
    """Make an intrinsic that calls a C function ``void f(int64 x count)``; its first argument is the address of the
    function."""

    def emit(builder: ir.IRBuilder, values: list[ir.Value]) -> None:
        kind = ir.FunctionType(ir.VoidType(), [I64] * count)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])

    return op(types.none, [types.int64] * (count + 1), emit)


call_task = call_address(4)
call_pack = call_address(3)
call_rows = call_address(7)


@njit(**JIT)
def expert_at(weights, stride, expert):
    """Return the address of matrix ``expert`` of a stack at ``weights``; if ``stride`` is 0, ``weights`` is a table of
    the matrices' addresses."""
    if stride == 0:
        return i64p(weights)[expert]
    return weights + stride * expert


# ---- floats ----

load_f16 = inline(types.float32, types.int64)(lambda k, address: k.half_to_float(k.load(types.int16, address)))
store_f16 = inline(types.none, types.int64, types.float32)(lambda k, address, x: k.store(address, k.float_to_half(x)))
round_f16 = inline(types.float32, types.float32)(lambda k, x: k.half_to_float(k.float_to_half(x)))
float_bits = op(types.int32, [types.float32], lambda b, v: b.bitcast(v[0], I32))
bits_float = op(types.float32, [types.int32], lambda b, v: b.bitcast(v[0], F32))
rint = op(types.float32, [types.float32], lambda b, v: external(b, "llvm.rint.f32", F32, v))
log2 = op(types.float32, [types.float32], lambda b, v: external(b, "log2f", F32, v))
log1p = op(types.float32, [types.float32], lambda b, v: external(b, "log1pf", F32, v))


def _power_of_two(builder: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
    exponent = builder.fptosi(values[0], I32)
    return builder.bitcast(builder.shl(builder.add(exponent, ir.Constant(I32, 127)), ir.Constant(I32, 23)), F32)


power_of_two = op(types.float32, [types.float32], _power_of_two)
"""2^n for an integral n in -126..127."""


@njit(**JIT)
def order_key(address):
    """Map the float at an address to an integer in 0 .. 2^32 - 1 of the same order; both zeros are equal, NaN is
    lowest."""
    bits = np.int64(i32p(address)[0])
    magnitude = bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return 0
    return 0x80000000 + magnitude if bits >= 0 or magnitude == 0 else 0x7FFFFFFF - magnitude


def _signed_order(builder: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
    bits, low = builder.bitcast(values[0], I32), ir.Constant(I32, 0x7FFFFFFF)
    key = builder.xor(bits, builder.and_(builder.ashr(bits, ir.Constant(I32, 31)), low))
    zero = builder.icmp_unsigned("==", builder.and_(bits, low), ir.Constant(I32, 0))
    return builder.select(zero, ir.Constant(I32, 0), key)


signed_order = op(types.int32, [types.float32], _signed_order)
"""Map a float to an int32 of the same order; both zeros are equal. int32, so that loops over it vectorize."""

LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
C0, C1, C2, C3, C4, C5 = (
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
EXP_LOW, EXP_HIGH = np.float32(-104.0), np.float32(89.0)


@njit(**JIT)
def exp32(x):
    """Return e^x within 2 ulp, without calls or branches so that loops vectorize. 0 far below, inf far above, NaN
    kept."""
    y = min(max(x, EXP_LOW), EXP_HIGH)
    n = rint(y * LOG2_E)
    r = (y - n * LN2_HIGH) - n * LN2_LOW
    p = ((((C0 * r + C1) * r + C2) * r + C3) * r + C4) * r + C5
    p = p * r * r + r + np.float32(1)
    half = rint(n * np.float32(0.5))  # two factors: 2^n itself may be subnormal or overflow
    value = p * power_of_two(half) * power_of_two(n - half)
    return value if x == x else x


@njit(**JIT)
def sigmoid32(x):
    """Return 1 / (1 + e^-x); 0 and 1 at the far ends, NaN only for NaN."""
    return np.float32(1) / (np.float32(1) + exp32(-x))
