"""Instructions of one thread on registers: integers, bits, floats, comparisons (PTX ISA 9.7.1 to 9.7.8).

Approximate instructions are computed to the last bit of float32 or one beside it: a GPU may be off by what the manual
allows (2^-22 relative for most), which kernels must bear.
"""

from __future__ import annotations

from llvmlite import ir

from .ptx import Instruction, Pair
from .translate import I1, I8, I32, I64, Emitter, bits_of, instruction, int_type, kinds, type_of

FLOAT_KINDS = ("f16", "f32", "f64")


def flushed(e: Emitter, value: ir.Value) -> ir.Value:
    """A float32 with subnormals replaced by zeros of their sign."""
    bits = e.b.bitcast(value, I32)
    small = e.b.icmp_unsigned("==", e.b.and_(bits, ir.Constant(I32, 0x7F800000)), ir.Constant(I32, 0))
    zero = e.b.and_(bits, ir.Constant(I32, 0x80000000))
    return e.b.bitcast(e.b.select(small, zero, bits), type_of("f32"))


def saturated(e: Emitter, value: ir.Value, kind: str) -> ir.Value:
    """Clamped to 0 .. 1; NaN becomes 0."""
    low = e.b.fcmp_ordered(">", value, e.const(kind, 0.0))
    value = e.b.select(low, value, e.const(kind, 0.0))
    return e.b.select(e.b.fcmp_ordered("<", value, e.const(kind, 1.0)), value, e.const(kind, 1.0))


def float_operands(e: Emitter, i: Instruction, kind: str, names: tuple) -> list[ir.Value]:
    values = [e.get(name, kind) for name in names]
    return [flushed(e, value) for value in values] if "ftz" in i.op and kind == "f32" else values


def put_float(e: Emitter, i: Instruction, kind: str, value: ir.Value) -> None:
    if "ftz" in i.op and kind == "f32":
        value = flushed(e, value)
    e.put(i.operands[0], saturated(e, value, kind) if "sat" in i.op else value)


def _directed(e: Emitter, high: ir.Value, low: ir.Value, mode: str) -> ir.Value:
    """The float32 next to the exact sum of two float64 downwards (rm), upwards (rp) or towards zero (rz)."""
    near = e.b.fptrunc(high, type_of("f32"))
    wide = e.b.fpext(near, type_of("f64"))
    zero = e.const("f64", 0.0)
    equal = e.b.fcmp_ordered("==", wide, high)

    def beyond(sign: str) -> ir.Value:
        return e.b.or_(e.b.fcmp_ordered(sign, wide, high), e.b.and_(equal, e.b.fcmp_ordered(sign, zero, low)))

    above, below = beyond(">"), beyond("<")
    bits = e.b.bitcast(near, I32)
    negative = e.b.icmp_signed("<", bits, ir.Constant(I32, 0))
    one = ir.Constant(I32, 1)
    if mode == "rz":
        wrong = e.b.or_(e.b.and_(above, e.b.not_(negative)), e.b.and_(below, negative))
        return e.b.bitcast(e.b.select(wrong, e.b.sub(bits, one), bits), type_of("f32"))
    wrong = above if mode == "rm" else below
    towards = negative if mode == "rm" else e.b.not_(negative)  # away from zero grows the number in the bits
    moved = e.b.select(towards, e.b.add(bits, one), e.b.sub(bits, one))
    is_zero = e.b.icmp_unsigned("==", e.b.and_(bits, ir.Constant(I32, 0x7FFFFFFF)), ir.Constant(I32, 0))
    smallest = ir.Constant(I32, 0x80000001 if mode == "rm" else 1)
    moved = e.b.select(is_zero, smallest, moved)
    return e.b.bitcast(e.b.select(wrong, moved, bits), type_of("f32"))


