"""Messages, as Anthropic's SDK, Claude Code, pi and inspect_ai need them."""

from __future__ import annotations

import re
from typing import Any

from ..talk import Answer, Talk, expect, parsed, shown
from . import Checks
from .common import (
    ASK,
    FORM,
    OTHER,
    PARAMETERS,
    PIXEL,
    RESULT,
    counts,
    event_stream,
    form_fits,
    in_order,
    names_of,
    not_the_servers,
    object_fits,
    refused,
    too_long,
)  # fmt: skip

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
check = Checks("messages", PATH)

REASONS = ("end_turn", "max_tokens")
TOOLS = [
    {"name": "weather", "description": "The weather in a city", "input_schema": PARAMETERS},
    {"name": "clock", "description": "The time", "input_schema": OTHER},
]
TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")


def body(talk: Talk, content: object = "Say hello.", **more: Any) -> dict[str, Any]:
    messages = (
        content
        if isinstance(content, list) and content and "role" in content[0]
        else [{"role": "user", "content": content}]
    )
    return {"model": talk.model, "messages": messages, "max_tokens": talk.tokens, "temperature": 0, **more}


def plain(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk))


def streamed(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk, stream=True))


def forced(talk: Talk, **more: Any) -> Answer:
    return talk.ask(PATH, body(talk, ASK, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"}, **more))


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


@check("turn")
def document(talk: Talk) -> None:
    """a message of the assistant with an id and a text."""
    message = plain(talk).document()
    expect(message.get("type") == "message" and message.get("role") == "assistant", f"a document {shown(message)}")
    expect(isinstance(message.get("id"), str) and message["id"], f"id {shown(message.get('id'))}")
    expect(isinstance(text(plain(talk)), str), "no text")
    expect(message.get("stop_reason") in REASONS, f"stop_reason {shown(message.get('stop_reason'))}")


@check("turn")
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
    talk.ask(f"{PATH}?beta=true", body(talk, history, **more)).document()


@check("turn", required=False)
def image(talk: Talk) -> None:
    """an image among the content or in a result is no error."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    not_the_servers(talk.ask(PATH, body(talk, content)))


@check("turn")
def left(talk: Talk) -> None:
    """who leaves in the middle of a stream holds up nobody."""
    talk.leave(PATH, body(talk, "Count to a thousand.", stream=True, max_tokens=4 * talk.tokens))
    text(talk.ask(PATH, body(talk, "Say hello after somebody left.")))


@check("usage")
def usage(talk: Talk) -> None:
    """usage: input and output."""
    counts(plain(talk).document().get("usage"), ("input_tokens", "output_tokens"))


@check("usage", required=False)
def count_tokens(talk: Talk) -> None:
    """count_tokens counts the prompt, more of them with tools."""

    def counted(**more: Any) -> int:
        asked = {"model": talk.model, "messages": [{"role": "user", "content": "Say hello."}], **more}
        count = talk.ask(COUNT, asked).document().get("input_tokens")
        expect(isinstance(count, int) and count > 0, f"input_tokens {shown(count)}")
        return int(count or 0)

    few, many = counted(), counted(tools=TOOLS)
    expect(few < many, f"{few} without tools, {many} with them")


@check("stream")
def stream_type(talk: Talk) -> None:
    """content type text/event-stream."""
    event_stream(streamed(talk))


@check("stream")
def stream_names(talk: Talk) -> None:
    """every event is named by its type: who goes by names sees none otherwise."""
    named = [(event.name, event.json.get("type")) for event in streamed(talk).events()]
    wrong = [pair for pair in named if pair[0] != pair[1]]
    expect(named and not wrong, f"event {shown(wrong[0][0])} of type {shown(wrong[0][1])}" if wrong else "no events")


@check("stream")
def stream_order(talk: Talk) -> None:
    """message_start, blocks, message_delta, message_stop, in this order."""
    names = [name for name in names_of(streamed(talk).events()) if name != "ping"]
    steps = ("start", "delta", "stop")
    in_order(names, ["message_start", *(f"content_block_{step}" for step in steps), "message_delta", "message_stop"])
    expect(names[0] == "message_start" and names[-1] == "message_stop", f"{names[0]} first, {names[-1]} last")


@check("stream")
def stream_blocks(talk: Talk) -> None:
    """blocks numbered from 0, each opened once and closed before the next."""
    _blocks(events(streamed(talk)))


def _blocks(stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream, the pieces of each under "made"."""
    finished: list[dict[str, Any]] = []
    inside = False
    for event in stream:
        kind = str(event.get("type"))
        if not kind.startswith("content_block_"):
            expect(not inside or not kind.startswith("message_"), f"{kind} inside a block")
            continue
        if kind == "content_block_start":
            expect(not inside and event.get("index") == len(finished), f"a start of {shown(event.get('index'))}")
            finished.append({**event["content_block"], "made": ""})
            inside = True
            continue
        expect(inside and event.get("index") == len(finished) - 1, f"{kind} of {shown(event.get('index'))}")
        inside = kind != "content_block_stop"
        delta = event.get("delta") or {}
        finished[-1]["made"] += delta.get("text") or delta.get("partial_json") or ""
    expect(finished and not inside, "a block that is never closed" if finished else "no block")
    return finished


@check("stream")
def stream_finish(talk: Talk) -> None:
    """one stop_reason that clients know, in message_delta."""
    reasons = [
        event["delta"].get("stop_reason") for event in events(streamed(talk)) if event["type"] == "message_delta"
    ]
    expect(len(reasons) == 1 and reasons[0] in REASONS, f"stop reasons {shown(reasons)}")


@check("stream", required=False)
def stream_same(talk: Talk) -> None:
    """a stream says what the document says."""
    streamed_text = "".join(block["made"] for block in _blocks(events(streamed(talk))) if block["type"] == "text")
    whole = text(plain(talk))
    expect(streamed_text == whole, f"{shown(streamed_text)[:60]} and {shown(whole)[:60]}")


@check("usage")
def stream_usage(talk: Talk) -> None:
    """usage in message_start, without which pi crashes, and in message_delta."""
    stream = events(streamed(talk))
    start: dict[str, Any] = next((event["message"] for event in stream if event["type"] == "message_start"), {})
    counts(start.get("usage"), ("input_tokens",))
    last = next((event for event in stream if event["type"] == "message_delta"), {})
    counts(last.get("usage"), ("output_tokens",))


@check("tools", how="forced")
def tool_call(talk: Talk) -> None:
    """tool_choice with a name: a tool_use with an id, stop_reason "tool_use"."""
    (call, *more) = blocks(forced(talk), "tool_use")
    expect(not more, f"{1 + len(more)} calls")
    expect(isinstance(call.get("id"), str) and call["id"], f"id {shown(call.get('id'))}")
    expect(call.get("name") == "weather", f"name {shown(call.get('name'))}")
    reason = forced(talk).document().get("stop_reason")
    expect(reason == "tool_use", f"stop_reason {shown(reason)}")


@check("tools", how="forced")
def tool_arguments(talk: Talk) -> None:
    """its input is an object that fits the schema."""
    object_fits(blocks(forced(talk), "tool_use")[0].get("input"))


@check("tools", how="forced")
def stream_tool(talk: Talk) -> None:
    """streamed: a block whose pieces make JSON that fits the schema."""
    uses = [block for block in _blocks(events(forced(talk, stream=True))) if block["type"] == "tool_use"]
    expect(len(uses) == 1 and uses[0].get("name") == "weather" and uses[0].get("id"), f"blocks {shown(uses)}")
    object_fits(parsed(uses[0]["made"]))


@check("tools", how="forced")
def tool_any(talk: Talk) -> None:
    """tool_choice "any": a call of one of the tools."""
    choice = {"type": "any", "disable_parallel_tool_use": True}
    uses = blocks(talk.ask(PATH, body(talk, ASK, tools=TOOLS, tool_choice=choice)), "tool_use")
    expect({call["name"] for call in uses} <= {"weather", "clock"}, f"calls {shown(uses)}")


@check("tools", required=False)
def tool_deferred(talk: Talk) -> None:
    """deferred tools are no error."""
    tools = [*TOOLS, {"name": "later", "description": "d", "input_schema": OTHER, "defer_loading": True}]
    talk.ask(PATH, body(talk, tools=tools, tool_choice={"type": "none"})).document()


def _history(talk: Talk, content: object) -> list[dict[str, Any]]:
    written = forced(talk).document()["content"]
    call = blocks(forced(talk), "tool_use")[0]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": content, "is_error": False}
    return [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": written},
        {"role": "user", "content": [result]},
    ]


@check("answer")
def answer(talk: Talk) -> None:
    """the history with call and result is answered in text."""
    history = _history(talk, [{"type": "text", "text": RESULT, "cache_control": {"type": "ephemeral"}}])
    text(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice={"type": "none"})))


