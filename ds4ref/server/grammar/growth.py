"""By how much one token can lengthen what is still to come: estimates, for keeping to a limit of tokens.

A token that opens an optional member, one more item, or the longer of two alternatives commits the answer to all that
is required in there.
"""

from __future__ import annotations

import json
from typing import Any

from .schema import Node, Schema, children

_DEEPEST = 6
_PATTERN = 24
_BYTES_A_TOKEN = 2
_MARKUP = 24
_LEAST = 2
"""An escape, or the quotes of a string, that were not there before."""


def growth(schema: Schema, node: Node) -> int:
    """The most tokens, about, that one choice in ``node`` can add to its shortest document."""
    return max(_LEAST, _choices(schema, node, 0, set()) // _BYTES_A_TOKEN + 1)


def _choices(schema: Schema, node: Node, depth: int, seen: set[str]) -> int:
    """Bytes of the dearest thing that need not be there."""
    if not isinstance(node, dict) or depth > _DEEPEST:
        return 0
    found = [0]
    if "$ref" in node:
        if node["$ref"] in seen:
            return fewest_bytes(schema, node, 0)
        seen = seen | {node["$ref"]}
        found.append(_choices(schema, schema.resolve(node), depth + 1, seen))
    for key in ("anyOf", "oneOf"):
        found += [fewest_bytes(schema, part, 0) for part in node.get(key, ())]
    found += [len(json.dumps(value)) for value in node.get("enum", ())]
    required = node.get("required", ())
    for name, part in node.get("properties", {}).items():
        if name not in required:
            found.append(len(name) + 4 + fewest_bytes(schema, part, 0))
    for key in ("items", "additionalProperties"):
        found.append(4 + fewest_bytes(schema, node.get(key, False), 0))
    return max(found + [_choices(schema, part, depth + 1, seen) for part in children(node)])


def parameter(schema: Schema, name: str, node: Node) -> int:
    """About the fewest tokens of a parameter in its markup."""
    return _MARKUP + (len(name) + fewest_bytes(schema, node, 0)) // _BYTES_A_TOKEN


def fewest_bytes(schema: Schema, node: Node, depth: int) -> int:
    """About the fewest bytes of a document."""
    if not isinstance(node, dict) or depth > _DEEPEST:
        return 2
    if "$ref" in node:
        return fewest_bytes(schema, schema.resolve(node), depth + 1)
    values: list[Any] = node.get("enum", [node["const"]] if "const" in node else [])
    if values:
        return min(len(json.dumps(value)) for value in values)
    for key in ("anyOf", "oneOf"):
        if key in node:
            return min(fewest_bytes(schema, part, depth + 1) for part in node[key])
    found = 2 + node.get("minLength", 0) + (_PATTERN if "pattern" in node else 0)
    members = node.get("properties", {})
    for name in node.get("required", ()):
        found += len(name) + 4 + fewest_bytes(schema, members.get(name, True), depth + 1)
    found += node.get("minItems", 0) * (1 + fewest_bytes(schema, node.get("items", True), depth + 1))
    return found + sum(fewest_bytes(schema, part, depth + 1) for part in node.get("allOf", ()))
