"""Instructions that kernels need and ``numba.cuda`` does not offer: warp primitives, byte arithmetic, wide loads,
asynchronous copies, matrix products.

Each is an LLVM instruction, an NVVM intrinsic or a line of inline PTX. A warp is 32 consecutive threads (*lanes*),
counted in x, then y: launch blocks of whole warps, and call functions with "warp" or "lane" in their names, and
``mma_*``, from all 32 lanes. Words are int32; byte 0 of a word is the lowest. Arrays are one-dimensional, indices count
their elements, and where four words are read or written at once their address must be a multiple of 16 bytes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from .shim import cuda, extending

intrinsic, types, cgutils, signature = extending()
I32, I64, F32 = types.int32, types.int64, types.float32
LL = {I32: ir.IntType(32), I64: ir.IntType(64), F32: ir.FloatType()}
ALL_LANES = 0xFFFFFFFF


def _call(builder: ir.IRBuilder, text: str, results: list[Any], operands: list[Any], moves: bool = False) -> Any:
    """Emit a line of PTX and return its value, or a list of its values; ``moves`` says that it reads or writes memory,
    so that the compiler does not move it."""
    letters = {LL[I32]: "r", LL[I64]: "l", LL[F32]: "f"}
    constraints = [f"={letters[kind]}" for kind in results] + [letters[value.type] for value in operands]
    out = ir.VoidType() if not results else results[0] if len(results) == 1 else ir.LiteralStructType(results)
    kind = ir.FunctionType(out, [value.type for value in operands])
    line = ir.InlineAsm(kind, text, ",".join(constraints + ["~{memory}"] * moves), side_effect=moves)
    value = builder.call(line, operands)
    return value if len(results) < 2 else [builder.extract_value(value, i) for i in range(len(results))]


def _numbers(text: str, operands: tuple[Any, ...], result: Any, count: int = 1) -> Callable[..., Any]:
    """Define an intrinsic, from a line of PTX, that takes numbers and returns a number, or a tuple of ``count``."""

    def define(*_: Any) -> Any:
        kind = signature(types.UniTuple(result, count) if count > 1 else result, *operands)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            value = _call(builder, text, [LL[result]] * count, list(args))
            return cgutils.pack_array(builder, value) if count > 1 else value

        return kind, generate

    # Numba reads the number of operands off a signature
    names = [inspect.Parameter(f"p{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(1 + len(operands))]
    define.__name__, define.__signature__ = text, inspect.Signature(names)  # type: ignore[attr-defined]
    return intrinsic(define)


def _element(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Return a pointer to element ``index`` of a contiguous array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _reading(text: str, count: int) -> Callable[..., Any]:
    """Define an intrinsic, from a line of PTX, that reads ``count`` words at an index of an array."""

    @intrinsic
    def op(typingctx: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            address = builder.ptrtoint(_element(context, builder, sig.args[0], *args), LL[I64])
            return cgutils.pack_array(builder, _call(builder, text, [LL[I32]] * count, [address]))

        return signature(types.UniTuple(I32, count), array, I64), generate

    return op


def _order(text: str) -> Callable[..., Any]:
    """Define an intrinsic without arguments or result, from a line of PTX, across which the compiler moves nothing."""

    @intrinsic
    def op(typingctx: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            _call(builder, text, [], [], True)
            return context.get_dummy_value()

        return signature(types.none), generate

    return op


dp4a = _numbers("dp4a.s32.s32 $0, $1, $2, $3;", (I32,) * 3, I32)
"""c + the dot product of the four signed bytes of a and of b."""
dp4a_codes = _numbers("dp4a.u32.s32 $0, $1, $2, $3;", (I32,) * 3, I32)
"""c + the dot product of the four unsigned bytes of a and the signed bytes of b."""
dp2a_low = _numbers("dp2a.lo.s32.s32 $0, $1, $2, $3;", (I32,) * 3, I32)
"""c + the dot product of the two int16 of a and the two low signed bytes of b."""
dp2a_codes = _numbers("dp2a.lo.s32.u32 $0, $1, $2, $3;", (I32,) * 3, I32)
"""c + the dot product of the two int16 of a and the two low unsigned bytes of b."""
permute_bytes = _numbers("prmt.b32 $0, $1, $2, $3;", (I32,) * 3, I32)
"""Four of the eight bytes of a (0 to 3) and b (4 to 7), chosen by the low four nibbles of a selector; the highest bit
of a nibble fills the byte with its sign instead."""
funnel_right = _numbers("shf.r.clamp.b32 $0, $1, $2, $3;", (I32,) * 3, I32)
"""The low word of the pair (low, high) shifted right by ``count`` bits, at most 32."""
add_halves = _numbers("add.rn.f16x2 $0, $1, $2;", (I32,) * 2, I32)
"""The sums of the low and of the high binary16 of two words, each rounded to nearest even."""
half_to_float = _numbers("{ .reg .b16 h; cvt.u16.u32 h, $1; cvt.f32.f16 $0, h; }", (I32,), F32)
"""The binary16 in the low half of a word as float32."""
float_to_half = _numbers("{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.u32.u16 $0, h; }", (F32,), I32)
"""Bits of the nearest binary16, ties to even, overflow to infinity."""
_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 "
_MMA += "{{$0,$1,$2,$3}}, {{$4,$5,$6,$7}}, {{$8,$9}}, {{$10,$11,$12,$13}};"
mma_f16 = _numbers(_MMA.format("f16"), (I32,) * 6 + (F32,) * 4, F32, 4)
"""C + A B of binary16: A (16, 16), B (16, 8), C (16, 8) float32. Operands: a0 to a3, b0, b1, c0 to c3; with r = lane //
4 and c = lane % 4, a0: row r, values 2c, 2c+1; a1: row r + 8; a2, a3: the same 8 further. b0: column r, rows 2c, 2c+1;
b1: 8 further. c0, c1: row r, columns 2c, 2c+1; c2, c3: row r + 8."""
mma_bf16 = _numbers(_MMA.format("bf16"), (I32,) * 6 + (F32,) * 4, F32, 4)
"""``mma_f16`` of bfloat16."""
stream4 = _reading("ld.global.nc.L1::no_allocate.v4.b32 {$0,$1,$2,$3}, [$4];", 4)
"""Four words at byte ``index`` of a global uint8 array that no kernel writes meanwhile; not kept in the cache."""
read4 = _reading("ld.global.nc.v4.b32 {$0,$1,$2,$3}, [$4];", 4)
"""Four words of a global array of 4-byte values that no kernel writes meanwhile."""
read2 = _reading("ld.global.nc.v2.b32 {$0,$1}, [$2];", 2)
"""Two words of a global array of 4-byte values that no kernel writes meanwhile, at a multiple of 8 bytes."""
copy_commit = _order("cp.async.commit_group;")
"""Put this thread's copies (``copy16``) since the last group into a new group."""
copy_wait0 = _order("cp.async.wait_group 0;")
"""Wait until all groups of copies of this thread are done."""
copy_wait1 = _order("cp.async.wait_group 1;")
"""Wait until all groups of copies of this thread but the last one are done."""


