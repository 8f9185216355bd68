"""JSON schemas: read, checked, and put into the words that the library enforces exactly.

    schema = read('{"type": "object", ...}')        Unsupported names what cannot be enforced, TooLarge what is too much
    schema.root, schema.defs                        the same in a few keywords; definitions by new names
    schema.text()                                   as JSON for the library

What is enforced may be narrower than the schema, never wider: every document that comes out is valid. Narrower are the
order of members (as in ``properties``), numbers (``follow``), formats (``patterns``), escapes (none by number), and
``\\D`` and its like.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ...errors import TextError
from ...text import rawjson
from . import TooLarge, Unsupported
from .formats import format_pattern
from .matching import anchored
from .patterns import search

Node = Any
"""A schema: a dict of keywords, or True or False."""

MOST_BYTES = 256 * 1024
MOST_DEPTH = 64
MOST_NODES = 5000
MOST_MEMBERS = 1000
MOST_ENUM = 2000
MOST_LITERAL = 1024
MOST_PATTERNS = 100
MOST_ITEMS = 10_000
MOST_STRING = 100_000
MOST_MULTIPLE = 1000
MOST_STEPS = 20_000
"""Limits of a schema: its text in bytes, its nesting, its subschemas, the members of one object, the values of one
enum, the JSON text of one of them, the patterns for names in one object, the item and character counts in it, a
divisor, and references followed."""

TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")

REFUSED = (
    "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "contains", "propertyNames",
    "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
"""Keywords that constrain and are not enforced. ``uniqueItems``, ``minProperties``, ``multipleOf``, ``oneOf`` and
``unevaluatedProperties`` are in some places only (docs/server.md)."""

_IDLE = {"type", "title", "description", "$comment"}
_UNWRITABLE = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f\ud800-\udfff]")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = {"minLength": MOST_STRING, "maxLength": MOST_STRING, "minItems": MOST_ITEMS, "maxItems": MOST_ITEMS,
           "minProperties": MOST_MEMBERS, "maxProperties": MOST_MEMBERS}  # fmt: skip
_LISTS = ("anyOf", "allOf", "oneOf")


@dataclass
class Schema:
    """A schema that can be enforced. ``defs`` are the definitions that "$ref": "#/$defs/NAME" in it mean, ``examples``
    strings that its patterns and formats match."""

    root: Node
    defs: dict[str, Node] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    _steps: int = 0

    def document(self, root: Node) -> dict[str, Any]:
        """``root`` with the definitions that it needs: a schema of its own."""
        found = dict(root) if isinstance(root, dict) else ({} if root else {"enum": []})
        wanted = self._wanted(root)
        if wanted:
            found["$defs"] = {name: self.defs[name] for name in self.defs if name in wanted}
        return found

    def resolve(self, node: Node) -> Node:
        """What a "$ref" of this schema means. TooLarge for one that is followed again and again: references to
        references double with every step."""
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooLarge(f"references that are followed more than {MOST_STEPS} times")
        return self.defs[node["$ref"].rpartition("/")[2]]

    def _wanted(self, root: Node) -> set[str]:
        wanted: set[str] = set()
        todo = [root]
        while todo:
            node = todo.pop()
            if not isinstance(node, dict):
                continue
            if "$ref" in node and (name := node["$ref"].rpartition("/")[2]) not in wanted:
                wanted.add(name)
                todo.append(self.defs[name])
            todo += children(node)
        return wanted


def children(node: Node) -> list[Node]:
    """The subschemas of a normal schema, those behind a reference left out."""
    if not isinstance(node, dict):
        return []
    found = [part for key in (*_LISTS, "prefixItems") for part in node.get(key, ())]
    found += [part for key in ("properties", "patternProperties") for part in node.get(key, {}).values()]
    return found + [node[key] for key in ("items", "additionalProperties") if key in node]


def read(text: str) -> Schema:
    """A schema from its JSON text. TextError if it is none, Unsupported or TooLarge if it is not enforced here."""
    if len(text) > MOST_BYTES:
        raise TooLarge(f"a JSON schema of more than {MOST_BYTES} bytes")
    try:
        end = rawjson.value_end(text)
    except ValueError as error:
        raise TextError(f"the schema is not JSON: {error}") from None
    if text[end:].strip(" \t\n\r"):
        raise TextError("the schema is not JSON: something follows it")
    document = json.loads(text[:end])
    reader = _Reader(document)
    schema = Schema(reader.node(document, "#", 0), reader.defs, list(reader.examples))
    _no_empty_circles(schema)
    return schema


class _Reader:
    """Walks a document, copies what is enforced, gives every target of a reference a name of its own."""

    def __init__(self, document: Any):
        self.document = document
        self.defs: dict[str, Node] = {}
        self.examples: dict[str, None] = {}
        self._names: dict[str, str] = {}
        self._count = 0

    def node(self, raw: Any, where: str, depth: int) -> Node:
        self._count += 1
        if self._count > MOST_NODES:
            raise TooLarge(f"a JSON schema of more than {MOST_NODES} subschemas")
        if depth > MOST_DEPTH:
            raise TooLarge(f"a JSON schema nested more than {MOST_DEPTH} deep")
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, dict):
            raise TextError(f"the schema at {where} is neither an object nor a boolean")
        self._refuse(raw, where)
        made: dict[str, Any] = {}
        # In the order in which the document has them: the library orders members by it.
        for key, value in raw.items():
            at = f"{where}/{key}"
            if key == "$ref":
                made[key] = self._reference(value, where, depth)
            elif key in _LISTS:
                made[key] = self._list(value, at, depth)
            elif key in ("properties", "patternProperties"):
                made[key] = self._members(key, value, at, depth)
            elif key == "additionalProperties":
                made[key] = self.node(value, at, depth + 1)
            elif key == "unevaluatedProperties":
                made.setdefault("additionalProperties", self.node(value, at, depth + 1))
            elif key == "type":
                made[key] = _types(value, where)
            elif key == "required":
                made[key] = _names(value, at)
            elif key in ("enum", "const"):
                made.update(_values(key, value, where))
            elif key in _NUMBERS:
                _bound(made, key, _number(key, value, where))
            elif key in _COUNTS:
                made[key] = _count(key, value, where)
        self._items(raw, made, where, depth)
        self.examples |= dict.fromkeys(_strings(raw, made, where))
        _multiple(raw, made, where)
        _member_counts(made, where)
        return made

    def _refuse(self, raw: dict[str, Any], where: str) -> None:
        for key in REFUSED:
            if key in raw and not _idle(key, raw):
                raise Unsupported(key, where)
        if where != "#" and isinstance(raw.get("$id"), str):
            raise Unsupported("$id inside a schema", where)
        if raw.get("uniqueItems") is True and not _at_most_one(raw.get("maxItems")):
            raise Unsupported("uniqueItems", where)
        elsewhere = [key for key in (*_LISTS, "$ref", "additionalProperties") if key in raw]
        if raw.get("unevaluatedProperties", True) is not True and elsewhere:
            raise Unsupported(f"unevaluatedProperties beside {elsewhere[0]}", where)

    def _list(self, value: Any, where: str, depth: int) -> list[Node]:
        if not isinstance(value, list) or not value:
            raise TextError(f"the schema at {where} is not a list of schemas")
        return [self.node(part, f"{where}/{i}", depth + 1) for i, part in enumerate(value)]

    def _members(self, key: str, value: Any, where: str, depth: int) -> dict[str, Node]:
        if not isinstance(value, dict):
            raise TextError(f"the schema at {where} is not an object of schemas")
        if len(value) > MOST_MEMBERS:
            raise TooLarge(f"an object of more than {MOST_MEMBERS} members in a JSON schema")
        if key == "patternProperties" and len(value) > MOST_PATTERNS:
            raise TooLarge(f"patternProperties of more than {MOST_PATTERNS} patterns")
        made: dict[str, Node] = {}
        for name, part in value.items():
            if _UNWRITABLE.search(name):
                raise Unsupported("a member whose name has a control character or a lone surrogate", where)
            spelled = name if key == "properties" else anchored(search(name).text)
            made[spelled] = self.node(part, f"{where}/{name}", depth + 1)
        return made

    def _items(self, raw: dict[str, Any], made: dict[str, Any], where: str, depth: int) -> None:
        """``items`` and ``prefixItems``; a list of items is what earlier drafts call the latter."""
        items, prefix = raw.get("items"), raw.get("prefixItems")
        if isinstance(items, list):
            prefix, items = items, raw.get("additionalItems")
        if prefix is not None:
            made["prefixItems"] = self._list(prefix, f"{where}/prefixItems", depth) if prefix else []
        if items is not None:
            made["items"] = self.node(items, f"{where}/items", depth + 1)

    def _reference(self, value: Any, where: str, depth: int) -> str:
        if not isinstance(value, str):
            raise TextError(f"$ref at {where} is not a string")
        if value != "#" and not value.startswith("#/"):
            raise Unsupported(f"$ref to {value[:80]!r}", where, "only places in the same document")
        if value not in self._names:
            name = self._names[value] = f"d{len(self._names)}"
            self.defs[name] = True  # it may refer to itself
            self.defs[name] = self.node(self._target(value, where), value, depth + 1)
        return f"#/$defs/{self._names[value]}"

    def _target(self, pointer: str, where: str) -> Any:
        from urllib.parse import unquote

        found = self.document
        for step in pointer.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                raise TextError(f"$ref at {where} leads nowhere: {pointer[:80]}")
        return found


# --- single keywords


def _types(value: Any, where: str) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or any(name not in TYPES for name in found):
        raise TextError(f"type at {where} is not one of {', '.join(TYPES)}")
    return list(dict.fromkeys(found))


def _names(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TextError(f"the schema at {where} is not a list of names")
    if len(value) > MOST_MEMBERS:
        raise TooLarge(f"an object of more than {MOST_MEMBERS} members in a JSON schema")
    return list(dict.fromkeys(value))


def _values(key: str, value: Any, where: str) -> dict[str, Any]:
    values = [value] if key == "const" else value
    if not isinstance(values, list) or not values:
        raise TextError(f"enum at {where} is not a list of values")
    if len(values) > MOST_ENUM:
        raise TooLarge(f"an enum of more than {MOST_ENUM} values")
    for one in values:
        if len(json.dumps(one)) > MOST_LITERAL:
            raise TooLarge(f"{key} with a value of more than {MOST_LITERAL} bytes")
    spelled = [_literal(one, key, where) for one in values]
    return {key: spelled[0] if key == "const" else spelled}


def _literal(value: Any, key: str, where: str) -> Any:
    """A value as the library writes it: whole numbers as integers, strings without what it cannot escape."""
    if isinstance(value, dict):
        return {_literal(name, key, where): _literal(part, key, where) for name, part in value.items()}
    if isinstance(value, list):
        return [_literal(part, key, where) for part in value]
    if isinstance(value, str):
        if _UNWRITABLE.search(value):
            raise Unsupported(f"{key} with a control character or a lone surrogate", where)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, (int, float)) and not _exact(value):
        raise Unsupported(f"{key} with a number of more than 15 digits", where)
    return value


def _exact(value: int | float) -> bool:
    """Whether the library reads a number as it is: it computes in doubles, and rounds the last digits of long ones."""
    return abs(value) <= 1 << 53 if isinstance(value, int) else float(f"{value:.14e}") == value  # neither is inf


def _number(key: str, value: Any, where: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TextError(f"{key} at {where} is not a number")
    if not math.isfinite(value) or abs(value) > 1 << 63:
        raise Unsupported(f"{key} beyond 64 bits", where)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _bound(made: dict[str, Any], key: str, value: int | float) -> None:
    """A bound that excludes its own value becomes the next one that does not: the library lets some of them through.
    One of more digits than it reads exactly moves inwards by a part in 10^14."""
    low = key.lower().endswith("minimum")
    if not _exact(value):
        inward = Decimal(repr(value)) + abs(Decimal(repr(value))) * (1 if low else -1) / 10**14
        value = int(inward) if isinstance(value, int) else float(f"{inward:.14e}")
    if key.startswith("exclusive"):
        exact = Decimal(repr(value))
        steps = (Decimal(step) if low else -Decimal(step) for step in ("1e-9", "1e-6", "1e-3", "1", "1e6"))
        value = next(found for step in steps if (found := float(exact + step)) != value)
        key = "minimum" if low else "maximum"
    made[key] = (max if low else min)(value, made.get(key, value))


def _count(key: str, value: Any, where: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TextError(f"{key} at {where} is not a count")
    if value > _COUNTS[key]:
        if key.startswith("max"):
            return _COUNTS[key]  # narrower, and more than an answer holds
        raise TooLarge(f"{key} of more than {_COUNTS[key]}")
    return value


def _idle(key: str, raw: dict[str, Any]) -> bool:
    """Whether one of ``REFUSED`` says nothing where it is: that names are strings, a condition without consequence."""
    if key == "propertyNames":
        names = raw[key]
        return names is True or (isinstance(names, dict) and names.get("type") == "string" and set(names) <= _IDLE)
    return key == "if" and "then" not in raw and "else" not in raw


def _at_most_one(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value <= 1


def _strings(raw: dict[str, Any], made: dict[str, Any], where: str) -> list[str]:
    """``pattern`` and ``format``, which is one more pattern; examples of both."""
    found = []
    if "pattern" in raw:
        if not isinstance(raw["pattern"], str):
            raise TextError(f"pattern at {where} is not a string")
        found.append(search(raw["pattern"]))
    if "format" in raw:
        known = format_pattern(raw["format"]) if isinstance(raw["format"], str) else None
        found += [known] if known else []
    if found:
        made["pattern"] = anchored(found[0].text)
    for more in found[1:]:
        made["allOf"] = [*made.get("allOf", ()), {"pattern": anchored(more.text)}]
    return [one.example for one in found if one.example]


def _multiple(raw: dict[str, Any], made: dict[str, Any], where: str) -> None:
    """``multipleOf``: what binary fractions can tell exactly, and no more than the library counts to at once."""
    if "multipleOf" not in raw:
        return
    value = raw["multipleOf"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise TextError(f"multipleOf at {where} is not a number above 0")
    if value not in (0.5, 0.25, 0.125) and (not float(value).is_integer() or value > MOST_MULTIPLE):
        known = f"whole numbers to {MOST_MULTIPLE}, and 0.5, 0.25 and 0.125, are"
        raise Unsupported(f"multipleOf {value}", where, known)
    made["multipleOf"] = int(value) if float(value).is_integer() else value


def _member_counts(made: dict[str, Any], where: str) -> None:
    """``minProperties`` counts names, which the library may let occur twice: enforced where it follows from others."""
    least = made.get("minProperties", 0)
    if least <= len(made.get("required", ())):
        made.pop("minProperties", None)
    elif least > 1:
        raise Unsupported("minProperties above the number of required members", where)
    closed = made.get("additionalProperties") is False and "patternProperties" not in made
    if closed and made.get("maxProperties", 0) >= len(made.get("properties", ())):
        made.pop("maxProperties", None)
    optional = set(made.get("properties", ())) - set(made.get("required", ()))
    for key in ("minProperties", "maxProperties"):
        if key in made and optional and where != "#":  # the arguments of a tool know more (``block``)
            raise Unsupported(f"{key} beside members that are not required", where)


def _no_empty_circles(schema: Schema) -> None:
    """TextError for a definition that is, before any character of a document, itself."""

    def same_place(node: Node) -> list[str]:
        if not isinstance(node, dict):
            return []
        names = [node["$ref"].rpartition("/")[2]] if "$ref" in node else []
        return names + [name for key in _LISTS for part in node.get(key, ()) for name in same_place(part)]

    state: dict[str, int] = {}
    for start in schema.defs:
        todo = [(start, iter(same_place(schema.defs[start])))]
        if state.setdefault(start, 1) == 2:
            continue
        while todo:
            name, rest = todo[-1]
            step = next(rest, None)
            if step is None:
                state[name] = 2
                todo.pop()
            elif state.get(step) == 1:
                raise TextError("the schema refers to itself without end: $ref")
            elif step not in state:
                state[step] = 1
                todo.append((step, iter(same_place(schema.defs[step]))))
