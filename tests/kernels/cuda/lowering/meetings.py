"""Instructions in which threads meet: barriers, shuffles, votes, matrix products (PTX ISA 9.7.12 to 9.7.14).

What they compute is in ``fibers.py``; here operands are brought and results taken.
"""

from __future__ import annotations

from llvmlite import ir

from . import fibers
from .checking import READ, SHARED_SPACE
from .ptx import Address, Instruction, Pair
from .translate import I1, I32, I64, Emitter, instruction, kinds

_EVERYONE = ir.Constant(I64, 0xFFFFFFFF)


@instruction("bar", "barrier")
def _barrier(e: Emitter, i: Instruction) -> None:
    if "warp" in i.op:
        e.wait(fibers.AT_WARP, fibers.SYNC, e.get(i.operands[0], "b32"), (), 0)
        return
    if "cluster" in i.op or "arrive" in i.op:
        raise NotImplementedError(".".join(i.op))
    operands = list(i.operands)
    kind, out, ballot = fibers.BARRIER, "_", ir.Constant(I1, 0)
    if "red" in i.op:
        kind = fibers.BARRIER_POPC if "popc" in i.op else fibers.BARRIER_AND if "and" in i.op else fibers.BARRIER_OR
        out, ballot = operands.pop(0), e.get(operands.pop(), "pred")
    count = e.get(operands[1], "u32") if len(operands) > 1 else ir.Constant(I32, 0)
    (value,) = e.wait(fibers.AT_BARRIER, kind, e.get(operands[0], "u32"), (count, ballot), 1)
    if kind:
        e.put(out, value if kind == fibers.BARRIER_POPC else e.b.trunc(value, I1))


@instruction("shfl")
def _shuffle(e: Emitter, i: Instruction) -> None:
    if "sync" not in i.op:
        raise NotImplementedError("shfl without sync")
    kind = {"up": fibers.SHFL_UP, "down": fibers.SHFL_DOWN, "bfly": fibers.SHFL_BFLY, "idx": fibers.SHFL_IDX}[i.op[2]]
    out, *names, mask = i.operands
    value, inside = e.wait(fibers.AT_WARP, kind, e.get(mask, "b32"), [e.bits(name, "b32") for name in names], 2)
    e.put(out.first if isinstance(out, Pair) else out, e.b.trunc(value, I32))
    if isinstance(out, Pair):
        e.put(out.second, e.b.trunc(inside, I1))


@instruction("vote")
def _vote(e: Emitter, i: Instruction) -> None:
    kind = {"ballot": fibers.BALLOT, "any": fibers.ANY, "all": fibers.ALL, "uni": fibers.UNI}[i.op[2]]
    out, value, mask = i.operands
    (result,) = e.wait(fibers.AT_WARP, kind, e.get(mask, "b32"), [e.get(value, "pred")], 1)
    e.put(out, e.b.trunc(result, I32 if kind == fibers.BALLOT else I1))


@instruction("match")
def _match(e: Emitter, i: Instruction) -> None:
    kind = fibers.MATCH_ANY if "any" in i.op else fibers.MATCH_ALL
    out, value, mask = i.operands
    result, same = e.wait(fibers.AT_WARP, kind, e.get(mask, "b32"), [e.bits(value, i.op[-1])], 2)
    e.put(out.first if isinstance(out, Pair) else out, e.b.trunc(result, I32))
    if isinstance(out, Pair):
        e.put(out.second, e.b.trunc(same, I1))


@instruction("redux")
def _reduction(e: Emitter, i: Instruction) -> None:
    name, kind = i.op[2], i.op[-1]
    number = {"add": 0, "and": 1, "or": 2, "xor": 3}.get(name)
    if number is None:
        number = {("min", "u32"): 4, ("max", "u32"): 5, ("min", "s32"): 6, ("max", "s32"): 7}[name, kind]
    out, value, mask = i.operands
    (total,) = e.wait(
        fibers.AT_WARP, fibers.REDUX, e.get(mask, "b32"), [e.bits(value, "b32"), ir.Constant(I64, number)], 1
    )
    e.put(out, e.b.trunc(total, I32))


@instruction("activemask")
def _active(e: Emitter, i: Instruction) -> None:
    """All lanes that have not ended, once they are all here: a GPU may answer with fewer."""
    (mask,) = e.wait(fibers.AT_WARP, fibers.ACTIVE, _EVERYONE, (), 1)
    e.put(i.operands[0], e.b.trunc(mask, I32))


_ELEMENTS = {"s8": (0, 1), "u8": (1, 1), "bf16": (2, 2), "f16": (3, 2), "tf32": (4, 4)}


@instruction("mma")
def _matrix(e: Emitter, i: Instruction) -> None:
    out, a, b, c = i.operands
    shape = next(part for part in i.op if part.startswith("m16n8k"))
    result, left, right, third = kinds(i)
    if (
        (result, third) not in (("s32", "s32"), ("f32", "f32"))
        or "row" not in i.op
        or "col" not in i.op
        or "sat" in str(i.op)
    ):
        raise NotImplementedError(".".join(i.op))
    (kind_a, size), (kind_b, _) = _ELEMENTS[left], _ELEMENTS[right]
    chunks = int(shape[6:]) * size // 16
    if (len(out), len(a), len(b), len(c)) != (4, 2 * chunks, chunks, 4):
        raise NotImplementedError(f"{shape} with {len(a)}, {len(b)} registers")
    values = [e.bits(name, "b32") for name in (*a, *b, *c)]
    values += [ir.Constant(I64, 0)] * (15 - len(values)) + [ir.Constant(I64, kind_a | kind_b << 4 | chunks << 8)]
    results = e.wait(fibers.AT_WARP, fibers.MMA, _EVERYONE, values, 4)
    for register, value in zip(out, results, strict=True):
        e.put(register, e.b.trunc(value, I32))


@instruction("ldmatrix")
def _load_matrix(e: Emitter, i: Instruction) -> None:
    out, address = i.operands
    if "m8n8" not in i.op or "b16" not in i.op or not isinstance(address, Address):
        raise NotImplementedError(".".join(i.op))
    registers = out if isinstance(out, tuple) else (out,)
    count = len(registers)
    place = e.address(address)
    used = e.b.icmp_unsigned("<", e.header(fibers.SPECIAL + 12), ir.Constant(I64, 8 * count))
    with e.b.if_then(used):  # other lanes' addresses are not looked at
        e.checked(place, 16, READ, SHARED_SPACE)
    kind = fibers.LDMATRIX_T if "trans" in i.op else fibers.LDMATRIX
    values = e.wait(fibers.AT_WARP, kind, _EVERYONE, [place, ir.Constant(I64, count)], count)
    for register, value in zip(registers, values, strict=True):
        e.put(register, e.b.trunc(value, I32))
