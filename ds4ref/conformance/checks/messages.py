"""Checks of Anthropic's messages API, as Anthropic's SDK, Claude Code, pi and inspect_ai need it."""

from __future__ import annotations

import json
import re
from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, parsed, shown
from .said import Call, Said, offered, refused, typed
from .shapes import MessageDocument, TextBlock, ThinkingBlock, ToolUseBlock
from .shared import OTHER, PARAMETERS, PIXEL, Api

TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")
"""The wording of an error by which Claude Code knows that it must compact its history."""
PIECES = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("tool_use", "partial_json"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
}
"""By type of a delta: the type of the block that it belongs to, and the member that holds the text."""


def read(answer: Answer) -> Said:
    """Return the content of an answer, a document or a stream; raises Wrong if clients could not assemble it."""
    message = typed(whole(answer), MessageDocument)
    calls: list[Call] = []
    said, thought = "", ""
    for block in message.content:
        match block:
            case TextBlock(text):
                said += text
            case ThinkingBlock(text):
                thought += text
            case ToolUseBlock(call_id, name, arguments):
                calls.append(Call(call_id, name, json.dumps(arguments, ensure_ascii=False)))
    reason, used = message.stop_reason, message.usage
    # an answer may reach its limit after a complete call
    ends = (reason == "tool_use") == bool(calls) or (calls and reason == "max_tokens")
    expect(ends, f"stop_reason {reason} with {len(calls)} calls")
    counts: tuple[int | None, int | None] = None, None
    if used is not None:
        cached = (used.cache_read_input_tokens, used.cache_creation_input_tokens)
        counts = used.input_tokens + sum(filter(None, cached)), used.output_tokens
    finish = reason + (f" {message.stop_sequence}" if message.stop_sequence else "")
    return Said(said, thought, tuple(calls), finish, *counts)


def whole(answer: Answer) -> dict[str, Any]:
    """Return the message that a document holds, or that a stream's events make when assembled as the SDKs do.

    Raises Wrong if they cannot be assembled.
    """
    if answer.kind != "text/event-stream":
        return answer.document()
    first, *stream = [one for event in answer.events() if (one := event.json).get("type") != "ping"]
    expect(first.get("type") == "message_start", f"first {shown(first.get('type'))}")
    message = dict(first["message"])
    blocks: list[dict[str, Any]] = []
    ended = inside = False
    for event in stream:
        kind = event.get("type")
        expect(kind != "message_start", "a second message_start")
        expect(not inside or kind in ("content_block_delta", "content_block_stop"), f"{shown(kind)} inside a block")
        inside = kind in ("content_block_start", "content_block_delta")
        if kind == "content_block_start":
            expect(event.get("index") == len(blocks), f"a start of {shown(event.get('index'))}")
            blocks.append({**event["content_block"], "partial_json": ""})
            begun = blocks[-1].get("input", {})
            expect(isinstance(begun, dict), f"input {shown(begun)} of a block that begins")
        elif kind == "content_block_delta":
            delta = event.get("delta") or {}
            expect(event.get("index") == len(blocks) - 1, f"a piece of block {shown(event.get('index'))}")
            of, member = PIECES.get(str(delta.get("type")), ("", ""))
            expect(of == blocks[-1].get("type") and isinstance(delta.get(member), str), f"a piece {shown(delta)}")
            blocks[-1][member] = (blocks[-1].get(member) or "") + delta[member]
        elif kind == "message_delta":
            message.update(event.get("delta") or {})
            used = {name: n for name, n in (event.get("usage") or {}).items() if n is not None}
            message["usage"] = {**(message.get("usage") or {}), **used}
            ended = True
    expect(ended, "no message_delta")
    for block in blocks:
        if made := block.pop("partial_json"):
            block["input"] = parsed(made)
    return {**message, "content": blocks}


def _too_long(answer: Answer) -> None:
    """Raise Wrong unless the error, in Anthropic's or OpenAI's shape (Claude Code reads both), has these words."""
    message = refused(answer, 400, 413).error.message
    expect(TOO_LONG.search(message), shown(message))


def _results(answer: Answer, result: Any) -> list[dict[str, Any]]:
    content = whole(answer)["content"]
    calls = [block for block in content if block["type"] == "tool_use"]
    if isinstance(result, str):
        result = [{"type": "text", "text": result, "cache_control": {"type": "ephemeral"}}]
    told = {"type": "tool_result", "tool_use_id": calls[0]["id"], "content": result, "is_error": False}
    return [{"role": "assistant", "content": content}, {"role": "user", "content": [told]}]


