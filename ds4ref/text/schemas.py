"""The ``tools`` of a request as the schema lines of the tool prompt (docs/text.md 3): verbatim wherever possible.

Every tool that a model can call looks like a function to it. How the call goes back to the client is another matter:
``kind`` remembers what was declared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import TextError
from .messages import Fields, array, fields, text
from .rawjson import is_string, quote

_NO_PARAMETERS = '{"type":"object","properties":{}}'
_HOSTED = re.compile(r"(web_search|web_fetch|code_execution|tool_search_tool)_")
"""Tools that Anthropic's own servers run, by their type."""
_TRANSPORT = ("cache_control", "defer_loading")
"""Members that are about the request and tell a model nothing; the former moves from turn to turn."""


@dataclass(frozen=True)
class Schema:
    """One tool: the JSON the model sees, the name it calls, and what the client calls it.

    kind        "function"; "custom", whose one parameter ``input`` goes out as plain text; "tool_search"; "hosted",
                which only the server of another vendor could run: it is not shown
    namespace   the prefix of ``name`` that the client knows separately
    format      a custom tool's ``format`` as raw JSON, "" for none
    deferred    not shown until a tool result refers to it; may be called then
    """

    text: str
    name: str
    namespace: str = ""
    kind: str = "function"
    format: str = ""
    deferred: bool = False


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
    deferred = tool.get("defer_loading") == "true"
    if "function" in tool:
        name = text(fields(tool["function"], "function of a tool").get("name"), "name of a tool")
        return [Schema(tool["function"], name, deferred=deferred)]
    if kind == "namespace" and "name" in tool and "tools" in tool:
        namespace = text(tool["name"], "name of a namespace")
        inner = array(tool["tools"], "tools of a namespace")
        return [_rebuilt(fields(item, "a tool"), namespace, deferred=deferred) for item in inner]
    if kind == "tool_search":
        return [_rebuilt({"description": quote("Search available tools."), **tool}, "", "tool_search")]
    if kind == "custom" and "input_schema" not in tool:  # Anthropic calls its functions so
        return [_rebuilt(tool, "", deferred=deferred)]
    name = text(tool.get("name"), "name of a tool")
    if not name or _HOSTED.match(kind):
        return [Schema(raw, name, kind="hosted")]
    if any(member in tool for member in _TRANSPORT):
        raw = "{" + ",".join(f"{quote(key)}:{value}" for key, value in tool.items() if key not in _TRANSPORT) + "}"
    return [Schema(raw, name, deferred=deferred)]


def _rebuilt(tool: Fields, namespace: str, hosted: str = "", deferred: bool = False) -> Schema:
    """A schema in the plain form, under its full name."""
    custom = text(tool.get("type"), "type of a tool") == "custom"
    wrapper = "custom" if custom else "function"
    inner = fields(tool[wrapper], f"{wrapper} of a tool") if wrapper in tool else tool
    name = hosted or namespace + text(inner.get("name"), "name of a tool")
    if not name:
        raise TextError("a tool has no name")
    description = quote(text(inner.get("description"), "description of a tool"))
    form = inner.get("format", "") if custom else ""
    parameters = _one_text(form) if custom else inner.get("parameters", _NO_PARAMETERS)
    line = f'{{"name":{quote(name)},"description":{description},"parameters":{parameters}}}'
    deferred = deferred or tool.get("defer_loading") == "true"
    return Schema(line, name, namespace, hosted or ("custom" if custom else "function"), form, deferred)


def _one_text(form: str) -> str:
    """The parameters of a custom tool: one text, in the grammar that its format names."""
    told = fields(form, "format of a tool") if form else {}
    grammar = fields(told["grammar"], "grammar of a tool") if "grammar" in told else told  # chat wraps it
    definition = grammar.get("definition", "")
    kind = '"type":"string"'
    if definition and is_string(definition):
        syntax = text(grammar.get("syntax"), "syntax of a grammar", "lark")
        words = f"Text in this {syntax} grammar:\n" + text(definition, "definition of a grammar")
        kind += f',"description":{quote(words)}'
    return f'{{"type":"object","properties":{{"input":{{{kind}}}}},"required":["input"]}}'
