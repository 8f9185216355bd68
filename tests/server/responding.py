"""A request for a response, and reading what comes of it."""

from __future__ import annotations

import json

from ds4ref.text.dsml import ToolCall, render_calls

from .answers import data_of, events_of, play, read

PATH = "/v1/responses"


ASK = {"input": "List the files."}


BASH = {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}}


SUMMARY = {"reasoning": {"summary": "auto"}}


FULL = {**ASK, "tools": [BASH], **SUMMARY}


ARGUMENTS = '{"command":"ls -la && pwd","timeout":10}'


SPACE = {"type": "namespace", "name": "mcp__gmail__", "tools": [{"type": "function", "name": "send"}]}


PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}


SEARCH = {"type": "tool_search", "execution": "client"}


def block(*calls: ToolCall) -> str:
    return "".join(part.text for part in render_calls(calls))


TURN = "I will list files.</think>Let me look." + block(ToolCall("bash", ARGUMENTS))


def stream_of(body, events, **more):
    return play(read(PATH, {**body, "stream": True}, **more)[1], events, prompt=1367)


def document_of(body, events, **more):
    return json.loads(play(read(PATH, body, **more)[1], events, prompt=1367))


def followed(stream):
    """The final response, put together the way Codex, pi and the SDK do at once: items open, grow, are done."""
    events = data_of(stream)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(name == "" for name, _ in events_of(stream)) and b"[DONE]" not in stream
    assert events[0]["type"] == "response.created"
    items, done, texts, last = {}, {}, {}, None
    for event in events[1:]:
        kind = event["type"].removeprefix("response.")
        if kind in ("completed", "incomplete", "failed"):
            assert last is None
            last = event["response"]
        elif kind == "output_item.added":
            assert event["output_index"] == len(items)
            assert event["item"]["status"] == "in_progress"
            items[event["output_index"]] = event["item"]
        elif kind == "output_item.done":
            at = event["output_index"]
            assert event["item"]["id"] == items[at]["id"] and event["item"]["type"] == items[at]["type"]
            done[at] = event["item"]
        elif kind.endswith(".delta"):
            at = event["output_index"]
            assert event["item_id"] == items[at]["id"] and at not in done
            assert at == max(items), "pi looks at one item at a time"
            texts[at] = texts.get(at, "") + event["delta"]
        elif kind.endswith(".done") and not kind.startswith("content_part") and "part" not in kind:
            found = event.get("text", event.get("arguments", event.get("input")))
            assert found == texts.get(event["output_index"], "")
    assert list(done.values()) == last["output"]
    return last, [event["type"].removeprefix("response.") for event in events]
