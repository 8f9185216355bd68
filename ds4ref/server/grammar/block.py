"""Tools as a grammar: the block of DSML in which a model calls them (docs/text.md 4), on tokens.

    wanted = block(tools, dsml, most=8)         Block: the grammar's text, and which tools take text of a form

The marker is a control token; everything between is text. Parameters come in the order of the schema, each with the
``string`` attribute that its value needs: a string's text stands raw, everything else as JSON. A string ends where
``</`` is followed by the marker's token; that its text cannot spell the closing tag is seen to in ``follow``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ...errors import TextError
from ...text.dsml import escape_attribute
from ...text.schemas import INPUT
from ...text.schemas import Schema as Tool
from . import Unsupported
from .growth import growth, parameter
from .matching import matches, whole
from .schema import Node, Schema, read
from .strings import FREE, all_of, branches_of, limited, literal, some, strings_of, terminal_of, types_of

SPACED = {"item_separator": ", ?", "key_separator": ": ?", "whitespace_flexible": False}
"""JSON inside markup: compact, or with one space after commas and colons."""
ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
"""No escapes by number: with them a member could be written twice in two spellings."""

_EXTRA_NAME = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"


@dataclass
class Block:
    """A grammar's text in the library's dialect, and the tools whose ``input`` has a grammar of its own. ``step`` is by
    how many tokens, about, one token inside of JSON can make the rest longer, ``optional`` one in front of a parameter
    that need not be there; ``examples`` are strings that patterns in it match."""

    text: str
    forms: dict[str, tuple[str, str]] = field(default_factory=dict)
    step: int = 1
    optional: int = 1
    examples: list[str] = field(default_factory=list)


def block(tools: Sequence[Tool], dsml: int, most: int, *, lenient: bool = False) -> Block:
    """The rule ``block`` of one to ``most`` calls of ``tools``, and the rule ``begun`` of what is left of it behind the
    marker of its first call; without a rule ``start``. ``lenient``: arguments are free where the tool is not strict.
    Unsupported and TooLarge say what is not enforced, with the tool's name."""
    writer = _Writer(dsml)
    calls = []
    for i, tool in enumerate(tools):
        calls.append(f"c{i}")
        writer.tool(i, tool, lenient)
    writer.rules.insert(0, f"call: {' | '.join(calls)}")
    writer.rules.insert(0, f"next: {writer.tag('<')} call")
    more = f" next{{0,{most - 1}}}" if most > 1 else ""
    first = f"{writer.tag(chr(10) * 2 + '<')} {literal('tool_calls>' + chr(10))} {writer.tag('<')}"
    end = f"{writer.tag('</')} {literal('tool_calls>')}"
    writer.rules.insert(0, f"block: {first} call{more} {end}")
    writer.rules.insert(0, f"begun: call{more} {end}")
    return Block("\n".join(writer.rules), writer.forms, writer.step, writer.optional, writer.examples)


