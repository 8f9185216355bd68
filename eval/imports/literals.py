"""Read tables in C source: arrays of structs whose fields are written as literals.

    static const eval_case cases[] = {
        { .source = "AIME2025", .question = "How many " "...", .answer = "70" },
        { "GPQA Diamond", "rec1", "Physics", "...", "...", {"a", "b"}, "A" },
    };

This is no C parser: macros, casts and conditions (``#if``) are not followed. An element that holds anything but
literals, NULL and lists of these raises Skip with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .records import Skip

Value = str | list[str | None] | None
"""A text, the texts of a list, or None for NULL."""


@dataclass
class Node:
    """A token, or a group: all tokens between two braces.

    kind      "string", "word", "mark", "directive" or "group"
    text      bytes of the token
    line      line number, from 1
    children  tokens and groups in a group
    """

    kind: str
    text: bytes
    line: int
    children: list[Node] = field(default_factory=list)


_TOKEN = re.compile(
    rb"(?P<space>\s+|//[^\n]*|/\*.*?(?:\*/|\Z))"
    rb"|(?P<directive>#(?:\\\r?\n|[^\n])*)"
    rb'|(?P<string>"(?:\\\r?\n|\\.|[^"\\\n])*")'
    rb"|(?P<char>'(?:\\.|[^'\\\n])+')"
    rb"|(?P<word>\w+)|(?P<mark>.)",
    re.DOTALL,
)
_ESCAPE = re.compile(rb"\\(?:\r?\n|([0-7]{1,3})|x([0-9A-Fa-f]{1,2})(?![0-9A-Fa-f])|(.))", re.DOTALL)
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"e": b"\x1b"}


def groups(data: bytes) -> Iterator[Node]:
    """Yield every group in braces, inner ones before the group around them."""
    open_groups = [Node("group", b"", 1)]
    line = 1
    for match in _TOKEN.finditer(data):
        siblings, text = open_groups[-1].children, match[0]
        if text == b"{":
            open_groups.append(Node("group", b"{", line))
            siblings.append(open_groups[-1])
        elif text == b"}" and len(open_groups) > 1:
            yield open_groups.pop()
        elif match.lastgroup != "space":
            siblings.append(Node(match.lastgroup or "", text, line))
        line += text.count(b"\n")


def items(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """Split nodes at commas; a comma at the end adds no empty item."""
    item: list[Node] = []
    for node in nodes:
        if node.text == b",":
            yield item
            item = []
        else:
            item.append(node)
    if item:
        yield item


def struct(item: Sequence[Node], names: Sequence[str]) -> dict[str, Value]:
    """Read one struct into a dict: from its designated fields in ``names``, or from exactly ``names`` in order."""
    if len(item) != 1 or item[0].kind != "group":
        raise Skip("not written out in braces", _shown(item))
    values = list(items(item[0].children))
    if not any(value and value[0].text == b"." for value in values):
        in_order = [_value(value) for value in values]
        if len(in_order) != len(names) and any(in_order):
            raise Skip(f"not {len(names)} values", len(in_order))
        return dict(zip(names, in_order, strict=False))
    fields: dict[str, Value] = {}
    for value in values:
        if len(value) < 4 or value[0].text != b"." or value[2].text != b"=":
            raise Skip("a field without a name or a value", _shown(value))
        name = value[1].text.decode("utf-8", "replace")
        if name in names:
            fields[name] = _value(value[3:])
    return fields


def _value(nodes: Sequence[Node]) -> Value:
    """Read a list of texts, or a text."""
    if len(nodes) == 1 and nodes[0].kind == "group":
        return [_text(item) for item in items(nodes[0].children)]
    return _text(nodes)


def _text(nodes: Sequence[Node]) -> str | None:
    """Read string literals side by side, or a plain number; None for NULL and 0, Skip for anything else."""
    if len(nodes) == 1 and nodes[0].text in (b"NULL", b"0"):
        return None
    if len(nodes) == 1 and re.fullmatch(rb"[1-9][0-9]*", nodes[0].text):
        return nodes[0].text.decode()
    if not nodes or any(node.kind != "string" for node in nodes):
        raise Skip("a value that is no literal", _shown(nodes))
    data = b"".join(_ESCAPE.sub(_unescaped, node.text[1:-1]) for node in nodes)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Skip("a text that is not UTF-8", f"byte 0x{data[error.start]:02x}") from None


def _unescaped(match: re.Match[bytes]) -> bytes:
    """Decode an escape sequence; drop a backslash that means nothing, as compilers do."""
    octal, hexadecimal, other = match.groups()
    if octal is None and hexadecimal is None and other is None:
        return b""  # a line that goes on
    code = int(octal, 8) if octal else int(hexadecimal, 16) if hexadecimal else 1
    if not 0 < code < 256 or other in (b"x", b"u", b"U"):
        raise Skip("an escape that is not read", match[0].decode("utf-8", "replace"))
    return _ESCAPED.get(other, other) if other else bytes([code])


def _shown(nodes: Sequence[Node]) -> str:
    return b" ".join(node.text[:40] for node in nodes[:8]).decode("utf-8", "replace")
