"""Scripted answers, cut anywhere, and what replies make of them; no worker and no HTTP.

turn, reply = read("/v1/chat/completions", {"messages": [...], "stream": True})
out = play(reply, deltas("<think>hm</think>Hello"[7:], thinking=True, size=3))
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ds4ref.generate import Piece
from ds4ref.server.api import About, Api, Reply
from ds4ref.server.apis.chat import Chat
from ds4ref.server.apis.completions import Completions
from ds4ref.server.apis.messages import Messages
from ds4ref.server.apis.responses import Responses
from ds4ref.server.turn import Prefill, Turn
from ds4ref.targets.answer import Delta, Step, Token, Usage
from ds4ref.targets.reader import AnswerReader
from ds4ref.text.protocol import THINK_CLOSE, THINK_OPEN

APIS: dict[str, Api] = {api.path: api for api in (Chat(), Completions(), Messages(), Responses())}
NOW = 1795223090
PROMPT, CACHED = 1329, 0
MODEL = "deepseek-v4-flash"


def about(**more: Any) -> About:
    """What an API is told."""
    return About(**{"model": MODEL, "ctx": 32768, "created": NOW} | more)


def read(path: str, body: Any, **more: Any) -> tuple[Turn, Reply]:
    """The turn and the reply of a request, given as JSON text or as what becomes it."""
    api = APIS[path]
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return api.read(data, about(**more))


# --- answers without a worker


def pieces(text: str, thinking: bool, size: int = 1) -> Iterator[Piece]:
    """``text`` as a generation would say it, ``size`` characters a token. Think tags are tokens of their own."""
    for part in re.split(f"({THINK_OPEN}|{THINK_CLOSE})", text):
        if part in (THINK_OPEN, THINK_CLOSE):
            yield Piece(1 if part == THINK_OPEN else 2, "", thinking)
            thinking = part == THINK_OPEN
            continue
        for at in range(0, len(part), size):
            yield Piece(3, part[at : at + size], thinking)


def raw_of(piece: Piece) -> bytes:
    """The bytes of its token."""
    return {1: THINK_OPEN.encode(), 2: THINK_CLOSE.encode()}.get(piece.token or 0, piece.text.encode())


def deltas(
    text: str,
    *,
    thinking: bool = False,
    tools: bool = False,
    size: int = 1,
    finish: str = "stop",
    stop: tuple[str, ...] = (),
    cached: int = CACHED,
    prompt: int = PROMPT,
) -> list[Delta]:
    """What the worker makes of such an answer, as it makes it."""
    reader, made, found = AnswerReader(tools, stop), 0, []
    for piece in pieces(text, thinking, size):
        made += 1
        found.append(
            replace(
                reader.feed(piece),
                steps=(Step(Token(raw_of(piece), -0.5), thought=piece.thinking or piece.token in (1, 2)),),
            )
        )
        if reader.done:
            break
    rest = reader.finish()
    usage = Usage(prompt, made, cached, reader.reasoning_tokens)
    last = replace(
        rest,
        finish=reader.reason("" if reader.done else finish),
        usage=usage,
        error=reader.generated.error or "",
        markup=reader.generated.raw_block,
    )
    return [*found, last]


def play(reply: Reply, events: list[Any], cached: int = CACHED, prompt: int = PROMPT) -> bytes:
    """Everything that goes out: the stream, or the document."""
    out = reply.feed(Prefill(cached, prompt, cached, "none"))
    out += b"".join(reply.feed(event) for event in events)
    if reply.stream:
        return out
    assert out == b""
    return reply.document()


# --- what went out


def events_of(stream: bytes) -> list[tuple[str, str]]:
    """(event name, data) of a stream, which has to be nothing but complete events."""
    assert stream.endswith(b"\n\n")
    found = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = "", None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                assert data is None
                data = line[6:]
            else:
                assert line.startswith(":"), line
        if data is not None:
            found.append((name, data))
    return found


def data_of(stream: bytes) -> list[Any]:
    """The data of a stream's events, parsed; "[DONE]" as it is."""
    return [data if data == "[DONE]" else json.loads(data) for _, data in events_of(stream)]
