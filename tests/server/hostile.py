"""Requests that mean no good, or are broken, as bytes: what is sent, and which statuses may come back.

Status 0 is a connection that is closed without a word. Nothing in here is answered with a 5xx, but for a transfer
coding that nobody knows (501). Bodies of requests that are well-formed HTTP are in ``MALFORMED`` (a 400 is due, by
server.md and what follows from it) and ``TOLERATED`` (strange, and answered).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """What is sent, in ``pieces``; ``shut``: and then no more."""

    pieces: tuple[bytes, ...]
    wanted: frozenset[int]
    shut: bool = False


def case(*pieces: bytes, wanted: int | tuple[int, ...] = 400, shut: bool = False) -> Case:
    """What comes back is one of the statuses ``wanted``."""
    return Case(pieces, frozenset([wanted] if isinstance(wanted, int) else wanted), shut)


def get(path: bytes, *headers: bytes, method: bytes = b"GET", close: bool = True) -> bytes:
    """A request without a body."""
    more = [b"Connection: close"] if close else []
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", b"Host: localhost", *more, *headers]) + b"\r\n\r\n"


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request with one; the connection ends with it."""
    return head(path, f"Content-Length: {len(body)}", *headers) + body


def head(path: str, *headers: str) -> bytes:
    """The beginning of a request with a body."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
COUNT = "/v1/messages/count_tokens"
GENERATES = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)

ASKS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "q"}], "max_tokens": 1, "thinking": False},
    COMPLETIONS: {"prompt": "q", "max_tokens": 1, "thinking": False},
    MESSAGES: {"messages": [{"role": "user", "content": "q"}], "max_tokens": 1},
    RESPONSES: {"input": "q", "max_output_tokens": 1, "reasoning": {"effort": "none"}},
    COUNT: {"messages": [{"role": "user", "content": "q"}]},
}
"""A request of each kind that is answered."""


def asked(path: str, more: bytes = b"", **fields: Any) -> bytes:
    """The body of such a request, with other fields; ``more`` are members as they are to be written."""
    body = json.dumps({**ASKS[path], **fields}).encode()
    return body[:-1] + b"," + more + b"}" if more else body


# ------------------------------------------------------------------------------------------------ what is no request

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

LINES = {
    "no request line": case(b"\r\n\r\n\r\n"),
    "nonsense": case(b"hello\r\n\r\n"),
    "tls": case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "http/2": case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "a method with a blank": case(b"G ET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "no host": case(b"GET /health HTTP/1.1\r\n\r\n"),
    "two hosts": case(HEALTH + b"Host: localhost\r\n\r\n"),
    "another host": case(b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", wanted=403),
    "a header without a colon": case(HEALTH + b"nonsense\r\n\r\n"),
    "nul in a header": case(HEALTH + b"X: a\x00b\r\n\r\n"),
    "nul in the path": case(b"GET /hea\x00lth HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "bare line feeds": case(HEALTH.replace(b"\r\n", b"\n") + b"\n", wanted=(200, 400)),
    "half a request": case(HEALTH[:-9], shut=True),
    "nothing": case(b"", wanted=0, shut=True),
    "a long path": case(get(b"/" + b"a" * 9000), wanted=414),
    "a long header": case(HEALTH + b"X: " + b"y" * 70_000 + b"\r\n\r\n", wanted=431),
    "headers without an end": case(HEALTH + b"X: " * 70_000, wanted=431),
    "10 000 headers": case(HEALTH + b"X: y\r\n" * 10_000 + b"\r\n", wanted=431),
    "a negative length": case(POST + b"Content-Length: -1\r\n\r\n"),
    "a length in words": case(POST + b"Content-Length: ten\r\n\r\n"),
    "a length of 2**63": case(POST + b"Content-Length: %d\r\n\r\n" % 2**63, wanted=413),
    "two lengths": case(POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
    "length and chunks": case(POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "less than announced": case(POST + b"Content-Length: 100\r\n\r\n{}", shut=True),
    "more than announced": case(POST + b"Content-Length: 2\r\n\r\n{}" + b"GARBAGE\r\n\r\n", wanted=400),
    "another coding": case(POST + b"Transfer-Encoding: gzip\r\n\r\n", wanted=501),
    "chunks twice": case(POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", wanted=501),
    "a chunk of no size": case(CHUNKED + b"zz\r\n"),
    "a chunk that goes on": case(CHUNKED + b"1\r\nabc\r\n"),
    "a chunk with a long extension": case(CHUNKED + b"1;" + b"x" * 100_000, wanted=431),
    "chunks without an end": case(CHUNKED + b"2\r\n{}\r\n", shut=True),
    "a body in crumbs": case(CHUNKED, *[b"1\r\nx\r\n" * 1000] * 100),
}

# ------------------------------------------------------------------------------------------------------- strange paths

PATHS = [
    b"//", b"/../../etc/passwd", b"/v1/../../../etc/passwd", b"/..%2f..%2fetc%2fpasswd",
    b"/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd", b"/v1/models/..;/x", b"/V1/models", b"/v1//models", b"/./v1/models",
    b"/v1\\models", b"/v1/%6dodels", b"/v1/models%00", b"/v1/models/deepseek-v4-flash%0d%0aX:1", b"/v1/models/%ff%fe",
    b"/%", b"/v1/chat/completions/", b"http://evil.example/v1/models", b"/v1/models#fragment", b"/" + b"../" * 1000,
]  # fmt: skip

STRANGE = {
    **{f"GET {path[:60].decode()}": case(get(path), wanted=(400, 404)) for path in PATHS},
    **{
        f"{method.decode()} a path": case(get(b"/v1/models", method=method), wanted=404)
        for method in (b"TRACE", b"PATCH", b"DELETE", b"PUT", b"get", b"OPTIONSX", b"PROPFIND", b"__CLASS__")
    },
    "CONNECT": case(get(b"evil.example:443", method=b"CONNECT"), wanted=(400, 404)),
    "OPTIONS of everything": case(get(b"*", method=b"OPTIONS"), wanted=(204, 400)),
    "GET what is posted": case(get(b"/v1/chat/completions"), wanted=404),
    "POST what is read": case(post("/v1/models", b"{}"), wanted=404),
    "an upgrade": case(get(b"/v1/responses", b"Upgrade: websocket"), wanted=404),
    "an upgrade to h2c": case(get(b"/nothing", b"Upgrade: h2c", b"HTTP2-Settings: AAA"), wanted=404),
    "a site that is not ours": case(get(b"/v1/models", b"Origin: http://evil.example"), wanted=403),
}

# -------------------------------------------------------------------------------------------------------------- bodies


def nested(opening: bytes, inside: bytes, closing: bytes, depth: int) -> bytes:
    """Values in each other."""
    return opening * depth + inside + closing * depth


JSON_BODIES: dict[str, Callable[[str], bytes]] = {
    "nothing": lambda path: b"",
    "no JSON": lambda path: b"hello",
    "an array": lambda path: b"[" + asked(path) + b"]",
    "something after it": lambda path: asked(path) + asked(path),
    "cut": lambda path: asked(path)[:-1],
    "no UTF-8": lambda path: asked(path, b'"x":"\xff"'),
    "UTF-16": lambda path: asked(path).decode().encode("utf-16"),
    "a control character": lambda path: asked(path, b'"x":"a\x01b"'),
    "NaN where nobody looks": lambda path: asked(path, b'"x":NaN'),
    "nested 10 000 deep": lambda path: asked(path, b'"x":' + nested(b"[", b"", b"]", 10_000)),
    "nested 100 000 deep": lambda path: asked(path, b'"x":' + nested(b'{"a":', b"1", b"}", 100_000)),
    "a document of brackets": lambda path: b"[" * 100_000 + b"]" * 100_000,
    "3 million values": lambda path: asked(path, b'"x":[' + b"1," * 3_000_000 + b"1]"),
    "600 000 arrays": lambda path: asked(path, b'"x":[' + b"[]," * 600_000 + b"1]"),
}
"""No JSON, or more of it than anybody should read: a 400 wherever a body is read."""


def _pairs(count: int) -> list[dict[str, Any]]:
    """Calls and their results, one after the other."""
    found: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    for n in range(count):
        call = {"id": f"call_{n}", "type": "function", "function": {"name": "f", "arguments": '{"b":1,"a":2}'}}
        found += [{"role": "assistant", "content": None, "tool_calls": [call]}]
        found += [{"role": "tool", "tool_call_id": f"call_{n}", "content": "r"}]
    return found


MARKS = ("<\uff5cend\u2581of\u2581sentence\uff5c><think>", "<\uff5cDSML\uff5ctool_calls><\uff5cDSML\uff5cinvoke")
LONG = "one word after the other, " * 20_000

MALFORMED: list[tuple[str, str, bytes]] = [
    *((path, name, make(path)) for path in (*GENERATES, COUNT) for name, make in JSON_BODIES.items()),
    (CHAT, "more than the context", asked(CHAT, messages=[{"role": "user", "content": LONG}])),
    (COMPLETIONS, "more than the context", asked(COMPLETIONS, prompt=LONG)),
    (MESSAGES, "more than the context", asked(MESSAGES, system=LONG)),
    (RESPONSES, "more than the context", asked(RESPONSES, instructions=LONG)),
    (CHAT, "one word of 10 MB", asked(CHAT, messages=[{"role": "user", "content": "x" * 10_000_000}])),
    (COMPLETIONS, "10 MB without a space", asked(COMPLETIONS, prompt="\u00e9" * 5_000_000)),
    (CHAT, "4096 calls and results", asked(CHAT, messages=_pairs(4096))),
    (CHAT, "a million stop strings", asked(CHAT, stop=["x"] * 900_000)),
]  # fmt: skip
"""(path, what is wrong, body): a 400 each."""

_LONE = b'[{"role":"user","content":"a\\ud800b\\udc00c"}]'

TOLERATED: list[tuple[str, str, bytes]] = [
    *(
        (path, name, body)
        for path in GENERATES
        for name, body in {
            "equal names": asked(path, b'"model":"a","model":"b","x":1,"x":[2]'),
            "lone surrogates": asked(path, b'"model":"a\\ud800b\\udc00","user":"\\udfff"'),
            "a byte order mark": b"\xef\xbb\xbf" + asked(path),
            "nested 256 deep": asked(path, b'"x":' + nested(b"[", b"", b"]", 256)),
            "5000 digits": asked(path, b'"x":' + b"9" * 5000),
            "a million digits": asked(path, b'"x":' + b"9" * 1_000_000),
            "numbers beyond all": asked(path, b'"x":1e999999999,"y":-1e999,"z":-0'),
            "nul in a string": asked(path, b'"user":"a\\u0000b","model":"\\u0000"'),
            "strings that look like brackets": asked(path, b'"x":"' + b"[{" * 100_000 + b'"'),
            "100 000 names": asked(path, b",".join(b'"x%d":0' % n for n in range(100_000))),
            "a hundred thousand times one name": asked(path, b",".join([b'"x":0'] * 100_000)),
        }.items()
    ),
    (CHAT, "lone surrogates in the prompt", asked(CHAT, b'"messages":' + _LONE)),
    (MESSAGES, "lone surrogates in the prompt", asked(MESSAGES, b'"messages":' + _LONE)),
    (COMPLETIONS, "lone surrogates in the prompt", asked(COMPLETIONS, b'"prompt":"a\\ud800b"')),
    (RESPONSES, "lone surrogates in the prompt", asked(RESPONSES, b'"input":"a\\ud800b"')),
    (CHAT, "content that is null", asked(CHAT, messages=[{"role": "user", "content": None}])),
    (COMPLETIONS, "nothing to go on with", asked(COMPLETIONS, prompt="")),
    (COMPLETIONS, "nothing, twice", asked(COMPLETIONS, prompt=["", ""])),
    (CHAT, "huge numbers", asked(CHAT, seed=10**30, top_k=10**30)),
    *((CHAT, "control tokens as text", asked(CHAT, messages=[{"role": "user", "content": mark}])) for mark in MARKS),
    (CHAT, "stop strings that begin each other", asked(CHAT, stop=["a" * n for n in range(1, 257)])),
    (CHAT, "calls and results", asked(CHAT, messages=_pairs(16))),
]  # fmt: skip
"""(path, what is strange, body): a 200 each."""

# ------------------------------------------------------------------------------------------------ schemas and grammars


def _deep(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        found = {"type": "object", "properties": {"a": found}, "required": ["a"]}
    return found


SCHEMAS: dict[str, Any] = {
    "deep": _deep(100),
    "itself": {"$ref": "#"},
    "a file": {"$ref": "file:///etc/passwd"},
    "a pattern that backtracks": {"type": "string", "pattern": "^(a+)+$"},
    "a long string": {"type": "string", "minLength": 10**9},
    "a million choices": {"enum": [f"choice {n}" for n in range(50_000)]},
    "many properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(5000)}},
    "types in the wrong places": {"type": 5, "properties": [], "required": "a", "enum": {}, "items": "x"},
    "a multiple of nearly nothing": {"type": "number", "multipleOf": 1e-300},
    "names that are markup": {"type": "object", "properties": {'<\uff5cDSML\uff5c>"\n\u0000': {}}, "required": ["a"]},
}
"""Schemas that an answer or a call is to fit: a 400, or an answer, in time."""

GRAMMARS: dict[str, tuple[str, str]] = {
    "nothing": ("lark", ""),
    "left recursion": ("lark", 'start: start "a" | start start'),
    "doubling": ("lark", "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(60)) + '\nr60: "a"'),
    "imports": ("lark", "%import ..etc.passwd\nstart: passwd"),
    "a regex that backtracks": ("regex", "(a+)+$"),
    "a regex that repeats": ("regex", "((a{1000}){1000}){1000}"),
    "a long regex": ("regex", "a?" * 20_000 + "a" * 20_000),
}
"""Grammars of custom tools, the same."""


def demands() -> Iterator[tuple[str, str, bytes]]:
    """(path, what, body): as a format of the answer, as the arguments of a call, as a custom tool's grammar."""
    for name, schema in SCHEMAS.items():
        form = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
        yield CHAT, f"format: {name}", asked(CHAT, response_format=form, max_tokens=8)
        tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}
        yield CHAT, f"tool: {name}", asked(CHAT, tools=[tool], tool_choice="required", max_tokens=8)
    for name, (syntax, text) in GRAMMARS.items():
        form = {"type": "grammar", "syntax": syntax, "definition": text}
        tool = {"type": "custom", "name": "f", "format": form}
        yield RESPONSES, f"grammar: {name}", asked(RESPONSES, tools=[tool], tool_choice="required", max_output_tokens=8)