_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
api = Api(
    name="messages",
    path="/v1/messages",
    read=read,
    clients="claude pi anthropic inspect litellm",
    quiet={"thinking": {"type": "disabled"}},
    off=({}, {"thinking": {"type": "disabled"}}),
    thinks={"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1, "max_tokens": 1200},
    stream={"stream": True},
    cut="max_tokens",
    called=("tool_use",),
    form=lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    tools=[
        {"name": name, "description": "d", "input_schema": schema}
        for name, schema in (("weather", PARAMETERS), ("clock", OTHER))
    ],
    choices=[
        {"tool_choice": {**choice, "disable_parallel_tool_use": True}}
        for choice in ({"type": "tool", "name": "weather"}, {"type": "any"})
    ],
    no_choice={"tool_choice": {"type": "none"}},
    results=_results,
    parts=(_IMAGE, {"type": "tool_reference", "tool_name": "clock"}),
    image=({"type": "text", "text": "What is it?"}, _IMAGE),
    stop="stop_sequences",
    ends=lambda word: [end + told for end in ("stop_sequence", "end_turn") for told in ("", f" {word}")],
    has_text=lambda event: event.get("type") == "content_block_delta",
    order=("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"),
    last=("message_stop",),
    wrong={"max_tokens": 5, "messages": 5},
    overflow=_too_long,
    optional=("image", "thinking_off"),
)  # fmt: skip
later = {"name": "later", "description": "d", "input_schema": OTHER, "defer_loading": True}
api.taken("tool_deferred", "claude", "deferred tools are no error", tools=[*api.tools, later], **api.no_choice)


@api.check("turn", "claude")
def as_claude_code(talk: Talk) -> None:
    """what Claude Code sends is taken: ?beta=true, system in blocks and among the messages, betas, edits."""
    hidden = {"type": "ephemeral"}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Say hello.", "cache_control": hidden}]},
        {"role": "system", "content": [{"type": "text", "text": "A reminder."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
        {"role": "system", "content": "A reminder."},
        {"role": "user", "content": "Again."},
    ]
    more: dict[str, Any] = {
        "system": [{"type": "text", "text": "You are an agent.", "cache_control": hidden}],
        "metadata": {"user_id": "u"}, "output_config": {"effort": "high"}, "tools": [],
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    }  # fmt: skip
    read(talk.ask(f"{api.path}?beta=true", api.body(talk, history, **more)))


@api.check("usage", "claude inspect")
def count_tokens(talk: Talk) -> None:
    """count_tokens counts the prompt, more of them with tools."""
    path = f"{api.path}/count_tokens"
    if not talk.offers(path):
        raise NotOffered(path)
    asked = {"model": talk.model, "messages": [{"role": "user", "content": "Say hello."}]}
    few, many = (talk.ask(path, {**asked, **more}).document()["input_tokens"] for more in ({}, {"tools": api.tools}))
    expect(0 < few < many, f"{few} without tools, {many} with them")


@api.check("stream", "claude anthropic")
def stream_names(talk: Talk) -> None:
    """every event is named by its type: who goes by names sees none otherwise."""
    wrong = [event for event in api.ask(talk, stream=True).events() if event.name != event.json.get("type")]
    expect(not wrong, wrong and f"event {shown(wrong[0].name)} of type {shown(wrong[0].json.get('type'))}")


@api.check("thinking", "anthropic", required=False)
def signature(talk: Talk) -> None:
    """thinking has a signature, in documents and in streams."""
    for more in api.forms:
        content = whole(offered(api.ask(talk, **api.thinks, **more), "thinking"))["content"]
        signed = [block.get("signature") for block in content if block.get("type") == "thinking"]
        if not signed:
            raise NotOffered("blocks of thinking")
        expect(all(isinstance(one, str) and one for one in signed), f"signatures {shown(signed)}")


@api.check("limits", "anthropic", required=False)
def stop_told(talk: Talk) -> None:
    """the stop sequence that ended an answer is told, in documents and in streams."""
    prompt, _, word = api.stopped_by(talk)
    for more in api.forms:
        finish = read(offered(api.ask(talk, prompt, stop_sequences=[word], **more), "stop_sequences")).finish
        expect(finish == f"stop_sequence {word}", f"the end {finish}")


@api.check("errors", "anthropic", required=False)
def error_type(talk: Talk) -> None:
    """errors of Anthropic's shape."""
    failure = refused(talk.raw(api.path, b'{"messages": ['))
    expect(failure.type == "error" and failure.error.type, f"an error {failure}")