@dataclass
class _Members:
    """An object's members by name, in order: their schemas (all of which hold), which are required, those of names
    that match a pattern, and what all others may be. Whether the schema names members at all, and whether it speaks of
    others, decides if there will be any."""

    known: dict[str, list[Node]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    patterns: dict[str, Node] = field(default_factory=dict)
    others: list[Node] = field(default_factory=list)
    named: bool = False
    told: bool = False

    def of(self, name: str) -> list[Node]:
        """The schemas of one member."""
        return self.known.get(name) or self.unnamed(name)

    def unnamed(self, name: str) -> list[Node]:
        """Those of a member that ``properties`` does not have."""
        return [node for pattern, node in self.patterns.items() if matches(pattern, name)] or self.others

    def both(self, other: _Members) -> _Members:
        """Objects that are as both say."""
        required = tuple(dict.fromkeys(self.required + other.required))
        names = dict.fromkeys((*self.known, *other.known, *required))
        known = {name: self.of(name) + other.of(name) for name in names}
        patterns = dict(self.patterns)
        for pattern, node in other.patterns.items():
            patterns[pattern] = all_of([node, patterns.get(pattern, True)])
        others = self.others + other.others
        return _Members(known, required, patterns, others, self.named or other.named, self.told or other.told)


class _Writer:
    def __init__(self, dsml: int):
        self.marker = f"<[{dsml}]>"
        self.rules: list[str] = []
        self.forms: dict[str, tuple[str, str]] = {}
        self.step = self.optional = 1
        self.examples: list[str] = []
        self._count = 0

    def tag(self, opener: str) -> str:
        return f"{literal(opener)} {self.marker}"

    def tool(self, number: int, tool: Tool, lenient: bool) -> None:
        """The rule of one tool's call, from behind the marker of its tag to the end of its closing tag."""
        if tool.kind == "custom":
            self._count += 1
            body = self._parameter(INPUT, True, FREE)
            if tool.grammar is not None:
                self.forms[tool.name] = tool.grammar
        elif lenient and not tool.strict:
            body = self._anything()
        else:
            try:
                schema = read(tool.parameters)
                self.examples += schema.examples
                body = self._arguments(schema)
            except Unsupported as error:
                raise Unsupported(error.feature, f"{tool.name}{error.where}", error.why) from None
            except TextError as error:
                raise type(error)(f"tool {tool.name}: {error}") from None
        head = literal(f'invoke name="{escape_attribute(tool.name)}">\n')
        self.rules.append(f"c{number}: {head} {body} {self.tag('</')} {literal('invoke>' + chr(10))}")

    # --- parameters

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _parameter(self, name: str, is_string: bool, value: str) -> str:
        """A parameter as a rule of its own; ``value`` is a terminal for strings (with its ``</``), else a rule."""
        rule = self._name("p")
        head = literal(f'parameter name="{escape_attribute(name)}" string="{str(is_string).lower()}">')
        self.rules.append(f"{rule}: {self.tag('<')} {head} {self._value(is_string, value)}")
        return rule

    def _value(self, is_string: bool, value: str) -> str:
        end = literal("parameter>\n")
        if is_string:
            terminal = self._name("V")
            self.rules.append(f"{terminal}: {value}")
            return f"{terminal} {self.marker} {end}"
        return f"{value} {self.tag('</')} {end}"

    def _anything(self) -> str:
        """Parameters of any names and values."""
        rule, head, value = self._name("p"), self._name("N"), self._name("V")
        self.rules.append(f'{head}: /parameter name="[^"<>]{{1,200}}" string="(true|false)">/')
        self.rules.append(f"{value}: {FREE}")
        self.rules.append(f"{rule}: {self.tag('<')} {head} {value} {self.marker} {literal('parameter>' + chr(10))}")
        return f"{rule}*"

    def _arguments(self, schema: Schema) -> str:
        found = _members(schema, schema.root)
        bodies = [body for members in found if (body := self._members(schema, members)) is not None]
        if not bodies:
            raise Unsupported("a schema that no arguments fit")
        if len(bodies) == 1:
            return bodies[0]
        names = [self._name("a") for _ in bodies]
        self.rules += [f"{name}: {body}" for name, body in zip(names, bodies, strict=True)]
        return f"({' | '.join(names)})"

    def _members(self, schema: Schema, members: _Members) -> str | None:
        """The parameters of one kind of object, None if there is no such object."""
        parts = []
        names = dict.fromkeys((*members.known, *members.required))
        for name in names:
            values = self._values(schema, name, members.of(name))
            if not values and name in members.required:
                return None
            if values and name not in members.required:
                self.optional = max(self.optional, parameter(schema, name, all_of(members.of(name))))
            if values:
                parts.append(f"({' | '.join(values)})" + ("" if name in members.required else "?"))
        others = self._others(schema, members, list(names))
        return " ".join(parts + others) or '""'

    def _values(self, schema: Schema, name: str, nodes: Sequence[Node]) -> list[str]:
        node = all_of(nodes)
        made = [self._parameter(name, True, terminal_of(found)) for found in strings_of(schema, node) if some(found)]
        return made + [self._parameter(name, False, rule) for rule in self._json(schema, node)]

    def _others(self, schema: Schema, members: _Members, names: list[str]) -> list[str]:
        """Parameters that the schema does not name: if it speaks of them, or names none at all."""
        node = all_of(members.others)
        if node is False or not (members.told or not (members.named or names)):
            return []
        terminal = self._name("N")
        known = [literal(escape_attribute(name)) for name in names]
        known += [f"/{whole(pattern)}/" for pattern in members.patterns]
        self.rules.append(f"{terminal}: {_EXTRA_NAME}" + (f" & ~({' | '.join(known)})" if known else ""))
        made = []
        values = [(True, terminal_of(found)) for found in strings_of(schema, node) if some(found)]
        for is_string, value in values + [(False, rule) for rule in self._json(schema, node)]:
            rule = self._name("p")
            head = f"{literal('parameter name=' + chr(34))} {terminal} "
            head += literal(f'" string="{str(is_string).lower()}">')
            self.rules.append(f"{rule}: {self.tag('<')} {head} {self._value(is_string, value)}")
            made.append(rule)
        self.optional = max(self.optional, parameter(schema, "", node))
        return [f"({' | '.join(made)})*"] if made else []

    def _json(self, schema: Schema, node: Node) -> list[str]:
        """The rule of all values but strings, none if there are none."""
        kinds = types_of(schema, node) - {"string"}
        if not kinds:
            return []
        if "string" in types_of(schema, node):
            node = all_of([node, {"type": sorted(kinds)}])
        self.step = max(self.step, growth(schema, node))
        document = schema.document(node) | {"x-guidance": SPACED | ESCAPES}
        rule = self._name("j")
        self.rules.append(f"{rule}: %json {json.dumps(document, ensure_ascii=False)}")
        return [rule]


# --- what a schema says of objects, of strings, of types


def _members(schema: Schema, node: Node) -> list[_Members]:
    """The kinds of objects that ``node`` allows."""
    if not isinstance(node, dict):
        return [_Members()] if node else []
    choices, rest = branches_of(schema, node)
    if len(node.get("oneOf", ())) > 1:
        raise Unsupported("oneOf", "#", "not for all arguments of a tool")
    alternatives = [[found for part in choice for found in _members(schema, part)] for choice in choices]
    own = _own_members(rest)
    made = []
    for combined in product(*alternatives) if own else ():
        for members in own:
            for more in combined:
                members = members.both(more)
            made.append(members)
        limited(made)
    return made


def _own_members(rest: dict[str, Any]) -> list[_Members]:
    if "type" in rest and "object" not in rest["type"]:
        return []
    if rest.get("minProperties"):
        raise Unsupported("minProperties", "#", "not for the arguments of a tool")
    known = {name: [part] for name, part in rest.get("properties", {}).items()}
    if rest.get("maxProperties", len(known)) < len(known):
        raise Unsupported("maxProperties", "#", "not for the arguments of a tool")
    others = [rest["additionalProperties"]] if "additionalProperties" in rest else []
    if "maxProperties" in rest:
        others = [False]
    patterns = rest.get("patternProperties", {})
    named, told = "properties" in rest or bool(patterns), "additionalProperties" in rest
    base = _Members({}, tuple(rest.get("required", ())), patterns, others, named, told)
    for name in known:
        known[name] += [node for pattern, node in patterns.items() if matches(pattern, name)]
    base.known = known
    values = rest.get("enum", [rest["const"]] if "const" in rest else None)
    if values is None:
        return [base]
    fixed = []
    for value in values:
        if isinstance(value, dict):
            exact = _Members({k: [{"const": v}] for k, v in value.items()}, tuple(value), {}, [False], True, True)
            fixed.append(base.both(exact))
    return fixed
