"""PTX functions to LLVM IR: registers, blocks, calls, and the table of instructions that other modules fill.

A PTX register becomes a stack slot of as many bits; LLVM makes values of them again. Every function takes the addresses
of its results and parameters. Fixed addresses of ``fibers.STATE`` stand in the code: it runs in this process only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from . import fibers
from .checking import CONSTANT, GENERIC, GLOBAL, LOCAL, READ, SHARED_SPACE, WRITE, packed
from .fibers import STATE
from .ptx import SIZES, Address, Function, Instruction, Label, Module, Operand, PTXError

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
POINTER = ir.PointerType()
VOID = ir.VoidType()
FLOATS = {"f16": ir.HalfType(), "f32": ir.FloatType(), "f64": ir.DoubleType()}
SPACES = {
    "global": GLOBAL, "shared": SHARED_SPACE, "shared::cta": SHARED_SPACE, "local": LOCAL, "const": CONSTANT,
    "param": -1,
}  # fmt: skip

# What translated code calls: names and types; lowered.py binds them to addresses.
HELPERS = {
    "cu_switch": (VOID, [I64, I64]),
    "cu_check": (VOID, [I64, I64, I64]),
    "cu_fault": (VOID, [I64, I64, I64]),
    "cu_copy_later": (VOID, [I64, I64, I64, I64]),
    "cu_copies_end_group": (VOID, [I64]),
    "cu_copies_wait": (VOID, [I64, I64]),
}

Handler = Callable[["Emitter", Instruction], None]
TABLE: dict[str, Handler] = {}


def instruction(*names: str) -> Callable[[Handler], Handler]:
    """Decorator: the handler of all instructions whose first name is one of ``names``."""

    def enter(handler: Handler) -> Handler:
        TABLE.update(dict.fromkeys(names, handler))
        return handler

    return enter


def bits_of(kind: str) -> int:
    return 1 if kind == "pred" else 8 * SIZES[kind]


def type_of(kind: str) -> ir.Type:
    """The LLVM type of values of a PTX type; bf16 and packed pairs are integers."""
    return FLOATS.get(kind) or ir.IntType(bits_of(kind))


def int_type(kind: str) -> ir.IntType:
    return ir.IntType(bits_of(kind))


SPECIAL = {"%laneid": 12, "%warpid": 13, "%nwarpid": 14} | {
    f"%{name}.{axis}": 3 * n + i
    for n, name in enumerate(("tid", "ntid", "ctaid", "nctaid"))
    for i, axis in enumerate("xyz")
}


class Counts:
    """How often threads pass the stretches of a function's body that have neither labels nor branches inside.

    stretches  (first instruction of the body, its number of instructions), in order
    passed     int64 (stretches, threads)
    """

    def __init__(self, function: Function):
        self.stretches: list[tuple[int, int]] = []
        places = 2 + sum(isinstance(item, Label) or item.op[0] in ("bra", "brx") for item in function.body)
        self.passed = np.zeros((places, fibers.MAX_THREADS), np.int64)


class Emitter:
    """One function on its way."""

    def __init__(
        self, module: ir.Module, function: Function, target: ir.Function, places: dict[str, tuple[int, int]],
        counts: Counts | None = None,
    ):  # fmt: skip
        """``places``: variables of the module by name, as (space, address in that space)."""
        self.counts = counts
        self.module, self.function, self.target, self.places = module, function, target, dict(places)
        self.b = ir.IRBuilder(target.append_basic_block("entry"))
        self.line = 0
        self.slots = {name: self.b.alloca(int_type(kind)) for name, kind in function.registers.items()}
        self.params: dict[str, ir.Value] = {}
        for variable, argument in zip(function.results + function.params, target.args, strict=True):
            self.params[variable.name] = argument
        for variable in function.variables:
            slot = self.b.alloca(ir.ArrayType(I8, max(1, variable.size)))
            slot.align = max(16, variable.align)
            self.params[variable.name] = self.b.ptrtoint(slot, I64)
        self.carry = self.b.alloca(I1)
        self.labels = {item.name: target.append_basic_block() for item in function.body if isinstance(item, Label)}

    # --- values

    def literal(self, text: str, kind: str) -> ir.Constant | None:
        """A number, None if ``text`` is none."""
        if text[:2] in ("0f", "0F"):
            value = struct.unpack(">f", bytes.fromhex(text[2:]))[0]
        elif text[:2] in ("0d", "0D"):
            value = struct.unpack(">d", bytes.fromhex(text[2:]))[0]
        elif text[0].isdigit() or (text[0] == "-" and text[1:2].isdigit()):
            number = text.rstrip("U")
            octal = len(number) > 1 and number.isdigit() and number[0] == "0"
            number = int(number, 8) if octal else int(number, 0)
            if kind in FLOATS:
                return ir.Constant(type_of(kind), float(number))
            width = bits_of(kind)
            return ir.Constant(ir.IntType(width), number & ((1 << width) - 1))
        else:
            return None
        if kind in FLOATS:
            return ir.Constant(type_of(kind), value)
        pattern = struct.pack("<f", value) if text[1] in "fF" else struct.pack("<d", value)
        return ir.Constant(int_type(kind), int.from_bytes(pattern, "little"))

    def header(self, field: int, kind: ir.Type = I64) -> ir.Value:
        """A number of the state."""
        value = self.b.load(self.at(ir.Constant(I64, STATE.ctypes.data + 8 * field)), typ=I64)
        return value if kind is I64 else self.b.trunc(value, kind)

    def at(self, address: ir.Value) -> ir.Value:
        return self.b.inttoptr(address, POINTER)

    def special(self, name: str) -> ir.Value | None:
        """The value of a special register as i64."""
        if name in SPECIAL:
            return self.header(fibers.SPECIAL + SPECIAL[name])
        if name == "%dynamic_smem_size" or name == "%total_smem_size":
            return self.header(fibers.SHARED_SIZE)
        if name in ("%clock", "%clock64", "%globaltimer"):
            return self.header(fibers.SEQUENCE)
        if name in ("%smid", "%envreg1", "%envreg2"):
            return ir.Constant(I64, 0)
        if name.startswith("%lanemask_"):
            lane, one = self.header(fibers.SPECIAL + 12), ir.Constant(I64, 1)
            bit = self.b.shl(one, lane)
            below = self.b.sub(bit, one)
            value = {
                "eq": bit, "lt": below, "le": self.b.or_(bit, below), "ge": self.b.not_(below),
                "gt": self.b.not_(self.b.or_(bit, below)),
            }[name.split("_")[1]]  # fmt: skip
            return self.b.and_(value, ir.Constant(I64, 0xFFFFFFFF))
        return ir.Constant(I64, 32) if name == "WARP_SZ" else None

    def bits(self, operand: Operand, kind: str) -> ir.Value:
        """An operand's bits, as many as ``kind`` has; wider registers lose the upper ones."""
        wanted = int_type(kind)
        if isinstance(operand, tuple):
            raise PTXError(f"{operand} where one value is meant")
        if operand.startswith("!"):
            return self.b.not_(self.bits(operand[1:], kind))
        if operand in self.slots:
            value = self.b.load(self.slots[operand], typ=int_type(self.function.registers[operand]))
        else:
            literal = self.literal(operand, kind)
            if literal is not None:
                return self.b.bitcast(literal, wanted) if kind in FLOATS else literal
            value = self.special(operand)
            if value is None:
                value = self.symbol(operand)
        if value.type.width > wanted.width:
            return self.b.trunc(value, wanted)
        return self.b.zext(value, wanted) if value.type.width < wanted.width else value

    def symbol(self, name: str) -> ir.Value:
        """The address of a variable in its own space."""
        if name in self.places:
            return ir.Constant(I64, self.places[name][1])
        if name in self.params:
            return self.params[name]
        raise PTXError(f"{self.function.name}: no {name}")

    def get(self, operand: Operand, kind: str) -> ir.Value:
        """An operand as a value of ``kind``."""
        value = self.bits(operand, kind)
        return self.b.bitcast(value, type_of(kind)) if kind in FLOATS else value

    def put(self, register: Operand, value: ir.Value, signed: bool = False) -> None:
        """Write a register; wider ones are filled with the sign or with zeros. "_" takes nothing."""
        if register == "_":
            return
        if isinstance(register, tuple):
            raise PTXError(f"{register} where one register is meant")
        if not isinstance(value.type, ir.IntType):
            width = {v: bits_of(k) for k, v in FLOATS.items()}[value.type]
            value = self.b.bitcast(value, ir.IntType(width))
        wanted = int_type(self.function.registers[register])
        if value.type.width > wanted.width:
            value = self.b.trunc(value, wanted)
        elif value.type.width < wanted.width:
            value = self.b.sext(value, wanted) if signed else self.b.zext(value, wanted)
        self.b.store(value, self.slots[register])

    def const(self, kind: str, value: float) -> ir.Constant:
        return ir.Constant(type_of(kind), value)

    def intrinsic(self, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
        """Call an LLVM intrinsic, or any other function, by its full name."""
        kind = ir.FunctionType(result, [value.type for value in values])
        found = self.module.globals.get(name) or ir.Function(self.module, kind, name)
        return self.b.call(found, values)

    # --- memory

    def address(self, operand: Operand) -> ir.Value:
        """The number an address operand stands for, in its own space."""
        if not isinstance(operand, Address):
            raise PTXError(f"{operand} is no address")
        base = self.bits(operand.base, "u64") if operand.base else ir.Constant(I64, 0)
        return self.b.add(base, ir.Constant(I64, operand.offset)) if operand.offset else base

    def checked(self, address: ir.Value, size: int, use: int, space: int) -> ir.Value:
        """Check an access; the host's address of it."""
        if space != -1:  # parameters
            what = ir.Constant(I64, packed(size, use, space, self.line))
            self.call("cu_check", address, what)
        return self.b.add(address, self.header(fibers.SHARED)) if space == SHARED_SPACE else address

    def load(self, address: ir.Value, kind: ir.Type, size: int, space: int, use: int = READ) -> ir.Value:
        return self.b.load(self.at(self.checked(address, size, use, space)), typ=kind, align=1)

    def store(self, address: ir.Value, value: ir.Value, size: int, space: int, use: int = WRITE) -> None:
        self.b.store(value, self.at(self.checked(address, size, use, space)), align=1)

    def call(self, name: str, *values: ir.Value) -> ir.Value:
        """A helper; all but ``cu_switch`` take the state first."""
        state = [] if name == "cu_switch" else [ir.Constant(I64, STATE.ctypes.data)]
        result, kinds = HELPERS[name]
        found = self.module.globals.get(name) or ir.Function(self.module, ir.FunctionType(result, kinds), name)
        return self.b.call(found, [*state, *values])

    # --- meetings

    def field(self, field: int) -> ir.Value:
        """Pointer to a field of the running fiber's record."""
        return self.at(self.b.add(self.header(fibers.RECORD_AT), ir.Constant(I64, 8 * field)))

    def wait(
        self, status: int, kind: int | ir.Value, mask: ir.Value, arguments: Sequence[ir.Value], results: int
    ) -> list[Any]:
        """Say what is brought, let others run, return ``results`` numbers (i64)."""

        def wide(value: ir.Value | int) -> ir.Value:
            if isinstance(value, int):
                return ir.Constant(I64, value)
            return value if value.type == I64 else self.b.zext(value, I64)

        fields = {fibers.KIND: kind, fibers.MASK: mask, fibers.LINE: self.line, fibers.STATUS: status}
        fields |= {fibers.ARGS + i: value for i, value in enumerate(arguments)}
        for field, value in fields.items():
            self.b.store(wide(value), self.field(field))
        mine = self.b.add(self.header(fibers.RECORD_AT), ir.Constant(I64, 8 * fibers.SP))
        self.call("cu_switch", mine, ir.Constant(I64, STATE.ctypes.data + 8 * fibers.SCHEDULER))
        return [self.b.load(self.field(fibers.OUT + i), typ=I64) for i in range(results)]

    # --- the body

    def _count(self, number: int) -> None:
        """A stretch begins with instruction ``number`` of the body."""
        if self.counts is None or self.b.block.is_terminated:
            return
        row = self.counts.passed[len(self.counts.stretches)]
        self.counts.stretches.append((number, 0))
        place = self.b.add(
            self.b.mul(self.header(fibers.FIBER), ir.Constant(I64, 8)), ir.Constant(I64, row.ctypes.data)
        )
        self.b.store(self.b.add(self.b.load(self.at(place), typ=I64), ir.Constant(I64, 1)), self.at(place))

    def run(self) -> None:
        """Emit everything."""
        self._count(0)
        for number, item in enumerate(self.function.body):
            if isinstance(item, Label):
                if not self.b.block.is_terminated:
                    self.b.branch(self.labels[item.name])
                self.b.position_at_end(self.labels[item.name])
                self._count(number)
                continue
            if self.b.block.is_terminated:  # not reachable
                self.b.position_at_end(self.target.append_basic_block())
            elif number and isinstance(last := self.function.body[number - 1], Instruction) and last.op[0] == "bra":
                self._count(number)
            if self.counts is not None:
                first, count = self.counts.stretches[-1]
                self.counts.stretches[-1] = first, count + 1
            self.line = item.line
            try:
                self._one(item)
            except (KeyError, PTXError, NotImplementedError) as error:
                raise PTXError(f"cannot translate {item}: {error}") from error
        if not self.b.block.is_terminated:
            self.b.ret_void()

    def _one(self, item: Instruction) -> None:
        handler = TABLE.get(item.op[0])
        if handler is None:
            raise PTXError("unknown instruction")
        if not item.guard:
            return handler(self, item)
        condition = self.get(item.guard, "pred")
        inside, after = self.target.append_basic_block(), self.target.append_basic_block()
        self.b.cbranch(condition, inside, after)
        self.b.position_at_end(inside)
        handler(self, item)
        if not self.b.block.is_terminated:
            self.b.branch(after)
        self.b.position_at_end(after)
        return None


@instruction("bra")
def _branch(e: Emitter, i: Instruction) -> None:
    e.b.branch(e.labels[i.operands[0]])  # type: ignore[index]


@instruction("brx")
def _branch_by_index(e: Emitter, i: Instruction) -> None:
    index, table = i.operands
    targets = [e.labels[name] for name in e.function.targets[table]]  # type: ignore[index]
    switch = e.b.switch(e.get(index, "u32"), targets[0])
    for number, target in enumerate(targets):
        switch.add_case(ir.Constant(I32, number), target)


@instruction("ret", "exit")
def _return(e: Emitter, i: Instruction) -> None:
    if i.op[0] == "exit" and not e.function.entry:
        raise NotImplementedError("exit inside a function")
    e.b.ret_void()


@instruction("trap", "brkpt")
def _trap(e: Emitter, i: Instruction) -> None:
    e.call("cu_fault", ir.Constant(I64, fibers.TRAP), ir.Constant(I64, packed(0, 0, 0, e.line)))


@instruction("call")
def _call(e: Emitter, i: Instruction) -> None:
    operands = list(i.operands)
    results = operands.pop(0) if isinstance(operands[0], tuple) and not isinstance(operands[0], Address) else ()
    name, *rest = operands
    arguments = [e.symbol(part) for part in (*results, *(rest[0] if rest else ()))]
    if name not in e.module.globals:
        raise NotImplementedError(f"{name} is not in this file")
    e.b.call(e.module.globals[name], arguments)


def translated(module: Module, places: dict[str, tuple[int, int]], counts: Counts | None = None) -> str:
    """LLVM IR of a file; its function ``start`` runs the kernel in one fiber. ``counts`` are the kernel's."""
    out = ir.Module("kernel")
    for function in module.functions.values():
        arguments = [I64] * len(function.results + function.params)
        ir.Function(out, ir.FunctionType(VOID, arguments), function.name)
    for function in module.functions.values():
        Emitter(out, function, out.globals[function.name], places, counts if function.entry else None).run()
    start = ir.Function(out, ir.FunctionType(VOID, []), "start")
    empty = Function("start", True, [], [])
    e = Emitter(out, empty, start, {})
    params = e.header(fibers.PARAMS)
    slots = [e.b.add(params, ir.Constant(I64, 16 * number)) for number in range(len(module.entry.params))]
    e.b.call(out.globals[module.entry.name], slots)
    e.wait(fibers.DONE, 0, ir.Constant(I64, 0), (), 0)
    e.b.unreachable()
    return str(out)


def kinds(i: Instruction) -> list[str]:
    """The types among an instruction's names, in order."""
    return [part for part in i.op[1:] if part in SIZES]


__all__ = ["GENERIC", "TABLE", "Counts", "Emitter", "instruction", "kinds", "translated"]
