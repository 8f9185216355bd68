"""Answers of Messages as clients read them, and the requests that several checks send."""

from __future__ import annotations

import json
from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, parsed, shown
from .common import (
    ASK,
    OTHER,
    PARAMETERS,
    counts,
)  # fmt: skip
from .said import (
    Call,
    Said,
    named,
)  # fmt: skip

PATH = "/v1/messages"

STREAM = {"stream": True}
REASONS = ("end_turn", "max_tokens")
ENDS = (*REASONS, "tool_use", "stop_sequence")
PIECES = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("tool_use", "partial_json"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
}
"""Kinds of pieces: the type of the block that they belong to, and the member that has the piece."""
TOOLS = [
    {"name": "weather", "description": "The weather in a city", "input_schema": PARAMETERS},
    {"name": "clock", "description": "The time", "input_schema": OTHER},
]


def body(talk: Talk, content: object = "Say hello.", **more: Any) -> dict[str, Any]:
    """Build the body of a request to /v1/messages, with thinking off if the server accepts that."""
    messages = (
        content
        if isinstance(content, list) and content and "role" in content[0]
        else [{"role": "user", "content": content}]
    )
    plain = {"model": talk.model, "messages": messages, "max_tokens": talk.tokens, "temperature": 0}
    off = {"thinking": {"type": "disabled"}}
    probe = {**plain, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **off}
    return {**plain, **(off if talk.ask(PATH, probe).status == 200 else {}), **more}


def plain(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk))


def streamed(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk, stream=True))


def forced(talk: Talk, **more: Any) -> Answer:
    """A call that is demanded: by name or, where a server refuses that, as any call."""
    return talk.ask(PATH, forced_body(talk, **more))


def forced_body(talk: Talk, **more: Any) -> dict[str, Any]:
    """Return a request whose answer is a call of the weather tool, forced as this server allows; NotOffered if it does
    not."""
    tools = body(talk, ASK, tools=TOOLS)
    asked = {**tools, "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}}
    if 400 <= talk.ask(PATH, asked).status < 500:
        asked = {**tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        if 400 <= talk.ask(PATH, asked).status < 500 and talk.ask(PATH, tools).status == 200:
            raise NotOffered("tool_choice: tools are taken, but nothing forces a call")
    return {**asked, **more}


def blocks(answer: Answer, kind: str) -> list[dict[str, Any]]:
    """Return the content blocks of type ``kind``; raises Wrong if there is none."""
    content = answer.document().get("content")
    matches = [block for block in content or () if block.get("type") == kind]
    expect(matches, f"content {shown(content)}")
    return matches


def events(answer: Answer) -> list[dict[str, Any]]:
    """Return the events of a stream as JSON objects, without pings."""
    values = [event.json for event in answer.events()]
    return [event for event in values if event.get("type") != "ping"]


def text(answer: Answer) -> str:
    return "".join(block["text"] for block in blocks(answer, "text"))


def read(answer: Answer) -> Said:
    """Return what an answer says, a document or a stream; raises Wrong for what clients cannot put together."""
    message = assembled(answer) if answer.kind == "text/event-stream" else answer.document()
    for name in ("id", "model"):
        named(message.get(name), name)
    expect(message.get("type") == "message" and message.get("role") == "assistant", f"a document {shown(message)}")
    content: Any = message.get("content")
    expect(isinstance(content, list), f"content {shown(content)}")
    calls: list[Call] = []
    said, thought = "", ""
    for block in content:
        kind = block.get("type")
        expect(kind in ("text", "tool_use", "thinking", "redacted_thinking"), f"a block {shown(block)}")
        if kind == "text":
            expect(isinstance(block.get("text"), str), f"text {shown(block.get('text'))}")
            said += block["text"]
        elif kind == "thinking":
            expect(isinstance(block.get("thinking"), str), f"thinking {shown(block.get('thinking'))}")
            thought += block["thinking"]
        elif kind == "tool_use":
            expect(isinstance(block.get("input"), dict), f"input {shown(block.get('input'))}")
            called = json.dumps(block["input"], ensure_ascii=False)
            calls.append(Call(named(block.get("id"), "id"), named(block.get("name"), "name"), called))
    reason = message.get("stop_reason")
    expect(reason in ENDS, f"stop_reason {shown(reason)}")
    # an answer may be cut behind a whole call
    ends = (reason == "tool_use") == bool(calls) or (calls and reason == "max_tokens")
    expect(ends, f"stop_reason {reason} with {len(calls)} calls")
    used = message.get("usage")
    total = None
    if used is not None:
        counts(used, ("input_tokens", "output_tokens"))
        total = used["input_tokens"]
        for name in ("cache_read_input_tokens", "cache_creation_input_tokens"):
            more = used.get(name)
            expect(more is None or (isinstance(more, int) and more >= 0), f"{name} {shown(more)}")
            total += more or 0
    end = str(reason) + (f" {message['stop_sequence']}" if message.get("stop_sequence") else "")
    return Said(said, thought, tuple(calls), end, total, used and used["output_tokens"])


def assembled(answer: Answer) -> dict[str, Any]:
    """Put the events of a stream together as the SDKs do; raises Wrong where they cannot."""
    stream = events(answer)
    expect(
        stream and stream[0].get("type") == "message_start", f"first {shown(stream[0].get('type') if stream else None)}"
    )
    message = dict(stream[0]["message"])
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    ended = inside = False
    for event in stream[1:]:
        kind = event.get("type")
        expect(kind != "message_start", "a second message_start")
        expect(not inside or kind in ("content_block_delta", "content_block_stop"), f"{shown(kind)} inside a block")
        inside = kind in ("content_block_start", "content_block_delta")
        if kind == "content_block_start":
            expect(event.get("index") == len(blocks), f"a start of {shown(event.get('index'))}")
            blocks.append(dict(event["content_block"]))
            begun = blocks[-1].get("input", {})
            expect(isinstance(begun, dict), f"input {shown(begun)} of a block that begins")
            texts.append("")
        elif kind == "content_block_delta":
            at: Any = event.get("index")
            delta = event.get("delta") or {}
            expect(isinstance(at, int) and at == len(blocks) - 1, f"a piece of block {shown(at)}")
            expect(delta.get("type") in PIECES, f"a piece {shown(delta)}")
            of, member = PIECES[delta["type"]]
            expect(blocks[at].get("type") == of, f"{delta['type']} in a block {shown(blocks[at].get('type'))}")
            expect(isinstance(delta.get(member), str), f"a piece {shown(delta)}")
            if member == "partial_json":
                texts[at] += delta[member]
            else:
                blocks[at][member] = (blocks[at].get(member) or "") + delta[member]
        elif kind == "message_delta":
            message.update(event.get("delta") or {})
            used = {name: n for name, n in (event.get("usage") or {}).items() if n is not None}
            message["usage"] = {**(message.get("usage") or {}), **used}
            ended = True
    expect(ended and not inside, "no message_delta" if not inside else "a block that is never closed")
    for block, made in zip(blocks, texts, strict=True):
        if block.get("type") == "tool_use" and made:
            block["input"] = parsed(made)
    message["content"] = blocks
    return message
