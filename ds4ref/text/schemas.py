"""The ``tools`` of a request as the schema lines of the tool prompt (docs/text.md 3): verbatim wherever possible."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import TextError
from .messages import Fields, array, fields, text
from .rawjson import quote

_NO_PARAMETERS = '{"type":"object","properties":{}}'


@dataclass(frozen=True)
class Schema:
    """One tool: the JSON the model sees, the name it calls, and what the client calls it.

    ``kind`` is "function", or "tool_search" for the hosted tool of that name. ``namespace`` is the prefix of ``name``
    that the client knows separately.
    """

    text: str
    name: str
    namespace: str = ""
    kind: str = "function"


def read_schemas(raw: str | None) -> list[Schema]:
    """Tools in order; none for null or an empty array. TextError for anything that is not an array of objects."""
    if raw is None or raw == "null":
        return []
    found: list[Schema] = []
    for item in array(raw, "tools"):
        found += _tool(item)
    return found


def _tool(raw: str) -> list[Schema]:
    tool = fields(raw, "a tool")
    kind = text(tool.get("type"), "type of a tool")
    if "function" in tool:
        name = text(fields(tool["function"], "function of a tool").get("name"), "name of a tool")
        return [Schema(tool["function"], name)]
    if kind == "namespace" and "name" in tool and "tools" in tool:
        namespace = text(tool["name"], "name of a namespace")
        inner = array(tool["tools"], "tools of a namespace")
        return [_rebuilt(fields(item, "a tool"), namespace) for item in inner]
    if kind == "tool_search":
        return [_rebuilt({"description": quote("Search available tools."), **tool}, "", "tool_search")]
    return [Schema(raw, text(tool.get("name"), "name of a tool"))]


def _rebuilt(tool: Fields, namespace: str, hosted: str = "") -> Schema:
    """A schema in the plain form, under its full name."""
    inner = fields(tool["function"], "function of a tool") if "function" in tool else tool
    name = hosted or namespace + text(inner.get("name"), "name of a tool")
    if not name:
        raise TextError("a tool has no name")
    description = quote(text(inner.get("description"), "description of a tool"))
    parameters = inner.get("parameters", _NO_PARAMETERS)
    line = f'{{"name":{quote(name)},"description":{description},"parameters":{parameters}}}'
    return Schema(line, name, namespace, hosted or "function")
