"""Converts the ``tools`` of a request to the lines of the tool prompt (docs/explanation/text.md 3).

Each line is the JSON schema of a tool, verbatim if possible. Members meant for the server are removed:
``cache_control``, which clients move from tool to tool between requests, and ``defer_loading``. A custom tool is shown
as a function with one string parameter ``input``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..errors import TextError
from . import rawjson
from .fields import Fields, array, fields, text
from .rawjson import quote

_NO_PARAMETERS = '{"type":"object","properties":{}}'
_FOR_THE_SERVER = ("cache_control", "defer_loading")
INPUT = "input"
"""Name of a custom tool's single parameter, as the model sees it."""


@dataclass(frozen=True)
class Schema:
    """One tool of a request.

    text        JSON that the model sees
    name        name by which the model calls the tool
    namespace   prefix of ``name`` that the client does not count as part of the tool's name
    kind        "function"; "custom", called with plain text; "tool_search", the API's tool of that name; "hosted", a
                tool that only another server could run, which is hidden from the model
    strict      whether the client demands arguments that fit the schema
    deferred    whether the tool prompt leaves it out, because a tool search result will show its line (``messages``)
    in_results  whether such a result is part of the conversation
    grammar     (syntax, definition) of the grammar for a custom tool's text; None if the text is free
    """

    text: str
    name: str
    namespace: str = ""
    kind: str = "function"
    strict: bool = False
    deferred: bool = False
    in_results: bool = False
    grammar: tuple[str, str] | None = None

    @property
    def in_prompt(self) -> bool:
        """Return whether the tool prompt contains the schema."""
        return self.kind != "hosted" and not self.deferred

    @property
    def callable(self) -> bool:
        """Return whether the model was shown the tool, in the tool prompt or in a search result."""
        return self.kind != "hosted" and (self.in_results or not self.deferred)

    @property
    def bare(self) -> str:
        """Return the tool's name without the namespace, as the client calls it."""
        return self.name.removeprefix(self.namespace)

    @property
    def parameters(self) -> str:
        """Return the JSON schema of the arguments; an object without members if the tool declares none."""
        tool = fields(self.text, "a tool")
        return tool.get("parameters") or tool.get("input_schema") or _NO_PARAMETERS


def read_schemas(raw: str | None) -> list[Schema]:
    """Parse the ``tools`` array in order; empty for null or an empty array.

    Raise TextError for anything that is not an array of objects.
    """
    if raw is None or raw == "null":
        return []
    schemas: list[Schema] = []
    for item in array(raw, "tools"):
        schemas += _tool(item)
    return schemas


def found_in(schemas: Iterable[Schema], names: Iterable[str]) -> list[Schema]:
    """Return ``schemas``, with those in ``names`` marked as shown by a search result, so that they are callable.

    names: names of tools that tool search results refer to (``messages.tool_references``).
    """
    wanted = set(names)
    return [replace(schema, in_results=True) if schema.name in wanted else schema for schema in schemas]


def brought(raw_tools: Sequence[str]) -> list[Schema]:
    """Return the schemas of tools whose definitions are part of tool search results: they are callable, but the tool
    prompt does not repeat them.

    raw_tools: JSON text of each tool (``messages.from_responses``).
    """
    return [replace(schema, deferred=True, in_results=True) for schema in read_schemas(f"[{','.join(raw_tools)}]")]


def by_name(schemas: Iterable[Schema]) -> dict[str, Schema]:
    """Return the callable tools by the name that the model uses; of duplicate names the first counts."""
    tools: dict[str, Schema] = {}
    for schema in schemas:
        if schema.callable:
            tools.setdefault(schema.name, schema)
    return tools


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
    """Return a tool's JSON without the members meant for the server; unchanged if it has none of them."""
    members = rawjson.members(raw)
    if not any(name in _FOR_THE_SERVER for name, _ in members):
        return raw
    entries = (f"{quote(name)}:{value}" for name, value in members if name not in _FOR_THE_SERVER)
    return f"{{{','.join(entries)}}}"


def _custom(tool: Fields) -> Schema:
    """Return the schema of a custom tool, which takes plain text, perhaps restricted by a grammar.

    A grammar is given as {"format": {"type": "grammar", "syntax": ..., "definition": ...}}; the chat completions API
    nests all of this under "custom", and the grammar's members under "grammar".
    """
    inner = fields(tool["custom"], "custom of a tool") if "custom" in tool else tool
    name = text(inner.get("name"), "name of a tool")
    if not name:
        raise TextError("a tool has no name")
    form = fields(inner["format"], "format of a tool") if "format" in inner else {}
    grammar, about = None, "Plain text."
    if text(form.get("type"), "format of a tool", "text") == "grammar":
        definition = fields(form["grammar"], "grammar of a tool") if "grammar" in form else form
        syntax = text(definition.get("syntax"), "syntax of a grammar")
        grammar = syntax, text(definition.get("definition"), "definition of a grammar")
        about = f"Plain text that fits this grammar ({syntax}):\n{grammar[1]}"
    parameters = (
        f'{{"type":"object","properties":{{"{INPUT}":{{"type":"string","description":{quote(about)}}}}},'
        f'"required":["{INPUT}"]}}'
    )
    description = quote(text(inner.get("description"), "description of a tool"))
    line = f'{{"name":{quote(name)},"description":{description},"parameters":{parameters}}}'
    return Schema(line, name, kind="custom", grammar=grammar)


def _within(tool: Fields, namespace: str) -> Schema:
    """Return the schema of a tool in a namespace, named by the namespace and its own name together."""
    kind = text(tool.get("type"), "type of a tool")
    if kind == "custom" and "input_schema" not in tool:
        plain = _custom(tool)
        schema = replace(
            _rebuilt(fields(plain.text, "a tool"), namespace + plain.name), kind=kind, grammar=plain.grammar
        )
    else:
        inner = fields(tool["function"], "function of a tool") if "function" in tool else tool
        schema = _rebuilt(inner, namespace + text(inner.get("name"), "name of a tool"))
        schema = replace(schema, strict=inner.get("strict", tool.get("strict")) == "true")
    return replace(schema, namespace=namespace, deferred=tool.get("defer_loading") == "true")


def _rebuilt(tool: Fields, name: str, kind: str = "function") -> Schema:
    if not name:
        raise TextError("a tool has no name")
    description = quote(text(tool.get("description"), "description of a tool"))
    parameters = tool.get("parameters") or tool.get("input_schema") or _NO_PARAMETERS
    return Schema(f'{{"name":{quote(name)},"description":{description},"parameters":{parameters}}}', name, kind=kind)
