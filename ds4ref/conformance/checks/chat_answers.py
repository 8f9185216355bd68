"""Answers of chat completions as clients read them, and the requests that several checks send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..talk import Answer, NotOffered, Talk, expect, shown
from .common import (
    ASK,
    OTHER,
    PARAMETERS,
    counts,
)  # fmt: skip
from .said import (
    Call,
    Said,
    integers,
    named,
    text_or_none,
)  # fmt: skip

PATH = "/v1/chat/completions"

FINISHES = ("stop", "length", "tool_calls")
PARTS = ("prompt_tokens", "completion_tokens")
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "The weather in a city", "parameters": PARAMETERS},
    },
    {"type": "function", "function": {"name": "clock", "description": "The time", "parameters": OTHER}},
]
WEATHER = {"type": "function", "function": {"name": "weather"}}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def body(talk: Talk, content: object = "Say hello.", **more: Any) -> dict[str, Any]:
    """Build the body of a request to /v1/chat/completions, with reasoning off if the server accepts that."""
    messages = (
        content
        if isinstance(content, list) and content and "role" in content[0]
        else [{"role": "user", "content": content}]
    )
    plain = {"model": talk.model, "messages": messages, "max_tokens": talk.tokens, "temperature": 0}
    probe = {**plain, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "reasoning_effort": "none"}
    quiet = {"reasoning_effort": "none"} if talk.ask(PATH, probe).status == 200 else {}
    return {**plain, **quiet, **more}


# --- answers as clients read them


def choice(answer: Answer) -> dict[str, Any]:
    """Return the single choice of a chat completion."""
    choices = answer.document().get("choices")
    expect(isinstance(choices, list) and len(choices) == 1, f"choices {shown(choices)}")
    assert choices is not None
    return dict(choices[0])


def chunks(answer: Answer) -> list[dict[str, Any]]:
    """Return the chunks of a stream without the final [DONE]."""
    return [event.json for event in answer.events() if event.data != "[DONE]"]


def deltas(answer: Answer) -> list[dict[str, Any]]:
    """Return the deltas of a stream's single choice."""
    return [one.get("delta") or {} for chunk in chunks(answer) for one in chunk.get("choices") or ()]


def read(answer: Answer) -> Said:
    """Return what an answer says, a document or a stream; raises Wrong for what clients cannot put together."""
    return _read_stream(answer) if answer.kind == "text/event-stream" else _read_document(answer)


def _read_document(answer: Answer) -> Said:
    document, one = answer.document(), choice(answer)
    expect(one.get("index") == 0, f"index {shown(one.get('index'))}")
    message: Any = one.get("message")
    expect(isinstance(message, dict) and message.get("role") == "assistant", f"message {shown(message)}")
    calls = message.get("tool_calls")
    expect(calls is None or isinstance(calls, list), f"tool_calls {shown(calls)}")
    return _said(
        document, message, [_call(call) for call in calls or ()], one.get("finish_reason"), one.get("logprobs")
    )


def _read_stream(answer: Answer) -> Said:
    message: dict[str, str] = {}
    pieces: list[dict[str, Any]] = []
    entries: list[Any] = []
    head: dict[str, Any] = {}
    roles = set[Any]()
    finish, scores, used = "", None, None
    for chunk in chunks(answer):
        head_fits(chunk)
        head = head or chunk
        for name in ("id", "model"):
            expect(chunk[name] == head[name], f"{name} {shown(head[name])}, then {shown(chunk[name])}")
        choices: Any = chunk.get("choices")
        expect(isinstance(choices, list), f"choices {shown(choices)}")
        if chunk.get("usage") is not None:
            used = chunk["usage"]
        for one in choices:
            expect(one.get("index") == 0, f"index {shown(one.get('index'))}")
            delta = one.get("delta")
            expect(isinstance(delta, dict), f"delta {shown(delta)}")
            said = any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls"))
            expect(not finish or not (said or one.get("finish_reason")), f"behind the finish reason {shown(one)}")
            roles.add(delta.get("role"))
            for name in ("content", "reasoning_content", "reasoning"):
                text = text_or_none(delta.get(name), name)
                if text:
                    message[name] = message.get(name, "") + text
            for piece in delta.get("tool_calls") or ():
                _put(piece, pieces)
            scored_here = one.get("logprobs")
            if scored_here is not None:
                scores = {"content": entries}
                entries += scored_here.get("content") or ()
            finish = finish or text_or_none(one.get("finish_reason"), "finish_reason")
    expect(roles | {None} == {None, "assistant"}, f"roles {roles}")
    return _said({**head, "usage": used}, message, [_call(piece) for piece in pieces], finish, scores)


