"""mov and cvt: packing, widening, rounding between formats (PTX ISA 9.7.9.1 and 9.7.9.21)."""

from __future__ import annotations

from llvmlite import ir

from .ptx import SIZES, Instruction
from .scalar import FLOAT_KINDS, clamped, flushed, halves, paired, saturated
from .translate import I16, I32, I64, Emitter, bits_of, instruction, int_type, kinds, type_of

_TO_INTEGER = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@instruction("mov")
def _move(e: Emitter, i: Instruction) -> None:
    out, source = i.operands
    kind = i.op[-1]
    width = bits_of(kind)
    if isinstance(source, tuple):  # {low, ..., high} into one register
        part = width // len(source)
        whole = ir.IntType(width)
        total = ir.Constant(whole, 0)
        for at, name in enumerate(source):
            piece = e.b.zext(e.bits(name, f"b{part}"), whole)
            total = e.b.or_(total, e.b.shl(piece, ir.Constant(whole, part * at)))
        return e.put(out, total)
    if isinstance(out, tuple):
        value = e.bits(source, kind)
        part = width // len(out)
        for at, name in enumerate(out):
            e.put(name, e.b.trunc(e.b.lshr(value, ir.Constant(value.type, part * at)), ir.IntType(part)))
        return None
    return e.put(out, e.bits(source, kind))


def to_bf16(e: Emitter, value: ir.Value, towards_zero: bool) -> ir.Value:
    """float32 to bfloat16, half to even or cut; NaN to 0x7fff."""
    bits = e.b.bitcast(value, I32)
    upper = e.b.lshr(bits, ir.Constant(I32, 16))
    if not towards_zero:
        odd = e.b.and_(upper, ir.Constant(I32, 1))
        rounded = e.b.add(bits, e.b.add(odd, ir.Constant(I32, 0x7FFF)))
        upper = e.b.lshr(rounded, ir.Constant(I32, 16))
    nan = e.b.fcmp_unordered("uno", value, value)
    return e.b.select(nan, ir.Constant(I16, 0x7FFF), e.b.trunc(upper, I16))


def from_bf16(e: Emitter, bits: ir.Value) -> ir.Value:
    return e.b.bitcast(e.b.shl(e.b.zext(bits, I32), ir.Constant(I32, 16)), type_of("f32"))


def to_f16(e: Emitter, value: ir.Value, i: Instruction) -> ir.Value:
    """float32 to float16. Other roundings than to the nearest are not known here."""
    if "rn" not in i.op:
        raise NotImplementedError(".".join(i.op))
    return e.b.fptrunc(value, type_of("f16"))


def _to_e4m3(e: Emitter, value: ir.Value) -> ir.Value:
    """float32 to E4M3 with satfinite: half to even, at most 448, NaN to 0x7f."""
    size = e.intrinsic("llvm.fabs.f32", value.type, value)
    limited = e.intrinsic("llvm.minnum.f32", value.type, size, e.const("f32", 448.0))
    bits = e.b.bitcast(limited, I32)
    # Normal: round the 20 dropped bits of the fraction, then move the exponent from bias 127 to 7
    odd = e.b.and_(e.b.lshr(bits, ir.Constant(I32, 20)), ir.Constant(I32, 1))
    rounded = e.b.add(bits, e.b.add(odd, ir.Constant(I32, 0x7FFFF)))
    normal = e.b.sub(e.b.lshr(rounded, ir.Constant(I32, 20)), ir.Constant(I32, 120 << 3))
    steps = e.intrinsic("llvm.roundeven.f32", value.type, e.b.fmul(limited, e.const("f32", 512.0)))
    tiny = e.b.fptosi(steps, I32)
    code = e.b.select(e.b.fcmp_ordered("<", limited, e.const("f32", 2.0**-6)), tiny, normal)
    code = e.b.select(e.b.fcmp_unordered("uno", value, value), ir.Constant(I32, 0x7F), code)
    sign = e.b.and_(e.b.lshr(e.b.bitcast(value, I32), ir.Constant(I32, 24)), ir.Constant(I32, 0x80))
    return e.b.trunc(e.b.or_(code, sign), ir.IntType(8))


def _from_e4m3(e: Emitter, byte: ir.Value) -> ir.Value:
    """E4M3 to float16, exactly."""
    wide = e.b.zext(byte, I32)
    size = e.b.and_(wide, ir.Constant(I32, 0x7F))
    normal = e.b.bitcast(e.b.add(e.b.shl(size, ir.Constant(I32, 20)), ir.Constant(I32, 120 << 23)), type_of("f32"))
    tiny = e.b.fmul(e.b.sitofp(size, type_of("f32")), e.const("f32", 2.0**-9))
    value = e.b.select(e.b.icmp_unsigned("<", size, ir.Constant(I32, 8)), tiny, normal)
    value = e.b.select(e.b.icmp_unsigned("==", size, ir.Constant(I32, 0x7F)), e.const("f32", float("nan")), value)
    negative = e.b.icmp_unsigned(">=", wide, ir.Constant(I32, 0x80))
    return e.b.fptrunc(e.b.select(negative, e.b.fneg(value), value), type_of("f16"))


