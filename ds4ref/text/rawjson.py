"""Takes JSON text apart without changing it.

Tool schemas and arguments are inserted into prompts verbatim (docs/explanation/text.md 3, 4): key order, number
spelling and duplicate keys must survive, so they cannot be parsed into dicts. These functions walk JSON text and return
slices of it. They accept only valid values, limit the nesting, do not recurse, and take linear time.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # documented nowhere, there since Python 3.0

MAX_DEPTH = 256


_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(rf"[ \t\n\r]*+(?:(?P<key>\x22)|(?P<scalar>{_NUMBER}|true|false|null)|(?P<mark>[{{}}\[\],:]))")
_SPACE = re.compile(r"[ \t\n\r]*")
_OUTSIDE_STRINGS = re.compile(rf"({_STRING})|[ \t\n\r]+")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def value_end(text: str, start: int = 0) -> int:
    """Return the index after the JSON value that starts at ``start``, or after white space there; raise ValueError if
    there is no valid value."""
    at, stack = start, ""
    want = "value"  # value, value-or-end, key, key-or-end, colon, comma-or-end
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"no JSON at character {at}")
        at, mark = match.end(), match["mark"]
        if match["key"]:
            at = scanstring(text, at)[1]
        if mark is None and want in ("key", "key-or-end") and match["key"] is not None:
            want = "colon"
            continue
        if mark == ":" and want == "colon":
            want = "value"
            continue
        if mark == "," and want == "comma-or-end":
            want = "key" if stack[-1] == "{" else "value"
            continue
        if mark in ("{", "[") and want in ("value", "value-or-end"):
            if len(stack) == MAX_DEPTH:
                raise ValueError(f"JSON nested more than {MAX_DEPTH} deep")
            stack += mark
            want = "key-or-end" if mark == "{" else "value-or-end"
            continue
        if mark in ("}", "]") and want in ("comma-or-end", "key-or-end" if mark == "}" else "value-or-end"):
            if stack[-1] != ("{" if mark == "}" else "["):
                raise ValueError(f"unbalanced {mark} at character {at - 1}")
            stack = stack[:-1]
        elif mark is not None or want not in ("value", "value-or-end"):
            raise ValueError(f"unexpected {match[0].strip()[:20]!r} before character {at}")
        if not stack:
            return at
        want = "comma-or-end"


def members(text: str) -> list[tuple[str, str]]:
    """Return (name, raw value) of an object's members in order, duplicates included.

    Commas are optional, and text after the object is ignored. Raise ValueError if ``text`` is not an object.
    """
    at = _space(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not a JSON object")
    at, pairs = _space(text, at + 1), []
    while text[at : at + 1] != "}":
        end = value_end(text, at)
        if text[at] != '"' or text[(colon := _space(text, end)) : colon + 1] != ":":
            raise ValueError(f"no member name at character {at}")
        start = _space(text, colon + 1)
        stop = value_end(text, start)
        pairs.append((string(text[at:end]), text[start:stop]))
        at = _next(text, stop)
    return pairs


def items(text: str) -> list[str]:
    """Return the raw values of an array in order; raise ValueError if ``text`` is not an array."""
    start = _space(text, 0)
    value_end(text, start)
    if text[start : start + 1] != "[":
        raise ValueError("not a JSON array")
    at, values = _space(text, start + 1), []
    while text[at] != "]":
        end = value_end(text, at)
        values.append(text[at:end])
        at = _next(text, end)
    return values


def minify(text: str) -> str:
    """Remove white space outside strings from valid JSON."""
    return _OUTSIDE_STRINGS.sub(lambda match: match[1] or "", text)


def string(raw: str) -> str:
    """Return the value of a raw JSON string; a lone surrogate escape becomes U+FFFD."""
    return _LONE_SURROGATE.sub("\ufffd", json.loads(raw))


def quote(text: str) -> str:
    """Return ``text`` as a JSON string, escaping only quotes, backslashes and control characters."""
    return json.dumps(text, ensure_ascii=False)


def is_string(raw: str) -> bool:
    """Return whether a raw JSON value is a string."""
    return raw.startswith('"')


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _next(text: str, at: int) -> int:
    at = _space(text, at)
    return _space(text, at + 1) if text[at : at + 1] == "," else at
