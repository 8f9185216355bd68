"""Tool calls as a Lark grammar for llguidance, which constrains generation to it.

    calls = call_grammar(tools, dsml, most=16)        defines the rules ``block`` and ``begun``, but not ``start``

DeepSeek models write tool calls as a block of DSML, an XML-like markup (docs/explanation/text.md). The DSML marker in
its tags is a control token; everything else is text. Parameters come in the order of the schema. A string that is
unconstrained or of an enum is written as plain text (``string="true"``); every other value is JSON, constrained to its
schema by llguidance, which rejects schemas it does not support. This module itself rejects keywords that constrain all
arguments together, which a grammar of single parameters cannot express, and numbers that llguidance would change. For
tools that are not strict, unsupported keywords are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import MAX_PREC, Context, Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..errors import TextError
from ..text.dsml import escape_attribute, escape_string
from ..text.protocol import CANONICAL, DSML, Dialect
from ..text.schemas import INPUT
from ..text.schemas import Schema as Tool
from .vocabulary import refusal

if TYPE_CHECKING:
    from ..text.official import Profile

_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
"""llguidance option that forbids \\u escapes: with them a member could be written twice, in different spellings."""
COMPACT = {"item_separator": ", ?", "key_separator": ": ?", "whitespace_flexible": False, **_ESCAPES}
"""llguidance options for JSON inside markup: at most one space after a comma or colon."""
LENIENT = {**COMPACT, "lenient": True, "coerce_one_of": True}
"""COMPACT for tools that are not strict: llguidance ignores keywords that it does not support, and takes oneOf for
anyOf."""
PRETTY = {"whitespace_pattern": r"(?: |\n[ \t]{0,24})", **_ESCAPES}
"""llguidance options for a JSON answer: a space, or a newline with indentation, between tokens."""

_FREE = r"/(?s:.*)<\//"
"""Lark terminal of any text up to and including the next ``</``."""
_NAME = r'/[^"<>\n]{1,200}/'
_DEFINITIONS = ("$defs", "definitions", "$schema")
MAX_NESTING, MAX_INTERSECTED, MAX_RULES = 600, 1000, 1000
"""Limits of a schema (depth of nesting with all it refers to; number of schemas that apply to one value), and of a
grammar (number of rules).

