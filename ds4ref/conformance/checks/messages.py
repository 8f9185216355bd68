"""Messages, as Anthropic's SDK, Claude Code, pi and inspect_ai need them."""

from __future__ import annotations

import re
from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, shown
from . import Checks
from .common import (
    ASK,
    OTHER,
    PIXEL,
    RESULT,
    in_order,
    names_of,
    not_the_servers,
    refused,
)  # fmt: skip
from .messages_answers import (
    PATH,
    STREAM,
    TOOLS,
    assembled,
    blocks,
    body,
    forced,
    forced_body,
    read,
    streamed,
    text,
)
from .said import (
    offered,
    with_stop,
)  # fmt: skip
from .shared import Api, register

check = Checks("messages", PATH)

COUNTED = f"{PATH}/count_tokens"
TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")
"""The words by which Claude Code knows to compact."""
ENABLED = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1}


def _error(answer: Answer, *statuses: int) -> str:
    """The message of an error, in Anthropic's shape or in OpenAI's, which Claude Code knows, too."""
    error = refused(answer, *statuses).get("error")
    expect(isinstance(error, dict) and error.get("message"), f"error {shown(error)}")
    assert isinstance(error, dict)
    return str(error["message"])


def _too_long(answer: Answer) -> None:
    message = _error(answer, 400, 413)
    expect(TOO_LONG.search(message), shown(message))


def _asked(talk: Talk, content: object = "Say hello.", **more: Any) -> dict[str, Any]:
    room = {"max_tokens": max(talk.tokens, 1200)} if "thinking" in more else {}  # more than its budget
    return body(talk, content, **{**room, **more})


register(
    Api(
        check, _asked, read, "claude pi anthropic inspect litellm", STREAM, "max_tokens", "max_tokens",
        lambda event: event.get("type") == "content_block_delta", {"max_tokens": 5, "messages": 5}, _too_long,
        called=("tool_use",), form=lambda schema: {"output_config": {"format": {"type": "json_schema",
                                                                                "schema": schema}}},
        forced=forced_body, thinks=ENABLED, stop="stop_sequences", error=_error,
        ends=lambda word: [end + told for end in ("stop_sequence", "end_turn") for told in ("", f" {word}")],
    )
)  # fmt: skip


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
    return talk.ask(PATH, _asked(talk, **ENABLED, **more))


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


@check("thinking", "content[].type", "claude", required=False)
def thinking_off(talk: Talk) -> None:
    """thinking that is not mentioned, or disabled, is off."""
    silent = {name: value for name, value in body(talk).items() if name != "thinking"}
    for answer in (talk.ask(PATH, silent), talk.ask(PATH, body(talk, thinking={"type": "disabled"}))):
        kinds = [block.get("type") for block in answer.document()["content"]]
        expect("thinking" not in kinds, f"blocks {shown(kinds)}")


@check("limits", "stop_reason, stop_sequence", "anthropic", required=False)
def stop_told(talk: Talk) -> None:
    """the stop sequence that ended an answer is told, in documents and in streams."""
    prompt, _, word = with_stop(talk, lambda prompt: talk.ask(PATH, body(talk, prompt)), read)
    for more in ({}, STREAM):
        said = read(offered(talk.ask(PATH, body(talk, prompt, stop_sequences=[word], **more)), "stop_sequences"))
        expect(said.finish == f"stop_sequence {word}", f"the end {said.finish}")


@check("errors", "type, error.type", "anthropic", required=False)
def error_type(talk: Talk) -> None:
    """errors of Anthropic's shape."""
    document = refused(talk.raw(PATH, b'{"messages": ['))
    error = document.get("error")
    shape = document.get("type") == "error" and isinstance(error, dict) and isinstance(error.get("type"), str)
    expect(shape, f"a document {shown(document)}")
