"""Answers as clients read them, as strict as the strictest of them (what each needs was found by breaking it).

``understood`` raises AssertionError where a client would give up, and returns what it would have understood.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from .answers import data_of, events_of

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"


@dataclass
class Answer:
    """An answer: its texts, its calls as (id, name with its namespace, arguments as JSON text), and how it ended.

    end     "stop", "length", "tools", "stop string", or "error" with the message in ``error``
    usage   (prompt, cached, completion, reasoning) tokens, None where the answer does not tell
    """

    reasoning: str = ""
    text: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    end: str = ""
    error: str = ""
    usage: tuple[int, int, int, int] | None = None


def understood(path: str, data: bytes, stream: bool) -> Answer:
    """What a client makes of the whole answer ``data``."""
    return {CHAT: _chat, COMPLETIONS: _chat, MESSAGES: _message, RESPONSES: _response}[path](data, stream)


def _openai_usage(usage: dict[str, Any] | None) -> tuple[int, int, int, int] | None:
    if usage is None:
        return None
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    cached, new = (usage["prompt_tokens_details"][name] for name in ("cached_tokens", "cache_write_tokens"))
    assert cached + new == usage["prompt_tokens"]
    thought = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return usage["prompt_tokens"], cached, usage["completion_tokens"], thought


def _chat(data: bytes, stream: bool) -> Answer:
    """opencode needs an index in every piece of a call and a finish reason that it knows, pi the id with the first
    piece, all of them [DONE] or the end."""
    events = data_of(data) if stream else [json.loads(data), "[DONE]"]
    answer, calls = Answer(), list[dict[str, str]]()
    if "error" in events[-1]:
        return Answer(end="error", error=events[-1]["error"]["message"])
    assert events.pop() == "[DONE]" and len({event["id"] for event in events}) == 1
    for event in events:
        assert event["object"] in ("chat.completion", "chat.completion.chunk", "text_completion")
        answer.usage = _openai_usage(event.get("usage")) or answer.usage
        for choice in event["choices"]:
            assert not answer.end, "nothing comes after the finish reason"
            delta = choice.get("delta") or choice.get("message") or {"content": choice.get("text", "")}
            answer.end = choice["finish_reason"] or ""
            answer.text += delta.get("content", "")
            answer.reasoning += delta.get("reasoning_content", "")
            for at, call in enumerate(delta.get("tool_calls", ())):
                kind = "custom" if "custom" in call else "function"
                if call.get("index", at) == len(calls):
                    assert call["id"] and call["type"] == kind
                    calls.append({"id": call["id"], "name": call[kind]["name"], "arguments": ""})
                else:
                    assert "id" not in call and "name" not in call[kind]
                calls[call.get("index", at)]["arguments"] += call[kind].get("arguments", call[kind].get("input"))
    answer.calls = [(call["id"], call["name"], call["arguments"]) for call in calls]
    assert answer.end in ("stop", "length", "tool_calls")
    answer.end = "tools" if answer.end == "tool_calls" else answer.end
    return answer


def _message(data: bytes, stream: bool) -> Answer:
    """SDKs go by the event's name, want blocks numbered and closed, input that is JSON, usage at both ends."""
    if not stream:
        return _whole_message(json.loads(data))
    events = [(name, json.loads(text)) for name, text in events_of(data)]
    assert all(name == event["type"] for name, event in events)
    found = [event for name, event in events if name != "ping"]
    if found[-1]["type"] == "error":
        return Answer(end="error", error=found[-1]["error"]["message"])
    assert found[0]["type"] == "message_start"
    assert [event["type"] for event in found[-2:]] == ["message_delta", "message_stop"]
    message, blocks, at = found[0]["message"], list[dict[str, Any]](), None
    for event in found[1:-2]:
        kind = event["type"].removeprefix("content_block_")
        if kind == "start":
            assert at is None and event["index"] == len(blocks)
            at = event["index"]
            blocks.append({**event["content_block"], "json": ""})
        elif kind == "delta":
            assert event["index"] == at
            name = event["delta"]["type"].removesuffix("_delta")
            key, member = {"input_json": ("json", "partial_json")}.get(name, (name, name))
            blocks[at][key] += event["delta"][member]
        else:
            assert kind == "stop" and event["index"] == at
            at = None
    assert at is None
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = text or "{}"
    message["usage"] |= found[-2]["usage"]
    return _whole_message({**message, **found[-2]["delta"], "content": blocks})