llguidance 1.9 overflows its stack at about three times as many levels or rules, and practically never finishes allOf.
"""
_OF_STRINGS = frozenset(
    "type enum const anyOf oneOf allOf not if then else pattern format minLength maxLength $ref $dynamicRef".split()
)
"""JSON schema keywords that constrain a string."""
MOST = 2**53 - 1
"""Integers up to this one are exact as doubles."""
MOST_EXPONENT = 22
"""The largest n for which 10^n is exact as a double."""
_BOUNDS = {"maximum": (1, "maximum"), "exclusiveMaximum": (1, "maximum"),
           "minimum": (-1, "minimum"), "exclusiveMinimum": (-1, "minimum")}  # fmt: skip
"""Keywords that bound numbers, each with 1 for an upper or -1 for a lower bound, and its inclusive form."""
_MAPS = frozenset("properties patternProperties dependentSchemas dependencies $defs definitions".split())
_VALUES = frozenset("enum const".split())
_ANNOTATIONS = frozenset("default examples".split())
"""JSON schema keywords whose members are schemas by name; those whose values are plain data; and those with plain data
that constrain nothing."""
_MOST_OF = frozenset("maxLength maxItems maxProperties maxContains".split())
_WHOLE = frozenset(
    "$ref $dynamicRef allOf anyOf oneOf not if enum const patternProperties propertyNames minProperties maxProperties "
    "dependentRequired dependentSchemas dependencies unevaluatedProperties".split()
)
"""JSON schema keywords that constrain all arguments of a call together."""


def literal(text: str) -> str:
    """Return ``text`` as a quoted Lark string."""
    return json.dumps(text, ensure_ascii=False)


_AS_WRITTEN = Context(prec=MAX_PREC, traps=[])
"""Decimal context that keeps all digits; numbers with absurd exponents become infinite instead of raising."""


def _read(text: str) -> Decimal | int:
    """Return the number that ``text`` spells: an int if it is a whole number within +-MOST, else a Decimal."""
    number = _AS_WRITTEN.create_decimal(text)
    return int(number) if -MOST <= number <= MOST and number == int(number) else number


def parsed(text: str) -> Any:
    """Parse a JSON schema; numbers with a fraction or exponent become Decimals with the digits as written, or ints."""
    return json.loads(text, parse_float=_read)


def _dumped(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False, default=float)


def _check_exact(where: str, key: str, value: Any) -> None:
    """Raise TextError if llguidance would change a number at any depth of ``value``, the value of the keyword ``key``.

    llguidance computes a number as digits * 10^n in doubles. ``where``: the tool or field, for the error message.
    """
    if isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            _check_exact(where, key, one)
    if not isinstance(value, (int, Decimal)):
        return
    kept = -MOST <= value <= MOST
    if kept and isinstance(value, Decimal):
        read = Decimal(repr(float(value)))
        _, digits, exponent = read.as_tuple()
        kept = value == read and int(Decimal((0, digits, 0))) <= MOST and abs(int(exponent)) <= MOST_EXPONENT
    if not kept:
        raise TextError(
            f"{where}: {key} {str(value)[:40]} would be changed: supported are integers up to {MOST} and decimals of "
            "up to 15 digits"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def bounded(where: str, schema: Any, lenient: bool = False) -> Any:
    """Return ``schema`` changed so that llguidance, which computes in doubles, keeps every number in it exactly.

    Bounds beyond +-MOST become +-MOST; maximum counts above MOST and annotations are left out. Whatever fits the result
    fits ``schema``. Raise TextError, naming ``where`` and the keyword, if only numbers beyond +-MOST would fit, if a
    number would be changed, or for a minProperties that llguidance would accept repeated names for (with ``lenient``,
    that one is left out).
    """
    if not isinstance(schema, dict):
        return [bounded(where, one, lenient) for one in schema] if isinstance(schema, list) else schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            found[key] = {name: bounded(where, one, lenient) for name, one in value.items()}
        elif key in _ANNOTATIONS:
            continue
        elif key in _VALUES:
            _check_exact(where, key, value)
            found[key] = value
        elif key in _BOUNDS and _is_number(value):
            sign, least = _BOUNDS[key]
            if sign * value < -MOST or (key.startswith("exclusive") and sign * value <= -MOST):
                raise TextError(f"{where}: {key} {value} leaves only numbers beyond {MOST}, which are not supported")
            if sign * value > MOST:
                key, value = least, sign * MOST
            _check_exact(where, key, value)
            found[key] = sign * min(sign * value, sign * found[key]) if key in found else value
        elif key in _MOST_OF and _is_number(value) and value > MOST:
            continue
        elif key == "minProperties" and _is_number(value) and _may_repeat(schema, value):
            if not lenient:
                raise TextError(f"{where}: minProperties {value} is not supported where members may have any name")
        else:
            if _is_number(value):
                _check_exact(where, key, value)
            found[key] = bounded(where, value, lenient)
    return found


def _may_repeat(schema: Mapping[str, Any], least: Decimal | int) -> bool:
    """Return whether llguidance could reach ``least`` members by writing one name twice."""
    required = schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    named = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return least > max(1, len(names)) and not named


def inner_schemas(where: str, definition: str) -> str:
    """Return the Lark grammar ``definition`` with ``bounded`` applied to its ``%json`` schemas.

    Raise TextError for a schema that is missing, too large, or rejected by ``bounded`` or llguidance.
    """
    out, at = [], 0
    for match in re.finditer(r"%json\b\s*", definition):
        if match.start() < at:
            continue  # inside the schema before
        try:
            raw, end = json.JSONDecoder(parse_float=_read).raw_decode(definition, match.end())
        except ValueError:
            raise TextError(f"{where}: %json without a JSON schema behind it") from None
        schema = bounded(where, raw)
        if isinstance(schema, dict):
            check_schema(where, schema, {})
        out += [definition[at : match.end()], _dumped(schema)]
        at = end
    return "".join([*out, definition[at:]])


def json_rule(schema: Any, options: Mapping[str, Any]) -> str:
    """Return the Lark expression for JSON that fits the parsed JSON schema ``schema``; ``options``: for llguidance."""
    document = schema if isinstance(schema, dict) else {"allOf": [schema]}
    return f"%json {_dumped({**document, 'x-guidance': options})}"


def check(where: str, grammar: str) -> None:
    """Raise TextError, with ``where`` and llguidance's reason, if llguidance rejects ``grammar``."""
    if error := refusal(grammar):
        raise TextError(f"{where}: {error}")


