"""PTX text to data: one kernel's variables and instructions, with unique register names.

Only as much grammar as NVVM and inline assembly use for kernels of this backend: one entry a file, no functions.
Reference: "Parallel Thread Execution ISA" (NVIDIA), chapters 4, 5 and 7. What is not understood raises ``PTXError``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .compiling import place

SIZES = {"pred": 1, "f16x2": 4, "f16": 2, "bf16": 2} | {
    f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64)
}
"""Bytes of a type by its name: packed pairs are b32 in registers."""


class PTXError(ValueError):
    """Text that is not understood."""


class Address(NamedTuple):
    """``[base + offset]``; base is a register or a variable."""

    base: str
    offset: int


Operand = str | Address | tuple  # a tuple of names: a vector, or a value and a predicate


class Variable(NamedTuple):
    """A variable of any space; ``size`` in bytes, 0 for dynamic shared memory; ``initial`` as many values as given."""

    space: str
    name: str
    kind: str
    size: int
    align: int
    initial: tuple[str, ...] = ()


class Instruction(NamedTuple):
    """``guard`` is a predicate register, "!" before it if negated, or ""; ``line`` is a ``place`` in the source."""

    op: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: str
    line: int

    def __str__(self) -> str:
        return f"{self.guard and '@' + self.guard + ' '}{'.'.join(self.op)} {', '.join(map(str, self.operands))}"


class Label(NamedTuple):
    name: str


@dataclass
class Kernel:
    """``registers`` maps names to types; ``variables`` are those of the file and of the body."""

    name: str
    params: list[Variable]
    variables: list[Variable]
    body: list[Instruction | Label] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)


_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?P<space>param|shared|local|global|const)\s+"
    r"(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<kind>\w+)\s+(?P<name>[\w$%]+)\s*(?P<array>\[\s*\d*\s*\])?\s*"
    r"(?:=\s*(?P<initial>.*))?$",
    re.DOTALL,
)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)[^{]*\{", re.DOTALL)
_ADDRESS = re.compile(r"\[\s*([%\w$.]+)\s*([+-]\s*-?\s*\d+)?\s*\]$")
_LABEL = re.compile(r"([\w$]+)\s*:(?!:)")


def variable(text: str) -> Variable:
    """One declaration, without its semicolon."""
    match = _VARIABLE.match(text.strip())
    if not match:
        raise PTXError(f"not a variable: {text.strip()[:80]}")
    kind, array = match["kind"], match["array"]
    count = 1 if array is None else int(array.strip("[] \n") or 0)
    initial = tuple(part.strip() for part in (match["initial"] or "").strip().strip("{}").split(",") if part.strip())
    return Variable(
        match["space"], match["name"], kind, SIZES[kind] * count, int(match["align"] or SIZES[kind]), initial
    )


def _split(text: str) -> list[str]:
    """At commas outside brackets and braces."""
    return [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", text)] if text.strip() else []


def _statements(text: str) -> Iterator[str]:
    """Statements without ";", "{" and "}" of scopes by themselves, ``.loc`` as it stands."""
    at = 0
    while at < len(text):
        if text[at] in " \t\n;":
            at += 1
            continue
        label = _LABEL.match(text, at)
        end = (
            at + 1
            if text[at] in "{}"
            else label.end()
            if label
            else text.find("\n" if text.startswith((".loc ", ".loc\t"), at) else ";", at)
        )
        if end < 0:
            raise PTXError(f"unfinished: {text[at : at + 60]}")
        yield " ".join(text[at:end].split())
        at = end


def _operand(text: str) -> Operand:
    if text[0] == "{":
        return tuple(_split(text.strip("{} ")))
    if text[0] == "[":
        match = _ADDRESS.match(text)
        if not match:
            raise PTXError(f"address {text}")
        return Address(match[1], int((match[2] or "0").replace(" ", "").replace("+-", "-")))
    return tuple(text.split("|")) if "|" in text else text


def _instruction(statement: str, line: int) -> Instruction:
    guard = ""
    if statement.startswith("@"):
        guard, statement = statement[1:].split(None, 1)
    op, _, rest = statement.partition(" ")
    return Instruction(tuple(op.split(".")), tuple(map(_operand, _split(rest))), guard, line)


def parse(text: str) -> Kernel:
    """A whole file."""
    text = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", text), flags=re.DOTALL)
    entry = _ENTRY.search(text)
    if not entry:
        raise PTXError("no kernel")
    head = re.sub(r"\.(version|target|address_size|file)[^\n]*\n", "", text[: entry.start()])
    declared = [part for part in head.replace(".visible", "").split(";") if part.strip()]
    kernel = Kernel(entry[1], [variable(part) for part in _split(entry[2])], [variable(part) for part in declared])
    depth, line, scopes = 1, 0, 0
    renamed: list[dict[str, str]] = [{}]
    for statement in _statements(text[entry.end() :]):
        if statement == "{":
            depth, scopes = depth + 1, scopes + 1
            renamed.append({})
        elif statement == "}":
            depth -= 1
            if not depth:
                break
            renamed.pop()
        elif statement.startswith(".loc "):
            file, number = re.findall(r"\d+", statement)[:2]
            line = place(int(file), int(number))
        elif statement.startswith(".reg"):
            _, kind, names = statement.split(" ", 2)
            for name in names.split(","):
                name, _, count = name.strip().partition("<")
                for full in [f"{name}{i}" for i in range(int(count.strip("> ")))] if count else [name]:
                    unique = full if depth == 1 else f"{full}@{scopes}"
                    renamed[-1][full] = unique
                    kernel.registers[unique] = kind.strip(".")
        elif statement.startswith((".local", ".shared")):
            kernel.variables.append(variable(statement))
        elif statement.startswith("."):
            continue  # pragmas
        elif statement.endswith(":"):
            kernel.body.append(Label(statement[:-1].strip()))
        else:
            for names_here in reversed(renamed[1:]):
                for name, unique in names_here.items():
                    statement = re.sub(rf"(?<![\w$%.]){re.escape(name)}(?![\w$@])", unique, statement)
            kernel.body.append(_instruction(statement, line))
    return kernel
