"""A chat completion that the tests of streams, documents and requests share."""

from __future__ import annotations

from ds4ref.text.dsml import ToolCall, render_calls

from .answers import data_of

PATH = "/v1/chat/completions"


ASK = {"messages": [{"role": "user", "content": "List the files."}]}


BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}


WITH_TOOLS = {**ASK, "tools": [BASH]}


def block(*calls: ToolCall) -> str:
    return "".join(part.text for part in render_calls(calls))


def chunks(stream):
    """(delta, finish) of every chunk with a choice."""
    found = [event for event in data_of(stream) if event != "[DONE]" and event.get("choices")]
    return [(event["choices"][0]["delta"], event["choices"][0]["finish_reason"]) for event in found]


def joined(stream):
    """The message that a client puts together."""
    message = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for delta, reason in chunks(stream):
        finish = reason or finish
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                assert call["id"] and call["type"] == "function" and call["function"]["arguments"] == ""
                message["tool_calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            else:
                assert "id" not in call and "name" not in call["function"]
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message, finish
