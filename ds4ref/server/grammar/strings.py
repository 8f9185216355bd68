"""What a schema says of its strings and of types: a parameter that is a string stands in markup as it is, all others as
JSON, so the two are told apart before anything is generated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from ...text.dsml import escape_string
from . import TooLarge, Unsupported
from .matching import matches, whole
from .schema import TYPES, Node, Schema

MOST_ALTERNATIVES = 32
FREE = r"/(?s:.*)<\//"
"""Any text, and the ``</`` behind it."""


def literal(text: str) -> str:
    """Text as a grammar spells it."""
    return json.dumps(text, ensure_ascii=False)


@dataclass
class Strings:
    """A set of strings: ``literals``, or all, that match every one of ``patterns``, from ``least`` to ``most`` long."""

    literals: tuple[str, ...] | None = None
    patterns: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None

    @property
    def free(self) -> bool:
        return self.literals is None and not self.patterns and not self.least and self.most is None

    def __contains__(self, text: str) -> bool:
        within = self.least <= len(text) and (self.most is None or len(text) <= self.most)
        known = self.literals is None or text in self.literals
        return within and known and all(matches(pattern, text) for pattern in self.patterns)

    @property
    def texts(self) -> list[str]:
        """The literals that are as long as they have to be, and match."""
        return [text for text in self.literals or () if text in self]

    def both(self, other: Strings) -> Strings:
        """What is in both sets."""
        found = self.literals if other.literals is None else other.literals
        if self.literals is not None and other.literals is not None:
            found = tuple(text for text in self.literals if text in other.literals)
        bounds = [most for most in (self.most, other.most) if most is not None]
        return Strings(found, self.patterns + other.patterns, max(self.least, other.least), min(bounds, default=None))


def all_of(nodes: Sequence[Node]) -> Node:
    """The schema of what all of ``nodes`` allow."""
    found = [node for node in nodes if node is not True and node != {}]
    if any(node is False for node in found):
        return False
    return True if not found else found[0] if len(found) == 1 else {"allOf": found}


def branches_of(schema: Schema, node: dict[str, Any]) -> tuple[list[list[Node]], dict[str, Any]]:
    """The schemas that hold in the same place, as a product of alternatives, and what is left of ``node``."""
    rest = {key: value for key, value in node.items() if key not in ("$ref", "allOf", "anyOf", "oneOf")}
    choices = [[part] for part in node.get("allOf", ())]
    if "$ref" in node:
        choices.append([schema.resolve(node)])
    choices += [list(node[key]) for key in ("anyOf", "oneOf") if key in node]
    return choices, rest


def limited(found: list[Any]) -> list[Any]:
    """The alternatives ``found``; TooLarge if they are too many to be written into a grammar."""
    if len(found) > MOST_ALTERNATIVES:
        raise TooLarge(f"a schema that stands for more than {MOST_ALTERNATIVES} alternatives at one place")
    return found


def strings_of(schema: Schema, node: Node) -> list[Strings]:
    """The strings that ``node`` allows, as sets whose union they are."""
    if not isinstance(node, dict):
        return [Strings()] if node else []
    choices, rest = branches_of(schema, node)
    if "type" in rest and "string" not in rest["type"]:
        return []
    pattern = (rest["pattern"],) if "pattern" in rest else ()
    own = Strings(None, pattern, rest.get("minLength", 0), rest.get("maxLength"))
    values = rest.get("enum", [rest["const"]] if "const" in rest else None)
    if values is not None:
        own.literals = tuple(value for value in values if isinstance(value, str))
    branches = [[strings_of(schema, part) for part in choice] for choice in choices]
    if "oneOf" in node:
        _exclusive(branches[-1])
    alternatives = [[found for branch in choice for found in branch] for choice in branches]
    made = []
    for combined in product(*alternatives):
        found = own
        for more in combined:
            found = found.both(more)
        made.append(found)
        limited(made)
    return made


def _exclusive(branches: list[list[Strings]]) -> None:
    """Of ``oneOf``: no string may be in two of its branches."""
    for one, two in combinations(branches, 2):
        if not all(_apart(first, second) for first in one for second in two):
            raise Unsupported("oneOf", "", "its branches may overlap")


def _apart(one: Strings, two: Strings) -> bool:
    """Whether no string is in both sets, as far as that is easily seen."""
    for few, many in ((one, two), (two, one)):
        if few.literals is not None:
            return not any(text in many for text in few.texts)
        if few.most is not None and few.most < many.least:
            return True
    return False


def types_of(schema: Schema, node: Node) -> set[str]:
    """Types that values of ``node`` may have; more, at most, than they do."""
    if not isinstance(node, dict):
        return set(TYPES) if node else set()
    choices, rest = branches_of(schema, node)
    found = set(rest.get("type", TYPES))
    found |= {"integer"} if "number" in found else set()
    values = rest.get("enum", [rest["const"]] if "const" in rest else None)
    if values is not None:
        found &= {kind for value in values for kind in _kinds(value)}
    for choice in choices:
        found &= set().union(*(types_of(schema, part) for part in choice))
    return found


def _kinds(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int):
        return ("integer", "number")
    names = {float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return (names[type(value)],)


def some(found: Strings) -> bool:
    """Whether the set has a string at all."""
    return bool(found.texts) if found.literals is not None else found.most is None or found.least <= found.most


def terminal_of(found: Strings) -> str:
    """A set of strings with the ``</`` behind it. Without the bar of the marker where more than the schema's own
    literals is possible: an escaped closing tag would be read as something else."""
    if found.free:
        return FREE
    if found.literals is not None:
        return f'({" | ".join(literal(escape_string(text)) for text in found.texts)}) "</"'
    lengths = f"{{{found.least},{'' if found.most is None else found.most}}}"
    parts = [f"/{whole(pattern)}/" for pattern in found.patterns] + [f"/[^\uff5c]{lengths}/"]
    return f'({" & ".join(parts)}) "</"'