@check("answer")
def answer_parts(talk: Talk) -> None:
    """results with an image or a reference to a tool are taken."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    for part in ({"type": "image", "source": source}, {"type": "tool_reference", "tool_name": "clock"}):
        talk.ask(PATH, body(talk, _history(talk, [part]), tools=TOOLS, tool_choice={"type": "none"})).document()


@check("thinking", required=False)
def thinking_on(talk: Talk) -> None:
    """thinking that is enabled: the first block has thinking and a signature."""
    tokens = max(talk.tokens, 1200)
    asked = body(talk, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=tokens, temperature=1)
    answer = talk.ask(PATH, asked)
    thought = blocks(answer, "thinking")[0]
    kinds = [block.get("type") for block in answer.document()["content"]]
    expect(kinds[0] == "thinking", f"blocks {shown(kinds)}")
    expect(
        isinstance(thought.get("thinking"), str) and thought["thinking"], f"thinking {shown(thought.get('thinking'))}"
    )
    signature = thought.get("signature")
    expect(isinstance(signature, str) and signature, f"signature {shown(signature)}")


@check("thinking", required=False)
def thinking_off(talk: Talk) -> None:
    """thinking that is not mentioned, or disabled, is off."""
    for answer in (plain(talk), talk.ask(PATH, body(talk, thinking={"type": "disabled"}))):
        kinds = [block.get("type") for block in answer.document()["content"]]
        expect("thinking" not in kinds, f"blocks {shown(kinds)}")


def _formatted(talk: Talk, **more: Any) -> Answer:
    form = {"format": {"type": "json_schema", "schema": FORM}}
    return talk.ask(PATH, body(talk, "Is water wet? Answer in JSON.", output_config=form, **more))


@check("format", how="forced")
def format_schema(talk: Talk) -> None:
    """output_config.format with a schema: text that fits it."""
    form_fits(text(_formatted(talk)))


@check("format", how="forced")
def format_stream(talk: Talk) -> None:
    """the same as a stream."""
    finished = _blocks(events(_formatted(talk, stream=True)))
    form_fits("".join(block["made"] for block in finished if block["type"] == "text"))


@check("limits")
def limit(talk: Talk) -> None:
    """max_tokens is kept, and told as stop_reason "max_tokens"."""
    message = talk.ask(PATH, body(talk, "Count to a thousand.", max_tokens=3)).document()
    expect(message.get("stop_reason") == "max_tokens", f"stop_reason {shown(message.get('stop_reason'))}")
    expect(message["usage"]["output_tokens"] <= 3, f"{message['usage']['output_tokens']} tokens")


@check("limits")
def overflow(talk: Talk) -> None:
    """ "prompt is too long: N tokens > M maximum", by which Claude Code knows to compact."""
    answer = talk.ask(PATH, body(talk, too_long(talk)))
    message = _error(answer, 400, 413)
    expect(TOO_LONG.search(message), shown(message))


def _error(answer: Answer, *statuses: int) -> str:
    """The message of an error in Anthropic's shape."""
    document = refused(answer, *statuses)
    error = document.get("error")
    shape = document.get("type") == "error" and isinstance(error, dict) and isinstance(error.get("type"), str)
    expect(shape and isinstance(error, dict) and error.get("message"), f"a document {shown(document)}")
    assert isinstance(error, dict)
    return str(error["message"])


@check("errors")
def bad_json(talk: Talk) -> None:
    """an error of Anthropic's shape for what is no JSON."""
    _error(talk.raw(PATH, b'{"messages": ['))


@check("errors")
def bad_field(talk: Talk) -> None:
    """an error of Anthropic's shape for messages of the wrong type."""
    _error(talk.ask(PATH, {"model": talk.model, "max_tokens": 5, "messages": 5}))