def _sum_exactly(e: Emitter, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Knuth's two-sum of float64; nothing is lost in a sum that is no number or infinite."""
    total = e.b.fadd(a, b)
    shadow = e.b.fsub(total, a)
    lost = e.b.fadd(e.b.fsub(a, e.b.fsub(total, shadow)), e.b.fsub(b, shadow))
    size = e.intrinsic("llvm.fabs.f64", total.type, total)
    finite = e.b.fcmp_ordered("<", size, e.const("f64", float("inf")))
    return total, e.b.select(finite, lost, e.const("f64", 0.0))


def fused(e: Emitter, kind: str, a: ir.Value, b: ir.Value, c: ir.Value, mode: str = "rn") -> ir.Value:
    """a b + c, rounded once."""
    if kind == "f32" and mode != "rn":
        a, b, c = (e.b.fpext(v, type_of("f64")) for v in (a, b, c))
        return _directed(e, *_sum_exactly(e, e.b.fmul(a, b), c), mode)
    if mode != "rn":
        raise NotImplementedError(mode)
    if kind == "f16":  # exact in float64 but for sums 30 binary orders apart, whose float32 is made odd to tell
        a, b, c = (e.b.fpext(v, type_of("f64")) for v in (a, b, c))
        high, low = _sum_exactly(e, e.b.fmul(a, b), c)
        towards = _directed(e, high, low, "rz")
        exact = e.b.and_(
            e.b.fcmp_ordered("==", e.b.fpext(towards, type_of("f64")), high),
            e.b.fcmp_ordered("==", low, e.const("f64", 0.0)),
        )
        odd = e.b.or_(e.b.bitcast(towards, I32), e.b.zext(e.b.not_(exact), I32))
        finite = e.b.fcmp_ordered("ord", high, high)
        return e.b.fptrunc(e.b.select(finite, e.b.bitcast(odd, type_of("f32")), towards), type_of("f16"))
    suffix = {"f32": "f32", "f64": "f64"}[kind]
    return e.intrinsic(f"llvm.fma.{suffix}", a.type, a, b, c)


def _mode(i: Instruction) -> str:
    return next((part for part in i.op if part in ("rn", "rz", "rm", "rp")), "rn")


def halves(e: Emitter, operand) -> list[ir.Value]:
    """The two float16 of a register, the lower one first."""
    bits = e.bits(operand, "b32")
    parts = (bits, e.b.lshr(bits, ir.Constant(I32, 16)))
    return [e.b.bitcast(e.b.trunc(part, int_type("b16")), type_of("f16")) for part in parts]


def paired(e: Emitter, low: ir.Value, high: ir.Value) -> ir.Value:
    """Two 16-bit values as one register."""
    low, high = (
        e.b.zext(v if v.type == int_type("b16") else e.b.bitcast(v, int_type("b16")), I32) for v in (low, high)
    )
    return e.b.or_(low, e.b.shl(high, ir.Constant(I32, 16)))


def _binary_float(e: Emitter, name: str, kind: str, a: ir.Value, b: ir.Value, mode: str, nan: bool = False) -> ir.Value:
    if name in ("min", "max"):
        suffix = {"f16": "f16", "f32": "f32", "f64": "f64"}[kind]
        return e.intrinsic(f"llvm.{name}{'imum' if nan else 'num'}.{suffix}", a.type, a, b)
    if mode != "rn" and kind == "f32":
        a, b = (e.b.fpext(v, type_of("f64")) for v in (a, b))
        if name == "mul":
            return _directed(e, e.b.fmul(a, b), e.const("f64", 0.0), mode)
        return _directed(e, *_sum_exactly(e, a, e.b.fneg(b) if name == "sub" else b), mode)
    if mode != "rn":
        raise NotImplementedError(mode)
    return {"add": e.b.fadd, "sub": e.b.fsub, "mul": e.b.fmul}[name](a, b)


@instruction("add", "sub", "mul", "min", "max")
def _arithmetic(e: Emitter, i: Instruction) -> None:
    kind, name = i.op[-1], i.op[0]
    out, left, right = i.operands
    if kind == "f16x2":
        pairs = zip(halves(e, left), halves(e, right), strict=True)
        return e.put(out, paired(e, *(_binary_float(e, name, "f16", a, b, _mode(i), "NaN" in i.op) for a, b in pairs)))
    if kind in FLOAT_KINDS:
        a, b = float_operands(e, i, kind, (left, right))
        return put_float(e, i, kind, _binary_float(e, name, kind, a, b, _mode(i), "NaN" in i.op))
    signed = kind.startswith("s")
    if name == "mul":
        return e.put(out, _product(e, i, left, right), signed)
    a, b = e.get(left, kind), e.get(right, kind)
    if name in ("min", "max"):
        less = e.b.icmp_signed("<", a, b) if signed else e.b.icmp_unsigned("<", a, b)
        return e.put(out, e.b.select(less, *((a, b) if name == "min" else (b, a))), signed)
    if "sat" in i.op:
        wide = [e.b.sext(v, I64) for v in (a, b)]
        total = e.b.add(*wide) if name == "add" else e.b.sub(*wide)
        return e.put(out, clamped(e, total, -(1 << 31), (1 << 31) - 1))
    total = e.b.add(a, b) if name == "add" else e.b.sub(a, b)
    if "cc" in i.op:
        e.b.store(e.b.icmp_unsigned("<", total, a) if name == "add" else e.b.icmp_unsigned("<", a, b), e.carry)
    return e.put(out, total, signed)


def clamped(e: Emitter, value: ir.Value, low: int, high: int) -> ir.Value:
    """A signed integer clamped."""
    for bound, sign in ((low, "<"), (high, ">")):
        limit = ir.Constant(value.type, bound)
        value = e.b.select(e.b.icmp_signed(sign, value, limit), limit, value)
    return value


@instruction("addc", "subc")
def _with_carry(e: Emitter, i: Instruction) -> None:
    kind = i.op[-1]
    a, b = (e.get(name, kind) for name in i.operands[1:])
    wide = ir.IntType(bits_of(kind) + 1)
    carry = e.b.zext(e.b.load(e.carry, typ=I1), wide)
    parts = [e.b.zext(v, wide) for v in (a, b)]
    total = e.b.add(e.b.add(*parts), carry) if i.op[0] == "addc" else e.b.sub(e.b.sub(*parts), carry)
    if "cc" in i.op:
        e.b.store(e.b.trunc(e.b.lshr(total, ir.Constant(wide, bits_of(kind))), I1), e.carry)
    e.put(i.operands[0], e.b.trunc(total, int_type(kind)))


def _product(e: Emitter, i: Instruction, left, right) -> ir.Value:
    """mul.lo, mul.hi or mul.wide of integers."""
    kind = i.op[-1]
    width = bits_of(kind)
    a, b = e.get(left, kind), e.get(right, kind)
    if "lo" in i.op:
        return e.b.mul(a, b)
    wide = ir.IntType(2 * width)
    extend = e.b.sext if kind.startswith("s") else e.b.zext
    full = e.b.mul(extend(a, wide), extend(b, wide))
    return full if "wide" in i.op else e.b.trunc(e.b.lshr(full, ir.Constant(wide, width)), int_type(kind))


@instruction("mad", "fma")
def _multiply_add(e: Emitter, i: Instruction) -> None:
    kind = i.op[-1]
    out, left, right, third = i.operands
    if kind in ("f16x2", "bf16x2", "bf16"):
        if kind != "f16x2" or "relu" in i.op:
            raise NotImplementedError(kind)
        triples = zip(*(halves(e, name) for name in (left, right, third)), strict=True)
        return e.put(out, paired(e, *(fused(e, "f16", *triple) for triple in triples)))
    if kind in FLOAT_KINDS:
        return put_float(e, i, kind, fused(e, kind, *float_operands(e, i, kind, (left, right, third)), _mode(i)))
    if "cc" in i.op or "sat" in i.op:
        raise NotImplementedError(".".join(i.op))
    product = _product(e, i, left, right)
    c = e.get(third, f"{kind[0]}{product.type.width}")
    return e.put(out, e.b.add(product, c), kind.startswith("s"))


@instruction("div", "rem")
def _divide(e: Emitter, i: Instruction) -> None:
    kind = i.op[-1]
    if kind in FLOAT_KINDS:
        a, b = float_operands(e, i, kind, i.operands[1:])
        if _mode(i) != "rn":
            raise NotImplementedError(".".join(i.op))
        return put_float(e, i, kind, e.b.fdiv(a, b))
    signed = kind.startswith("s")
    a, b = (e.get(name, kind) for name in i.operands[1:])
    # Dividing by zero ends the process here and gives some number there; -2^31 / -1 likewise
    b = e.b.select(e.b.icmp_unsigned("==", b, ir.Constant(b.type, 0)), ir.Constant(b.type, 1), b)
    if signed:
        minus = e.b.icmp_signed("==", b, ir.Constant(b.type, -1))
        safe = e.b.select(minus, ir.Constant(b.type, 1), b)
        if i.op[0] == "div":
            return e.put(i.operands[0], e.b.select(minus, e.b.neg(a), e.b.sdiv(a, safe)), True)
        return e.put(i.operands[0], e.b.srem(a, safe), True)
    return e.put(i.operands[0], e.b.udiv(a, b) if i.op[0] == "div" else e.b.urem(a, b))


@instruction("neg", "abs")
def _sign(e: Emitter, i: Instruction) -> None:
    kind, name = i.op[-1], i.op[0]
    if kind in ("f16x2", "bf16", "bf16x2"):
        mask = {"f16x2": 0x80008000, "bf16x2": 0x80008000, "bf16": 0x8000}[kind]
        bits = e.bits(i.operands[1], kind)
        sign = ir.Constant(bits.type, mask)
        return e.put(i.operands[0], e.b.xor(bits, sign) if name == "neg" else e.b.and_(bits, e.b.not_(sign)))
    if kind in FLOAT_KINDS:
        (a,) = float_operands(e, i, kind, i.operands[1:])
        suffix = {"f16": "f16", "f32": "f32", "f64": "f64"}[kind]
        return e.put(i.operands[0], e.b.fneg(a) if name == "neg" else e.intrinsic(f"llvm.fabs.{suffix}", a.type, a))
    a = e.get(i.operands[1], kind)
    negated = e.b.neg(a)
    if name == "abs":
        negated = e.b.select(e.b.icmp_signed("<", a, ir.Constant(a.type, 0)), negated, a)
    return e.put(i.operands[0], negated, True)


@instruction("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
def _function(e: Emitter, i: Instruction) -> None:
    kind, name = i.op[-1], i.op[0]
    if kind not in ("f32", "f64"):
        raise NotImplementedError(kind)
    (a,) = float_operands(e, i, kind, i.operands[1:])
    one = e.const(kind, 1.0)
    if name == "rcp":
        return put_float(e, i, kind, e.b.fdiv(one, a))
    called = {"rsqrt": "sqrt", "lg2": "log2", "ex2": "exp2"}.get(name, name)
    if name == "tanh":
        value = e.intrinsic("tanhf", a.type, a)
    else:
        value = e.intrinsic(f"llvm.{called}.{kind}", a.type, a)
    return put_float(e, i, kind, e.b.fdiv(one, value) if name == "rsqrt" else value)


@instruction("copysign")
def _copysign(e: Emitter, i: Instruction) -> None:
    kind = i.op[-1]
    sign, size = (e.get(name, kind) for name in i.operands[1:])
    e.put(i.operands[0], e.intrinsic(f"llvm.copysign.{kind}", size.type, size, sign))


@instruction("testp")
def _test(e: Emitter, i: Instruction) -> None:
    kind = i.op[-1]
    a = e.get(i.operands[1], kind)
    if "notanumber" in i.op:
        return e.put(i.operands[0], e.b.fcmp_unordered("uno", a, a))
    size = e.intrinsic(f"llvm.fabs.{kind}", a.type, a)
    infinite = e.const(kind, float("inf"))
    sign = {"infinite": "==", "finite": "<"}.get(i.op[1])
    if sign is None:
        raise NotImplementedError(i.op[1])
    return e.put(i.operands[0], e.b.fcmp_ordered(sign, size, infinite))


# --- bits


@instruction("and", "or", "xor", "shl", "shr", "not", "cnot")
def _logic(e: Emitter, i: Instruction) -> None:
    kind, name = i.op[-1], i.op[0]
    a = e.get(i.operands[1], kind)
    if name == "not":
        return e.put(i.operands[0], e.b.not_(a))
    if name == "cnot":
        zero = e.b.icmp_unsigned("==", a, ir.Constant(a.type, 0))
        return e.put(i.operands[0], e.b.zext(zero, a.type))
    if name in ("and", "or", "xor"):
        b = e.get(i.operands[2], kind)
        return e.put(i.operands[0], {"and": e.b.and_, "or": e.b.or_, "xor": e.b.xor}[name](a, b))
    width = bits_of(kind)
    count = e.get(i.operands[2], "u32")  # a shift by the width or more empties the register
    far = e.b.icmp_unsigned(">=", count, ir.Constant(I32, width))
    near = e.b.select(far, ir.Constant(I32, width - 1 if kind.startswith("s") else 0), count)
    near = e.b.trunc(near, a.type) if width < 32 else e.b.zext(near, a.type) if width > 32 else near
    if name == "shr" and kind.startswith("s"):
        return e.put(i.operands[0], e.b.ashr(a, near), True)
    shifted = e.b.shl(a, near) if name == "shl" else e.b.lshr(a, near)
    return e.put(i.operands[0], e.b.select(far, ir.Constant(a.type, 0), shifted))


@instruction("shf")
def _funnel(e: Emitter, i: Instruction) -> None:
    low, high, count = (e.get(name, "u32") for name in i.operands[1:])
    if "wrap" in i.op:
        count = e.b.and_(count, ir.Constant(I32, 31))
    else:
        limit = ir.Constant(I32, 32)
        count = e.b.select(e.b.icmp_unsigned(">", count, limit), limit, count)
    both = e.b.or_(e.b.zext(low, I64), e.b.shl(e.b.zext(high, I64), ir.Constant(I64, 32)))
    wide = e.b.zext(count, I64)
    if "r" in i.op:
        return e.put(i.operands[0], e.b.trunc(e.b.lshr(both, wide), I32))
    return e.put(i.operands[0], e.b.trunc(e.b.lshr(e.b.shl(both, wide), ir.Constant(I64, 32)), I32))


@instruction("lop3")
def _lookup(e: Emitter, i: Instruction) -> None:
    if "BOOL" in i.op:
        raise NotImplementedError("lop3.BOOL")
    out, *names, table = i.operands
    values = [e.get(name, "b32") for name in names]
    total = ir.Constant(I32, 0)
    for row in range(8):
        if int(table, 0) >> row & 1:  # type: ignore[call-overload]
            terms = [v if row >> (2 - at) & 1 else e.b.not_(v) for at, v in enumerate(values)]
            total = e.b.or_(total, e.b.and_(e.b.and_(terms[0], terms[1]), terms[2]))
    e.put(out, total)


@instruction("prmt")
def _permute(e: Emitter, i: Instruction) -> None:
    if i.op[-1] != "b32":
        raise NotImplementedError("prmt with a mode")
    a, b, choice = (e.get(name, "b32") for name in i.operands[1:])
    both = e.b.or_(e.b.zext(a, I64), e.b.shl(e.b.zext(b, I64), ir.Constant(I64, 32)))
    total = ir.Constant(I32, 0)
    for at in range(4):
        nibble = e.b.and_(e.b.lshr(choice, ir.Constant(I32, 4 * at)), ir.Constant(I32, 15))
        which = e.b.zext(e.b.and_(nibble, ir.Constant(I32, 7)), I64)
        byte = e.b.trunc(e.b.lshr(both, e.b.mul(which, ir.Constant(I64, 8))), I8)
        sign = e.b.ashr(byte, ir.Constant(I8, 7))
        signs = e.b.icmp_unsigned(">=", nibble, ir.Constant(I32, 8))
        byte = e.b.select(signs, sign, byte)
        total = e.b.or_(total, e.b.shl(e.b.zext(byte, I32), ir.Constant(I32, 8 * at)))
    e.put(i.operands[0], total)


def _low_bits(e: Emitter, count: ir.Value, kind: ir.IntType) -> ir.Value:
    """A mask of ``count`` ones; all for counts of the width and more."""
    count = e.b.trunc(count, kind) if count.type.width > kind.width else count
    full = e.b.icmp_unsigned(">=", count, ir.Constant(count.type, kind.width))
    count = e.b.select(full, ir.Constant(count.type, 0), count)
    count = e.b.zext(count, kind) if count.type.width < kind.width else count
    ones = e.b.sub(e.b.shl(ir.Constant(kind, 1), count), ir.Constant(kind, 1))
    return e.b.select(full, ir.Constant(kind, -1), ones)


@instruction("bfe")
def _extract(e: Emitter, i: Instruction) -> None:
    kind = i.op[-1]
    width = bits_of(kind)
    a = e.get(i.operands[1], kind)
    start, count = (e.b.and_(e.get(name, "u32"), ir.Constant(I32, 255)) for name in i.operands[2:])
    big = ir.IntType(512)  # positions and lengths up to 255 need no cases there
    wide = e.b.sext(a, big) if kind.startswith("s") else e.b.zext(a, big)
    moved = e.b.lshr(wide, e.b.zext(start, big))
    value = e.b.and_(moved, _low_bits(e, count, big))
    if kind.startswith("s"):
        last = e.b.sub(e.b.add(start, count), ir.Constant(I32, 1))
        over = e.b.icmp_signed(">", last, ir.Constant(I32, width - 1))
        last = e.b.select(over, ir.Constant(I32, width - 1), last)
        sign = e.b.and_(
            e.b.trunc(e.b.lshr(wide, e.b.zext(last, big)), I1), e.b.icmp_unsigned("!=", count, ir.Constant(I32, 0))
        )
        upper = e.b.not_(_low_bits(e, count, big))
        value = e.b.select(sign, e.b.or_(value, upper), value)
    e.put(i.operands[0], e.b.trunc(value, int_type(kind)), kind.startswith("s"))


@instruction("bfi")
def _insert(e: Emitter, i: Instruction) -> None:
    kind = i.op[-1]
    a, b = (e.get(name, kind) for name in i.operands[1:3])
    start, count = (e.b.and_(e.get(name, "u32"), ir.Constant(I32, 255)) for name in i.operands[3:])
    big = ir.IntType(512)
    mask = e.b.shl(_low_bits(e, count, big), e.b.zext(start, big))
    value = e.b.and_(e.b.shl(e.b.zext(a, big), e.b.zext(start, big)), mask)
    kept = e.b.and_(e.b.zext(b, big), e.b.not_(mask))
    e.put(i.operands[0], e.b.trunc(e.b.or_(value, kept), int_type(kind)))


@instruction("popc", "clz", "brev", "bfind")
def _count(e: Emitter, i: Instruction) -> None:
    kind, name = i.op[-1], i.op[0]
    a = e.get(i.operands[1], kind)
    width = bits_of(kind)
    if name == "popc":
        return e.put(i.operands[0], e.intrinsic(f"llvm.ctpop.i{width}", a.type, a))
    if name == "brev":
        return e.put(i.operands[0], e.intrinsic(f"llvm.bitreverse.i{width}", a.type, a))
    if name == "bfind" and kind.startswith("s"):
        a = e.b.select(e.b.icmp_signed("<", a, ir.Constant(a.type, 0)), e.b.not_(a), a)
    leading = e.intrinsic(f"llvm.ctlz.i{width}", a.type, a, ir.Constant(I1, 0))
    if name == "bfind" and "shiftamt" not in i.op:
        leading = e.b.sub(ir.Constant(a.type, width - 1), leading)
    elif name == "bfind":
        none = e.b.icmp_unsigned("==", leading, ir.Constant(a.type, width))
        leading = e.b.select(none, ir.Constant(a.type, -1), leading)
    return e.put(i.operands[0], leading)


@instruction("dp4a", "dp2a")
def _dot(e: Emitter, i: Instruction) -> None:
    left, right = kinds(i)
    a, b, total = (e.get(name, "b32") for name in i.operands[1:])

    def part(word: ir.Value, at: int, width: int, kind: str) -> ir.Value:
        piece = e.b.trunc(e.b.lshr(word, ir.Constant(I32, width * at)), ir.IntType(width))
        return e.b.sext(piece, I32) if kind.startswith("s") else e.b.zext(piece, I32)

    four = i.op[0] == "dp4a"
    for at in range(4 if four else 2):
        first = part(a, at, 8 if four else 16, left)
        second = part(b, at + (2 if "hi" in i.op and not four else 0), 8, right)
        total = e.b.add(total, e.b.mul(first, second))
    e.put(i.operands[0], total)


@instruction("sad")
def _difference(e: Emitter, i: Instruction) -> None:
    kind = i.op[-1]
    a, b, c = (e.get(name, kind) for name in i.operands[1:])
    less = e.b.icmp_signed("<", a, b) if kind.startswith("s") else e.b.icmp_unsigned("<", a, b)
    e.put(i.operands[0], e.b.add(c, e.b.select(less, e.b.sub(b, a), e.b.sub(a, b))))


# --- choosing

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


def _compared(e: Emitter, i: Instruction, kind: str, sign: str, left, right) -> ir.Value:
    if kind in FLOAT_KINDS:
        a, b = float_operands(e, i, kind, (left, right))
        if sign in ("num", "nan"):
            return e.b.fcmp_ordered("ord", a, b) if sign == "num" else e.b.fcmp_unordered("uno", a, b)
        if sign in _SIGNS:
            return e.b.fcmp_ordered(_SIGNS[sign], a, b)
        return e.b.fcmp_unordered(_SIGNS[sign[:-1]], a, b)
    a, b = e.get(left, kind), e.get(right, kind)
    if sign in _UNSIGNED:
        return e.b.icmp_unsigned(_UNSIGNED[sign], a, b)
    return (e.b.icmp_signed if kind.startswith("s") else e.b.icmp_unsigned)(_SIGNS[sign], a, b)


@instruction("setp", "set")
def _compare(e: Emitter, i: Instruction) -> None:
    names = [part for part in i.op[1:] if part != "ftz"]
    out, left, right, *other = i.operands
    kind, boolean = names[-1], names[1] if other else ""
    result = _compared(e, i, kind, names[0], left, right)
    if i.op[0] == "set":
        if other:
            raise NotImplementedError("set with a third operand")
        target = names[-2]
        one = ir.Constant(int_type(target), 0x3F800000 if target == "f32" else -1)
        return e.put(out, e.b.select(result, one, ir.Constant(one.type, 0)))
    second = e.b.not_(result)
    if other:
        third = e.get(other[0], "pred")
        join = {"and": e.b.and_, "or": e.b.or_, "xor": e.b.xor}[boolean]
        result, second = join(result, third), join(second, third)
    if isinstance(out, Pair):
        e.put(out.first, result)
        return e.put(out.second, second)
    return e.put(out, result)


@instruction("selp")
def _select(e: Emitter, i: Instruction) -> None:
    a, b = (e.get(name, i.op[-1]) for name in i.operands[1:3])
    e.put(i.operands[0], e.b.select(e.get(i.operands[3], "pred"), a, b))


@instruction("slct")
def _select_by_sign(e: Emitter, i: Instruction) -> None:
    kind, by = kinds(i)
    a, b = (e.get(name, kind) for name in i.operands[1:3])
    c = e.get(i.operands[3], by)
    first = (
        e.b.fcmp_ordered(">=", c, e.const("f32", 0.0))
        if by == "f32"
        else e.b.icmp_signed(">=", c, ir.Constant(c.type, 0))
    )
    e.put(i.operands[0], e.b.select(first, a, b))
