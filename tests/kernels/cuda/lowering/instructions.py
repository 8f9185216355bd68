"""What the instructions of this backend's kernels do (PTX ISA 9.7); the translator refuses all others.

Approximate instructions are computed to the last bit of float32 or one beside it: a GPU may be off by what the manual
allows (2^-22 relative for most), which kernels must bear. What threads compute together is in ``fibers``.
"""

from __future__ import annotations

from llvmlite import ir

from . import fibers
from .checking import ATOMIC, GENERIC, READ, SHARED_SPACE, WRITE
from .ptx import SIZES, Instruction, Operand
from .translate import FLOATS, I1, I8, I16, I32, I64, SPACES, Emitter, bits_of, instruction, type_of


def refuse_unless(known: bool, i: Instruction) -> None:
    if not known:
        raise NotImplementedError(".".join(i.op))


def operands(e: Emitter, i: Instruction, kind: str) -> list[ir.Value]:
    """All but the first, as values of one kind."""
    return [e.get(name, kind) for name in i.operands[1:]]


# --- numbers

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_WHOLE = {"add": "add", "sub": "sub", "and": "and_", "or": "or_", "xor": "xor"}


def _directed(e: Emitter, high: ir.Value, low: ir.Value, mode: str) -> ir.Value:
    """The float32 next to the exact sum of two float64 downwards (rm) or towards zero (rz)."""
    near = e.b.fptrunc(high, type_of("f32"))
    wide, bits, one = e.b.fpext(near, type_of("f64")), e.b.bitcast(near, I32), ir.Constant(I32, 1)
    equal, zero = e.b.fcmp_ordered("==", wide, high), e.const("f64", 0.0)
    above, below = (
        e.b.or_(e.b.fcmp_ordered(sign, wide, high), e.b.and_(equal, e.b.fcmp_ordered(sign, zero, low)))
        for sign in (">", "<")
    )
    negative = e.b.icmp_signed("<", bits, ir.Constant(I32, 0))
    if mode == "rz":
        wrong, moved = e.b.select(negative, below, above), e.b.sub(bits, one)
    else:
        wrong, moved = above, e.b.select(negative, e.b.add(bits, one), e.b.sub(bits, one))
        smallest = e.b.icmp_unsigned("==", e.b.and_(bits, ir.Constant(I32, 0x7FFFFFFF)), ir.Constant(I32, 0))
        moved = e.b.select(smallest, ir.Constant(I32, 0x80000001), moved)
    return e.b.bitcast(e.b.select(wrong, moved, bits), type_of("f32"))


