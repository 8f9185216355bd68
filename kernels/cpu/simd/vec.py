"""SIMD vectors in Numba: LLVM vectors as Numba types, and a few classes with which to write sequences of instructions.

A kernel is a plain ``@njit`` loop that calls *inlined* functions: Python functions over ``Val`` objects, run once at
compile time; every operation it performs becomes one LLVM instruction:

    @inline(F32x16, F32x16, Int, Int)
    def multiply(k, total, weights, x):
        return k.fma(k.load(F32x16, weights), k.load(F32x16, x), total)

``k`` is the ``Emit`` (a wrapped LLVM builder), the other arguments are ``Val``. Addresses are int64 everywhere:
``ndarray.ctypes.data`` inside ``@njit`` is uint64, and uint64 + int64 is float64 in Numba, which would silently turn
pointer arithmetic into floating point.

Floating point here carries no fast-math flags, so an inlined function gives the same bits wherever it is used, and NaN
stays NaN.

``several`` makes a version of an inlined function for several inputs at once: what depends on none of them, such as the
decoding of weights, is emitted once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from llvmlite import ir
from numba import types

from ..numba_internals import declare_function, make_intrinsic, register_primitive
from .tiers import IS_AARCH64, SOFTWARE_PREFETCH, TIER

# No Numba cache: its key misses edits in other files. The package's own object cache covers all sources.
JIT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "no_cfunc_wrapper": True}
"""Numba options for code whose float semantics matter: no reordering."""

# Tier C may run where fma is a library call; fmuladd fuses only where that is one instruction.
_FMA = "fmuladd" if TIER == "C" else "fma"

_ELEMENTS = {
    "i1": ir.IntType(1),
    "i8": ir.IntType(8),
    "i16": ir.IntType(16),
    "i32": ir.IntType(32),
    "i64": ir.IntType(64),
    "f16": ir.HalfType(),
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
}
_I32 = _ELEMENTS["i32"]
_BYTE_POINTER = ir.IntType(8).as_pointer()


class Vec(types.Type):
    """The Numba type of a vector in registers: ``lanes`` elements of one kind (``i8`` ... ``f32``)."""

    def __init__(self, element: str, lanes: int):
        self.element, self.lanes = element, lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(_ELEMENTS[self.element], self.lanes)


register_primitive(Vec)


I8x16, I8x32, I8x64 = (Vec("i8", lanes) for lanes in (16, 32, 64))
I16x8, I16x16, I16x32 = (Vec("i16", lanes) for lanes in (8, 16, 32))
I32x4, I32x8, I32x16, I32x32 = (Vec("i32", lanes) for lanes in (4, 8, 16, 32))
F32x8, F32x16, F32x32 = (Vec("f32", lanes) for lanes in (8, 16, 32))
I64x8, F64x4 = Vec("i64", 8), Vec("f64", 4)
Int = types.int64
Float = types.float32

_SCALARS = {
    types.int8: _ELEMENTS["i8"],
    types.int16: _ELEMENTS["i16"],
    types.int32: _I32,
    types.int64: _ELEMENTS["i64"],
    types.float32: _ELEMENTS["f32"],
    types.float64: _ELEMENTS["f64"],
}


def llvm_type(kind: types.Type) -> ir.Type:
    """Return the LLVM type behind a Vec or one of the scalar types in use."""
    return kind.llvm if isinstance(kind, Vec) else _SCALARS[kind]


def _is_float(kind: ir.Type) -> bool:
    return isinstance(getattr(kind, "element", kind), (ir.DoubleType, ir.FloatType, ir.HalfType))


def _per_input(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of Val or Emit so that it accepts ``Many``: its operations are emitted for each input."""

    @wraps(method)
    def emit(*args: Any, **options: Any) -> Any:
        count = next((len(a.parts) for a in args if isinstance(a, Many)), 0)
        if not count:
            return method(*args, **options)
        results = [method(*(a.parts[i] if isinstance(a, Many) else a for a in args), **options) for i in range(count)]
        return None if results[0] is None else Many(results)

    return emit