def _put(piece: Any, pieces: list[dict[str, Any]]) -> None:
    """Add a piece of a call to the calls that were begun, as the SDKs do: by its index, texts one behind the other."""
    expect(isinstance(piece, dict), f"a piece {shown(piece)}")
    at = piece.get("index")
    expect(isinstance(at, int) and 0 <= at <= len(pieces), f"a piece with the index {shown(at)}")
    function = piece.get("function") or {}
    text_or_none(function.get("arguments"), "arguments of a piece")
    if at == len(pieces):
        pieces.append({"id": piece.get("id"), "type": piece.get("type"), "function": {"arguments": "", **function}})
        return
    # clients put texts one behind the other, ids and names as well
    expect(not piece.get("id") and not function.get("name"), f"id or name in a later piece {shown(piece)}")
    whole = pieces[at]["function"]
    whole["arguments"] = (whole["arguments"] or "") + (function.get("arguments") or "")


def _call(call: Any) -> Call:
    expect(isinstance(call, dict) and isinstance(call.get("function"), dict), f"a call {shown(call)}")
    expect(call.get("type") == "function", f"type {shown(call.get('type'))}")
    function = call["function"]
    arguments = function.get("arguments")
    expect(isinstance(arguments, str), f"arguments that are no text: {shown(arguments)}")
    return Call(named(call.get("id"), "id"), named(function.get("name"), "name"), arguments)


def _said(head: dict[str, Any], message: Mapping[str, Any], calls: list[Call], finish: Any, scores: Any) -> Said:
    head_fits(head)
    expect(finish in FINISHES, f"finish_reason {shown(finish)}")
    expect(finish != "tool_calls" or calls, "finish_reason tool_calls without a call")
    entries = scores.get("content") if isinstance(scores, dict) else None
    used = head.get("usage")
    if used is not None:
        counts(used, PARTS, "total_tokens")
        integers(used.get("prompt_tokens_details"), "cached_tokens")
        integers(used.get("completion_tokens_details"), "reasoning_tokens")
    return Said(
        text_or_none(message.get("content"), "content"),
        text_or_none(message.get("reasoning_content"), "reasoning_content")
        or text_or_none(message.get("reasoning"), "reasoning"),
        tuple(calls),
        str(finish),
        used and used["prompt_tokens"],
        used and used["completion_tokens"],
        None if entries is None else tuple((one["token"], one["logprob"]) for one in entries),
        {"entries": entries or []},
    )


def head_fits(document: Mapping[str, Any]) -> None:
    """Fail the check unless id, model and created are there and have values of their types."""
    named(document.get("id"), "id")
    named(document.get("model"), "model")
    created = document.get("created")
    expect(isinstance(created, int) and created > 0, f"created {shown(created)}")


# --- what is asked


def plain(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk))


def streamed(talk: Talk) -> Answer:
    return talk.ask(PATH, body(talk, **STREAM))


def forced(talk: Talk, **more: Any) -> Answer:
    """Return the answer to a request that demands one call: by name or, where a server refuses that, as any call."""
    return talk.ask(PATH, {**forced_body(talk), **more})


def forced_body(talk: Talk) -> dict[str, Any]:
    asked = {**_one_call(talk), "tool_choice": WEATHER}
    return required_body(talk) if 400 <= talk.ask(PATH, asked).status < 500 else asked


def required(talk: Talk, **more: Any) -> Answer:
    """Return the answer to a request that demands any call; raise NotOffered if tools are taken but no demand."""
    return talk.ask(PATH, {**required_body(talk), **more})


def required_body(talk: Talk) -> dict[str, Any]:
    asked = {**_one_call(talk), "tool_choice": "required"}
    if 400 <= talk.ask(PATH, asked).status < 500 and talk.ask(PATH, body(talk, ASK, tools=TOOLS)).status == 200:
        raise NotOffered("tool_choice: tools are taken, but nothing forces a call")
    return asked


def _one_call(talk: Talk) -> dict[str, Any]:
    return body(talk, ASK, tools=TOOLS, parallel_tool_calls=False)


def calls(answer: Answer) -> list[dict[str, Any]]:
    """Return the tool calls of a chat completion."""
    entries = choice(answer)["message"].get("tool_calls")
    expect(isinstance(entries, list) and entries, f"tool_calls {shown(entries)}")
    return list(entries)
