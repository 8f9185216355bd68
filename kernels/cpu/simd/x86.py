"""x86 instructions that LLVM does not select for plain vector operations.

Each function emits one instruction; the tier decides at import which of them a kernel module uses. ``*_512`` and the
byte permutes belong to tier A, ``*_256`` to tier B.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llvmlite import ir
from numba import types

from ..numba_internals import declare_function
from .vec import Emit, I8x32, I8x64, I16x8, I16x16, I16x32, I32x4, I32x8, I32x16, Val, Vec


# -- tier A: AVX-512 F, BW, VNNI
def dpbusd_512(k: Emit, total: Val, unsigned: Val, signed: Val) -> Val:
    """Return total[i] + the four products u8 * s8 of 32-bit lane i, exact in int32."""
    return k.call("llvm.x86.avx512.vpdpbusd.512", I32x16, total, unsigned.bits(I32x16), signed.bits(I32x16))


def dpwssd_512(k: Emit, total: Val, a: Val, b: Val) -> Val:
    """Return total[i] + the two products s16 * s16 of 32-bit lane i."""
    return k.call("llvm.x86.avx512.vpdpwssd.512", I32x16, total, a.bits(I32x16), b.bits(I32x16))


def madd_512(k: Emit, a: Val, b: Val) -> Val:
    """Return the sum of the two products s16 * s16 of each 32-bit lane."""
    return k.call("llvm.x86.avx512.pmaddw.d.512", I32x16, a.bits(I16x32), b.bits(I16x32))


def pack_words_512(k: Emit, a: Val, b: Val) -> Val:
    """Convert i32 to i16 with saturation; each 128-bit quarter holds four lanes of ``a``, then four of ``b``."""
    return k.call("llvm.x86.avx512.packssdw.512", I16x32, a, b)


def shuffle_bytes_512(k: Emit, table: Val, index: Val) -> Val:
    """Return table[index & 15] within each 128-bit quarter; zero where the index has its top bit."""
    return k.call("llvm.x86.avx512.pshuf.b.512", I8x64, table, index)


# -- tiers A and B
SHUFFLES = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b"}
"""The byte shuffle of vectors of 16 and 32 bytes."""


def shuffle_bytes(k: Emit, table: Val, index: Val) -> Val:
    """Return table[index & 15] within each 16 bytes; zero where the index has its top bit."""
    lanes = index.ir.type.count
    return k.call(SHUFFLES[lanes], Vec("i8", lanes), table, index)


# -- tier A: VBMI, GFNI
def permute_bytes(k: Emit, table: Val, index: Val) -> Val:
    """Return table[index & 63] for 64 byte indices."""
    return k.call("llvm.x86.avx512.permvar.qi.512", I8x64, table.bits(I8x64), index.bits(I8x64))


def permute_bytes_2(k: Emit, low: Val, high: Val, index: Val) -> Val:
    """Look up in a 128-byte table: low[index & 63] or, where bit 6 is set, high[index & 63]."""
    return k.call("llvm.x86.avx512.vpermi2var.qi.512", I8x64, low.bits(I8x64), index.bits(I8x64), high.bits(I8x64))


def multishift(k: Emit, starts: Val, data: Val) -> Val:
    """Return for byte i of each 64-bit lane the eight bits of that lane of ``data`` starting at bit starts[i]."""
    return k.call("llvm.x86.avx512.pmultishift.qb.512", I8x64, starts, data.bits(I8x64))


def bit_matrix(k: Emit, data: Val, rows: Sequence[Sequence[int]], flip: int = 0) -> Val:
    """Multiply each byte by a constant 8x8 bit matrix: output bit i is the parity of the input bits listed in rows[i].

    The bits of ``flip`` are inverted in every output byte. One instruction does any shift-and-mask, bit permutation or
    parity within a byte.
    """
    matrix = 0
    for bit, sources in enumerate(rows):
        matrix |= sum(1 << source for source in sources) << (8 * (7 - bit))
    table = k.const(I8x64, list(matrix.to_bytes(8, "little")) * 8)
    return k.call("llvm.x86.vgf2p8affineqb.512", I8x64, data, table, flip)


def blend_bits(k: Emit, mask: Val, yes: Val, no: Val) -> Val:
    """Return the bits of ``yes`` where ``mask`` is set, those of ``no`` elsewhere, for 8 or 16 lanes of 32 bits.

    LLVM's own choice for masks of whole lanes is a mask register, which it fills anew in every round of a loop.
    """
    kind = mask.ir.type
    name = f"llvm.x86.avx512.pternlog.d.{32 * kind.count}"
    function = declare_function(k.builder.module, name, kind, [kind] * 3 + [ir.IntType(32)])
    choose = ir.Constant(ir.IntType(32), 0xCA)  # the truth table of mask ? yes : no
    return Val(k, k.builder.call(function, [mask.ir, yes.ir, no.ir, choose]))


def bits_to_low(k: Emit, data: Val, first: int, width: int, above: int = 0) -> Val:
    """Move bits first .. first+width-1 of each byte down to bit 0, below the constant bits ``above``."""
    return bit_matrix(k, data, [[first + i] if i < width else [] for i in range(8)], above)


# -- tier B: AVX2
def madd_bytes_256(k: Emit, unsigned: Val, signed: Val) -> Val:
    """Multiply u8 * s8 and add adjacent products into i16 *with saturation*: the caller keeps |sum| below 2^15."""
    return k.call("llvm.x86.avx2.pmadd.ub.sw", I16x16, unsigned, signed)


def madd_256(k: Emit, a: Val, b: Val) -> Val:
    """Return the sum of the two products s16 * s16 of each 32-bit lane."""
    return k.call("llvm.x86.avx2.pmadd.wd", I32x8, a, b)


def sign_bytes_256(k: Emit, a: Val, sign: Val) -> Val:
    """Return a, -a or 0 by the sign of ``sign``; a must not be -128."""
    return k.call("llvm.x86.avx2.psign.b", I8x32, a, sign)


def hold_256(k: Emit, value: Val) -> Val:
    """Return ``value``, computed before what is held later: LLVM puts off the additions of long sums to their end, and
    then has no registers for all products."""
    kind = value.ir.type
    barrier = ir.InlineAsm(ir.FunctionType(kind, [kind]), "", "=x,0", side_effect=True)
    return Val(k, k.builder.call(barrier, [value.ir]))


def scaled_dots_256(k: Emit, codes: Iterable[Val], scales: Iterable[Val], x: Val, limbs: int) -> list[Val]:
    """Return the lane sums of code * scale * input over a block, for each limb of its packed inputs.

    codes    registers of 32 unsigned codes
    scales   I16x16 for each of them, one for two adjacent weights
    """
    sums = [k.zero(I32x8)] * limbs
    for i, (register, scale) in enumerate(zip(codes, scales, strict=True)):
        for limb in range(limbs):
            dots = madd_bytes_256(k, register, k.load(I8x32, x + 32 * (limbs * i + limb)))
            sums[limb] = sums[limb] + madd_256(k, dots, scale)
    return sums


def two_halves_256(k: Emit, address: Val) -> tuple[Val, Val]:
    """Return the two f16 at ``address``, d and dmin of a block, each in every lane."""
    both = k.half_to_float(k.load(types.int32, address).splat(I32x4).bits(I16x8))
    return both.shuffle([0, 0, 2, 2, 4, 4, 6, 6]), both.shuffle([1, 1, 3, 3, 5, 5, 7, 7])