def _operator(integer: str, floating: str | None = None) -> Callable[[Any, Any], Any]:
    """Make a binary operator of Val from the builder's methods for integers and for floats."""

    @_per_input
    def apply(self: Val, other: Any) -> Val:
        name = floating if _is_float(self.ir.type) else integer
        if name is None:
            raise TypeError(f"{integer} is not defined on floats")
        return Val(self.emit, getattr(self.emit.builder, name)(self.ir, self._lift(other)))

    return apply


def _conversion(name: str) -> Callable[[Any, types.Type], Any]:
    """Make a conversion of Val, lane by lane, from the builder's method."""

    @_per_input
    def convert(self: Val, kind: types.Type) -> Val:
        return Val(self.emit, getattr(self.emit.builder, name)(self.ir, llvm_type(kind)))

    return convert


class Val:
    """An LLVM value with operators. The right operand may be a Val, a number (all lanes) or a list (lane by lane).

    ``>>`` is the logical shift. Comparisons give masks for ``Emit.select``.
    """

    __slots__ = ("emit", "ir")

    def __init__(self, emit: Emit, value: ir.Value):
        self.emit, self.ir = emit, value

    # -- arithmetic
    def _lift(self, other: Any) -> ir.Value:
        return other.ir if isinstance(other, Val) else constant(self.ir.type, other)

    __add__ = _operator("add", "fadd")
    __sub__ = _operator("sub", "fsub")
    __mul__ = _operator("mul", "fmul")
    __truediv__ = _operator("sdiv", "fdiv")
    __and__ = _operator("and_")
    __or__ = _operator("or_")
    __xor__ = _operator("xor")
    __lshift__ = _operator("shl")
    __rshift__ = _operator("lshr")
    shift_right_signed = _operator("ashr")

    @_per_input
    def compare(self, sign: str, other: Any) -> Val:
        """Return the mask of ``self sign other``; signed for integers, ordered (false with NaN) for floats."""
        builder = self.emit.builder
        emit = builder.fcmp_ordered if _is_float(self.ir.type) else builder.icmp_signed
        return Val(self.emit, emit(sign, self.ir, self._lift(other)))

    # -- shape and type
    @_per_input
    def shuffle(self, lanes: Sequence[int], other: Val | None = None) -> Val:
        """Select lanes of ``self`` followed by ``other``, in the given order."""
        second = other.ir if other is not None else ir.Constant(self.ir.type, ir.Undefined)
        order = ir.Constant(ir.VectorType(_I32, len(lanes)), [int(lane) for lane in lanes])
        return Val(self.emit, self.emit.builder.shuffle_vector(self.ir, second, order))

    def cat(self, other: Val) -> Val:
        """Concatenate: ``self`` in the low lanes, ``other`` in the high ones."""
        return self.shuffle(range(2 * self.ir.type.count), other)

    @_per_input
    def lane(self, index: int) -> Val:
        return Val(self.emit, self.emit.builder.extract_element(self.ir, ir.Constant(_I32, index)))

    @_per_input
    def splat(self, kind: Vec) -> Val:
        """Broadcast this scalar to every lane of a ``kind``."""
        blank = ir.Constant(kind.llvm, ir.Undefined)
        first = self.emit.builder.insert_element(blank, self.ir, ir.Constant(_I32, 0))
        return Val(self.emit, first).shuffle([0] * kind.lanes)

    @_per_input
    def bits(self, kind: types.Type) -> Val:
        """Reinterpret the bits as another type."""
        return self if self.ir.type == llvm_type(kind) else self._bitcast(kind)

    _bitcast = _conversion("bitcast")
    zext = _conversion("zext")
    sext = _conversion("sext")
    trunc = _conversion("trunc")
    to_int = _conversion("fptosi")  # to signed integers, towards zero
    to_float_unsigned = _conversion("uitofp")
    to_float = _conversion("sitofp")  # from signed integers


