"""AArch64 instructions that LLVM does not select for plain vector operations (tiers N and I).

Each function emits one instruction, or one for each register of its operands.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types

from .vec import Emit, I8x16, I32x4, Val, Vec


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


def look_up(k: Emit, table: Val, index: Val) -> Val:
    """Return table[i] for each byte i of ``index``, 0 where it is not below 16 (tbl)."""
    return k.call("llvm.aarch64.neon.tbl1.v16i8", I8x16, table, index)


def shift_insert(k: Emit, low: Val, high: Val, places: int) -> Val:
    """Return ``high << places`` with the lower bits of ``low``, lane by lane (sli)."""
    kind = low.ir.type
    name = f"llvm.aarch64.neon.vsli.v{kind.count}i{kind.element.width}"
    return k.call(name, Vec(f"i{kind.element.width}", kind.count), low, high, k.const(types.int32, places))


def count_bits(k: Emit, value: Val) -> Val:
    """Return the number of set bits of each byte (cnt)."""
    return k.call("llvm.ctpop.v16i8", I8x16, value)
