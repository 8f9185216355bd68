"""Read the table of questions in a copy of ds4's C source: structs whose fields are written as literals.

    { .source = "AIME2025", .question = "How many " "...", .answer = "70" },
    { "GPQA Diamond", "rec1", "Physics", "a title", "...", {"a", "b"}, "A" },

This is no C parser: macros, casts and conditions (``#if``) are not followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

SUFFIXES = (".c", ".h", ".inc")
FIELDS = ("source", "id", "domain", "title", "question", "choice", "answer")
_TOKEN = re.compile(
    r'\s+|//[^\n]*|/\*.*?\*/|#(?:\\\n|[^\n])*|\'(?:\\.|[^\'\\])+\'|(?P<string>"(?:\\.|[^"\\])*")'
    r"|\.\s*(?P<field>\w+)\s*=|(?P<mark>[{},])|(?P<other>[^\s{},\"]+)",
    re.DOTALL,
)


def tables(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line and fields of each struct in braces that has a question and an answer; NULL fields are left out.

    Raise ValueError for such a struct with a field that is not written as a literal.
    """
    groups: list[tuple[int, str, list[tuple[str, Any]]]] = []  # line, the name that the group is given to, fields
    name = ""
    parts: list[Any] = []
    for token in _TOKEN.finditer(text):
        if token["field"]:
            name = token["field"]
        elif token["string"]:
            parts.append(_unescaped(token["string"]))
        elif token["other"]:
            parts.append(None if token["other"] in ("NULL", "0") else _Other(token["other"]))
        elif token["mark"] == "{":
            groups.append((text.count("\n", 0, token.start()) + 1, name, []))
            name, parts = "", []
        elif token["mark"] and groups:
            line, outer, fields = groups[-1]
            if parts:
                fields.append((name, "".join(parts) if all(type(part) is str for part in parts) else parts[-1]))
            name, parts = "", []
            if token["mark"] == "}":
                groups.pop()
                if found := _question(line, fields):
                    yield line, found
                name, parts = outer, [[value for _, value in fields]]


class _Other(str):
    """A word of C that is no literal."""


def _question(line: int, fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a question by name; {} if the struct is none."""
    if len(fields) == len(FIELDS) and not any(name for name, _ in fields):
        fields = [(name, value) for name, (_, value) in zip(FIELDS, fields, strict=True)]
    found = {name: value for name, value in fields if name in FIELDS and value is not None}
    if not any(type(found.get(name)) is str for name in ("question", "answer")):
        return {}
    choices = found.pop("choice", [])
    if not isinstance(choices, list) or any(
        type(value) not in (str, type(None)) for value in (*found.values(), *choices)
    ):
        raise ValueError(f"line {line}: a field that is not a literal")
    return {**found, "choices": [choice for choice in choices if choice is not None]}


def _unescaped(literal: str) -> str:
    r"""Return the text of a string literal, whose escapes (\n, \x41, \101) Python has, too."""
    data: str = ast.literal_eval(literal.replace("\\?", "?").encode().decode("latin-1"))
    return data.encode("latin-1").decode()
