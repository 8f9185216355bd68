"""``intrinsics`` as the compiler sees them. What each one does: ``simulated_intrinsics``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from .ptx import PTX
from .shim import cuda, extending

__all__ = [
    "add_halves",
    "bits_to_float",
    "copy16",
    "copy_commit",
    "copy_wait0",
    "copy_wait1",
    "copy_wait2",
    "divide",
    "dp2a_codes",
    "dp2a_low",
    "dp4a",
    "dp4a_codes",
    "element",
    "float_bits",
    "float_to_half",
    "funnel_right",
    "half_to_float",
    "lane_value",
    "load4",
    "mma_bf16",
    "mma_f16",
    "mma_s8",
    "permute_bytes",
    "put4",
    "read2",
    "read4",
    "remainder",
    "shift_left",
    "shift_right",
    "shuffle_xor",
    "store4",
    "stream4",
    "sync_warp",
    "warp_any",
    "warp_ballot",
    "warp_max",
    "warp_sum",
    "word_at",
    "words_at",
]

intrinsic, types, cgutils, signature = extending()
I32, I64, F32 = types.int32, types.int64, types.float32
LL = {I32: ir.IntType(32), I64: ir.IntType(64), F32: ir.FloatType()}
ALL_LANES = 0xFFFFFFFF


def _call(builder: ir.IRBuilder, name: str, results: list[Any], operands: list[Any], moves: bool) -> Any:
    """The line ``name`` of ``PTX``, giving one value or a list of them. ``moves``: it must stay where it is."""
    text, constraints = PTX[name]
    out = ir.VoidType() if not results else results[0] if len(results) == 1 else ir.LiteralStructType(results)
    kind = ir.FunctionType(out, [value.type for value in operands])
    value = builder.call(ir.InlineAsm(kind, text, constraints, side_effect=moves), operands)
    return value if len(results) < 2 else [builder.extract_value(value, i) for i in range(len(results))]


def _numbers(name: str, operands: tuple[Any, ...], result: Any, count: int = 1) -> Callable[..., Any]:
    """An intrinsic from numbers to a number, or to a tuple of ``count``. Numba reads the operands off a function's
    signature, so there is one for each number of them."""

    def define(typingctx: Any, *given: Any) -> Any:
        kind = signature(types.UniTuple(result, count) if count > 1 else result, *operands)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            value = _call(builder, name, [LL[result]] * count, list(args), False)
            return cgutils.pack_array(builder, value) if count > 1 else value

        return kind, generate

    if len(operands) == 1:
        return intrinsic(lambda typingctx, a: define(typingctx, a))
    if len(operands) == 2:
        return intrinsic(lambda typingctx, a, b: define(typingctx, a, b))
    if len(operands) == 3:
        return intrinsic(lambda typingctx, a, b, c: define(typingctx, a, b, c))
    assert len(operands) == 10
    return intrinsic(lambda typingctx, a, b, c, d, e, f, g, h, i, j: define(typingctx, a, b, c, d, e, f, g, h, i, j))


def _element(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Pointer to an element of a contiguous array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _reading(name: str, count: int) -> Callable[..., Any]:
    """An intrinsic from an array and an index to ``count`` words."""

    @intrinsic
    def op(typingctx: Any, array: Any, index: Any) -> Any:
        kind = signature(types.UniTuple(I32, count), array, I64)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = _element(context, builder, sig.args[0], *args)
            address = builder.ptrtoint(pointer, LL[I64])
            return cgutils.pack_array(builder, _call(builder, name, [LL[I32]] * count, [address], False))

        return kind, generate

    return op


def _order(name: str) -> Callable[..., Any]:
    """An intrinsic without values that nothing moves across."""

    @intrinsic
    def op(typingctx: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            _call(builder, name, [], [], True)
            return context.get_dummy_value()

        return signature(types.none), generate

    return op


dp4a = _numbers("dp4a", (I32,) * 3, I32)
dp4a_codes = _numbers("dp4a_codes", (I32,) * 3, I32)
dp2a_low = _numbers("dp2a_low", (I32,) * 3, I32)
dp2a_codes = _numbers("dp2a_codes", (I32,) * 3, I32)
permute_bytes = _numbers("permute_bytes", (I32,) * 3, I32)
funnel_right = _numbers("funnel_right", (I32,) * 3, I32)
add_halves = _numbers("add_halves", (I32,) * 2, I32)
half_to_float = _numbers("half_to_float", (I32,), F32)
float_to_half = _numbers("float_to_half", (F32,), I32)
mma_s8 = _numbers("mma_s8", (I32,) * 10, I32, 4)
mma_f16 = _numbers("mma_f16", (I32,) * 6 + (F32,) * 4, F32, 4)
mma_bf16 = _numbers("mma_bf16", (I32,) * 6 + (F32,) * 4, F32, 4)
stream4 = _reading("stream4", 4)
read4 = _reading("read4", 4)
read2 = _reading("read2", 2)
copy_commit = _order("copy_commit")
copy_wait0 = _order("copy_wait0")
copy_wait1 = _order("copy_wait1")
copy_wait2 = _order("copy_wait2")


@intrinsic
def copy16(typingctx: Any, target: Any, word: Any, raw: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = _element(context, builder, sig.args[0], args[0], args[1])
        source = _element(context, builder, sig.args[2], args[2], args[3])
        # The array's pointer was made generic from a shared one; going back at once leaves the plain offset.
        shared = builder.addrspacecast(to, ir.PointerType(LL[I32], addrspace=3))
        _call(builder, "copy16", [], [builder.ptrtoint(p, LL[I64]) for p in (shared, source)], True)
        return context.get_dummy_value()

    return signature(types.none, target, I64, raw, I64), generate


@intrinsic
def element(typingctx: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load(_element(context, builder, sig.args[0], *args))

    return signature(array.dtype, array, I64), generate


def _byte(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Pointer to a byte of an array."""
    start = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(start, ir.IntType(8).as_pointer()), [at])