def _sum_exactly(e: Emitter, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Knuth's two-sum of float64; nothing is lost in a sum that is no number or infinite."""
    total = e.b.fadd(a, b)
    shadow = e.b.fsub(total, a)
    lost = e.b.fadd(e.b.fsub(a, e.b.fsub(total, shadow)), e.b.fsub(b, shadow))
    size = e.intrinsic("llvm.fabs.f64", total.type, total)
    finite = e.b.fcmp_ordered("<", size, e.const("f64", float("inf")))
    return total, e.b.select(finite, lost, e.const("f64", 0.0))


def _mode(i: Instruction) -> str:
    return next((part for part in i.op if part in ("rz", "rm", "rp")), "rn")


@instruction("add", "sub", "and", "or", "xor")
def _arithmetic(e: Emitter, i: Instruction) -> None:
    kind, name, mode = i.op[-1], i.op[0], _mode(i)
    refuse_unless(not {"sat", "cc", "ftz"} & {*i.op}, i)
    if kind == "f16x2":
        pairs = zip(*(_halves(e, operand) for operand in i.operands[1:]), strict=True)
        return e.put(i.operands[0], _paired(e, *(getattr(e.b, _FLOAT[name])(a, b) for a, b in pairs)))
    a, b = operands(e, i, kind)
    if mode != "rn":
        refuse_unless((kind, name) == ("f32", "add") and mode in ("rz", "rm"), i)
        wide = [e.b.fpext(v, type_of("f64")) for v in (a, b)]
        return e.put(i.operands[0], _directed(e, *_sum_exactly(e, *wide), mode))
    return e.put(i.operands[0], getattr(e.b, (_FLOAT if kind in FLOATS else _WHOLE)[name])(a, b), kind[0] == "s")


@instruction("mul", "mad")
def _multiply(e: Emitter, i: Instruction) -> None:
    kind = i.op[-1]
    refuse_unless(_mode(i) == "rn" and not {"sat", "cc", "ftz", "hi"} & {*i.op}, i)
    if kind in FLOATS:
        return e.put(i.operands[0], e.b.fmul(*operands(e, i, kind)))
    a, b = (e.get(name, kind) for name in i.operands[1:3])
    if "wide" in i.op:
        full = ir.IntType(2 * bits_of(kind))
        a, b = ((e.b.sext if kind[0] == "s" else e.b.zext)(v, full) for v in (a, b))
    value = e.b.mul(a, b)
    if i.op[0] == "mad":
        value = e.b.add(value, e.get(i.operands[3], f"u{value.type.width}"))
    return e.put(i.operands[0], value, kind[0] == "s")


@instruction("fma")
def _fused(e: Emitter, i: Instruction) -> None:
    """a b + c, rounded once."""
    kind, mode = i.op[-1], _mode(i)
    a, b, c = operands(e, i, kind)
    if mode == "rn":
        refuse_unless(not {"sat", "ftz"} & {*i.op}, i)
        return e.put(i.operands[0], e.intrinsic(f"llvm.fma.{kind}", a.type, a, b, c))
    refuse_unless((kind, mode) == ("f32", "rm"), i)
    a, b, c = (e.b.fpext(v, type_of("f64")) for v in (a, b, c))
    return e.put(i.operands[0], _directed(e, *_sum_exactly(e, e.b.fmul(a, b), c), mode))


@instruction("min", "max")
def _extreme(e: Emitter, i: Instruction) -> None:
    kind, name = i.op[-1], i.op[0]
    a, b = operands(e, i, kind)
    if kind in FLOATS:
        refuse_unless(not {"NaN", "ftz"} & {*i.op}, i)
        return e.put(i.operands[0], e.intrinsic(f"llvm.{name}num.{kind}", a.type, a, b))
    less = (e.b.icmp_signed if kind[0] == "s" else e.b.icmp_unsigned)("<", a, b)
    return e.put(i.operands[0], e.b.select(less, *((a, b) if name == "min" else (b, a))), kind[0] == "s")


@instruction("div", "rem")
def _divide(e: Emitter, i: Instruction) -> None:
    kind, name, signed = i.op[-1], i.op[0], i.op[-1][0] == "s"
    a, b = operands(e, i, kind)
    if kind in FLOATS:
        refuse_unless("rn" in i.op, i)
        return e.put(i.operands[0], e.b.fdiv(a, b))
    # Dividing by zero ends the process here and gives some number there; -2^63 / -1 likewise
    bad = e.b.icmp_unsigned("==", b, ir.Constant(b.type, 0))
    b = e.b.select(bad, ir.Constant(b.type, 1), b)
    return e.put(i.operands[0], getattr(e.b, f"{'s' if signed else 'u'}{name}")(a, b), signed)


@instruction("neg", "abs")
def _sign(e: Emitter, i: Instruction) -> None:
    kind, name = i.op[-1], i.op[0]
    (a,) = operands(e, i, kind)
    refuse_unless("ftz" not in i.op, i)
    if kind in FLOATS:
        return e.put(i.operands[0], e.b.fneg(a) if name == "neg" else e.intrinsic(f"llvm.fabs.{kind}", a.type, a))
    value = e.b.neg(a)
    if name == "abs":
        value = e.b.select(e.b.icmp_signed("<", a, ir.Constant(a.type, 0)), value, a)
    return e.put(i.operands[0], value, True)


def _flushed(e: Emitter, value: ir.Value) -> ir.Value:
    """A float32 with subnormals replaced by zeros of their sign."""
    bits = e.b.bitcast(value, I32)
    small = e.b.icmp_unsigned("==", e.b.and_(bits, ir.Constant(I32, 0x7F800000)), ir.Constant(I32, 0))
    zero = e.b.and_(bits, ir.Constant(I32, 0x80000000))
    return e.b.bitcast(e.b.select(small, zero, bits), type_of("f32"))


_CALLED = {"sqrt": "sqrt", "ex2": "exp2", "rsqrt": "sqrt", "lg2": "log2", "sin": "sin", "cos": "cos"}


@instruction("rcp", *_CALLED)
def _function(e: Emitter, i: Instruction) -> None:
    kind, name = i.op[-1], i.op[0]
    (a,) = operands(e, i, kind)
    flush = "ftz" in i.op and kind == "f32"
    value = _flushed(e, a) if flush else a
    if name in _CALLED:
        value = e.intrinsic(f"llvm.{_CALLED[name]}.{kind}", value.type, value)
    if name in ("rcp", "rsqrt"):
        value = e.b.fdiv(e.const(kind, 1.0), value)
    e.put(i.operands[0], _flushed(e, value) if flush else value)


# --- bits


@instruction("not")
def _not(e: Emitter, i: Instruction) -> None:
    e.put(i.operands[0], e.b.not_(*operands(e, i, i.op[-1])))


@instruction("shl", "shr")
def _shift(e: Emitter, i: Instruction) -> None:
    """By the width or more empties the register."""
    kind, signed = i.op[-1], i.op[-1][0] == "s"
    a, count, width = e.get(i.operands[1], kind), e.get(i.operands[2], "u32"), bits_of(kind)
    far = e.b.icmp_unsigned(">=", count, ir.Constant(I32, width))
    near = e.b.select(far, ir.Constant(I32, width - 1 if signed else 0), count)
    near = e.b.trunc(near, a.type) if width < 32 else e.b.zext(near, a.type) if width > 32 else near
    if i.op[0] == "shr" and signed:
        return e.put(i.operands[0], e.b.ashr(a, near), True)
    shifted = (e.b.shl if i.op[0] == "shl" else e.b.lshr)(a, near)
    return e.put(i.operands[0], e.b.select(far, ir.Constant(a.type, 0), shifted))


def _side_by_side(e: Emitter, low: ir.Value, high: ir.Value) -> ir.Value:
    """Two words as one i64."""
    return e.b.or_(e.b.zext(low, I64), e.b.shl(e.b.zext(high, I64), ir.Constant(I64, 32)))


@instruction("shf")
def _funnel(e: Emitter, i: Instruction) -> None:
    refuse_unless(i.op[1:3] == ("r", "clamp"), i)
    low, high, count = operands(e, i, "u32")
    limit = ir.Constant(I32, 32)
    count = e.b.select(e.b.icmp_unsigned(">", count, limit), limit, count)
    e.put(i.operands[0], e.b.trunc(e.b.lshr(_side_by_side(e, low, high), e.b.zext(count, I64)), I32))


@instruction("prmt")
def _permute(e: Emitter, i: Instruction) -> None:
    refuse_unless(len(i.op) == 2, i)
    low, high, choice = operands(e, i, "b32")
    both, total = _side_by_side(e, low, high), ir.Constant(I32, 0)
    for at in range(4):
        nibble = e.b.and_(e.b.lshr(choice, ir.Constant(I32, 4 * at)), ir.Constant(I32, 15))
        which = e.b.zext(e.b.and_(nibble, ir.Constant(I32, 7)), I64)
        byte = e.b.trunc(e.b.lshr(both, e.b.mul(which, ir.Constant(I64, 8))), I8)
        signs = e.b.icmp_unsigned(">=", nibble, ir.Constant(I32, 8))
        byte = e.b.select(signs, e.b.ashr(byte, ir.Constant(I8, 7)), byte)
        total = e.b.or_(total, e.b.shl(e.b.zext(byte, I32), ir.Constant(I32, 8 * at)))
    e.put(i.operands[0], total)


@instruction("bfi")
def _insert(e: Emitter, i: Instruction) -> None:
    """Bits of a into b, at a place and of a length that are numbers in the text."""
    kind = i.op[-1]
    a, b = (e.get(name, kind) for name in i.operands[1:3])
    start, count = (int(name, 0) for name in i.operands[3:])  # type: ignore[call-overload]
    mask = (((1 << count) - 1) << start) & ((1 << bits_of(kind)) - 1)
    value = e.b.and_(e.b.shl(a, ir.Constant(a.type, start)), ir.Constant(a.type, mask))
    e.put(i.operands[0], e.b.or_(value, e.b.and_(b, ir.Constant(a.type, ~mask & ((1 << bits_of(kind)) - 1)))))


@instruction("dp4a", "dp2a")
def _dot(e: Emitter, i: Instruction) -> None:
    four = i.op[0] == "dp4a"
    refuse_unless(four or "lo" in i.op, i)
    kinds = i.op[-2:]
    a, b, total = operands(e, i, "b32")
    for at in range(4 if four else 2):
        parts = []
        for word, width, kind in ((a, 8 if four else 16, kinds[0]), (b, 8, kinds[1])):
            piece = e.b.trunc(e.b.lshr(word, ir.Constant(I32, width * at)), ir.IntType(width))
            parts.append((e.b.sext if kind[0] == "s" else e.b.zext)(piece, I32))
        total = e.b.add(total, e.b.mul(*parts))
    e.put(i.operands[0], total)


# --- choosing

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


@instruction("setp")
def _compare(e: Emitter, i: Instruction) -> None:
    refuse_unless(len(i.op) == 3 and isinstance(i.operands[0], str), i)
    _, sign, kind = i.op
    a, b = operands(e, i, kind)
    if kind not in FLOATS:
        compare = e.b.icmp_signed if kind[0] == "s" and sign not in _UNSIGNED else e.b.icmp_unsigned
        value = compare((_SIGNS | _UNSIGNED)[sign], a, b)
    elif sign in _SIGNS:
        value = e.b.fcmp_ordered(_SIGNS[sign], a, b)
    elif sign == "num":
        value = e.b.fcmp_ordered("ord", a, b)
    else:
        value = e.b.fcmp_unordered("uno" if sign == "nan" else _SIGNS[sign[:-1]], a, b)
    e.put(i.operands[0], value)


@instruction("selp")
def _select(e: Emitter, i: Instruction) -> None:
    a, b = (e.get(name, i.op[-1]) for name in i.operands[1:3])
    e.put(i.operands[0], e.b.select(e.get(i.operands[3], "pred"), a, b))


# --- moving and converting


@instruction("mov")
def _move(e: Emitter, i: Instruction) -> None:
    (out, source), kind = i.operands, i.op[-1]
    if isinstance(source, tuple):  # {low, ..., high} into one register
        part, whole = bits_of(kind) // len(source), ir.IntType(bits_of(kind))
        total = ir.Constant(whole, 0)
        for at, name in enumerate(source):
            piece = e.b.zext(e.bits(name, f"b{part}"), whole)
            total = e.b.or_(total, e.b.shl(piece, ir.Constant(whole, part * at)))
        return e.put(out, total)
    value = e.bits(source, kind)
    if not isinstance(out, tuple):
        return e.put(out, value)
    part = bits_of(kind) // len(out)
    for at, name in enumerate(out):
        e.put(name, e.b.trunc(e.b.lshr(value, ir.Constant(value.type, part * at)), ir.IntType(part)))
    return None


def _halves(e: Emitter, operand: Operand) -> list[ir.Value]:
    """The two float16 of a register, the lower one first."""
    bits = e.bits(operand, "b32")
    parts = (bits, e.b.lshr(bits, ir.Constant(I32, 16)))
    return [e.b.bitcast(e.b.trunc(part, I16), type_of("f16")) for part in parts]


def _paired(e: Emitter, low: ir.Value, high: ir.Value) -> ir.Value:
    """Two float16 as one register."""
    low, high = (e.b.zext(e.b.bitcast(v, I16), I32) for v in (low, high))
    return e.b.or_(low, e.b.shl(high, ir.Constant(I32, 16)))


_TO_INTEGER = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@instruction("cvt")
def _convert(e: Emitter, i: Instruction) -> None:
    target, source = i.op[-2:]
    value, signed = e.get(i.operands[1], source), target[0] == "s"
    refuse_unless("ftz" not in i.op and {target, source} <= SIZES.keys(), i)
    whole = next((part for part in i.op if part in _TO_INTEGER), "")
    if source in FLOATS and target in FLOATS:
        if "sat" in i.op:  # clamped to 0 .. 1; NaN becomes 0
            low = e.b.select(e.b.fcmp_ordered(">", value, e.const(source, 0.0)), value, e.const(source, 0.0))
            value = e.b.select(e.b.fcmp_ordered("<", low, e.const(source, 1.0)), low, e.const(source, 1.0))
        if whole:
            value = e.intrinsic(f"llvm.{_TO_INTEGER[whole]}.{source}", value.type, value)
        if bits_of(target) > bits_of(source):
            value = e.b.fpext(value, type_of(target))
        elif bits_of(target) < bits_of(source):
            refuse_unless("rn" in i.op and (target, source) != ("f16", "f64"), i)
            value = e.b.fptrunc(value, type_of(target))
        return e.put(i.operands[0], value)
    if source in FLOATS:
        value = e.intrinsic(f"llvm.{_TO_INTEGER[whole]}.{source}", value.type, value)
        name = f"llvm.fpto{'s' if signed else 'u'}i.sat.i{bits_of(target)}.{source}"  # clamps; NaN becomes 0
        return e.put(i.operands[0], e.intrinsic(name, type_of(target), value), signed)
    if target in FLOATS:
        refuse_unless("rn" in i.op, i)
        return e.put(i.operands[0], (e.b.sitofp if source[0] == "s" else e.b.uitofp)(value, type_of(target)))
    refuse_unless("sat" not in i.op, i)
    wanted = type_of(target)
    if value.type.width > wanted.width:
        value = e.b.trunc(value, wanted)
    elif value.type.width < wanted.width:
        value = (e.b.sext if source[0] == "s" else e.b.zext)(value, wanted)
    return e.put(i.operands[0], value, signed)


# --- memory


def _space(i: Instruction) -> int:
    return next((SPACES[part] for part in i.op if part in SPACES), GENERIC)


@instruction("ld", "st")
def _access(e: Emitter, i: Instruction) -> None:
    kind, count = i.op[-1], next((int(part[1]) for part in i.op if part in ("v2", "v4")), 1)
    size, loading = bits_of(kind) // 8, i.op[0] == "ld"
    target, names = (i.operands[1], i.operands[0]) if loading else i.operands
    registers = names if count > 1 else (names,)
    values = [] if loading else [e.bits(name, kind) for name in registers]
    place = e.checked(e.address(target), size * count, READ if loading else WRITE, _space(i))
    for at, register in enumerate(registers):
        part = e.at(e.b.add(place, ir.Constant(I64, size * at)))
        if loading:
            e.put(register, e.b.load(part, typ=ir.IntType(bits_of(kind)), align=1), kind[0] == "s")
        else:
            e.b.store(values[at], part, align=1)


@instruction("cvta")
def _to_generic(e: Emitter, i: Instruction) -> None:
    value = e.bits(i.operands[1], i.op[-1])
    if "shared" in i.op:
        value = (e.b.sub if "to" in i.op else e.b.add)(value, e.header(fibers.SHARED))
    e.put(i.operands[0], value)


@instruction("atom", "red")
def _atomic(e: Emitter, i: Instruction) -> None:
    """Fibers take turns, so that a load and a store are one step."""
    kind, out = i.op[-1], i.operands[0] if i.op[0] == "atom" else "_"
    what = next(part for part in i.op[2:-1] if part not in SPACES)
    refuse_unless(what in ("add", "max") and kind not in FLOATS, i)
    target, name = i.operands[-2:]
    place = e.checked(e.address(target), bits_of(kind) // 8, ATOMIC, _space(i))
    old, value = e.b.load(e.at(place), typ=type_of(kind), align=1), e.get(name, kind)
    greater = (e.b.icmp_signed if kind[0] == "s" else e.b.icmp_unsigned)(">", value, old)
    e.b.store(e.b.add(old, value) if what == "add" else e.b.select(greater, value, old), e.at(place), align=1)
    e.put(out, old, kind[0] == "s")


@instruction("cp")
def _copy(e: Emitter, i: Instruction) -> None:
    refuse_unless("async" in i.op and "bulk" not in i.op, i)
    if "commit_group" in i.op:
        return e.call("cu_copies_end_group")
    if "wait_group" in i.op:
        return e.call("cu_copies_wait", ir.Constant(I64, int(i.operands[0])))  # type: ignore[arg-type]
    target, source, size = i.operands
    number = int(size)  # type: ignore[arg-type]
    start = e.checked(e.address(source), number, READ, SPACES["global"])
    return e.call("cu_copy_later", e.address(target), start, ir.Constant(I64, number | e.line << 16))


# --- meetings

_EVERYONE = ir.Constant(I64, 0xFFFFFFFF)


@instruction("bar")
def _barrier(e: Emitter, i: Instruction) -> None:
    if i.op[1] == "warp":
        e.wait(fibers.AT_WARP, fibers.SYNC, e.get(i.operands[0], "b32"), (), 0)
    else:
        refuse_unless(i.op == ("bar", "sync") and i.operands == ("0",), i)
        e.wait(fibers.AT_BARRIER, 0, ir.Constant(I64, 0), (), 0)


@instruction("shfl")
def _shuffle(e: Emitter, i: Instruction) -> None:
    kind = {"bfly": fibers.SHFL_BFLY, "idx": fibers.SHFL_IDX}[i.op[2]]
    out, *names, mask = i.operands
    value, inside = e.wait(fibers.AT_WARP, kind, e.get(mask, "b32"), [e.bits(name, "b32") for name in names[:2]], 2)
    e.put(out[0] if isinstance(out, tuple) else out, e.b.trunc(value, I32))
    if isinstance(out, tuple):
        e.put(out[1], e.b.trunc(inside, I1))


_ELEMENTS = {"s8": 0, "bf16": 1, "f16": 2}


@instruction("mma")
def _matrix(e: Emitter, i: Instruction) -> None:
    out, a, b, c = i.operands
    result, left, right, third = i.op[-4:]
    refuse_unless(result == third == ("s32" if left == "s8" else "f32") and left == right and "row" in i.op, i)
    values = [e.bits(name, "b32") for name in (*a, *b, *c)]
    values += [ir.Constant(I64, 0)] * (15 - len(values)) + [ir.Constant(I64, _ELEMENTS[left] | len(b) << 8)]
    results = e.wait(fibers.AT_WARP, fibers.MMA, _EVERYONE, values, 4)
    for register, value in zip(out, results, strict=True):
        e.put(register, e.b.trunc(value, I32))


@instruction("ldmatrix")
def _load_matrix(e: Emitter, i: Instruction) -> None:
    """Every lane brings the address of a row of one of four matrices."""
    registers, address = i.operands
    refuse_unless({"m8n8", "b16", "x4"} <= {*i.op}, i)
    place = e.address(address)
    e.checked(place, 16, READ, SHARED_SPACE)
    kind = fibers.LDMATRIX_T if "trans" in i.op else fibers.LDMATRIX
    values = e.wait(fibers.AT_WARP, kind, _EVERYONE, [place], 4)
    for register, value in zip(registers, values, strict=True):
        e.put(register, e.b.trunc(value, I32))
