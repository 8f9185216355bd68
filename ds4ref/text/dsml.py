"""Renders tool calls and results in DSML, the markup that DeepSeek models use for them (docs/explanation/text.md 4).

``dsml_parser`` is the inverse. Inside a string value everything is verbatim, except that the ``<`` of the parameter's
own closing tag becomes ``&lt;``. Text that already looks like this escape gets one more ``amp;``, so that parsing
returns exactly the original string; ds4 leaves such text unchanged, so both become the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from . import rawjson
from .protocol import CANONICAL, TOOL_RESULT_CLOSE, TOOL_RESULT_OPEN, Dialect
from .rendered import Rendered, TextPart


@dataclass(frozen=True)
class ToolCall:
    """A tool call.

    name       name of the tool
    arguments  JSON text, normally an object
    id         id by which the client refers to this call
    """

    name: str
    arguments: str
    id: str = ""


def escape_attribute(text: str) -> str:
    """Escape text for the value of a tag's attribute."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def escape_string(text: str, close: str = CANONICAL.param_close) -> str:
    """Escape text for the body of a ``string="true"`` parameter, which ends at the tag ``close``."""
    text = re.sub(rf"&(?=(?:amp;)*lt;{re.escape(close[1:])})", "&amp;", text)
    return text.replace(close, "&lt;" + close[1:])


def parameters(arguments: str) -> list[tuple[str, str, bool]]:
    """Return (name, escaped body, is_string) of each argument of a call.

    arguments: JSON text. If it is not an object, it becomes one string parameter named "arguments".
    """
    try:
        pairs = rawjson.members(arguments)
    except ValueError:
        return [("arguments", escape_string(arguments), True)]
    return [
        (name, escape_string(rawjson.string(raw)), True)
        if rawjson.is_string(raw)
        else (name, rawjson.minify(raw).replace(CANONICAL.param_close, "\\u003c" + CANONICAL.param_close[1:]), False)
        for name, raw in pairs
    ]


def render_calls(calls: Iterable[ToolCall]) -> list[TextPart]:
    """Render calls as one DSML block, after two newlines, with the tags in their usual spelling."""
    return block_of((call.name, parameters(call.arguments)) for call in calls)


def block_of(
    calls: Iterable[tuple[str, list[tuple[str, str, bool]]]], tag: Dialect = CANONICAL, bare: str = "",
    escape: Callable[[str], str] = escape_attribute,
) -> list[TextPart]:  # fmt: skip
    """Return a DSML block of calls, after two newlines.

    calls   (name, parameters) of each call; a parameter is (name, body, is_string), with its body escaped already
    tag     spelling of the tags
    bare    text inside a call that has no parameters
    escape  escapes names
    """
    block = Rendered().protocol(f"\n\n{tag.block_open}\n")
    for call, values in calls:
        block.protocol(f'{tag.invoke_open} name="').plain(escape(call)).protocol('">\n')
        for name, body, is_string in values:
            block.protocol(f'{tag.param_open} name="').plain(escape(name))
            block.protocol(f'" string="{str(is_string).lower()}">').plain(body).protocol(f"{tag.param_close}\n")
        block.protocol(f"{'' if values else bare}{tag.invoke_close}\n")
    return block.protocol(tag.block_close).parts


def render_result(content: str) -> list[TextPart]:
    """Render a tool's output, escaping only the closing tag of the result."""
    body = content.replace(TOOL_RESULT_CLOSE, "&lt;" + TOOL_RESULT_CLOSE[1:])
    return Rendered().protocol(TOOL_RESULT_OPEN).plain(body).protocol(TOOL_RESULT_CLOSE).parts