def _pairs(e: Emitter, i: Instruction, target: str) -> bool:
    """Conversions of two values at once; False if this is none."""
    out, *sources = i.operands
    if target in ("f16x2", "bf16x2") and i.op[-1] == "f32":  # the first source is the upper half
        high, low = (e.get(name, "f32") for name in sources)
        if "relu" in i.op:
            raise NotImplementedError("relu")
        convert = (lambda v: to_f16(e, v, i)) if target == "f16x2" else (lambda v: to_bf16(e, v, "rz" in i.op))
        e.put(out, paired(e, convert(low), convert(high)))
        return True
    if target == "e4m3x2":
        if i.op[-1] == "f32":
            high, low = (e.get(name, "f32") for name in sources)
        else:
            low, high = (e.b.fpext(v, type_of("f32")) for v in halves(e, sources[0]))
        bytes_ = [e.b.zext(_to_e4m3(e, v), I16) for v in (low, high)]
        e.put(out, e.b.or_(bytes_[0], e.b.shl(bytes_[1], ir.Constant(I16, 8))))
        return True
    if i.op[-1] == "e4m3x2":
        both = e.bits(sources[0], "b16")
        parts = [e.b.trunc(v, ir.IntType(8)) for v in (both, e.b.lshr(both, ir.Constant(I16, 8)))]
        e.put(out, paired(e, *(_from_e4m3(e, part) for part in parts)))
        return True
    return False


@instruction("cvt")
def _convert(e: Emitter, i: Instruction) -> None:
    names = [part for part in i.op[1:] if part in SIZES or part.endswith("x2")]
    if "pack" in i.op:
        return _pack(e, i)
    target, source = names[-2:]
    if _pairs(e, i, target):
        return None
    out, name = i.operands
    if source in FLOAT_KINDS or source == "bf16":
        return e.put(out, *_from_float(e, i, name, target, source))
    value, signed = e.get(name, source), source.startswith("s")
    if target in FLOAT_KINDS or target == "bf16":
        if "rn" not in i.op:
            raise NotImplementedError(".".join(i.op))
        kind = type_of("f32" if target == "bf16" else target)
        number = e.b.sitofp(value, kind) if signed else e.b.uitofp(value, kind)
        return e.put(out, to_bf16(e, number, False) if target == "bf16" else number)
    if "sat" in i.op:
        width, wide = bits_of(target), ir.IntType(128)
        value = e.b.sext(value, wide) if signed else e.b.zext(value, wide)
        low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if target.startswith("s") else (0, (1 << width) - 1)
        value = clamped(e, value, low, high)
    target_type = int_type(target)
    if value.type.width > target_type.width:
        value = e.b.trunc(value, target_type)
    elif value.type.width < target_type.width:
        value = e.b.sext(value, target_type) if signed else e.b.zext(value, target_type)
    return e.put(out, value, target.startswith("s"))


def _from_float(e: Emitter, i: Instruction, name, target: str, source: str) -> tuple[ir.Value, bool]:
    value = from_bf16(e, e.bits(name, "b16")) if source == "bf16" else e.get(name, source)
    source = "f32" if source == "bf16" else source
    if "ftz" in i.op and source == "f32":
        value = flushed(e, value)
    whole = next((part for part in i.op if part in _TO_INTEGER), None)
    if whole:
        suffix = {"f16": "f16", "f32": "f32", "f64": "f64"}[source]
        value = e.intrinsic(f"llvm.{_TO_INTEGER[whole]}.{suffix}", value.type, value)
    if target in FLOAT_KINDS:
        if bits_of(target) > bits_of(source):
            value = e.b.fpext(value, type_of(target))
        elif target == "f16":
            if source != "f32":
                raise NotImplementedError("float64 to float16")
            value = to_f16(e, value, i)
        elif bits_of(target) < bits_of(source):
            if "rn" not in i.op:
                raise NotImplementedError(".".join(i.op))
            value = e.b.fptrunc(value, type_of(target))
        if "ftz" in i.op and target == "f32":
            value = flushed(e, value)
        return (saturated(e, value, target) if "sat" in i.op else value), False
    if target == "bf16":
        return to_bf16(e, value, "rz" in i.op), False
    if target == "tf32":
        bits = e.b.bitcast(value, I32)
        moved = e.b.add(bits, ir.Constant(I32, 0x1000))  # rna: half away from zero
        return e.b.and_(moved, ir.Constant(I32, 0xFFFFE000)), False
    signed = target.startswith("s")
    width = max(8, bits_of(target))
    suffix = {"f16": "f16", "f32": "f32", "f64": "f64"}[source]
    name_ = f"llvm.fpto{'s' if signed else 'u'}i.sat.i{width}.{suffix}"  # clamps; NaN becomes 0
    return e.intrinsic(name_, ir.IntType(width), value), signed


def _pack(e: Emitter, i: Instruction) -> None:
    """cvt.pack.sat: two or four integers, clamped, side by side."""
    target = kinds(i)[0]
    out, a, b, *c = i.operands
    width = bits_of(target)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if target.startswith("s") else (0, (1 << width) - 1)
    mask = ir.Constant(I32, (1 << width) - 1)
    first, second = (
        e.b.and_(e.b.trunc(clamped(e, e.b.sext(e.get(v, "s32"), I64), low, high), I32), mask) for v in (a, b)
    )
    value = e.b.or_(second, e.b.shl(first, ir.Constant(I32, width)))
    if c:
        value = e.b.or_(value, e.b.shl(e.get(c[0], "b32"), ir.Constant(I32, 2 * width)))
    e.put(out, value)
