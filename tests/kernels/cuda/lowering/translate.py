"""A kernel of PTX to LLVM IR: registers, blocks, and the table of instructions that ``instructions`` fills.

A PTX register becomes a stack slot of as many bits; LLVM makes values of them again. Fixed addresses of
``fibers.STATE`` stand in the code: it runs in this process only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from . import fibers
from .checking import CONSTANT, GLOBAL, LOCAL, SHARED_SPACE, packed
from .fibers import STATE
from .ptx import SIZES, Address, Instruction, Kernel, Label, Operand, PTXError

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
POINTER = ir.PointerType()
VOID = ir.VoidType()
FLOATS = {"f16": ir.HalfType(), "f32": ir.FloatType(), "f64": ir.DoubleType()}
PARAM = -1
SPACES = {"global": GLOBAL, "shared": SHARED_SPACE, "local": LOCAL, "const": CONSTANT, "param": PARAM}

HELPERS = {
    "cu_switch": [I64, I64],
    "cu_check": [I64, I64, I64],
    "cu_copy_later": [I64, I64, I64, I64],
    "cu_copies_end_group": [I64],
    "cu_copies_wait": [I64, I64],
}
"""What translated code calls, with the types of arguments; ``lowered`` binds them to addresses."""

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


SPECIAL = {
    f"%{name}.{axis}": 3 * n + i
    for n, name in enumerate(("tid", "ntid", "ctaid", "nctaid"))
    for i, axis in enumerate("xyz")
}


class Emitter:
    """A kernel on its way."""

    def __init__(self, module: ir.Module, kernel: Kernel, places: dict[str, int]):
        """``places``: addresses of variables by name, each in its space."""
        self.module, self.kernel, self.places = module, kernel, places
        self.target = ir.Function(module, ir.FunctionType(VOID, []), "start")
        self.b = ir.IRBuilder(self.target.append_basic_block("entry"))
        self.line = 0
        self.slots = {name: self.b.alloca(ir.IntType(bits_of(kind))) for name, kind in kernel.registers.items()}
        self.params: dict[str, ir.Value] = {}
        for number, parameter in enumerate(kernel.params):
            self.params[parameter.name] = self.b.add(self.header(fibers.PARAMS), self.const("u64", 16 * number))
        for variable in kernel.variables:
            if variable.space == "local":
                slot = self.b.alloca(ir.ArrayType(I8, variable.size))
                slot.align = max(16, variable.align)
                self.params[variable.name] = self.b.ptrtoint(slot, I64)
        self.labels = {item.name: self.target.append_basic_block() for item in kernel.body if isinstance(item, Label)}

    # --- values

    def const(self, kind: str, value: float) -> ir.Constant:
        return ir.Constant(type_of(kind), value)

    def literal(self, text: str, kind: str) -> ir.Constant | None:
        """A number's bits, None if ``text`` is none."""
        if text[:2] in ("0f", "0F", "0d", "0D"):
            return ir.Constant(ir.IntType(bits_of(kind)), int(text[2:], 16))
        if not (text[0].isdigit() or (text[0] == "-" and text[1:2].isdigit())):
            return None
        if kind in FLOATS:
            return self.literal("0f" + struct.pack(">f" if kind == "f32" else ">d", float(int(text, 0))).hex(), kind)
        width = bits_of(kind)
        return ir.Constant(ir.IntType(width), int(text.rstrip("U"), 0) & ((1 << width) - 1))

    def header(self, field: int) -> ir.Value:
        """A number of the state, an i64."""
        return self.b.load(self.at(ir.Constant(I64, STATE.ctypes.data + 8 * field)), typ=I64)

    def at(self, address: ir.Value) -> ir.Value:
        return self.b.inttoptr(address, POINTER)

    def bits(self, operand: Operand, kind: str) -> ir.Value:
        """An operand's bits, as many as ``kind`` has; wider registers lose the upper ones."""
        wanted = ir.IntType(bits_of(kind))
        if isinstance(operand, tuple):
            raise PTXError(f"{operand} where one value is meant")
        if operand.startswith("!"):
            return self.b.not_(self.bits(operand[1:], kind))
        if operand in self.slots:
            value = self.b.load(self.slots[operand], typ=ir.IntType(bits_of(self.kernel.registers[operand])))
        elif (literal := self.literal(operand, kind)) is not None:
            return literal
        elif operand in SPECIAL:
            value = self.header(fibers.SPECIAL + SPECIAL[operand])
        elif operand == "%dynamic_smem_size":
            value = self.header(fibers.SHARED_SIZE)
        elif operand in self.params:
            value = self.params[operand]
        else:
            value = ir.Constant(I64, self.places[operand])
        if value.type.width > wanted.width:
            return self.b.trunc(value, wanted)
        return self.b.zext(value, wanted) if value.type.width < wanted.width else value

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
            value = self.b.bitcast(value, ir.IntType({v: bits_of(k) for k, v in FLOATS.items()}[value.type]))
        wanted = ir.IntType(bits_of(self.kernel.registers[register]))
        if value.type.width > wanted.width:
            value = self.b.trunc(value, wanted)
        elif value.type.width < wanted.width:
            value = self.b.sext(value, wanted) if signed else self.b.zext(value, wanted)
        self.b.store(value, self.slots[register])

    def intrinsic(self, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
        """Call an LLVM intrinsic by its full name."""
        kind = ir.FunctionType(result, [value.type for value in values])
        found = self.module.globals.get(name) or ir.Function(self.module, kind, name)
        return self.b.call(found, values)

    # --- memory

    def address(self, operand: Operand) -> ir.Value:
        """The number an address operand stands for, in its own space."""
        if not isinstance(operand, Address):
            raise PTXError(f"{operand} is no address")
        return self.b.add(self.bits(operand.base, "u64"), ir.Constant(I64, operand.offset))

    def checked(self, address: ir.Value, size: int, use: int, space: int) -> ir.Value:
        """Check an access; the host's address of it."""
        if space != PARAM:
            self.call("cu_check", address, ir.Constant(I64, packed(size, use, space, self.line)))
        return self.b.add(address, self.header(fibers.SHARED)) if space == SHARED_SPACE else address

    def call(self, name: str, *values: ir.Value) -> ir.Value:
        """A helper; all but ``cu_switch`` take the state first."""
        state = [] if name == "cu_switch" else [ir.Constant(I64, STATE.ctypes.data)]
        found = self.module.globals.get(name) or ir.Function(self.module, ir.FunctionType(VOID, HELPERS[name]), name)
        return self.b.call(found, [*state, *values])

    # --- meetings

    def field(self, field: int) -> ir.Value:
        """Pointer to a field of the running fiber's record."""
        return self.at(self.b.add(self.header(fibers.RECORD_AT), ir.Constant(I64, 8 * field)))

    def wait(self, status: int, kind: int, mask: ir.Value, arguments: Sequence[ir.Value], results: int) -> list[Any]:
        """Say what is brought, let others run, return ``results`` numbers (i64)."""
        fields: dict[int, Any] = {fibers.KIND: kind, fibers.MASK: mask, fibers.LINE: self.line, fibers.STATUS: status}
        fields |= {fibers.ARGS + i: value for i, value in enumerate(arguments)}
        for field, value in fields.items():
            value = ir.Constant(I64, value) if isinstance(value, int) else value
            self.b.store(value if value.type == I64 else self.b.zext(value, I64), self.field(field))
        mine = self.b.add(self.header(fibers.RECORD_AT), ir.Constant(I64, 8 * fibers.SP))
        self.call("cu_switch", mine, ir.Constant(I64, STATE.ctypes.data + 8 * fibers.SCHEDULER))
        return [self.b.load(self.field(fibers.OUT + i), typ=I64) for i in range(results)]

    # --- the body

    def run(self) -> None:
        """Emit everything."""
        for item in self.kernel.body:
            if isinstance(item, Label):
                if not self.b.block.is_terminated:
                    self.b.branch(self.labels[item.name])
                self.b.position_at_end(self.labels[item.name])
                continue
            if self.b.block.is_terminated:  # not reachable
                self.b.position_at_end(self.target.append_basic_block())
            self.line = item.line
            try:
                self._one(item)
            except (KeyError, PTXError, NotImplementedError) as error:
                raise PTXError(f"cannot translate {item}: {error!r}") from error
        if not self.b.block.is_terminated:
            self.end()

    def end(self) -> None:
        """The fiber is done."""
        self.wait(fibers.DONE, 0, ir.Constant(I64, 0), (), 0)
        self.b.unreachable()

    def _one(self, item: Instruction) -> None:
        handler = TABLE[item.op[0]]
        if not item.guard:
            return handler(self, item)
        inside, after = self.target.append_basic_block(), self.target.append_basic_block()
        self.b.cbranch(self.get(item.guard, "pred"), inside, after)
        self.b.position_at_end(inside)
        handler(self, item)
        if not self.b.block.is_terminated:
            self.b.branch(after)
        self.b.position_at_end(after)
        return None


@instruction("bra")
def _branch(e: Emitter, i: Instruction) -> None:
    e.b.branch(e.labels[i.operands[0]])  # type: ignore[index]


@instruction("ret", "exit")
def _return(e: Emitter, i: Instruction) -> None:
    e.end()


def translated(kernel: Kernel, places: dict[str, int]) -> str:
    """LLVM IR whose function ``start`` runs the kernel in one fiber."""
    module = ir.Module("kernel")
    Emitter(module, kernel, places).run()
    return str(module)
