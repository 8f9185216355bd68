"""One-line mistakes in a module: where they can be made, and what then stands there.

Left out: mistakes of more than one line, message texts (f-strings), annotations, names and strings.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

SWAPS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
    ast.Pow: ("**", "*"), ast.BitXor: ("^", "|"), ast.MatMult: ("@", "*"),
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}

Edit = tuple[int, int, str]
"""First byte, end byte, what stands there instead."""


class Places:
    """Every single edit of one module that a tired engineer could have made."""

    def __init__(self, source: bytes):
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        """Bytes of ``node``; ast counts columns in bytes of UTF-8."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        starts = self.starts
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def between(self, left: ast.expr, op: ast.AST, right: ast.expr) -> Iterator[Edit]:
        """The operator between two operands; parentheses and line breaks may stand there, too."""
        start, end = self.span(left)[1], self.span(right)[0]
        old, new = SWAPS[type(op)]
        at = self.source.find(old.encode(), start, end)
        if at >= 0:
            yield at, at + len(old), new

    def crossed(self, left: ast.expr, right: ast.expr) -> str:
        """From ``left`` to ``right``, each with the other's text."""
        between = self.source[self.span(left)[1] : self.span(right)[0]].decode()
        return self.text(right) + between + self.text(left)

    def walk(self, node: ast.AST) -> Iterator[Edit]:
        """Edits of ``node`` and of all below it that runs."""
        yield from self.edits(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                    yield from self.walk(child)

    def edits(self, node: ast.AST) -> Iterator[Edit]:
        match node:
            case ast.Compare(left, ops, comparators):
                for a, op, b in zip([left, *comparators], ops, comparators, strict=False):
                    yield from self.between(a, op, b)
            case ast.BoolOp(op, values):
                for a, b in pairwise(values):
                    yield from self.between(a, op, b)
            case ast.BinOp(left, op, right):
                yield from self.between(left, op, right)
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield *self.span(node), self.text(operand)
            case ast.Constant(bool(value)):
                yield *self.span(node), str(not value)
            case ast.Constant(int(value)):
                yield *self.span(node), str(value + 1)
                if value > 0:
                    yield *self.span(node), str(value - 1)
            case ast.Constant(float(value)):
                yield *self.span(node), repr(value * 2 if value else 1.0)
            case ast.IfExp(test, body, orelse):
                yield *self.span(node), f"{self.text(orelse)} if {self.text(test)} else {self.text(body)}"
            case ast.If(ast.Name(id) | ast.Attribute(attr=id) as test) if id != "TYPE_CHECKING":
                yield *self.span(test), f"not {self.text(test)}"
            case ast.Call(ast.Attribute(value, "copy"), []):
                yield *self.span(node), self.text(value)
            case ast.Call(func, args, keywords):
                if isinstance(func, ast.Name) and func.id in NAMES:
                    yield *self.span(func), NAMES[func.id]
                for a, b in pairwise(args):
                    if {type(a), type(b)} <= {ast.Name, ast.Attribute} and self.text(a) != self.text(b):
                        yield self.span(a)[0], self.span(b)[1], f"{self.text(b)}, {self.text(a)}"
                for keyword in keywords:
                    yield *self.span(keyword), "**{}"
            case ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
                yield *self.span(node), "pass"
            case ast.Dict(_, values):
                for a, b in pairwise(values):
                    if type(a) is type(b) and self.text(a) != self.text(b):
                        yield self.span(a)[0], self.span(b)[1], self.crossed(a, b)
            case ast.Slice(lower, upper, None) if (lower is None) != (upper is None):
                end = lower or upper
                assert end is not None
                start, stop = self.span(end)
                colon = self.source.rfind(b":", 0, start) if lower is None else self.source.find(b":", stop)
                yield (
                    min(start, colon),
                    max(stop, colon + 1),
                    f"{self.text(end)}:" if lower is None else f":{self.text(end)}",
                )
            case ast.Raise() | ast.AugAssign() | ast.Break() | ast.Continue():
                yield *self.span(node), "pass"

    def by_line(self) -> dict[int, list[Edit]]:
        """Line -> its edits, of the whole module."""
        found: dict[int, list[Edit]] = {}
        for edit in self.walk(ast.parse(self.source)):
            found.setdefault(self.source.count(b"\n", 0, edit[0]) + 1, []).append(edit)
        return found

    def edited(self, edit: Edit) -> bytes:
        start, end, new = edit
        return self.source[:start] + new.encode() + self.source[end:]


def drawn(files: list[Path], count: int, seed: int) -> Iterator[tuple[Path, int, bytes]]:
    """``count`` mutants as (file, line, its new source), at most one of a line: tables weigh no more than code."""
    random_ = random.Random(seed)
    modules = [(path, Places(path.read_bytes())) for path in files]
    lines = [(*module, *found) for module in modules for found in module[1].by_line().items()]
    for path, places, line, edits in random_.sample(lines, min(count, len(lines))):
        yield path, line, places.edited(random_.choice(edits))