def _whole_message(message: dict[str, Any]) -> Answer:
    assert message["type"] == "message" and message["role"] == "assistant" and message["content"] and message["id"]
    usage = message["usage"]
    cached, new = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
    answer = Answer(usage=(usage["input_tokens"] + cached + new, cached, usage["output_tokens"], 0))
    for block in message["content"]:
        if block["type"] == "tool_use":
            raw = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
            answer.calls.append((block["id"], block["name"], raw))
        elif block["type"] == "thinking":
            assert block["thinking"] and block["signature"]
            answer.reasoning += block["thinking"]
        else:
            answer.text += block["text"]
    ends = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tools", "stop_sequence": "stop string"}
    answer.end = ends[message["stop_reason"]]
    assert (message["stop_sequence"] is not None) == (answer.end == "stop string")
    return answer


def _response(data: bytes, stream: bool) -> Answer:
    """Codex takes items from output_item.done and needs response.completed with an id and usage, the SDK's helper
    response.created first, pi each item open while it grows."""
    if not stream:
        return _whole_response(json.loads(data))
    events = data_of(data)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(name == "" for name, _ in events_of(data)) and b"[DONE]" not in data
    assert events[0]["type"] == "response.created" and events[0]["response"]["id"]
    items, done, texts = dict[int, Any](), dict[int, Any](), dict[int, str]()
    for event in events[1:-1]:
        kind, at = event["type"].removeprefix("response."), event.get("output_index")
        if kind == "output_item.added":
            assert at == len(items) and event["item"]["status"] == "in_progress"
            items[at] = event["item"]
        elif kind == "output_item.done":
            assert event["item"]["id"] == items[at]["id"] and event["item"]["type"] == items[at]["type"]
            done[at] = event["item"]
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[at]["id"] and at == max(items) and at not in done
            texts[at] = texts.get(at, "") + event["delta"]
        elif kind.endswith(".done") and "part" not in kind:
            assert event.get("text", event.get("arguments", event.get("input"))) == texts.get(at, "")
    last = events[-1]["response"]
    assert events[-1]["type"] == f"response.{last['status']}"
    assert last["output"] == list(done.values()) and last["id"] == events[0]["response"]["id"]
    return _whole_response(last)


def _whole_response(found: dict[str, Any]) -> Answer:
    usage = found["usage"]
    assert found["object"] == "response" and usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    cached, thought = usage["input_tokens_details"]["cached_tokens"], usage["output_tokens_details"]["reasoning_tokens"]
    answer = Answer(usage=(usage["input_tokens"], cached, usage["output_tokens"], thought))
    for item in found["output"]:
        match item["type"]:
            case "message":
                assert item["role"] == "assistant"
                answer.text += "".join(part["text"] for part in item["content"])
            case "reasoning":
                answer.reasoning += "".join(part["text"] for part in item["summary"])
            case kind:
                assert kind in ("function_call", "custom_tool_call", "tool_search_call")
                raw = item.get("arguments", item.get("input"))
                name = item.get("namespace", "") + item.get("name", "tool_search")
                answer.calls.append((item["call_id"], name, raw if isinstance(raw, str) else json.dumps(raw)))
    ends = {"completed": "tools" if answer.calls else "stop", "incomplete": "length", "failed": "error"}
    answer.end = ends[found["status"]]
    answer.error = found["error"]["message"] if answer.end == "error" else ""
    return answer
