"""Dialects of the OpenAI protocol: servers differ in the names of request fields and in which fields they accept.

    deepseek   DeepSeek's API: thinking is set by the object ``thinking``; ``prefix`` continues a given answer
    ds4        ds4's server and ours: thinking as in deepseek, and ``reasoning_effort`` for "low" and "max"
    vllm       thinking is set in ``chat_template_kwargs``; token ids may be the prompt
    llama.cpp  llama-server: as vllm, but it cannot continue a given answer
    openai     OpenAI's API: ``reasoning_effort`` and ``max_completion_tokens``
    plain      nothing beyond the protocol (llama-cpp-python, and servers that answer 400 to unknown fields)
    probe      thinking as in deepseek, leaving out fields once the server has refused them; the default

The dialect concerns requests only: in answers, reasoning and token counts are found under every name that servers use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from ..text.chat import MODES, Message
from .answer import CallDelta, Finish, Usage
from .wire import raw_bytes

Json = dict[str, Any]

_SWITCH: dict[str, Json] = {mode: {"thinking": {"type": "enabled"}} for mode in MODES}
_SWITCH["none"] = {"thinking": {"type": "disabled"}}
_EFFORT = _SWITCH | {mode: _SWITCH[mode] | {"reasoning_effort": mode} for mode in ("low", "max")}
_TEMPLATE: dict[str, Json] = {
    mode: {"chat_template_kwargs": {"thinking": mode != "none", "enable_thinking": mode != "none"}} for mode in MODES
}
_OPENAI: dict[str, Json] = {"none": {}, "max": {"reasoning_effort": "xhigh"}}
_OPENAI |= {mode: {"reasoning_effort": mode} for mode in ("low", "high")}

REASONING = ("reasoning_content", "reasoning")
"""Field names of reasoning in answers; servers that send both send the same text twice."""

MOST_TOKENS = 1 << 53
"""Largest token count that is believed; a larger one, which JSON allows, is treated as not reported."""

_FINISH = {
    "stop": Finish.STOP, "eos": Finish.STOP, "eos_token": Finish.STOP, "stop_sequence": Finish.STOP,
    "end_turn": Finish.STOP, "length": Finish.LENGTH, "max_tokens": Finish.LENGTH, "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS, "tool_use": Finish.TOOL_CALLS, "abort": Finish.CANCELLED,
    "cancelled": Finish.CANCELLED, "error": Finish.ERROR,
}  # fmt: skip

EXACT = ("ignore_eos", "min_tokens")
"""Fields that ask for an answer of exactly ``max_tokens`` tokens (vLLM, SGLang, llama.cpp, ds4-server)."""
_OPTIONAL = ("thinking", "reasoning_effort", "chat_template_kwargs", "stream_options", *EXACT, *REASONING)
"""Request fields that may be left out if the server refuses them; if it refuses any other, the request fails."""
_ALWAYS = {"model", "messages", "prompt", "stream"}
_STRICT = re.compile(
    r"(unknown|unexpected|unrecognized|unsupported|extra)\W+(\w+\W+)?(fields?|parameters?|arguments?|inputs?|keys?|propert)",
    re.I,
)


@dataclass(frozen=True)
class ServerKind:
    """How one kind of server wants to be asked.

    thinking   maps a thinking mode to the request fields that select it
    prefill    (fields of the message, fields of the request) that let the model continue a given beginning of its
               answer; None if that is impossible
    limit      the server's name for ``max_tokens``
    ids        whether the completions endpoint takes token ids as prompt
    probe      if the server refuses optional fields, leave them out and repeat the request
    exact      whether the fields ``EXACT`` may be sent; if refused, they are left out even without ``probe``
    """

    name: str
    thinking: dict[str, Json] = field(default_factory=dict)
    prefill: tuple[Json, Json] | None = None
    limit: str = "max_tokens"
    ids: bool = False
    probe: bool = False
    exact: bool = True


_OWNERS = {"vllm": "vllm", "sglang": "vllm", "tensorrt": "vllm", "llama": "llama.cpp", "library": "openai",
           "ds4": "ds4"}  # fmt: skip
"""Part of ``owned_by`` in a server's list of models -> dialect of the program that it names; "library" is Ollama."""

