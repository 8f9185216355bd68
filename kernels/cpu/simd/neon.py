"""AArch64 instructions that LLVM does not select for plain vector operations (tier N).

Each function emits one instruction, or one for each register of its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir
from numba import types

from .vec import Emit, I8x16, I16x8, I32x4, Val, Vec, llvm_type


def registers(value: Val) -> list[Val]:
    """Split a vector of a whole number of registers into them."""
    lanes = value.ir.type.count
    bits = value.ir.type.element.width if isinstance(value.ir.type.element, ir.IntType) else 32
    step = 128 // bits
    return [value.shuffle(range(at, at + step)) for at in range(0, lanes, step)] if lanes > step else [value]


def joined(parts: list[Val]) -> Val:
    """Concatenate a power of two of vectors."""
    while len(parts) > 1:
        parts = [low.cat(high) for low, high in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def by_registers(function: Callable[..., Val], *values: Val) -> Val:
    """Apply ``function`` to each register of vectors of one size."""
    return joined([function(*parts) for parts in zip(*map(registers, values), strict=True)])


def dots_16(k: Emit, total: Val, a: Val, b: Val) -> Val:
    """Return total[i] + the four products s8 * s8 of 32-bit lane i (sdot)."""
    return k.call("llvm.aarch64.neon.sdot.v4i32.v16i8", I32x4, total, a, b)


def dots_of_four(k: Emit, total: Val, a: Val, b: Val) -> Val:
    """``dots_16`` of vectors of several registers."""
    return by_registers(lambda *parts: dots_16(k, *parts), total, a, b)


def entry(k: Emit, kind: types.Type, table: Val, index: Val) -> Val:
    """Load entry ``index`` of a table of ``kind`` (ldr, which scales the index itself)."""
    pointer = k.builder.inttoptr(table.ir, llvm_type(kind).as_pointer())
    return Val(k, k.builder.load(k.builder.gep(pointer, [index.ir])))


def look_up(k: Emit, table: Val, index: Val) -> Val:
    """Return table[i] for each byte i of ``index``, 0 where it is not below 16 (tbl)."""
    return k.call("llvm.aarch64.neon.tbl1.v16i8", I8x16, table, index)


def larger(k: Emit, a: Val, b: Val) -> Val:
    """Return the lane-wise larger float, NaN where either is NaN (fmax)."""
    return k.call(f"llvm.maximum.v{a.ir.type.count}f32", Vec("f32", a.ir.type.count), a, b)


def smaller(k: Emit, a: Val, b: Val) -> Val:
    """Return the lane-wise smaller float, NaN where either is NaN (fmin)."""
    return k.call(f"llvm.minimum.v{a.ir.type.count}f32", Vec("f32", a.ir.type.count), a, b)


def largest(k: Emit, a: Val) -> Val:
    """Return the largest lane, NaN if one is NaN (fmaxv)."""
    return k.call(f"llvm.vector.reduce.fmaximum.v{a.ir.type.count}f32", types.float32, a)


def smallest(k: Emit, a: Val) -> Val:
    """Return the smallest lane, NaN if one is NaN (fminv)."""
    return k.call(f"llvm.vector.reduce.fminimum.v{a.ir.type.count}f32", types.float32, a)


def sum_of_bytes(k: Emit, a: Val) -> Val:
    """Return the sum of 16 signed bytes as i16 (saddlv)."""
    return k.call("llvm.aarch64.neon.saddlv.i32.v16i8", types.int32, a).trunc(types.int16)


def insert_right(k: Emit, kept: Val, value: Val, by: int) -> Val:
    """Return ``value`` >> ``by`` with the ``by`` upper bits of each byte from ``kept`` (sri)."""
    return k.call("llvm.aarch64.neon.vsri.v16i8", I8x16, kept, value, k.const(types.int32, by))


def insert_left(k: Emit, kept: Val, value: Val, by: int) -> Val:
    """Return ``value`` << ``by`` with the ``by`` lower bits of each lane from ``kept`` (sli)."""
    count, width = kept.ir.type.count, kept.ir.type.element.width
    name = f"llvm.aarch64.neon.vsli.v{count}i{width}"
    return k.call(name, Vec(f"i{width}", count), kept, value, k.const(types.int32, by))


def as_it_is(k: Emit, value: Val) -> Val:
    """Return ``value`` as a value of which LLVM knows nothing; it emits no code.

    Otherwise LLVM would choose lanes before it computes with them: widen each lane by itself, multiply joined halves.
    """
    kind = value.ir.type
    lanes = kind.count * kind.element.width // 32
    floats = Vec("f32", lanes)
    held = k.call(f"llvm.arithmetic.fence.v{lanes}f32", floats, value.bits(floats))
    return held.bits(Vec(f"i{kind.element.width}", kind.count))


def scaled_differences(k: Emit, scales: Val, shifts: Sequence[int] = (0, 0)) -> list[Val]:
    """Return four scales (I32x4) for each of ``shifts``, each less the one behind it; the last of four stays whole.

    scales  unsigned bytes below 128; each four of them are shifted left by one of ``shifts``
    """
    count = scales.ir.type.count
    words = scales.bits(Vec("i32", count // 4))
    bytes_ = scales - (words >> 8).bits(Vec("i8", count))
    wide = [as_it_is(k, bytes_.shuffle(range(at, at + 8)).sext(I16x8)) for at in range(0, count, 8)]
    fours = [part.shuffle(range(at, at + 4)).sext(I32x4) for part in wide for at in (0, 4)]
    return [as_it_is(k, four << shift) for four, shift in zip(fours, shifts, strict=True)]


def widened_dot(k: Emit, unsigned: Val, *signed: Val) -> Val:
    """Multiply bytes by the i16 of ``signed`` (I16x8 each); return the sums of two or four products (smull, smlal)."""
    total = k.zero(I32x4)
    for i, words in enumerate(signed):
        wide = unsigned.shuffle(range(8 * i, 8 * i + 8)).zext(I16x8)
        for half in (range(4), range(4, 8)):
            total = total + wide.shuffle(half).sext(I32x4) * words.shuffle(half).sext(I32x4)
    return total
