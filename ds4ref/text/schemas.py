"""The ``tools`` of a request as the schema lines of the tool prompt (docs/text.md 3): verbatim wherever possible.

What is said to the server alone (``cache_control``, which moves from request to request, and ``defer_loading``) is left
out of the line. A custom tool is shown as a function with one string parameter ``input``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..errors import TextError
from . import rawjson
from .messages import Fields, array, fields, text
from .rawjson import quote

_NO_PARAMETERS = '{"type":"object","properties":{}}'
_FOR_THE_SERVER = ("cache_control", "defer_loading")
INPUT = "input"
"""The parameter of a custom tool, as the model sees it."""


@dataclass(frozen=True)
class Schema:
    """One tool: the JSON the model sees, the name it calls, and what the client calls it.

    namespace  the prefix of ``name`` that the client knows separately
    kind       "function"; "custom", whose call is plain text; "tool_search" for the hosted tool of that name; "hosted"
               for what a server of another kind would run: hidden from the model
    strict     the client wants arguments that fit the schema, always
    deferred   not shown in the tool prompt: a result of a tool search brings the line (``messages``)
    found      such a result is in the conversation
    grammar    (syntax, definition) of a custom tool's text, None where it is free
    """

    text: str
    name: str
    namespace: str = ""
    kind: str = "function"
    strict: bool = False
    deferred: bool = False
    found: bool = False
    grammar: tuple[str, str] | None = None

    @property
    def shown(self) -> bool:
        """Whether the tool prompt has it."""
        return self.kind != "hosted" and not self.deferred

    @property
    def callable(self) -> bool:
        """Whether the model knows of it, from the tool prompt or from a result."""
        return self.kind != "hosted" and (self.found or not self.deferred)

    @property
    def bare(self) -> str:
        """The name that the client knows, without its namespace."""
        return self.name.removeprefix(self.namespace)

    @property
    def parameters(self) -> str:
        """The JSON schema of its arguments; of a tool without one, an object without members."""
        tool = fields(self.text, "a tool")
        return tool.get("parameters") or tool.get("input_schema") or _NO_PARAMETERS


def read_schemas(raw: str | None) -> list[Schema]:
    """Tools in order; none for null or an empty array. TextError for anything that is not an array of objects."""
    if raw is None or raw == "null":
        return []
    found: list[Schema] = []
    for item in array(raw, "tools"):
        found += _tool(item)
    return found


def found_in(schemas: Iterable[Schema], names: Iterable[str]) -> list[Schema]:
    """``schemas``, those that results of a search named (``messages.tool_references``) marked as found."""
    wanted = set(names)
    return [replace(schema, found=True) if schema.name in wanted else schema for schema in schemas]


def brought(raw_tools: Sequence[str]) -> list[Schema]:
    """The tools of search results that show their lines in place (``messages.from_responses``): callable, but not in
    the tool prompt."""
    return [replace(schema, deferred=True, found=True) for schema in read_schemas(f"[{','.join(raw_tools)}]")]


def by_name(schemas: Iterable[Schema]) -> dict[str, Schema]:
    """The tools that may be called, by the names that the model calls; of two with one name the first."""
    found: dict[str, Schema] = {}
    for schema in schemas:
        if schema.callable:
            found.setdefault(schema.name, schema)
    return found


def _tool(raw: str) -> list[Schema]:
    tool = fields(raw, "a tool")
    kind = text(tool.get("type"), "type of a tool")
    if kind == "namespace" and "name" in tool and "tools" in tool:
        namespace = text(tool["name"], "name of a namespace")
        return [_within(fields(item, "a tool"), namespace) for item in array(tool["tools"], "tools of a namespace")]
    if kind == "tool_search":
        return [_rebuilt({"description": quote("Search available tools."), **tool}, "tool_search", kind)]
    deferred = tool.get("defer_loading") == "true"
    if kind == "custom" and "input_schema" not in tool:
        return [replace(_custom(tool), deferred=deferred)]
    if "function" in tool:
        inner = fields(tool["function"], "function of a tool")
        name = text(inner.get("name"), "name of a tool")
        strict = inner.get("strict", tool.get("strict")) == "true"
        return [Schema(_without(tool["function"]), name, strict=strict, deferred=deferred)]
    name = text(tool.get("name"), "name of a tool")
    callable_ = name and (kind in ("", "function", "custom") or "parameters" in tool or "input_schema" in tool)
    if not callable_:
        return [Schema(raw, name, kind="hosted")]
    return [Schema(_without(raw), name, strict=tool.get("strict") == "true", deferred=deferred)]


def _without(raw: str) -> str:
    """A tool's JSON, verbatim unless a member is for the server alone."""
    members = rawjson.members(raw)
    if not any(name in _FOR_THE_SERVER for name, _ in members):
        return raw
    kept = (f"{quote(name)}:{value}" for name, value in members if name not in _FOR_THE_SERVER)
    return f"{{{','.join(kept)}}}"


def _custom(tool: Fields) -> Schema:
    """A tool that takes text, of a form perhaps: {"format": {"type": "grammar", "syntax", "definition"}}; the chat
    API puts all of it under "custom", and the grammar's members under "grammar"."""
    inner = fields(tool["custom"], "custom of a tool") if "custom" in tool else tool
    name = text(inner.get("name"), "name of a tool")
    if not name:
        raise TextError("a tool has no name")
    form = fields(inner["format"], "format of a tool") if "format" in inner else {}
    grammar, about = None, "Plain text."
    if text(form.get("type"), "format of a tool", "text") == "grammar":
        told = fields(form["grammar"], "grammar of a tool") if "grammar" in form else form
        syntax = text(told.get("syntax"), "syntax of a grammar")
        grammar = syntax, text(told.get("definition"), "definition of a grammar")
        about = f"Plain text that fits this grammar ({syntax}):\n{grammar[1]}"
    parameters = (
        f'{{"type":"object","properties":{{"{INPUT}":{{"type":"string","description":{quote(about)}}}}},'
        f'"required":["{INPUT}"]}}'
    )
    description = quote(text(inner.get("description"), "description of a tool"))
    line = f'{{"name":{quote(name)},"description":{description},"parameters":{parameters}}}'
    return Schema(line, name, kind="custom", grammar=grammar)


def _within(tool: Fields, namespace: str) -> Schema:
    """A tool of a namespace in the plain form, under its full name."""
    kind = text(tool.get("type"), "type of a tool")
    if kind == "custom" and "input_schema" not in tool:
        plain = _custom(tool)
        made = replace(_rebuilt(fields(plain.text, "a tool"), namespace + plain.name), kind=kind, grammar=plain.grammar)
    else:
        inner = fields(tool["function"], "function of a tool") if "function" in tool else tool
        made = _rebuilt(inner, namespace + text(inner.get("name"), "name of a tool"))
        made = replace(made, strict=inner.get("strict", tool.get("strict")) == "true")
    return replace(made, namespace=namespace, deferred=tool.get("defer_loading") == "true")


def _rebuilt(tool: Fields, name: str, kind: str = "function") -> Schema:
    if not name:
        raise TextError("a tool has no name")
    description = quote(text(tool.get("description"), "description of a tool"))
    parameters = tool.get("parameters") or tool.get("input_schema") or _NO_PARAMETERS
    return Schema(f'{{"name":{quote(name)},"description":{description},"parameters":{parameters}}}', name, kind=kind)
