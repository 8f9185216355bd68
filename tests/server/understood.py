"""Answers as clients read them, by the readers of the conformance checks, which are as strict as the strictest client.

``understood`` raises Wrong (or msgspec's ValidationError) where a client would give up, and returns what it would have
understood.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from ds4ref.conformance import talk
from ds4ref.conformance.checks import chat, completions, messages, responses

from .answers import data_of

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
READERS = {CHAT: chat.read, COMPLETIONS: completions.read, MESSAGES: messages.read, RESPONSES: responses.read}
ENDS = {"tool_calls": "tools", "end_turn": "stop", "max_tokens": "length", "tool_use": "tools", "completed": "stop",
        "incomplete max_output_tokens": "length"}  # fmt: skip


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
    """What a client makes of the whole answer ``data``; of a stream that ends in an error, the error alone."""
    events = data_of(data) if stream else [json.loads(data)]
    last = events[-1] if isinstance(events[-1], dict) else {}
    error = last.get("error") or last.get("response", {}).get("error") or {"message": ""}
    if error["message"] and stream:
        return Answer(end="error", error=error["message"])
    if path == CHAT:  # which no client reads differently from a function
        data = data.replace(b'"custom"', b'"function"').replace(b'"input":', b'"arguments":')
    data = data.replace(b'"status":"failed"', b'"status":"completed"')
    kind = "text/event-stream" if stream else "application/json"
    response = talk.Answer(200, {"content-type": kind}, data)
    said = READERS[path](response)
    calls = [(call.id, call.name, call.arguments) for call in said.calls]
    if path == RESPONSES:
        found = [item for item in responses.whole(response)["output"] if "call_id" in item]
        raw = [item.get("arguments", item.get("input")) for item in found]
        calls = [(item["call_id"], item.get("namespace", "") + item.get("name", "tool_search"),
                  text if isinstance(text, str) else json.dumps(text))
                 for item, text in zip(found, raw, strict=True)]  # fmt: skip
    end = "stop string" if said.finish.startswith("stop_sequence") else ENDS.get(said.finish, said.finish)
    end = "error" if error["message"] else "tools" if said.finish == "completed" and calls else end
    cached, thought = (
        int((re.findall(rf'"{name}":(\d+)'.encode(), data) or [0])[-1])
        for name in ("(?:cached_tokens|cache_read_input_tokens)", "reasoning_tokens")
    )
    usage = None if said.prompt is None else (said.prompt, cached, said.tokens or 0, thought)
    return Answer(said.reasoning, said.text, calls, end, error["message"], usage)
