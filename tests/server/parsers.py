"""Answers as clients read them, as strict as the strictest of them (what each needs was found by breaking it).

Each raises AssertionError where a client would give up, and returns what it would have understood.
"""

from __future__ import annotations

import json
from typing import Any

from .answers import data_of, events_of

FINISHES = {"stop", "length", "tool_calls"}


def chat_stream(stream: bytes) -> tuple[dict[str, Any], str, dict[str, Any] | None]:
    """(message, finish reason, usage) of chat chunks: opencode needs an index in every piece of a call and a finish
    reason that it knows, pi the id with the first piece, all of them [DONE] or the end."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish, usage = "", None
    events = data_of(stream)
    assert events[-1] == "[DONE]" and all(name == "" for name, _ in events_of(stream))
    assert len({event["id"] for event in events[:-1]}) == 1
    for event in events[:-1]:
        assert event["object"] == "chat.completion.chunk" and "error" not in event
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            assert not finish, "nothing comes after the finish reason"
            delta, finish = choice["delta"], choice["finish_reason"] or ""
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name, "")
            for call in delta.get("tool_calls", ()):
                kind = "custom" if "custom" in call else "function"
                if call["index"] == len(message["tool_calls"]):
                    assert call["id"] and call["type"] == kind and call[kind]["name"]
                    message["tool_calls"].append({"id": call["id"], "name": call[kind]["name"], "arguments": ""})
                piece = call[kind].get("arguments", call[kind].get("input"))
                message["tool_calls"][call["index"]]["arguments"] += piece
    assert finish in FINISHES and (finish == "tool_calls") == bool(message["tool_calls"])
    return message, finish, usage


def chat_document(data: bytes) -> tuple[dict[str, Any], str, dict[str, Any] | None]:
    """The same of a completion."""
    found = json.loads(data)
    assert found["object"] == "chat.completion" and found["id"] and found["created"] >= 0
    (choice,) = found["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] in FINISHES
    made = choice["message"]
    assert made["role"] == "assistant" and isinstance(made["content"], str)
    calls = [
        {"id": call["id"], "name": call[call["type"]]["name"],
         "arguments": call[call["type"]].get("arguments", call[call["type"]].get("input"))}
        for call in made.get("tool_calls", ())
    ]  # fmt: skip
    message = {
        "content": made["content"], "reasoning_content": made.get("reasoning_content", ""), "tool_calls": calls,
    }  # fmt: skip
    return message, choice["finish_reason"], found["usage"]


def message_stream(stream: bytes) -> dict[str, Any]:
    """The message of Anthropic's events: SDKs go by the event's name, want blocks numbered and closed, input that is
    JSON, usage at both ends; pi wants message_delta and message_stop."""
    events = [(name, json.loads(data)) for name, data in events_of(stream)]
    assert all(name == data["type"] for name, data in events)
    found = [data for name, data in events if name != "ping"]
    assert found[0]["type"] == "message_start" and [event["type"] for event in found[-2:]] == [
        "message_delta",
        "message_stop",
    ]
    message, blocks, at = found[0]["message"], [], None
    assert message["usage"]["input_tokens"] >= 0 and message["role"] == "assistant" and message["id"]
    for event in found[1:-2]:
        kind = event["type"].removeprefix("content_block_")
        if kind == "start":
            assert at is None and event["index"] == len(blocks)
            at = event["index"]
            blocks.append({**event["content_block"], "json": ""})
        elif kind == "delta":
            assert event["index"] == at
            delta, block = event["delta"], blocks[at]
            names = {"thinking_delta": "thinking", "signature_delta": "signature", "text_delta": "text",
                     "input_json_delta": "json"}  # fmt: skip
            name, key = names[delta["type"]], delta["type"].removesuffix("_delta").replace("input_json", "partial_json")
            assert name == "json" and block["type"] == "tool_use" or name in block
            block[name] += delta[key]
        else:
            assert kind == "stop" and event["index"] == at
            at = None
    assert at is None and found[-2]["usage"]["output_tokens"] >= 0
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text or "{}")
    message |= found[-2]["delta"]
    message["usage"] |= found[-2]["usage"]
    return _checked({**message, "content": blocks})


def message_document(data: bytes) -> dict[str, Any]:
    """The same of a message."""
    return _checked(json.loads(data))


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    assert message["type"] == "message" and message["content"]
    assert message["stop_reason"] in ("end_turn", "max_tokens", "tool_use", "stop_sequence")
    assert (message["stop_reason"] == "tool_use") == any(one["type"] == "tool_use" for one in message["content"])
    for block in message["content"]:
        assert block["type"] in ("thinking", "text", "tool_use")
        assert block["type"] != "thinking" or (block["thinking"] and block["signature"])
        assert block["type"] != "tool_use" or (isinstance(block["input"], dict) and block["id"] and block["name"])
    assert all(isinstance(count, int) for count in message["usage"].values())
    return message


def response_stream(stream: bytes) -> dict[str, Any]:
    """The response of Responses events: Codex takes items from output_item.done and needs response.completed with an
    id and usage, the SDK's helper response.created first, pi each item open while it grows."""
    events = data_of(stream)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(name == "" for name, _ in events_of(stream)) and b"[DONE]" not in stream
    assert events[0]["type"] == "response.created" and events[0]["response"]["id"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete", "response.failed")
    items: dict[int, Any] = {}
    done: dict[int, Any] = {}
    texts: dict[int, str] = {}
    for event in events[1:-1]:
        kind = event["type"].removeprefix("response.")
        at = event.get("output_index")
        if kind == "output_item.added":
            assert at == len(items) and event["item"]["status"] == "in_progress"
            items[at] = event["item"]
        elif kind == "output_item.done":
            assert event["item"]["id"] == items[at]["id"] and event["item"]["type"] == items[at]["type"]
            done[at] = event["item"]
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[at]["id"] and at == max(items) and at not in done
            texts[at] = texts.get(at, "") + event["delta"]
        elif kind in ("output_text.done", "reasoning_summary_text.done"):
            assert event["text"] == texts[at]
        elif kind in ("function_call_arguments.done", "custom_tool_call_input.done"):
            assert event.get("arguments", event.get("input")) == texts.get(at, "")
    last = events[-1]["response"]
    assert last["output"] == list(done.values()) and last["id"] == events[0]["response"]["id"]
    return _response(last)


def response_document(data: bytes) -> dict[str, Any]:
    """The same of a response."""
    return _response(json.loads(data))


def _response(found: dict[str, Any]) -> dict[str, Any]:
    assert found["object"] == "response" and found["status"] in ("completed", "incomplete", "failed")
    usage = found["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] >= 0 <= usage["output_tokens_details"]["reasoning_tokens"]
    for item in found["output"]:
        match item["type"]:
            case "message":
                assert item["role"] == "assistant" and item["content"][0]["type"] == "output_text"
            case "reasoning":
                assert item["summary"][0]["type"] == "summary_text"
            case "function_call":
                assert item["call_id"] and item["name"] and isinstance(json.loads(item["arguments"]), dict)
            case "custom_tool_call":
                assert item["call_id"] and item["name"] and isinstance(item["input"], str)
            case kind:
                assert kind == "tool_search_call" and item["call_id"] and item["execution"] == "client"
                assert isinstance(item["arguments"], dict)
    return found