def _shared(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Return the address within shared memory of an element of an array there. The array's pointer was made generic
    from a shared one; converting it back at once leaves the plain offset."""
    place = _element(context, builder, kind, array, index)
    return builder.ptrtoint(builder.addrspacecast(place, ir.PointerType(LL[I32], addrspace=3)), LL[I64])


@intrinsic
def copy16(typingctx: Any, target: Any, word: Any, raw: Any, index: Any) -> Any:
    """Begin to copy 16 bytes from ``index`` of a global array of bytes or words to word ``word`` of a shared int32
    array.

    This thread can read them after it has waited for the group that the copy is in; other lanes after a ``sync_warp``
    that follows.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source = builder.ptrtoint(_element(context, builder, sig.args[2], args[2], args[3]), LL[I64])
        to = _shared(context, builder, sig.args[0], args[0], args[1])
        _call(builder, "cp.async.cg.shared.global [$0], [$1], 16;", [], [to, source], True)
        return context.get_dummy_value()

    return signature(types.none, target, I64, raw, I64), generate


def _matrices(turned: str) -> Callable[..., Any]:
    """Define an intrinsic that reads four matrices at an index of a shared int32 array (``matrices4``)."""
    text = f"ldmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 {{$0,$1,$2,$3}}, [$4];"

    @intrinsic
    def op(typingctx: Any, words: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place = _shared(context, builder, sig.args[0], *args)
            return cgutils.pack_array(builder, _call(builder, text, [LL[I32]] * 4, [place], True))

        return signature(types.UniTuple(I32, 4), words, I64), generate

    return op


matrices4 = _matrices("")
"""Four 8 x 8 matrices of 16-bit values of shared memory, a word of each: lane i names the index of row i % 8 of matrix
i // 8, a multiple of 4, and gets columns 2c, 2c + 1 of row r of each, with r = i // 4 and c = i % 4."""
matrices4_turned = _matrices(".trans")
"""``matrices4`` of the transposed matrices: column r of rows 2c, 2c + 1."""


@intrinsic
def element(typingctx: Any, array: Any, index: Any) -> Any:
    """``array[index]`` of 4 bytes, index >= 0: a plain subscript would test for negative indices."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_element(context, builder, sig.args[0], *args))

    return signature(array.dtype, array, I64), generate


def _byte(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Return a pointer to byte ``at`` of an array."""
    start = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(start, ir.IntType(8).as_pointer()), [at])


def _four(builder: Any, pointer: Any) -> Any:
    """Return the four words at a pointer, which is a multiple of 16, as a tuple."""
    four = ir.VectorType(LL[I32], 4)
    value = builder.load(builder.bitcast(pointer, four.as_pointer()), align=16)
    return cgutils.pack_array(builder, [builder.extract_element(value, LL[I32](i)) for i in range(4)])


@intrinsic
def word_at(typingctx: Any, words: Any, at: Any) -> Any:
    """Return the word at byte ``at``, a multiple of 4, of any array; adding a constant to ``at`` costs nothing.

    Words after the end of the array, up to the next multiple of 16 bytes, may be read, but must not affect results.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _byte(context, builder, sig.args[0], *args)
        return builder.load(builder.bitcast(pointer, LL[I32].as_pointer()), align=4)

    return signature(I32, words, I64), generate


@intrinsic
def words_at(typingctx: Any, words: Any, at: Any) -> Any:
    """Return the four words at byte ``at``, a multiple of 16, of any array."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _four(builder, _byte(context, builder, sig.args[0], *args))

    return signature(types.UniTuple(I32, 4), words, I64), generate


@intrinsic
def load4(typingctx: Any, words: Any, index: Any) -> Any:
    """Return four words of a shared or global int32 array, from ``index`` on."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _four(builder, _element(context, builder, sig.args[0], *args))

    return signature(types.UniTuple(I32, 4), words, I64), generate


def _put(context: Any, builder: Any, kind: Any, array: Any, index: Any, words: list[Any]) -> Any:
    """Store four words at a multiple of 4."""
    pointer = _element(context, builder, kind, array, index)
    four = ir.VectorType(LL[I32], 4)
    values = ir.Constant(four, ir.Undefined)
    for i, word in enumerate(words):
        values = builder.insert_element(values, word, LL[I32](i))
    builder.store(values, builder.bitcast(pointer, four.as_pointer()), align=16)
    return context.get_dummy_value()


@intrinsic
def store4(typingctx: Any, words: Any, index: Any, value: Any) -> Any:
    """Write a word four times into a shared int32 array, at a multiple of 4."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _put(context, builder, sig.args[0], *args[:2], [args[2]] * 4)

    return signature(types.none, words, I64, I32), generate


@intrinsic
def put4(typingctx: Any, words: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Write four words into a shared or global int32 array, at a multiple of 4."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _put(context, builder, sig.args[0], *args[:2], list(args[2:]))

    return signature(types.none, words, I64, I32, I32, I32, I32), generate


def _binary(name: str) -> Callable[..., Any]:
    @intrinsic
    def op(typingctx: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return getattr(builder, name)(*args)

        return signature(I32, I32, I32), generate

    return op


shift_right = _binary("lshr")
"""Shift a word right by ``count`` < 32; zeros come in."""
shift_left = _binary("shl")
"""Shift a word left by ``count`` < 32."""
divide = _binary("udiv")
"""a // b of words that are not negative: a tenth of the instructions of Numba's 64-bit floor division."""
remainder = _binary("urem")
"""a % b of words that are not negative."""


def _reinterpret(source: Any, result: Any) -> Callable[..., Any]:
    @intrinsic
    def op(typingctx: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.bitcast(args[0], LL[result])

        return signature(result, source), generate

    return op


bits_to_float = _reinterpret(I32, F32)
"""The bits of a word as float32."""
float_bits = _reinterpret(F32, I32)
"""The bits of a float32 as a word."""


@cuda.jit(device=True)
def sync_warp():  # type: ignore[no-untyped-def]
    """Wait for all lanes; what they wrote before is visible to them afterwards."""
    cuda.syncwarp(ALL_LANES)


@cuda.jit(device=True)
def shuffle_xor(value, mask):  # type: ignore[no-untyped-def]
    """Return ``value`` of the lane whose number is this lane's XOR ``mask``; int32, float32 or float64."""
    return cuda.shfl_xor_sync(ALL_LANES, value, mask)


@cuda.jit(device=True)
def lane_value(value, lane):  # type: ignore[no-untyped-def]
    """Return ``value`` of lane number ``lane`` (mod 32)."""
    return cuda.shfl_sync(ALL_LANES, value, lane)


@cuda.jit(device=True)
def warp_sum(value):  # type: ignore[no-untyped-def]
    """Return, in every lane, the sum of all lanes' values; float32, float64 or int32."""
    value += cuda.shfl_xor_sync(ALL_LANES, value, 16)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 8)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 4)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 2)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 1)
    return value


@cuda.jit(device=True)
def _larger(a, b):  # type: ignore[no-untyped-def]
    return a if a >= b or b != b else b


@cuda.jit(device=True)
def warp_max(value):  # type: ignore[no-untyped-def]
    """Return, in every lane, the maximum of all lanes' values, ignoring NaN."""
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 16))
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 8))
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 4))
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 2))
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 1))
    return value
