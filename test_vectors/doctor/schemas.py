"""JSON schemas that an answer must fit: the corpus, and a validator.

    for case in CORPUS:                    one line of prompts/schemas.jsonl each
        fault(case.schema, case.invalid)   "$.size: 12 is above maximum 10"; "" for a value that fits

The validator knows the keywords of the corpus, and refuses others (ValueError). It is a product's, since what a server
promises is checked with no library of schemas installed; tests compare it with ``jsonschema``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class SchemaCase:
    """One schema of the corpus.

    quick    whether the quick form has it, too
    valid    a value that fits
    invalid  a value that does not, which the prompt asks for
    """

    name: str
    schema: dict[str, Any]
    valid: Any
    invalid: Any
    quick: bool = False


_LINES = resources.files("ds4ref.test_vectors").joinpath("prompts", "schemas.jsonl").read_text("utf-8")
CORPUS = [SchemaCase(**json.loads(line)) for line in _LINES.splitlines()]

_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "number": (int, float),
    "integer": (int, float),
}  # fmt: skip
_SIZES = {"minLength": str, "maxLength": str, "minItems": list, "maxItems": list,
          "minProperties": dict, "maxProperties": dict}  # fmt: skip
_BOUNDS = {
    "minimum": lambda v, n: v >= n, "maximum": lambda v, n: v <= n,
    "exclusiveMinimum": lambda v, n: v > n, "exclusiveMaximum": lambda v, n: v < n,
    "multipleOf": lambda v, n: v % n == 0,
}  # fmt: skip
_OTHERS = frozenset("type enum const anyOf oneOf allOf $ref $defs definitions pattern properties required "
                    "additionalProperties items prefixItems uniqueItems title description default".split())  # fmt: skip


def fault(schema: Any, value: Any, root: Any = None, at: str = "$") -> str:
    """Return where and why ``value`` does not fit ``schema``, "" if it fits.

    root  the schema that ``$ref`` refers into (None: ``schema``)
    at    path of the value, for the message
    """
    root = schema if root is None else root
    if isinstance(schema, bool):
        return "" if schema else f"{at}: nothing fits"
    unknown = set(schema) - _OTHERS - set(_BOUNDS) - set(_SIZES)
    if unknown:
        raise ValueError(f"keywords that the validator lacks: {', '.join(sorted(unknown))}")

    def below(part: Any, inner: Any = value, where: str = at) -> str:
        return fault(part, inner, root, where)

    if "$ref" in schema and (why := below(_target(root, schema["$ref"]))):
        return why
    if "type" in schema and not any(_is(value, name) for name in _listed(schema["type"])):
        return f"{at}: {json.dumps(value)[:40]} is no {schema['type']}"
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        return f"{at}: {json.dumps(value)[:40]} is not in the enum"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{at}: {json.dumps(value)[:40]} is not the const"
    for part in schema.get("allOf", ()):
        if why := below(part):
            return why
    for name, most in (("anyOf", None), ("oneOf", 1)):
        fits = sum(not below(part) for part in schema.get(name, ()))
        if name in schema and not (fits and (most is None or fits <= most)):
            return f"{at}: fits {fits} schemas of {name}"
    for key, kind in _SIZES.items():
        if key in schema and isinstance(value, kind):
            size = len(value)
            if size < schema[key] if key.startswith("min") else size > schema[key]:
                return f"{at}: size {size} against {key} {schema[key]}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        for key, holds in _BOUNDS.items():
            if key in schema and not holds(value, schema[key]):
                return f"{at}: {value} against {key} {schema[key]}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{at}: {json.dumps(value)[:40]} does not match {schema['pattern']}"
    if isinstance(value, list):
        return _items(schema, value, at, below)
    return _members(schema, value, at, below) if isinstance(value, dict) else ""


def _items(schema: dict[str, Any], value: list[Any], at: str, below: Any) -> str:
    first = schema.get("prefixItems", [])
    for i, item in enumerate(value):
        part = first[i] if i < len(first) else schema.get("items", True)
        if why := below(part, item, f"{at}[{i}]"):
            return str(why)
    if schema.get("uniqueItems") and any(_same(a, b) for i, a in enumerate(value) for b in value[:i]):
        return f"{at}: an item twice"
    return ""


def _members(schema: dict[str, Any], value: dict[str, Any], at: str, below: Any) -> str:
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{at}: no {missing[0]}"
    known = schema.get("properties", {})
    for name, item in value.items():
        if why := below(known.get(name, schema.get("additionalProperties", True)), item, f"{at}.{name}"):
            return f"{at}: {name} is not allowed" if why.endswith("nothing fits") else str(why)
    return ""


def _target(root: Any, ref: str) -> Any:
    for name in ref.removeprefix("#").split("/")[1:]:
        root = root[name.replace("~1", "/").replace("~0", "~")]
    return root


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name]) and (name != "integer" or value == int(value))


def _same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal; unlike in Python, true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    return bool(a == b)
