"""How servers differ behind the one protocol: names of fields, what they take, what they refuse.

    deepseek   the hosted API: ``thinking`` is an object, an answer is continued with ``prefix``
    ds4        ds4's server and ours: the same, and an effort for "max"
    vllm       templates are told with ``chat_template_kwargs``; token ids as prompts
    llama.cpp  llama-server: the same, and nothing continued
    openai     the hosted API: ``reasoning_effort`` and ``max_completion_tokens``
    plain      nothing beyond the protocol (llama-cpp-python, and whoever answers 400 to more)
    probe      as deepseek; what a server refuses by name is left out from then on. The default

Read is what any of them sends: reasoning under either of its names, token counts under theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from ..text.chat import Message
from ..text.dsml import ToolCall
from .answer import CallDelta, Finish, Usage
from .wire import raw_bytes

Json = dict[str, Any]

_SWITCH: dict[str, Json] = {mode: {"thinking": {"type": "enabled"}} for mode in ("high", "max")}
_SWITCH["none"] = {"thinking": {"type": "disabled"}}
_EFFORT = _SWITCH | {"max": _SWITCH["max"] | {"reasoning_effort": "max"}}
_TEMPLATE: dict[str, Json] = {
    mode: {"chat_template_kwargs": {"thinking": mode != "none", "enable_thinking": mode != "none"}}
    for mode in ("none", "high", "max")
}
_OPENAI: dict[str, Json] = {"none": {}, "high": {"reasoning_effort": "high"}, "max": {"reasoning_effort": "xhigh"}}

REASONING = ("reasoning_content", "reasoning")
"""Names of thinking apart from text. Servers that send both send the same twice."""

_FINISH = {
    "stop": Finish.STOP, "eos": Finish.STOP, "eos_token": Finish.STOP, "stop_sequence": Finish.STOP,
    "end_turn": Finish.STOP, "length": Finish.LENGTH, "max_tokens": Finish.LENGTH, "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS, "tool_use": Finish.TOOL_CALLS, "abort": Finish.CANCELLED,
    "cancelled": Finish.CANCELLED, "error": Finish.ERROR,
}  # fmt: skip

_OPTIONAL = ("thinking", "reasoning_effort", "chat_template_kwargs", "stream_options", *REASONING)
"""Fields that a request means the same without, or nearly so. Where others are refused, the request has failed."""
_ALWAYS = {"model", "messages", "prompt", "stream"}
_STRICT = re.compile(
    r"(unknown|unexpected|unrecognized|unsupported|extra)\W+(\w+\W+)?(fields?|parameters?|arguments?|inputs?|keys?|propert)",
    re.I,
)


@dataclass(frozen=True)
class Kind:
    """One kind of server.

    thinking   request fields that switch it, by mode
    prefill    how an assistant's message is gone on with: fields of the message, fields of the request
    limit      the name of ``max_tokens``
    ids        its completions endpoint takes token ids as prompt
    probe      refusals are learnt from
    """

    name: str
    thinking: dict[str, Json] = field(default_factory=dict)
    prefill: tuple[Json, Json] | None = None
    limit: str = "max_tokens"
    ids: bool = False
    probe: bool = False


_PREFIX: tuple[Json, Json] = ({"prefix": True}, {})
KINDS = {
    kind.name: kind
    for kind in (
        Kind("probe", _SWITCH, probe=True),
        Kind("plain"),
        Kind("deepseek", _SWITCH, _PREFIX),
        Kind("ds4", _EFFORT),
        Kind("vllm", _TEMPLATE, ({}, {"continue_final_message": True, "add_generation_prompt": False}), ids=True),
        Kind("llama.cpp", _TEMPLATE, ids=True),
        Kind("openai", _OPENAI, limit="max_completion_tokens"),
    )
}
PREFILLS = {kind.name: kind.prefill for kind in KINDS.values() if kind.prefill is not None}


class Dialect:
    """What one server is spoken to in; ``refused`` is what it was found not to take."""

    def __init__(self, kind: str = "probe", prefill: str | None = None):
        if kind not in KINDS:
            raise UsageError(f"unknown kind of server {kind!r}: choose from {', '.join(KINDS)}")
        if prefill is not None and prefill not in PREFILLS:
            raise UsageError(f"unknown prefill style {prefill!r}: choose from {', '.join(PREFILLS)}")
        self.kind = KINDS[kind]
        self.prefill = self.kind.prefill if prefill is None else PREFILLS[prefill]
        self.limit = self.kind.limit
        self.refused: set[str] = set()

    # --- requests

    def fitted(self, body: Json) -> Json:
        """``body`` without what the server refused, and with its name of the limit."""
        made = {name: value for name, value in body.items() if name not in self.refused}
        if self.limit != "max_tokens" and "messages" in made and "max_tokens" in made:
            made[self.limit] = made.pop("max_tokens")
        return made

    def learns(self, body: Json, status: int, said: str) -> bool:
        """A request ended with an error: whether it is worth another try, with what this one taught."""
        if not self.kind.probe or status not in (400, 422):
            return False
        if "max_completion_tokens" in said and "max_tokens" in body:
            self.limit = "max_completion_tokens"
            return True
        sent = {name for name in _OPTIONAL if name in body}
        sent |= {name for message in body.get("messages", ()) for name in REASONING if name in message}
        named = {name for name in {*sent, *body} - _ALWAYS if re.search(rf"\b{name}\b", said)}
        found = named & sent if named else sent if _STRICT.search(said) else set()
        self.refused |= found
        return bool(found)

    def switch(self, mode: str) -> Json:
        """Request fields for a thinking mode. UsageError for one that is none."""
        if mode not in ("none", "high", "max"):
            raise UsageError(f"unknown thinking mode {mode!r}: choose from none, high, max")
        return self.kind.thinking.get(mode, {})

    def message(self, message: Message) -> Json:
        """One turn as the protocol has it."""
        if message.role in ("tool", "function"):
            return {"role": "tool", "tool_call_id": next(iter(message.result_ids), ""), "content": message.content}
        made: Json = {"role": message.role, "content": message.content}
        if message.calls:
            made["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
            # an engine that thinks between its calls needs what it thought; of other turns it may be dropped
            if message.reasoning and REASONING[0] not in self.refused:
                made[REASONING[0]] = message.reasoning
        return made

    def tools(self, schemas: Iterable[str]) -> list[Json]:
        """Tools as the protocol has them. UsageError for a schema that is no JSON object."""
        made = []
        for schema in schemas:
            try:
                function = json.loads(schema)
            except ValueError:
                function = None
            if not isinstance(function, dict):
                raise UsageError(f"a tool is not a JSON object: {schema[:60]}")
            made.append({"type": "function", "function": function})
        return made


# --- answers


def finish_of(reason: str) -> tuple[Finish, str]:
    """A server's reason as one of ours, and the words for an error."""
    found = _FINISH.get(reason, Finish.ERROR)
    return found, f"it ended for the reason {reason!r}" if found is Finish.ERROR else ""


