"""AArch64 instructions that LLVM does not select for plain vector operations (tier N)."""

from __future__ import annotations

from collections.abc import Callable

from .vec import Emit, I8x16, I32x4, Val


def _by_registers(function: Callable[..., Val], *values: Val) -> Val:
    """Apply ``function`` to each register of vectors of equal sizes, which fill a power of two of registers."""
    if values[0].ir.type.count * values[0].ir.type.element.width == 128:
        return function(*values)
    low, high = (_by_registers(function, *(_half(value, at) for value in values)) for at in range(2))
    return low.cat(high)


def _half(value: Val, at: int) -> Val:
    lanes = value.ir.type.count // 2
    return value.shuffle(range(at * lanes, at * lanes + lanes))


def dots_of_four(k: Emit, total: Val, a: Val, b: Val) -> Val:
    """Return total[i] + the four products s8 * s8 of 32-bit lane i (sdot)."""
    return _by_registers(lambda *parts: k.call("llvm.aarch64.neon.sdot.v4i32.v16i8", I32x4, *parts), total, a, b)


def look_up(k: Emit, table: Val, index: Val) -> Val:
    """Return table[i] (of I8x16) for each byte i of ``index``, 0 where it is not below 16 (tbl)."""
    return _by_registers(lambda part: k.call("llvm.aarch64.neon.tbl1.v16i8", I8x16, table, part), index)