_PREFIX: tuple[Json, Json] = ({"prefix": True}, {})
KINDS = {
    kind.name: kind
    for kind in (
        ServerKind("probe", _SWITCH, probe=True),
        ServerKind("plain", exact=False),
        ServerKind("deepseek", _SWITCH, _PREFIX, exact=False),
        ServerKind("ds4", _EFFORT),
        ServerKind("vllm", _TEMPLATE, ({}, {"continue_final_message": True, "add_generation_prompt": False}), ids=True),
        ServerKind("llama.cpp", _TEMPLATE, ids=True),
        ServerKind("openai", _OPENAI, limit="max_completion_tokens", exact=False),
    )
}
PREFILLS = {kind.name: kind.prefill for kind in KINDS.values() if kind.prefill is not None}


def likely(current: str, owner: str = "") -> list[str]:
    """Return the dialects to try, the likeliest first, if the server ignored the thinking mode sent in ``current``.

    The list is empty if ``current`` already sends what the server's own dialect would. ``owner`` is the model's
    ``owned_by`` in the server's list of models, which often names the program.
    """
    known = [name for part, name in _OWNERS.items() if part in owner.lower()]
    names = [current]
    for name in dict.fromkeys((*known, "vllm", "openai", "deepseek")):
        if all(KINDS[name].thinking.get("high") != KINDS[other].thinking.get("high") for other in names):
            names.append(name)
        elif name in known:
            return []
    return names[1:]


