"""Loads, stores, atomic operations, copies under way, addresses (PTX ISA 9.7.9, 9.7.13)."""

from __future__ import annotations

from llvmlite import ir

from .checking import ATOMIC, GENERIC, READ, SHARED_SPACE, WRITE
from .fibers import SHARED
from .ptx import Instruction
from .translate import I64, SPACES, Emitter, bits_of, instruction, int_type, type_of


def _space(i: Instruction) -> int:
    return next((SPACES[part] for part in i.op if part in SPACES), GENERIC)


def _vector(i: Instruction) -> int:
    return next((int(part[1]) for part in i.op if part in ("v2", "v4", "v8")), 1)


@instruction("ld", "ldu")
def _load(e: Emitter, i: Instruction) -> None:
    kind, count = i.op[-1], _vector(i)
    size = bits_of(kind) // 8
    address = e.address(i.operands[1])
    place = e.checked(address, size * count, READ, _space(i))
    for at, register in enumerate(i.operands[0] if count > 1 else (i.operands[0],)):  # type: ignore[arg-type]
        part = e.b.add(place, ir.Constant(I64, size * at))
        e.put(register, e.b.load(e.at(part), typ=int_type(kind), align=1), kind.startswith("s"))


@instruction("st")
def _store(e: Emitter, i: Instruction) -> None:
    kind, count = i.op[-1], _vector(i)
    size = bits_of(kind) // 8
    values = i.operands[1] if count > 1 else (i.operands[1],)
    bits = [e.bits(name, kind) for name in values]  # type: ignore[union-attr]
    place = e.checked(e.address(i.operands[0]), size * count, WRITE, _space(i))
    for at, value in enumerate(bits):
        e.b.store(value, e.at(e.b.add(place, ir.Constant(I64, size * at))), align=1)


@instruction("cvta")
def _to_generic(e: Emitter, i: Instruction) -> None:
    value = e.bits(i.operands[1], i.op[-1])
    if "shared" in i.op or "shared::cta" in i.op:
        base = e.header(SHARED)
        value = e.b.sub(value, base) if "to" in i.op else e.b.add(value, base)
    e.put(i.operands[0], value)


@instruction("isspacep")
def _is_space(e: Emitter, i: Instruction) -> None:
    if _space(i) != SHARED_SPACE:
        raise NotImplementedError(".".join(i.op))
    distance = e.b.sub(e.bits(i.operands[1], "u64"), e.header(SHARED))
    e.put(i.operands[0], e.b.icmp_unsigned("<", distance, e.header(SHARED + 1)))


def _replaced(e: Emitter, what: str, kind: str, old: ir.Value, values: list[ir.Value]) -> ir.Value:
    """What an atomic operation leaves in memory."""
    value, signed = values[0], kind.startswith("s")
    if what == "cas":
        return e.b.select(e.b.icmp_unsigned("==", old, value), values[1], old)
    if what == "exch":
        return value
    if what in ("and", "or", "xor"):
        return {"and": e.b.and_, "or": e.b.or_, "xor": e.b.xor}[what](old, value)
    if what == "add":
        return e.b.fadd(old, value) if kind.startswith("f") else e.b.add(old, value)
    if what in ("min", "max"):
        if kind.startswith("f"):
            raise NotImplementedError(kind)
        less = e.b.icmp_signed("<", old, value) if signed else e.b.icmp_unsigned("<", old, value)
        return e.b.select(less, *((old, value) if what == "min" else (value, old)))
    one, zero = ir.Constant(old.type, 1), ir.Constant(old.type, 0)
    if what == "inc":
        return e.b.select(e.b.icmp_unsigned(">=", old, value), zero, e.b.add(old, one))
    wraps = e.b.or_(e.b.icmp_unsigned("==", old, zero), e.b.icmp_unsigned(">", old, value))
    return e.b.select(wraps, value, e.b.sub(old, one))


@instruction("atom", "red")
def _atomic(e: Emitter, i: Instruction) -> None:
    """Fibers take turns, so that a load and a store are one step."""
    kind = i.op[-1]
    what = next(part for part in i.op if part in ("add", "min", "max", "exch", "cas", "and", "or", "xor", "inc", "dec"))
    operands = list(i.operands)
    out = operands.pop(0) if i.op[0] == "atom" else "_"
    target, *names = operands
    if kind not in ("f32", "f64") and (kind.startswith(("f", "bf")) or "x2" in kind):
        raise NotImplementedError(kind)
    size = bits_of(kind) // 8
    address = e.address(target)
    old = e.load(address, type_of(kind), size, _space(i), ATOMIC)
    new = _replaced(e, what, kind, old, [e.get(name, kind) for name in names])
    place = e.b.add(address, e.header(SHARED)) if _space(i) == SHARED_SPACE else address
    e.b.store(new, e.at(place), align=1)
    e.put(out, old, kind.startswith("s"))


@instruction("cp")
def _copy(e: Emitter, i: Instruction) -> None:
    if "async" not in i.op or "bulk" in i.op:
        raise NotImplementedError(".".join(i.op))
    if "commit_group" in i.op:
        return e.call("cu_copies_end_group")
    if "wait_group" in i.op:
        return e.call("cu_copies_wait", ir.Constant(I64, int(i.operands[0])))  # type: ignore[arg-type]
    if "wait_all" in i.op:
        return e.call("cu_copies_wait", ir.Constant(I64, -1))
    target, source, size, *rest = i.operands
    if rest:
        raise NotImplementedError("cp.async with a source size")
    number = int(size)  # type: ignore[arg-type]
    start = e.checked(e.address(source), number, READ, SPACES["global"])
    return e.call("cu_copy_later", e.address(target), start, ir.Constant(I64, number | e.line << 16))


@instruction(
    "prefetch", "prefetchu", "applypriority", "discard", "createpolicy", "griddepcontrol", "nanosleep", "setmaxnreg"
)
def _hint(e: Emitter, i: Instruction) -> None:
    """Changes no result of a launch that is alone."""
    if i.op[0] == "createpolicy":
        e.put(i.operands[0], ir.Constant(I64, 0))
    if i.op[0] == "discard":
        raise NotImplementedError("discard")


@instruction("membar", "fence")
def _fence(e: Emitter, i: Instruction) -> None:
    """Fibers see each other's stores at once."""