def reasoning_of(message: Json) -> bytes:
    """Thinking apart from text, of a message or of a piece of one: under either name, and under one like them."""
    names = [*REASONING, *(name for name in message if "reason" in name or "think" in name)]
    texts = (message.get(name) for name in names)
    return next((raw_bytes(text) for text in texts if isinstance(text, str) and text), b"")


def calls_of(message: Json) -> tuple[CallDelta, ...]:
    """Tool calls of a message or of a piece of one."""
    found = []
    listed = message.get("tool_calls")
    old = message.get("function_call")
    entries = listed if isinstance(listed, list) else [{"function": old}] if isinstance(old, dict) else []
    for at, entry in enumerate(entries):
        function = entry.get("function") if isinstance(entry, dict) else None
        if not isinstance(function, dict):
            continue
        index, arguments = entry.get("index"), function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        texts = (x if isinstance(x, str) else "" for x in (function.get("name"), arguments, entry.get("id")))
        found.append(CallDelta(index if isinstance(index, int) else at, *texts))
    return tuple(found)


def called(message: Json) -> tuple[ToolCall, ...]:
    """The whole tool calls of a finished message."""
    return tuple(ToolCall(call.name, call.arguments, call.id) for call in calls_of(message))


def usage_of(answer: Json) -> Usage:
    """Token counts under the names that servers use."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = prompt.get("cached_tokens") if isinstance(prompt, dict) else usage.get("prompt_cache_hit_tokens")
    thought = completion.get("reasoning_tokens") if isinstance(completion, dict) else usage.get("reasoning_tokens")
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens"), cached, thought
    return Usage(*(count if isinstance(count, int) else None for count in counts))