def _four(builder: Any, pointer: Any) -> Any:
    """The four words at a pointer to a multiple of 16, as a tuple."""
    four = ir.VectorType(LL[I32], 4)
    value = builder.load(builder.bitcast(pointer, four.as_pointer()), align=16)
    return cgutils.pack_array(builder, [builder.extract_element(value, LL[I32](i)) for i in range(4)])


@intrinsic
def word_at(typingctx: Any, words: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _byte(context, builder, sig.args[0], *args)
        return builder.load(builder.bitcast(pointer, LL[I32].as_pointer()), align=4)

    return signature(I32, words, I64), generate


@intrinsic
def words_at(typingctx: Any, words: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _four(builder, _byte(context, builder, sig.args[0], *args))

    return signature(types.UniTuple(I32, 4), words, I64), generate


@intrinsic
def load4(typingctx: Any, words: Any, index: Any) -> Any:
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
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _put(context, builder, sig.args[0], *args[:2], [args[2]] * 4)

    return signature(types.none, words, I64, I32), generate


@intrinsic
def put4(typingctx: Any, words: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
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
shift_left = _binary("shl")
divide = _binary("udiv")
remainder = _binary("urem")


def _reinterpret(source: Any, result: Any) -> Callable[..., Any]:
    @intrinsic
    def op(typingctx: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.bitcast(args[0], LL[result])

        return signature(result, source), generate

    return op


bits_to_float = _reinterpret(I32, F32)
float_bits = _reinterpret(F32, I32)


@cuda.jit(device=True)
def sync_warp():  # type: ignore[no-untyped-def]
    cuda.syncwarp(ALL_LANES)


@cuda.jit(device=True)
def shuffle_xor(value, mask):  # type: ignore[no-untyped-def]
    return cuda.shfl_xor_sync(ALL_LANES, value, mask)


@cuda.jit(device=True)
def lane_value(value, lane):  # type: ignore[no-untyped-def]
    return cuda.shfl_sync(ALL_LANES, value, lane)


@cuda.jit(device=True)
def warp_sum(value):  # type: ignore[no-untyped-def]
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
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 16))
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 8))
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 4))
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 2))
    value = _larger(value, cuda.shfl_xor_sync(ALL_LANES, value, 1))
    return value


@cuda.jit(device=True)
def warp_ballot(condition):  # type: ignore[no-untyped-def]
    return cuda.ballot_sync(ALL_LANES, condition)


@cuda.jit(device=True)
def warp_any(condition):  # type: ignore[no-untyped-def]
    return cuda.any_sync(ALL_LANES, condition)
