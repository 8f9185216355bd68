"""/v1/messages and /v1/messages/count_tokens: Anthropic's messages (docs/reference/server.md).

Left out on purpose: server tools, citations, batches, cache control (prefixes are cached without it).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import Raw

from ...targets.answer import CallDelta, Completion, Finish
from ...text.messages import from_anthropic, tool_references
from ...text.schemas import found_in, read_schemas
from ..api import About, Api, bad, compact, sse
from ..turn import Failed, Turn
from . import fields, reading
from .common import Blocks, counts_of, finish_of
from .requests import MessagesRequest

ROLES = ("user", "assistant", "system")
EDITS = ("clear_thinking", "clear_tool_uses")
"""Context edits that are accepted though they are not carried out, since clients send them with every request.

Which earlier reasoning is left out is decided by the model's own prompt format. Tool results, which Anthropic leaves
out from 100,000 tokens on unless the request names another trigger, stay.
"""

_EMPTY = {"reasoning": {"type": "thinking", "thinking": "", "signature": ""}, "text": {"type": "text", "text": ""}}
_PIECES = {
    "reasoning": ("thinking_delta", "thinking"), "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}  # fmt: skip
"""By kind of block: the type of the deltas that carry its text, and their member with the text."""
_STOPS = {Finish.LENGTH: "max_tokens", Finish.TOOL_CALLS: "tool_use"}
_NO_CALL = (
    "Anthropic continuation state is not available for tool_use_id {}; retry by replaying the full messages history"
)


class Messages(Api):
    """The endpoint /v1/messages."""

    path = "/v1/messages"
    name = "messages"

    def read(self, body: bytes, about: About, counted: bool = False) -> tuple[Turn, MessagesReply]:
        """Parse a request into the generation to run (``Turn``) and the object that formats its answer.

        ``counted``: whether only the prompt's tokens are to be counted; then tool results need not have their calls.
        """
        request: MessagesRequest = fields.read(body, self.name, about)
        for edit in (request.context_management and request.context_management.edits) or ():
            if not edit.type.startswith(EDITS) or edit.type.startswith(EDITS[1]) and edit.trigger is not None:
                late = " with a trigger" if edit.type.startswith(EDITS) else ""
                raise fields.unsupported(f"context_management: {edit.type[:100]}{late}")
        with reading.reading():
            raw = reading.needed(request.messages, "messages")
            tools = found_in(read_schemas(reading.given(request.tools)), tool_references(raw))
            references = {tool.name: tool.text for tool in tools}
            system = reading.given(request.system)
            messages = from_anthropic(raw, system, references)
            messages = reading.known_roles(messages, *ROLES)
        if all(message.role == "system" for message in messages):
            raise bad("there are no messages")
        if messages[-1].role == "assistant" and not messages[-1].calls:
            messages[-1] = replace(messages[-1], prefix=True)
        if not counted:
            reading.check_results(messages, _NO_CALL)
        choice = request.tool_choice
        form = request.output_config.format if request.output_config is not None else None
        where = "output_format" if form is None else "output_config.format"
        turn = reading.turn_of(
            "messages",
            request,
            about,
            messages,
            reading.choose(choice, tools, not (choice and choice.disable_parallel_tool_use), ("tool",)),
            ("max_tokens",),
            thinking=_thinking(request, about),
            stop=tuple(filter(None, request.stop_sequences or ())),
            format=reading.schema_format(form or request.output_format, where),
        )
        return turn, MessagesReply(turn, about, request.stream)


def _thinking(request: MessagesRequest, about: About) -> str:
    """Return the thinking mode: "none" unless the request mentions ``thinking`` or names the model deepseek-reasoner.

    An effort never switches thinking on, since Claude Code requests titles with effort "high" and without thinking.
    """
    chosen, explicit = reading.switched(request.thinking)
    if chosen is None and request.model != "deepseek-reasoner":
        chosen = request.thinking is not None  # "adaptive", or a word that clients will invent
    effort = request.output_config and request.output_config.effort or request.reasoning_effort
    return reading.mode(about, effort, chosen, request.model, explicit)


# --- answers


class MessagesReply(Blocks):
    """Formats an answer as Anthropic's stream of events or as one ``message`` document."""

    call_prefix = "toolu_"

    def __init__(self, turn: Turn, about: About, stream: bool | None):
        super().__init__(turn, about, stream)
        self._blocks = 0

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.number}"

    # --- a stream

    def start(self) -> bytes:
        """Return the event that begins the stream, b"" if that was sent already."""
        if self.begun:
            return b""
        self.begun = True
        prompt, cached = (0, 0) if self.prefill is None else (self.prefill.total, self.prefill.cached)
        return _event("message_start", message=self._message([], None, None, self._usage(prompt, cached, 0)))

    def begin(self, call: CallDelta | None) -> bytes:
        """Return the event that begins a block of the kind ``open``; ``call``: the first piece if it is a call."""
        block = _EMPTY[self.open] if call is None else _tool_use(self.call_id(call.index), call.name)
        self._blocks += 1
        return _event("content_block_start", index=self._blocks - 1, content_block=block)

    def piece(self, text: str) -> bytes:
        """Return the event for more text of the open block."""
        kind, member = _PIECES[self.open]
        return self._delta({"type": kind, member: text})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def close(self) -> bytes:
        """Return the events that end the open block, b"" if there is none."""
        if not self.open:
            return b""
        out = self._delta({"type": "signature_delta", "signature": self._id}) if self.open == "reasoning" else b""
        self.open = ""
        return out + _event("content_block_stop", index=self._blocks - 1)

    def end(self, lost: bool) -> bytes:
        """Return the events that end the stream."""
        out = b""
        if self.open in ("", "reasoning"):  # nothing visible: send an empty text block
            out = self.close()
            self.open = "text"
            out += self.begin(None)
        out += self.close()
        answer = self.answer
        reason, sequence = self._reason(answer)
        usage = {"output_tokens": counts_of(answer)[2]}
        out += _event("message_delta", delta={"stop_reason": reason, "stop_sequence": sequence}, usage=usage)
        return out + _event("message_stop")

    def late_error(self, failed: Failed) -> bytes:
        """Return an ``error`` event, which SDKs raise as an exception."""
        kind = "overloaded_error" if failed.code == "shutdown" else "api_error"
        return _event("error", error={"type": kind, "message": failed.message})

    def alive(self) -> bytes:
        """Return a ``ping`` event, preceded by ``message_start`` if that was not sent; an SSE comment while the number
        of prompt tokens, which ``message_start`` holds, is unknown."""
        if not self.begun and self.prefill is None:
            return super().alive()
        return self.start() + _event("ping")

    # --- a document

    def whole(self) -> dict[str, Any]:
        """Return the members of the whole answer as a ``message``."""
        answer, content = self.answer, list[dict[str, Any]]()
        if answer.reasoning:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": self._id})
        if answer.text or not answer.calls:
            content.append({"type": "text", "text": answer.text})
        for index, call in enumerate(answer.calls):
            content.append(_tool_use(self.call_id(index), call.name) | {"input": Raw(call.arguments.encode())})
        return self._message(content, *self._reason(answer), self._usage(*counts_of(answer)[:3]))

    # --- both

    def _usage(self, prompt: int, cached: int, completion: int) -> dict[str, int]:
        """Return the usage object for these numbers of tokens.

        The prompt's tokens are the sum of three counts: read from the cache, written to it, and neither
        (``input_tokens``), which are none, since every evaluated token is cached.
        """
        return {
            "input_tokens": 0,
            "output_tokens": completion,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": prompt - cached,
        }

    def _message(self, content: list[Any], reason: str | None, sequence: str | None, usage: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.turn.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _reason(self, answer: Completion) -> tuple[str, str | None]:
        if self.deltas and self.deltas[-1].stopped:
            return "stop_sequence", self.deltas[-1].stopped
        return _STOPS.get(finish_of(answer), "end_turn"), None


def _tool_use(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def _event(kind: str, **members: Any) -> bytes:
    return sse(compact({"type": kind, **members}), kind)
