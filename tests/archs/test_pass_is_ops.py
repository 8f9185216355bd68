"""The pass computes with ops alone: no NumPy, no operators or methods of arrays, which no other backend would see."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs import deepseek4

ROOM = Path(deepseek4.__file__).parent
PASS = ["attention", "compressor", "forward", "head", "hyper_connections", "indexer", "moe"]
VIEWS = {"reshape"}
NO_ARRAYS = {"ops", "recording", "payload"}
METHODS = {name for name in dir(np.ndarray) if name[0] != "_"} - VIEWS


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: no annotations, nothing that only a type checker sees."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from parts(child)


def counted(node: ast.expr) -> bool:
    """Numbers that are no array's: literals, constants of a module, lengths, lists, and what is made of these."""
    match node:
        case ast.BinOp(left, _, right):
            return counted(left) and counted(right)
        case ast.UnaryOp(_, operand):
            return counted(operand)
        case ast.Call(ast.Name("len")) | ast.Constant() | ast.List():
            return True
        case ast.Name(id) | ast.Attribute(attr=id):
            return id.isupper()
    return False


def faults(source: str) -> list[str]:
    found = []
    for node in parts(ast.parse(source)):
        match node:
            case ast.Import(names) if any(alias.name.split(".")[0] == "numpy" for alias in names):
                bad = True
            case ast.ImportFrom(module=str(module)):
                bad = module.split(".")[0] == "numpy"
            case ast.AugAssign():
                bad = True
            case ast.BinOp() | ast.UnaryOp(ast.USub() | ast.Invert()):
                bad = not counted(node)
            case ast.Compare(left, operators, right):
                plain = all(isinstance(o, ast.Is | ast.IsNot | ast.In | ast.NotIn) for o in operators)
                bad = not plain and not any(map(counted, [left, *right]))
            case ast.Call(ast.Attribute(ast.Name(owner) | ast.Attribute(attr=owner), attr)):
                bad = attr in METHODS and owner not in NO_ARRAYS
            case ast.Call(ast.Attribute(attr=attr)):
                bad = attr in METHODS
            case ast.Subscript(ast.Attribute(attr=attr) | ast.Name(attr), _, ast.Store()):
                bad = attr != "given"  # a dict
            case _:
                bad = False
        if bad:
            found.append(f"line {getattr(node, 'lineno', '?')}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("module", PASS)
def test_the_pass_has_no_arithmetic_of_its_own(module: str) -> None:
    assert faults((ROOM / f"{module}.py").read_text()) == []
