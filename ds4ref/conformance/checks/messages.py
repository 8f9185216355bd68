"""Messages, as Anthropic's SDK, Claude Code, pi and inspect_ai need them."""

from __future__ import annotations

import re
from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, parsed, shown
from . import Checks
from .common import (
    ASK,
    FAILURES,
    FORM,
    OTHER,
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
from .messages_answers import (
    PATH,
    REASONS,
    STREAM,
    TOOLS,
    assembled,
    blocks,
    body,
    events,
    forced,
    forced_body,
    plain,
    read,
    streamed,
    text,
)
from .said import (
    COUNT,
    LONG_FORM,
    REFUSALS,
    UNICODE_FORM,
    agree,
    as_written,
    clean,
    counted,
    different,
    grows,
    named,
    offered,
    place_fits,
    stopped,
    with_stop,
)  # fmt: skip

check = Checks("messages", PATH)

COUNTED = f"{PATH}/count_tokens"
TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")


@check("turn", "type, role, id, content[].type, .text, stop_reason", "anthropic claude")
def document(talk: Talk) -> None:
    """a message of the assistant with an id and a text."""
    message = plain(talk).document()
    expect(message.get("type") == "message" and message.get("role") == "assistant", f"a document {shown(message)}")
    expect(isinstance(message.get("id"), str) and message["id"], f"id {shown(message.get('id'))}")
    expect(isinstance(text(plain(talk)), str), "no text")
    expect(message.get("stop_reason") in REASONS, f"stop_reason {shown(message.get('stop_reason'))}")


@check("turn", "-", "claude")
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


@check("turn", "-", "claude", required=False)
def image(talk: Talk) -> None:
    """an image among the content or in a result is no error."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    not_the_servers(talk.ask(PATH, body(talk, content)))


@check("turn", "-", "claude pi anthropic inspect")
def left(talk: Talk) -> None:
    """who leaves in the middle of a stream holds up nobody."""
    talk.leave(PATH, body(talk, "Count to a thousand.", stream=True, max_tokens=4 * talk.tokens))
    text(talk.ask(PATH, body(talk, "Say hello after somebody left.")))


@check("turn", "model; message_start: message.id, .model, .role, .content", "claude pi anthropic inspect")
def head(talk: Talk) -> None:
    """the model's name, and in a stream an empty message to begin with."""
    named(plain(talk).document().get("model"), "model")
    start = events(streamed(talk))[0].get("message") or {}
    for name in ("id", "model"):
        named(start.get(name), f"{name} of message_start")
    expect(start.get("role") == "assistant" and start.get("content") == [], f"message_start {shown(start)}")


@check("turn", "content[].text, .thinking", "claude pi anthropic inspect")
def markup(talk: Talk) -> None:
    """no markup of a chat template in what was said: no <think>, no end-of-turn tokens."""
    for answer in (plain(talk), streamed(talk), _thinking(talk), _thinking(talk, **STREAM)):
        if answer.status not in REFUSALS:
            clean(read(answer))


@check("usage", "usage.input_tokens, .output_tokens", "anthropic claude litellm")
def usage(talk: Talk) -> None:
    """usage: input and output."""
    counts(plain(talk).document().get("usage"), ("input_tokens", "output_tokens"))
    expect(read(plain(talk)).prompt, "no tokens of the prompt")


@check(
    "usage",
    "usage.input_tokens, .cache_read_input_tokens, .cache_creation_input_tokens, .output_tokens",
    "claude pi inspect",
)
def usage_counts(talk: Talk) -> None:
    """usage counts: a longer prompt has more tokens, cached or not, and so has a longer answer."""
    short = read(talk.ask(PATH, body(talk, COUNT, max_tokens=3)))
    longer = read(talk.ask(PATH, body(talk, COUNT, max_tokens=12)))
    long = body(talk, "word " * 100 + COUNT, max_tokens=3)
    counted(short, read(talk.ask(PATH, long)), read(talk.again(PATH, long)), 100)
    grows(short, longer, (3, 12), "max_tokens")


@check("usage", "input_tokens", "claude inspect")
def count_tokens(talk: Talk) -> None:
    """count_tokens counts the prompt, more of them with tools."""
    if not talk.offers(COUNTED):
        raise NotOffered(COUNTED)

    def counted(**more: Any) -> int:
        asked = {"model": talk.model, "messages": [{"role": "user", "content": "Say hello."}], **more}
        count = talk.ask(COUNTED, asked).document().get("input_tokens")
        expect(isinstance(count, int) and count > 0, f"input_tokens {shown(count)}")
        return int(count or 0)

    few, many = counted(), counted(tools=TOOLS)
    expect(few < many, f"{few} without tools, {many} with them")


@check("stream", "Content-Type", "claude pi anthropic inspect")
def stream_type(talk: Talk) -> None:
    """content type text/event-stream."""
    event_stream(streamed(talk))


@check("stream", "event:", "claude anthropic")
def stream_names(talk: Talk) -> None:
    """every event is named by its type: who goes by names sees none otherwise."""
    named = [(event.name, event.json.get("type")) for event in streamed(talk).events()]
    wrong = [pair for pair in named if pair[0] != pair[1]]
    expect(named and not wrong, f"event {shown(wrong[0][0])} of type {shown(wrong[0][1])}" if wrong else "no events")


@check("stream", "type of the events", "claude pi anthropic inspect")
def stream_order(talk: Talk) -> None:
    """message_start, blocks, message_delta, message_stop, in this order."""
    names = [name for name in names_of(streamed(talk).events()) if name != "ping"]
    steps = ("start", "delta", "stop")
    in_order(names, ["message_start", *(f"content_block_{step}" for step in steps), "message_delta", "message_stop"])
    expect(names[0] == "message_start" and names[-1] == "message_stop", f"{names[0]} first, {names[-1]} last")


@check("stream", "index", "claude anthropic")
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


@check("stream", "message_delta: delta.stop_reason", "pi claude")
def stream_finish(talk: Talk) -> None:
    """one stop_reason that clients know, in message_delta."""
    reasons = [
        event["delta"].get("stop_reason") for event in events(streamed(talk)) if event["type"] == "message_delta"
    ]
    expect(len(reasons) == 1 and reasons[0] in REASONS, f"stop reasons {shown(reasons)}")


@check("stream", "content_block_delta: delta.text; stop_reason, usage", "claude pi anthropic inspect")
def stream_same(talk: Talk) -> None:
    """a stream says what the document says: text, end and usage."""
    agree(talk, PATH, body(talk), read, STREAM)


@check("stream", "content_block_delta", "claude pi anthropic inspect")
def stream_written(talk: Talk) -> None:
    """the answer is sent as it is written, not all at once."""
    asked = body(talk, COUNT, stream=True, max_tokens=max(talk.tokens, 256))
    form = {"format": {"type": "json_schema", "schema": LONG_FORM}}
    as_written(
        talk, PATH, [asked, {**asked, "output_config": form}], lambda event: event.get("type") == "content_block_delta"
    )


@check("usage", "message_start: message.usage; message_delta: usage", "pi claude")
def stream_usage(talk: Talk) -> None:
    """usage in message_start, without which pi crashes, and in message_delta."""
    stream = events(streamed(talk))
    start: dict[str, Any] = next((event["message"] for event in stream if event["type"] == "message_start"), {})
    counts(start.get("usage"), ("input_tokens",))
    last = next((event for event in stream if event["type"] == "message_delta"), {})
    counts(last.get("usage"), ("output_tokens",))
    expect(read(streamed(talk)).prompt, "no tokens of the prompt")


@check("tools", "content[].id, .name, stop_reason", "anthropic claude", how="forced")
def tool_call(talk: Talk) -> None:
    """tool_choice with a name: a tool_use with an id, stop_reason "tool_use"."""
    (call, *more) = blocks(forced(talk), "tool_use")
    expect(not more, f"{1 + len(more)} calls")
    expect(isinstance(call.get("id"), str) and call["id"], f"id {shown(call.get('id'))}")
    expect(call.get("name") == "weather", f"name {shown(call.get('name'))}")
    reason = forced(talk).document().get("stop_reason")
    expect(reason == "tool_use", f"stop_reason {shown(reason)}")


@check("tools", "content[].input", "anthropic claude", how="forced")
def tool_arguments(talk: Talk) -> None:
    """its input is an object that fits the schema."""
    object_fits(blocks(forced(talk), "tool_use")[0].get("input"))


@check("tools", "content_block_start: content_block; delta.partial_json", "claude pi anthropic inspect", how="forced")
def stream_tool(talk: Talk) -> None:
    """streamed: a block whose pieces make JSON that fits the schema."""
    uses = [block for block in _blocks(events(forced(talk, stream=True))) if block["type"] == "tool_use"]
    expect(len(uses) == 1 and uses[0].get("name") == "weather" and uses[0].get("id"), f"blocks {shown(uses)}")
    object_fits(parsed(uses[0]["made"]))


@check("tools", "delta.type, .partial_json, .stop_reason", "claude pi anthropic inspect", how="forced")
def stream_tool_same(talk: Talk) -> None:
    """streamed: the calls of the document, and its stop_reason "tool_use"."""
    agree(talk, PATH, forced_body(talk), read, STREAM)
    said = read(forced(talk, **STREAM))
    expect(said.calls and said.finish == "tool_use", f"stop_reason {said.finish}")
    clean(said)


@check("tools", "content[].id", "claude pi anthropic inspect", how="forced")
def tool_ids(talk: Talk) -> None:
    """the calls of one conversation have ids of their own, by which results are told apart."""
    different([call.id for more in ({}, STREAM) for call in read(forced(talk, **more)).calls])


@check("tools", "content[].name, stop_reason", "inspect anthropic", how="forced")
def tool_any(talk: Talk) -> None:
    """tool_choice "any": a call of one of the tools, stop_reason "tool_use", in documents and in streams."""
    asked = body(talk, ASK, tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    for more in ({}, STREAM):
        said = read(offered(talk.ask(PATH, {**asked, **more}), "tool_choice any"))
        expect(said.calls and {call.name for call in said.calls} <= {"weather", "clock"}, f"calls {shown(said.calls)}")
        expect(said.finish == "tool_use", f"stop_reason {said.finish}")


@check("tools", "-", "claude", required=False)
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


@check("answer", "content[].text", "claude pi anthropic inspect")
def answer(talk: Talk) -> None:
    """the history with call and result is answered in text."""
    history = _history(talk, [{"type": "text", "text": RESULT, "cache_control": {"type": "ephemeral"}}])
    text(talk.ask(PATH, body(talk, history, tools=TOOLS, tool_choice={"type": "none"})))


@check("answer", "-", "claude")
def answer_parts(talk: Talk) -> None:
    """results with an image or a reference to a tool are taken."""
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    for part in ({"type": "image", "source": source}, {"type": "tool_reference", "tool_name": "clock"}):
        talk.ask(PATH, body(talk, _history(talk, [part]), tools=TOOLS, tool_choice={"type": "none"})).document()


def _thinking(talk: Talk, **more: Any) -> Answer:
    tokens = max(talk.tokens, 1200)
    asked = body(talk, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=tokens, temperature=1, **more)
    return talk.ask(PATH, asked)


@check("thinking", "content[].thinking", "claude pi inspect")
def thinking_on(talk: Talk) -> None:
    """thinking that is enabled comes as the first block."""
    answer = offered(_thinking(talk), "thinking")
    if not read(answer).reasoning and not read(_thinking(talk, **STREAM)).reasoning:
        raise NotOffered("blocks of thinking")
    thought = blocks(answer, "thinking")[0]
    kinds = [block.get("type") for block in answer.document()["content"]]
    expect(kinds[0] == "thinking", f"blocks {shown(kinds)}")
    expect(
        isinstance(thought.get("thinking"), str) and thought["thinking"], f"thinking {shown(thought.get('thinking'))}"
    )


@check("thinking", "content[].signature; delta.signature", "anthropic", required=False)
def signature(talk: Talk) -> None:
    """thinking has a signature, in documents and in streams."""
    whole = offered(_thinking(talk), "thinking").document()["content"]
    for content in (whole, assembled(_thinking(talk, **STREAM))["content"]):
        thoughts = [block for block in content if block.get("type") == "thinking"]
        if not thoughts:
            raise NotOffered("blocks of thinking")
        signed = [one.get("signature") for one in thoughts]
        expect(all(isinstance(one, str) and one for one in signed), f"signatures {shown(signed)}")


@check("thinking", "delta.thinking", "claude pi anthropic")
def stream_thinking(talk: Talk) -> None:
    """streamed: a first block of thinking, and its pieces."""
    if not read(offered(_thinking(talk), "thinking")).reasoning and not read(_thinking(talk, **STREAM)).reasoning:
        raise NotOffered("blocks of thinking")
    first = assembled(_thinking(talk, **STREAM))["content"][0]
    expect(first.get("type") == "thinking" and first.get("thinking"), f"the first block {shown(first)}")
    read(_thinking(talk, **STREAM))


@check("thinking", "content[].type", "claude", required=False)
def thinking_off(talk: Talk) -> None:
    """thinking that is not mentioned, or disabled, is off."""
    silent = {name: value for name, value in body(talk).items() if name != "thinking"}
    for answer in (talk.ask(PATH, silent), talk.ask(PATH, body(talk, thinking={"type": "disabled"}))):
        kinds = [block.get("type") for block in answer.document()["content"]]
        expect("thinking" not in kinds, f"blocks {shown(kinds)}")


def _formatted(talk: Talk, schema: object = FORM, **more: Any) -> Answer:
    form = {"format": {"type": "json_schema", "schema": schema}}
    asked = body(talk, "Is water wet? Answer in JSON.", output_config=form, **more)
    return offered(talk.ask(PATH, asked), "output_config.format")


@check("format", "content[].text", "claude", how="forced")
def format_schema(talk: Talk) -> None:
    """output_config.format with a schema: text that fits it."""
    form_fits(text(_formatted(talk)))


@check("format", "delta.text", "claude", how="forced")
def format_stream(talk: Talk) -> None:
    """the same as a stream."""
    finished = _blocks(events(_formatted(talk, stream=True)))
    form_fits("".join(block["made"] for block in finished if block["type"] == "text"))


@check("format", "content[].text, delta.text", "claude pi anthropic inspect", how="forced")
def format_unicode(talk: Talk) -> None:
    """characters of several bytes arrive whole, in documents and in streams."""
    for more in ({}, STREAM):
        place_fits(read(_formatted(talk, UNICODE_FORM, **more)).text)


@check("limits", "message_delta: delta.stop_reason", "claude pi")
def stream_limit(talk: Talk) -> None:
    """streamed: the same, in message_delta."""
    said = read(talk.ask(PATH, body(talk, "Count to a thousand.", max_tokens=3, **STREAM)))
    expect(said.finish == "max_tokens", f"stop_reason {said.finish}")
    expect(said.tokens is None or said.tokens <= 3, f"{said.tokens} tokens")


@check("limits", "content[].text, stop_reason", "inspect anthropic")
def stop(talk: Talk) -> None:
    """a stop sequence ends the answer in front of it, in documents and in streams."""
    prompt, before, word = with_stop(talk, lambda prompt: talk.ask(PATH, body(talk, prompt)), read)
    for more in ({}, STREAM):
        answer = offered(talk.ask(PATH, body(talk, prompt, stop_sequences=[word], **more)), "stop_sequences")
        reasons = [reason + told for reason in ("stop_sequence", "end_turn") for told in ("", f" {word}")]
        stopped(before, read(answer), word, reasons)


@check("limits", "stop_reason, stop_sequence", "anthropic", required=False)
def stop_told(talk: Talk) -> None:
    """the stop sequence that ended an answer is told, in documents and in streams."""
    prompt, _, word = with_stop(talk, lambda prompt: talk.ask(PATH, body(talk, prompt)), read)
    for more in ({}, STREAM):
        said = read(offered(talk.ask(PATH, body(talk, prompt, stop_sequences=[word], **more)), "stop_sequences"))
        expect(said.finish == f"stop_sequence {word}", f"the end {said.finish}")


@check("limits", "stop_reason, usage.output_tokens", "claude pi")
def limit(talk: Talk) -> None:
    """max_tokens is kept, and told as stop_reason "max_tokens"."""
    message = talk.ask(PATH, body(talk, "Count to a thousand.", max_tokens=3)).document()
    expect(message.get("stop_reason") == "max_tokens", f"stop_reason {shown(message.get('stop_reason'))}")
    expect(message["usage"]["output_tokens"] <= 3, f"{message['usage']['output_tokens']} tokens")


@check("limits", "error.message", "claude pi")
def overflow(talk: Talk) -> None:
    """ "prompt is too long: N tokens > M maximum", by which Claude Code knows to compact."""
    for more in ({}, STREAM):
        message = _error(talk.ask(PATH, body(talk, too_long(talk), **more)), 400, 413)
        expect(TOO_LONG.search(message), shown(message))


def _error(answer: Answer, *statuses: int) -> str:
    """The message of an error, in Anthropic's shape or in OpenAI's, which Claude Code knows, too."""
    error = refused(answer, *statuses).get("error")
    expect(isinstance(error, dict) and error.get("message"), f"error {shown(error)}")
    assert isinstance(error, dict)
    return str(error["message"])


@check("errors", "type, error.type", "anthropic", required=False)
def error_type(talk: Talk) -> None:
    """errors of Anthropic's shape."""
    document = refused(talk.raw(PATH, b'{"messages": ['))
    error = document.get("error")
    shape = document.get("type") == "error" and isinstance(error, dict) and isinstance(error.get("type"), str)
    expect(shape, f"a document {shown(document)}")


@check("errors", "error.message", "claude pi anthropic inspect")
def bad_json(talk: Talk) -> None:
    """400 and an error object for what is no JSON."""
    _error(talk.raw(PATH, b'{"messages": ['))


@check("errors", "error.message", "claude pi anthropic inspect")
def bad_field(talk: Talk) -> None:
    """an error object and a status of its own for messages of the wrong type, also where a stream is asked for."""
    for more in ({}, STREAM):
        _error(talk.ask(PATH, {"model": talk.model, "max_tokens": 5, "messages": 5, **more}), *FAILURES)