class Dialect:
    """The request format of one server, refined by the error replies it sends.

    refused  fields that it has rejected so far
    taken    optional fields that it has accepted, that is, answered a request that contained them
    guessed  fields left out on a guess, after an error reply that named no field; if the request fails without them
             as well, they are sent again
    """

    def __init__(self, kind: str = "probe", prefill: str | None = None):
        if kind not in KINDS:
            raise UsageError(f"unknown kind of server {kind!r}: choose from {', '.join(KINDS)}")
        if prefill is not None and prefill not in PREFILLS:
            raise UsageError(f"unknown prefill style {prefill!r}: choose from {', '.join(PREFILLS)}")
        self.kind = KINDS[kind]
        self.prefill = self.kind.prefill if prefill is None else PREFILLS[prefill]
        self.limit = self.kind.limit
        self.refused: set[str] = set()
        self.taken: set[str] = set()
        self.guessed: set[str] = set()

    # --- requests

    def fitted(self, body: Json) -> Json:
        """Return the request ``body`` without fields refused so far, and with the server's name for ``max_tokens``."""
        fields = {name: value for name, value in body.items() if name not in self.refused}
        if self.limit != "max_tokens" and "messages" in fields and "max_tokens" in fields:
            fields[self.limit] = fields.pop("max_tokens")
        return fields

    def learns(self, body: Json, status: int, reply: str) -> bool:
        """Learn from an error reply which fields the server refuses; return whether to repeat the request without them.

        body     the request that failed
        status   HTTP status of the reply
        reply    text of the reply

        If the reply names no field, all optional fields that the server has never accepted are left out, once.
        """
        droppable = _OPTIONAL if self.kind.probe else EXACT
        if status not in (400, 422):
            return False
        if self.guessed & body.keys():
            return True  # this request was sent before a concurrent one led to the guess
        if self.guessed:
            self.refused -= self.guessed
            self.guessed = set()
            return False
        if self.kind.probe and "max_completion_tokens" in reply and "max_tokens" in body:
            self.limit = "max_completion_tokens"
            return True
        sent = {name for name in droppable if name in body}
        if self.kind.probe:
            sent |= {name for message in body.get("messages", ()) for name in REASONING if name in message}
        named = {name for name in {*sent, *body} - _ALWAYS if re.search(rf"\b{name}\b", reply)}
        newly_refused = named & sent if named else sent if _STRICT.search(reply) else set()
        if not named and not newly_refused:
            self.guessed = newly_refused = sent - self.taken - self.refused
        self.refused |= newly_refused
        return bool(newly_refused)

    def answered(self, body: Json) -> None:
        """Record that the server answered the request ``body``.

        Its optional fields are accepted, and fields left out on a guess stay out.
        """
        self.taken |= {name for name in _OPTIONAL if name in body}
        self.guessed = set()

    def switch(self, mode: str, chat: bool = True) -> Json:
        """Return the request fields that select a thinking mode; raise UsageError for an unknown mode.

        ``chat`` is false for the completions endpoint. Only the field ``thinking`` is sent there, for servers that
        turn a plain prompt into a chat.
        """
        if mode not in MODES:
            raise UsageError(f"unknown thinking mode {mode!r}: choose from {', '.join(MODES)}")
        fields = self.kind.thinking.get(mode, {})
        return fields if chat else {name: value for name, value in fields.items() if name == "thinking"}

    def exactly(self, tokens: int) -> Json:
        """Return the request fields that ask for an answer of exactly ``tokens`` tokens, {} if the server has none."""
        return dict(zip(EXACT, (True, tokens), strict=True)) if self.kind.exact else {}

    def message(self, message: Message) -> Json:
        """Return one message as the protocol's JSON."""
        if message.role in ("tool", "function"):
            return {"role": "tool", "tool_call_id": next(iter(message.result_ids), ""), "content": message.content}
        fields: Json = {"role": message.role, "content": message.content}
        if message.calls:
            fields["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
            # a model that thinks between tool calls needs its earlier thoughts; those of other turns may be dropped
            if message.reasoning and REASONING[0] not in self.refused:
                fields[REASONING[0]] = message.reasoning
        return fields

    def tools(self, schemas: Iterable[str]) -> list[Json]:
        """Return the tools in the format of the request's ``tools`` field.

        Each schema is the text of a JSON object with name, description and parameters; raise UsageError for any other.
        """
        entries = []
        for schema in schemas:
            try:
                function = json.loads(schema)
            except ValueError:
                function = None
            if not isinstance(function, dict):
                raise UsageError(f"a tool is not a JSON object: {schema[:60]}")
            entries.append({"type": "function", "function": function})
        return entries


# --- answers


def finish_of(reason: str) -> tuple[Finish, str]:
    """Return a server's finish reason as Finish, and an error text, which is "" unless the answer ended in an error.

    An unknown reason counts as an error.
    """
    finish = _FINISH.get(reason, Finish.ERROR)
    return finish, f"it ended for the reason {reason!r}" if finish is Finish.ERROR else ""


def reasoning_of(message: Json) -> bytes:
    """Return the reasoning of a message or delta as bytes, under any of the usual field names."""
    names = [*REASONING, *(name for name in message if "reason" in name or "think" in name)]
    texts = (message.get(name) for name in names)
    return next((raw_bytes(text) for text in texts if isinstance(text, str) and text), b"")


def calls_of(message: Json) -> tuple[CallDelta, ...]:
    """Return the tool calls of a message or delta, whether in ``tool_calls`` or in the older ``function_call``."""
    deltas = []
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
        deltas.append(CallDelta(index if isinstance(index, int) else at, *texts))
    return tuple(deltas)


def usage_of(answer: Json) -> Usage:
    """Return an answer's token counts, under any of the names that servers use."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = prompt.get("cached_tokens") if isinstance(prompt, dict) else usage.get("prompt_cache_hit_tokens")
    thought = completion.get("reasoning_tokens") if isinstance(completion, dict) else usage.get("reasoning_tokens")
    drafted = (answer.get("timings") or {}).get("draft_n")
    if isinstance(completion, dict) and drafted is None:
        tried = [completion.get(f"{name}_prediction_tokens") for name in ("accepted", "rejected")]
        drafted = sum(count for count in tried if isinstance(count, int)) if any(tried) else None
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens"), cached, thought, drafted
    return Usage(*(count if isinstance(count, int) and abs(count) <= MOST_TOKENS else None for count in counts))