def check_schema(where: str, schema: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Raise TextError if ``schema`` is too large for llguidance, or llguidance rejects it."""
    from llguidance import LLMatcher

    targets = {ref: _target(schema, ref) for ref in references(schema)}
    sizes: dict[str, int] = {}

    def size(node: Any) -> int:
        """Count the schemas that apply to one value of ``node``: references and allOf may multiply them."""
        if not isinstance(node, dict):
            return 1
        parts = node.get("allOf")
        total = 1 + sum(size(part) for part in (parts if isinstance(parts, list) else ()))
        ref = node.get("$ref")
        if isinstance(ref, str) and ref in targets:
            if ref not in sizes:
                sizes[ref] = 0  # it may refer to itself
                sizes[ref] = size(targets[ref])
            total += sizes[ref]
        return min(total, MAX_INTERSECTED + 1)

    if sum(_nesting(part) for part in (schema, *targets.values())) > MAX_NESTING:
        raise TextError(f"{where}: nested more than {MAX_NESTING} deep, with all that it refers to")
    if any(size({"$ref": ref}) > MAX_INTERSECTED for ref in targets) or size(schema) > MAX_INTERSECTED:
        raise TextError(f"{where}: allOf and $ref make more than {MAX_INTERSECTED} schemas for one place")
    check(where, LLMatcher.grammar_from_json_schema(_dumped({**schema, "x-guidance": options})))


def references(schema: Any) -> set[str]:
    """Return the targets of all ``$ref`` members of a schema."""
    refs, rest = set(), [schema]
    while rest:
        node = rest.pop()
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                refs.add(node["$ref"])
            rest += node.values()
        elif isinstance(node, list):
            rest += node
    return refs


def _nesting(node: Any) -> int:
    """Return how deep a JSON value is nested; the recursion is safe, since parsing the request limits the depth."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return 1 + max(map(_nesting, inner), default=0)


def _target(schema: Any, reference: str) -> Any:
    """Return the part of ``schema`` that a reference such as "#/$defs/name" points to, None if there is none."""
    for step in unquote(reference).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        else:
            schema = schema.get(step) if isinstance(schema, dict) else None
    return schema if reference.startswith("#") else None


def after_marker(tag: str) -> str:
    """Return the text that follows the DSML marker in a tag."""
    return tag.partition(DSML)[2]


def call_grammar(
    tools: Sequence[Tool], dsml: int, most: int, *, lenient: bool = False, profile: Profile | None = None
) -> CallGrammar:
    """Return the grammar of a block of one to ``most`` calls of ``tools``, without rules if there are no tools.

    Its rules are ``block``, the whole block, and ``begun``, its rest after the marker of the first call.

    dsml      token id of the DSML marker
    lenient   constrain only strict tools and custom tools with a grammar
    profile   DeepSeek's prompt format, which decides the tags; None for that of May

    Raises TextError naming the tool whose schema or grammar is not supported.
    """
    grammar = CallGrammar(f"<[{dsml}]>", profile)
    if not tools:
        return grammar
    calls = [grammar.tool(tool, lenient) for tool in tools]
    more = f" (open call){{0,{most - 1}}}" if most > 1 else ""
    end = f"{grammar.tag('</')} {literal(grammar.names.block_close)}"
    grammar.rules += [
        f"call: {' | '.join(calls)}",
        f"open: {grammar.tag('<')}",
        f"begun: call{more} {end}",
        f"block: {grammar.tag(chr(10) * 2 + '<')} {literal(grammar.names.block_open + chr(10))} open begun",
    ]
    return grammar


class CallGrammar:
    """The grammar of tool calls, built rule by rule; methods return a rule's name, or a Lark expression.

    marker   Lark expression of the DSML marker token
    profile  DeepSeek's prompt format, None for that of May
    rules    Lark rules, one per entry
    custom   grammars of custom tools by name, which the rules refer to as ``@name``
    """

    def __init__(self, marker: str, profile: Profile | None):
        self.marker = marker
        self.names = Dialect(*map(after_marker, CANONICAL if profile is None else profile.tags))
        self.escape = escape_attribute if profile is None else str  # only the parser of the format of May undoes it
        self.rules: list[str] = []
        self.custom: dict[str, str] = {}

    def tag(self, opener: str) -> str:
        """Return the expression of the text ``opener`` followed by the marker."""
        return f"{literal(opener)} {self.marker}"

    def rule(self, prefix: str, body: str) -> str:
        """Add a rule and return its new name, which begins with ``prefix``; a capital makes it a Lark terminal."""
        name = f"{prefix}{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def tool(self, tool: Tool, lenient: bool) -> str:
        """Return the rule of one call, from after the marker of its opening tag to the end of its closing tag."""
        if tool.kind == "custom":
            body = self.parameter(literal(INPUT), [self.custom_text(tool)])
        elif lenient and not tool.strict:
            body = self.arguments(tool, {})
        else:
            body = self.arguments(tool, parsed(tool.parameters))
        head = literal(f'{self.names.invoke_open} name="{self.escape(tool.name)}">\n')
        return self.rule("c", f"{head} {body} {self.tag('</')} {literal(self.names.invoke_close + chr(10))}")

    def custom_text(self, tool: Tool) -> str:
        """Return the expression of a custom tool's text: free, or as its regex or Lark grammar demands."""
        from llguidance import LLMatcher, regex_to_lark

        if tool.grammar is None:
            return self.text(_FREE)
        syntax, definition = tool.grammar
        if syntax == "regex":
            check(f"tool {tool.name}", LLMatcher.grammar_from_regex(definition))
            return self.text(f'/{regex_to_lark(definition, use_ascii="")}/ "</"')
        if syntax != "lark":
            raise TextError(f"tool {tool.name}: unknown grammar syntax {syntax!r}; choose lark or regex")
        if definition.count(":") > MAX_RULES:
            raise TextError(f"tool {tool.name}: a grammar of more than {MAX_RULES} rules")
        definition = inner_schemas(f"tool {tool.name}", definition)
        check(f"tool {tool.name}", LLMatcher.grammar_from_lark(definition))
        name = f"custom{len(self.custom)}"
        self.custom[name] = definition
        # The grammar's last terminal may match "</" as text; ``constrain`` allows the marker only after "</".
        return f'{literal("true" + chr(34) + ">")} @{name} "</"? {self.marker}'

    def arguments(self, tool: Tool, schema: Any) -> str:
        """Return the expression of all parameters of a call whose arguments fit ``schema``."""
        where, options = f"tool {tool.name}", COMPACT if tool.strict else LENIENT
        if isinstance(schema, dict) and isinstance(target := _target(schema, str(schema.get("$ref"))), dict):
            schema = {key: schema[key] for key in _DEFINITIONS if key in schema} | target
        if not isinstance(schema, dict) or "object" not in _types(schema, "object"):
            raise TextError(f"{where}: its schema is not one of an object")
        if tool.strict and (refused := sorted(_WHOLE & set(schema))):
            raise TextError(f"{where}: {refused[0]} is not supported for the arguments as a whole")
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise TextError(f"{where}: properties is not an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise TextError(f"{where}: required is not an array of strings")
        others = schema.get("additionalProperties", not properties)
        known = properties | {name: others for name in required if name not in properties}
        parts = []
        for name, node in known.items():
            if node is False and name in required:
                raise TextError(f"{where}, parameter {name}: no value fits")
            if node is not False:
                values = self.values(f"{where}, parameter {name}", node, schema, options)
                one = self.parameter(literal(self.escape(name)), values)
                parts.append(one if name in required else f"{one}?")
        if others is not False:
            taken = " | ".join(literal(self.escape(name)) for name in known)
            name = self.rule("N", f"{_NAME} & ~({taken})" if taken else _NAME)
            values = self.values(f"{where}, additionalProperties", others, schema, options)
            parts.append(f"{self.parameter(name, values)}*")
        return " ".join(parts) or '""'

    def parameter(self, name: str, values: Sequence[str]) -> str:
        """Return the rule of one parameter, given the expressions of its name and of each spelling of its value."""
        opened = literal(f'{self.names.param_open} name="')
        head = f"{self.tag('<')} {opened} {name} {literal(chr(34) + ' string=' + chr(34))}"
        return self.rule("p", f"{head} ({' | '.join(values)}) {literal(self.names.param_close + chr(10))}")

    def text(self, terminal: str) -> str:
        """Return the expression of a value as plain text; the Lark terminal ``terminal`` includes the ``</`` behind."""
        return f"{literal('true' + chr(34) + '>')} {self.rule('V', terminal)} {self.marker}"

    def values(self, where: str, node: Any, root: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
        """Return the expressions of a value that fits ``node``, a subschema of ``root``: as plain text, JSON, or both.

        where: the parameter, for error messages; options: for llguidance.
        """
        terminal, complete = plain_text(node, root)
        spellings = [self.text(terminal)] if terminal else []
        if not complete:
            inner = node if isinstance(node, dict) else {}
            whole = inner | {key: root[key] for key in _DEFINITIONS if key in root}
            document = bounded(where, whole, bool(options.get("lenient")))
            for ref in sorted(references(document)):
                if ref.startswith("#") and not ref.startswith(("#/$defs/", "#/definitions/")):
                    raise TextError(f"{where}: $ref to {ref[:80]!r} is not supported, only #/$defs and #/definitions")
            check_schema(where, document, options)
            value = self.rule("j", json_rule(document, options))
            spellings.append(f"{literal('false' + chr(34) + '>')} {value} {self.tag('</')}")
        return spellings


def _types(schema: Mapping[str, Any], default: str = "") -> list[Any]:
    """Return the ``type`` keyword of a schema as a list; empty if it is neither a string nor an array."""
    types = schema.get("type", default)
    return [types] if isinstance(types, str) else types if isinstance(types, list) else []


def plain_text(node: Any, root: Mapping[str, Any]) -> tuple[str, bool]:
    """Return (terminal, exclusive) for the strings that the schema ``node`` allows as plain text.

    root        the schema that ``node`` belongs to, for references
    terminal    Lark terminal of these strings, "" for none; only unconstrained strings and enums have one
    exclusive   whether ``node`` allows nothing but these strings
    """
    if not isinstance(node, dict):
        return _FREE, False
    keywords = _OF_STRINGS & set(node)
    if keywords == {"$ref"} and isinstance(target := _target(root, str(node["$ref"])), dict):
        return plain_text(target, {})
    if not keywords:
        return _FREE, False
    if keywords == {"type"}:
        types = _types(node)
        return (_FREE, types == ["string"]) if "string" in types else ("", False)
    if keywords <= {"type", "enum", "const"} and node.get("type", "string") == "string":
        values = node.get("enum", [node.get("const")])
        texts = isinstance(values, list) and values and all(isinstance(value, str) for value in values)
        if len(keywords & {"enum", "const"}) == 1 and texts:
            return f'({" | ".join(literal(escape_string(value)) for value in values)}) "</"', True
    if keywords == {"anyOf"} and isinstance(node["anyOf"], list):
        parts = [plain_text(part, root) for part in node["anyOf"]]
        terminals = dict.fromkeys(terminal for terminal, _ in parts if terminal)
        return " | ".join(terminals), bool(parts) and all(complete for _, complete in parts)
    return "", False
