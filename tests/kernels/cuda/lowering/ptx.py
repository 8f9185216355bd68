"""PTX text to data: variables, functions, instructions with unique register names.

Only as much grammar as NVVM and inline assembly use. Reference: "Parallel Thread Execution ISA" (NVIDIA), chapters 4, 5
and 7. What is not understood raises ``PTXError`` with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .compiling import place

# Bytes of a type by its last name: f16x2 and other packed pairs are b32 in registers.
SIZES = {"pred": 1, "b128": 16, "f16x2": 4, "bf16x2": 4, "f16": 2, "bf16": 2, "tf32": 4} | {
    f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64)
}


class PTXError(ValueError):
    """Text that is not understood."""


class Address(NamedTuple):
    """``[base + offset]``; base is a register, a variable, or "" for a number."""

    base: str
    offset: int


class Pair(NamedTuple):
    """``first|second``: a value and a predicate, or two predicates."""

    first: str
    second: str


Operand = str | Address | Pair | tuple  # a tuple of names: a vector


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
class Function:
    """``registers`` maps names to types, ``targets`` the names of tables of labels to those labels."""

    name: str
    entry: bool
    params: list[Variable]
    results: list[Variable]
    body: list[Instruction | Label] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    targets: dict[str, list[str]] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)


@dataclass
class Module:
    target: str
    variables: list[Variable]
    functions: dict[str, Function]

    @property
    def entry(self) -> Function:
        """The one kernel."""
        return next(function for function in self.functions.values() if function.entry)


_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common|ptr)\s+)*\.(?P<space>param|shared|local|global|const)\s+"
    r"(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<kind>\w+)\s+"
    r"(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align\s+\d+\s+)?)?(?P<name>[\w$%]+)\s*"
    r"(?P<array>\[\s*\d*\s*\])?\s*(?:=\s*(?P<initial>.*))?$",
    re.DOTALL,
)
_HEAD = re.compile(
    r"(?:\.(?:visible|extern|weak)\s+)*\.(?P<what>entry|func)\s*(?:\((?P<results>[^)]*)\)\s*)?"
    r"(?P<name>[\w$]+)\s*(?:\((?P<params>[^)]*)\))?\s*(?P<limits>(?:\.[^{;]*)?)$",
    re.DOTALL,
)
_REGISTERS = re.compile(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)$", re.DOTALL)
_ADDRESS = re.compile(r"\[\s*([%\w$.]*?)\s*([+-]\s*-?\s*(?:0x[0-9a-fA-F]+|\d+))?\s*\]$")


def variable(text: str) -> Variable:
    """One declaration, without its semicolon."""
    match = _VARIABLE.match(text.strip())
    if not match:
        raise PTXError(f"not a variable: {text.strip()[:80]}")
    kind, array = match["kind"], match["array"]
    count = 1 if array is None else int(array.strip("[] \n") or 0)
    unit = SIZES[kind]
    initial = tuple(part.strip() for part in (match["initial"] or "").strip().strip("{}").split(",") if part.strip())
    return Variable(match["space"], match["name"], kind, unit * count, int(match["align"] or unit), initial)


def _split(text: str) -> list[str]:
    """At commas outside brackets and braces."""
    parts, depth, last = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "[{(") - (char in "]})")
        if char == "," and not depth:
            parts.append(text[last:at].strip())
            last = at + 1
    return [*parts, text[last:].strip()] if text.strip() else []


class _Body:
    """Statements of one function; names of inner scopes become unique."""

    def __init__(self, function: Function, text: str):
        self.function, self.text, self.line = function, text, 0
        self.scopes: list[dict[str, str]] = [{}]
        self.opened = 0
        self._read()

    def _statements(self) -> Iterator[str]:
        """Statements without ";", "{" and "}" of scopes by themselves, line directives as they stand."""
        at, text = 0, self.text
        while at < len(text):
            if text[at] in " \t\n;":
                at += 1
            elif text[at] in "{}":
                yield text[at]
                at += 1
            elif re.compile(r"\.(loc|file)\s").match(text, at):
                end = text.find("\n", at)
                yield text[at:end]
                at = end
            elif label := re.compile(r"([\w$]+)\s*:(?!:)").match(text, at):
                yield label[1] + ":"
                at = label.end()
            else:
                end = text.find(";", at)
                if end < 0:
                    raise PTXError(f"unfinished: {text[at : at + 60]}")
                yield " ".join(text[at:end].split())
                at = end + 1

    def _read(self) -> None:
        for statement in self._statements():
            if statement == "{":
                self.opened += 1
                self.scopes.append({})
            elif statement == "}":
                self.scopes.pop()
            elif re.match(r"\.loc\s", statement):
                file, line = re.findall(r"\d+", statement)[:2]
                self.line = place(int(file), int(line))
            elif statement.startswith((".file", ".pragma")):
                continue
            elif statement.startswith(".reg"):
                self._registers(statement)
            elif statement.startswith((".param", ".local", ".shared")):
                found = variable(statement)
                self.function.variables.append(found._replace(name=self._declare(found.name)))
            elif statement.endswith(":"):
                self.function.body.append(Label(self._name(statement[:-1])))
            elif "branchtargets" in statement:
                names = statement.split("branchtargets", 1)[1]
                last = self.function.body.pop()  # its own label is no place in the code
                self.function.targets[last.name] = [name.strip() for name in names.split(",")]  # type: ignore[union-attr]
            else:
                self.function.body.append(self._instruction(statement))

    def _declare(self, name: str) -> str:
        unique = name if len(self.scopes) == 1 else f"{name}@{self.opened}"
        self.scopes[-1][name] = unique
        return unique

    def _name(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def _registers(self, statement: str) -> None:
        match = _REGISTERS.match(statement)
        if not match:
            raise PTXError(statement)
        for name in match[2].split(","):
            name, _, count = name.strip().partition("<")
            for full in [f"{name}{i}" for i in range(int(count.strip("> ")))] if count else [name]:
                self.function.registers[self._declare(full)] = match[1]

    def _operand(self, text: str) -> Operand:
        if text.startswith("{"):
            return tuple(self._operand(part) for part in _split(text.strip("{} ")))
        if text.startswith("["):
            match = _ADDRESS.match(text)
            if not match:
                raise PTXError(f"address {text}")
            base, offset = match[1], int((match[2] or "0").replace(" ", "").replace("+-", "-"), 0)
            if re.fullmatch(r"-?(0x)?\d+", base):
                return Address("", int(base, 0) + offset)
            return Address(self._name(base), offset)
        if text.startswith("("):
            return tuple(self._operand(part) for part in _split(text.strip("() ")))
        if "|" in text:
            first, second = (self._name(part.strip()) for part in text.split("|"))
            return Pair(first, second)
        return "!" + self._name(text[1:].strip()) if text.startswith("!") else self._name(text)

    def _instruction(self, statement: str) -> Instruction:
        guard = ""
        if statement.startswith("@"):
            guard, statement = statement[1:].split(None, 1)
            guard = "!" + self._name(guard[1:]) if guard.startswith("!") else self._name(guard)
        op, _, rest = statement.partition(" ")
        operands = tuple(self._operand(part) for part in _split(rest))
        return Instruction(tuple(op.split(".")), operands, guard, self.line)


def parse(text: str) -> Module:
    """A whole file."""
    text = re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", text), flags=re.DOTALL) + "\n"
    target = re.search(r"\.target\s+(\w+)", text)
    module = Module(target[1] if target else "", [], {})
    at = 0
    while at < len(text):
        if text[at].isspace() or text[at] == ";":
            at += 1
            continue
        if skipped := re.compile(r"\.(version|target|address_size|file|loc)[^\n]*\n").match(text, at):
            at = skipped.end()
            continue
        if section := re.compile(r"\.section\s+[^{]*\{[^}]*\}").match(text, at):
            at = section.end()
            continue
        semicolon, brace = text.find(";", at), text.find("{", at)
        equals = text.find("=", at)
        if brace < 0 or (0 <= semicolon < brace) or (0 <= equals < brace):
            declared = text[at:semicolon]
            if ".func" not in declared:
                module.variables.append(variable(declared))
            at = semicolon + 1
            continue
        match = _HEAD.match(text[at:brace].strip())
        if not match:
            raise PTXError(f"not a function: {text[at:brace].strip()[:80]}")
        depth, end = 1, brace + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        sides = [[variable(part) for part in _split(side or "")] for side in (match["params"], match["results"])]
        function = Function(match["name"], match["what"] == "entry", *sides)
        function.limits = dict(re.findall(r"\.(\w+)\s+([\d, ]+)", match["limits"]))
        _Body(function, text[brace + 1 : end - 1])
        module.functions[function.name] = function
        at = end
    return module