class Many(Val):
    """A value of each of several inputs. Operations on it are emitted for every input, those on other values once."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Val]):
        self.emit, self.parts = parts[0].emit, list(parts)

    @property
    def ir(self) -> Any:  # type: ignore[override]
        """One of the values: all have its type."""
        return self.parts[0].ir


def constant(kind: ir.Type, values: Any) -> ir.Constant:
    """Make a constant of an LLVM type from a number (every lane) or a sequence (lane by lane)."""
    if not isinstance(kind, ir.VectorType):
        return ir.Constant(kind, values)
    number = float if _is_float(kind) else int
    lanes = [values] * kind.count if isinstance(values, (int, float)) else list(values)
    if len(lanes) != kind.count:
        raise ValueError(f"{len(lanes)} values for {kind.count} lanes")
    return ir.Constant(kind, [ir.Constant(kind.element, number(value)) for value in lanes])


class Emit:
    """The object ``k`` with which an inlined function emits operations: a wrapped LLVM builder."""

    # Whether the target has f16 conversions. Elsewhere LLVM would call routines that no loaded library has.
    native_half = TIER != "C" or IS_AARCH64

    def __init__(self, builder: ir.IRBuilder):
        self.builder = builder

    def const(self, kind: types.Type, values: Any) -> Val:
        return Val(self, constant(llvm_type(kind), values))

    def zero(self, kind: types.Type) -> Val:
        return self.const(kind, 0.0 if _is_float(llvm_type(kind)) else 0)

    @_per_input
    def call(self, name: str, result: types.Type, *args: Any) -> Val:
        """Call an LLVM intrinsic by its full name. Plain ints become i8 immediates."""
        values = [a.ir if isinstance(a, Val) else ir.Constant(_ELEMENTS["i8"], a) for a in args]
        return Val(self, self.builder.call(self._declare(name, llvm_type(result), [v.type for v in values]), values))

    def call_address(self, function: Val, *args: Val) -> None:
        """Call a C function (returning void) by its address."""
        signature = ir.FunctionType(ir.VoidType(), [a.ir.type for a in args])
        self.builder.call(self.builder.inttoptr(function.ir, signature.as_pointer()), [a.ir for a in args])

    # -- memory; no alignment is assumed
    def _pointer(self, address: Val, kind: ir.Type) -> ir.Value:
        return self.builder.inttoptr(address.ir, kind.as_pointer())

    @_per_input
    def load(self, kind: types.Type, address: Val) -> Val:
        value = self.builder.load(self._pointer(address, llvm_type(kind)))
        value.align = 1
        return Val(self, value)

    @_per_input
    def store(self, address: Val, value: Val) -> None:
        self.builder.store(value.ir, self._pointer(address, value.ir.type)).align = 1

    def prefetch(self, address: Val, locality: int = 3) -> None:
        """Prefetch the cache line at ``address``, which may be invalid, on processors where software prefetch pays."""
        if SOFTWARE_PREFETCH:
            self.fetch(address, locality)

    def fetch(self, address: Val, locality: int) -> None:
        """Prefetch the cache line at ``address``: locality 3 into all levels, 2 into L2."""
        function = self._declare("llvm.prefetch.p0", ir.VoidType(), [_BYTE_POINTER, _I32, _I32, _I32])
        read, level, data = (ir.Constant(_I32, v) for v in (0, locality, 1))
        self.builder.call(function, [self._pointer(address, _BYTE_POINTER.pointee), read, level, data])

    def forget_loads(self) -> None:
        """Force earlier loads to be repeated, so that LLVM does not hold their values in registers until they spill."""
        self.builder.fence("seq_cst", "singlethread")

    # -- arithmetic
    @_per_input
    def fma(self, a: Val, b: Val, c: Val) -> Val:
        """Return a * b + c, with one rounding where the target has the instruction."""
        kind = a.ir.type
        name = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
        return Val(self, self.builder.call(self._declare(f"llvm.{_FMA}.{name}", kind, [kind] * 3), [a.ir, b.ir, c.ir]))

    def _declare(self, name: str, result: ir.Type, args: list[ir.Type]) -> ir.Function:
        return declare_function(self.builder.module, name, result, args)

    def members(self, packed: Val) -> list[Val]:
        """Return the values of a UniTuple."""
        return [self._member(packed, i) for i in range(packed.ir.type.count)]

    @_per_input
    def _member(self, packed: Val, index: int) -> Val:
        return Val(self, self.builder.extract_value(packed.ir, index))

    def joined(self, members: Sequence[Val]) -> Val:
        """Return the UniTuple of ``members``."""
        packed = ir.Constant(ir.ArrayType(members[0].ir.type, len(members)), ir.Undefined)
        for index, member in enumerate(members):
            packed = self.builder.insert_value(packed, member.ir, index)
        return Val(self, packed)

    @_per_input
    def select(self, mask: Val, yes: Val, no: Val) -> Val:
        return Val(self, self.builder.select(mask.ir, yes.ir, no.ir))

    def _like(self, a: Val, element: str) -> ir.Type:
        """Return the type with as many lanes as ``a``, or the scalar."""
        kind = a.ir.type
        return ir.VectorType(_ELEMENTS[element], kind.count) if isinstance(kind, ir.VectorType) else _ELEMENTS[element]

    @_per_input
    def half_to_float(self, bits: Val) -> Val:
        """Convert IEEE binary16 as i16 lanes (or one i16) to float32, exact for every value; NaN comes out quiet."""
        single = self._like(bits, "f32")
        if self.native_half:
            halves = self.builder.bitcast(bits.ir, self._like(bits, "f16"))
            return Val(self, self.builder.fpext(halves, single))
        wide = Val(self, self.builder.zext(bits.ir, self._like(bits, "i32")))
        magnitude = (wide & 0x7FFF) << 13
        special = magnitude.compare(">=", 0x7C00 << 13)
        pattern = self.select(special, magnitude | 0x7F800000, magnitude) | ((wide & 0x8000) << 16)
        return Val(self, self.builder.bitcast(pattern.ir, single)) * 2.0**112

    @_per_input
    def float_to_half(self, a: Val) -> Val:
        """Round float32 to the nearest IEEE binary16, ties to even, as i16 lanes (or one i16); NaN comes out quiet."""
        short, whole = self._like(a, "i16"), self._like(a, "i32")
        if self.native_half:
            return Val(self, self.builder.bitcast(self.builder.fptrunc(a.ir, self._like(a, "f16")), short))
        bits = Val(self, self.builder.bitcast(a.ir, whole))
        magnitude = bits & 0x7FFFFFFF
        # rebias the exponent and round at bit 13, where a carry may step into the exponent and up to infinity
        normal = (magnitude - (112 << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13
        # below 2^-14 the last place of x + 1/2 is the last place of a subnormal half
        raised = Val(self, self.builder.bitcast(magnitude.ir, a.ir.type)) + 0.5
        subnormal = Val(self, self.builder.bitcast(raised.ir, whole)) - (126 << 23)
        half = self.select(magnitude.compare("<", 113 << 23), subnormal, normal)
        half = self.select(magnitude.compare(">=", 143 << 23), Val(self, constant(whole, 0x7C00)), half)
        nan = ((magnitude >> 13) & 0x3FF) | 0x7E00
        half = self.select(magnitude.compare(">", 0x7F800000), nan, half) | ((bits >> 16) & 0x8000)
        return Val(self, self.builder.trunc(half.ir, short))

    def gather(self, kind: Vec, parts: Sequence[Val]) -> Val:
        """Build a vector from one scalar per lane."""
        vector = ir.Constant(kind.llvm, ir.Undefined)
        for index, part in enumerate(parts):
            vector = self.builder.insert_element(vector, part.ir, ir.Constant(_I32, index))
        return Val(self, vector)

    def table(self, name: str, element: str, values: Sequence[int]) -> Val:
        """Return the address of a constant table in the module (relocatable, so the code can be cached)."""
        kind = ir.ArrayType(_ELEMENTS[element], len(values))
        module = self.builder.module
        if name not in module.globals:
            data = ir.GlobalVariable(module, kind, name)
            data.linkage, data.global_constant, data.align = "internal", True, 64
            data.initializer = ir.Constant(kind, [int(value) for value in values])
        return Val(self, self.builder.ptrtoint(module.globals[name], _ELEMENTS["i64"]))

    @_per_input
    def abs(self, a: Val) -> Val:
        kind = a.ir.type
        return Val(self, self.builder.call(self._declare(f"llvm.fabs.v{kind.count}f32", kind, [kind]), [a.ir]))

    def maximum(self, a: Val, b: Val) -> Val:
        """Return the lane-wise larger float; NaN in ``b`` wins, NaN in ``a`` loses (one x86 instruction)."""
        return self.select(a.compare(">", b), a, b)

    def minimum(self, a: Val, b: Val) -> Val:
        return self.select(a.compare("<", b), a, b)

    def fold(self, a: Val, combine: Callable[[Val, Val], Val]) -> Val:
        """Combine all lanes of ``a`` in halving steps to a scalar."""
        lanes = a.ir.type.count
        while lanes > 1:
            lanes //= 2
            a = combine(a.shuffle(range(lanes)), a.shuffle(range(lanes, 2 * lanes)))
        return a.lane(0)

    def hsum(self, a: Val) -> Val:
        """Return the sum of all lanes of a float vector."""
        return self.fold(a, lambda x, y: x + y)


def inline(result: types.Type, *args: types.Type) -> Callable[[Callable[..., Any]], Any]:
    """Turn an emitter ``f(k, *vals)`` into a Numba intrinsic with this signature.

    It may return a Val, a tuple of Vals (then ``result`` is a UniTuple) or None (``types.none``). The emitter and its
    signature stay attached, for ``several``.
    """

    def decorate(emitter: Callable[..., Any]) -> Any:
        def emit(builder: ir.IRBuilder, values: list[ir.Value]) -> Any:
            k = Emit(builder)
            value = emitter(k, *(Val(k, v) for v in values))
            if isinstance(value, tuple):
                return [part.ir for part in value]
            return None if value is None else value.ir

        emit.__name__ = emitter.__name__
        intrinsic = make_intrinsic(result, args, emit)
        intrinsic.emitter, intrinsic.result, intrinsic.arguments = emitter, result, args
        return intrinsic

    return decorate


def several(function: Any, count: int, shared: Sequence[int] = ()) -> Any:
    """Make a version of an inlined function for ``count`` inputs: its arguments and its result are UniTuples.

    ``shared`` lists the positions of arguments that are one value for all inputs. For each input the same operations
    run in the same order as in ``function``, so that it gives the same bits.
    """

    def tuple_of(kind: types.Type) -> types.Type:
        return kind if kind is types.none else types.UniTuple(kind, count)

    kinds = [kind if i in shared else tuple_of(kind) for i, kind in enumerate(function.arguments)]

    @inline(tuple_of(function.result), *kinds)
    def together(k, *args):
        result = function.emitter(k, *(a if i in shared else Many(k.members(a)) for i, a in enumerate(args)))
        if result is None:
            return None
        if isinstance(result, tuple):
            each = [k.joined([_of_input(member, i) for member in result]) for i in range(count)]
        else:
            each = [_of_input(result, i) for i in range(count)]
        return tuple(each)

    return together


def _of_input(value: Val, index: int) -> Val:
    """Return the value that belongs to input ``index``; a value that is not ``Many`` belongs to all inputs."""
    return value.parts[index] if isinstance(value, Many) else value
