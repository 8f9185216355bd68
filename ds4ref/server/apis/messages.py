"""/v1/messages and /v1/messages/count_tokens: Anthropic's messages (docs/reference/server.md).

Left out on purpose: server tools, citations, batches, cache control (prefixes are cached without it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...targets.answer import CallDelta, Delta, Finish
from ...text.chat import Message
from ...text.fields import array
from ...text.fields import fields as members
from ...text.fields import text as string
from ...text.messages import from_anthropic, tool_references
from ...text.schemas import Schema, found_in, read_schemas
from ..api import About, Api, Question, Refused, sse
from ..deviations import on
from ..turn import Choice, Failed, Turn
from . import fields, known
from .common import Base, Splice, compact, encoded, openai_error

if TYPE_CHECKING:
    from ...text.tokenizer import Tokenizer

ROLES = ("user", "assistant", "system")

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
          429: "rate_limit_error", 503: "overloaded_error"}  # fmt: skip
_CHOICES = {"none": "none", "any": "required", "tool": "named"}
_SINGLE = "disable_parallel_tool_use"
_STOPS = {Finish.LENGTH: "max_tokens", Finish.TOOL_CALLS: "tool_use"}


class Messages(Api):
    """The endpoint /v1/messages."""

    path = "/v1/messages"
    name = "messages"

    def read(self, body: bytes, about: About) -> tuple[Turn, MessagesReply]:
        """Parse a request into the generation to run (``Turn``) and the object that formats its answer."""
        request = fields.Body(body)
        turn = _read(request, about)
        return turn, MessagesReply(turn, about, request.flag("stream"))

    def error(self, refused: Refused) -> bytes:
        """Return the error as Anthropic's JSON document."""
        return _error(refused)


class CountTokens(Question):
    """The endpoint /v1/messages/count_tokens: counts the tokens of a request's prompt."""

    path = "/v1/messages/count_tokens"
    name = "count_tokens"

    def answer(self, body: bytes, about: About, tokenizer: Tokenizer) -> bytes:
        """Return the JSON document with ``input_tokens``."""
        if not on(about.options, "count-tokens"):
            raise Refused(404, "unknown endpoint", _KINDS[404])
        turn = _read(fields.Body(body), about, counted=True)
        return encoded(compact({"input_tokens": len(turn.rendered().encode(tokenizer))}) + "\n")

    def error(self, refused: Refused) -> bytes:
        """Return the error as Anthropic's JSON document."""
        return _error(refused)


def _error(refused: Refused) -> bytes:
    kind = refused.kind
    if kind == "invalid_request_error" or kind == "server_error":
        kind = _KINDS.get(refused.status, "api_error" if refused.status >= 500 else "invalid_request_error")
    error = {"type": kind, "message": refused.message, **refused.extra}
    return encoded(compact({"type": "error", "error": error}) + "\n")


# --- requests


def _read(body: fields.Body, about: About, counted: bool = False) -> Turn:
    """Parse a request; ``counted``: only its prompt is used."""
    known.check(body, "messages")
    raw = body.needed("messages")
    hoist = fields.hoist(about)
    with fields.reading():
        tools = found_in(read_schemas(body.raw("tools")), tool_references(raw))
        messages = from_anthropic(
            raw,
            body.raw("system"),
            placeholders=True,
            leading=hoist == "leading",
            references={tool.name: tool.text for tool in tools},
        )
        if not array(raw, "messages"):
            raise fields.bad("there are no messages")
        fields.known_roles(messages, *ROLES)
        if messages[-1].role == "assistant" and not messages[-1].calls:
            messages[-1] = replace(messages[-1], prefix=True)
    model = fields.model(body, about)
    config = body.object("output_config")
    thinking = _thinking(body, about, model, config)
    choice = _choice(body.raw("tool_choice"), tools)
    named = "output_config.format" if "format" in config else "output_format"
    form = config.get("format") or body.raw("output_format")
    turn = Turn(
        "messages",
        model,
        fields.replayed(messages, about),
        tuple(tools),
        thinking,
        max_tokens=fields.limit(body, about, "max_tokens"),
        sampling=fields.sampling(body, about, thinking),
        stop=fields.stops(body, "stop_sequences"),
        choice=choice,
        format=fields.schema_format(form, named),
        affinity=fields.affinity(body, about),
        hoist=hoist,
        recover=on(about.options, "recover-calls"),
        results_only=not counted and _results_only(messages, about),
    )
    return fields.open_turn(turn)


def _thinking(body: fields.Body, about: About, model: str, config: Mapping[str, str]) -> str:
    """Return the thinking mode.

    An effort never switches thinking on: Claude Code asks for titles with effort "high" and without thinking.
    """
    chosen, explicit = fields.switched(body, "thinking")
    effort = fields.effort(body.raw("reasoning_effort"), "reasoning_effort")
    effort = fields.effort(config.get("effort"), "effort") or effort
    if chosen is None and model != "deepseek-reasoner" and on(about.options, "messages-quiet"):
        chosen = body.raw("thinking") is not None  # adaptive, or a word that is yet to be invented
    return fields.mode(about, effort, chosen, model, explicit)


def _choice(raw: str | None, tools: list[Schema]) -> Choice:
    if raw is None:
        return Choice()
    with fields.reading():
        choice = members(raw, "tool_choice")
        kind = string(choice.get("type"), "type of tool_choice")
        single = fields.truth(choice.get(_SINGLE, "false"), _SINGLE)
        name = string(choice.get("name"), "name of tool_choice")
        return fields.choose(_CHOICES.get(kind, "auto"), name, tools, not single)


def _results_only(messages: list[Message], about: About) -> bool:
    """Return whether there are tool results without their calls."""
    return fields.results_only(messages, about, "Anthropic", "tool_use_id", "messages")


# --- answers


class MessagesReply(Base):
    """Formats an answer as Anthropic's stream of events or as one ``message`` document."""

    call_prefix = "toolu_"

    def __init__(self, turn: Turn, about: About, stream: bool):
        super().__init__(turn, about, stream)
        self._blocks = 0
        self._open = ""  # the kind of the open block
        self._last = -1  # the index of the last call that was begun

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.number}"

    # --- a stream

    def delta(self, delta: Delta) -> bytes:
        """Return the server-sent events that carry ``delta``."""
        out = self._begin()
        if delta.reasoning:
            out += self._piece("thinking", {"type": "thinking_delta", "thinking": delta.reasoning})
        lost = delta.void and self._last >= 0
        if lost and delta.finish != Finish.LENGTH:
            # The client must not take an incomplete call for a complete one.
            self.over = True
            return out + self.late_error(Failed("engine", "the model's tool call was malformed"))
        if delta.text and not lost:
            out += self._piece("text", {"type": "text_delta", "text": delta.text})
        for call in delta.calls:
            out += self._call(call)
        return out + self._end() if delta.finish else out

    def _begin(self) -> bytes:
        if self.begun:
            return b""
        self.begun = True
        prompt, cached = (0, 0) if self.prefill is None else (self.prefill.total, self.prefill.cached)
        return _event("message_start", message=self._message([], None, None, self._usage(prompt, cached, 0)))

    def _piece(self, kind: str, delta: dict[str, Any]) -> bytes:
        out = b""
        if self._open != kind:
            empty = {"thinking": {"thinking": "", "signature": ""}, "text": {"text": ""}}[kind]
            out = self._start(kind, {"type": kind, **empty})
        return out + self._delta(delta)

    def _call(self, call: CallDelta) -> bytes:
        out = b""
        if call.index > self._last:
            self._last = call.index
            out = self._start("tool_use", _tool_use(self.call_id(call.index), call.name))
        if call.arguments:
            out += self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        return out

    def _start(self, kind: str, block: dict[str, Any]) -> bytes:
        out = self._close()
        self._open, self._blocks = kind, self._blocks + 1
        return out + _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _close(self) -> bytes:
        if not self._open:
            return b""
        out = self._delta({"type": "signature_delta", "signature": self._id}) if self._open == "thinking" else b""
        self._open = ""
        return out + _event("content_block_stop", index=self._blocks - 1)

    def _end(self) -> bytes:
        out = b""
        if self._open in ("", "thinking"):  # nothing visible: send an empty text block
            out += self._start("text", {"type": "text", "text": ""})
        out += self._close()
        reason, sequence = self._reason()
        usage = {"output_tokens": self.collected.counts[2]}
        out += _event("message_delta", delta={"stop_reason": reason, "stop_sequence": sequence}, usage=usage)
        return out + _event("message_stop")

    def late_error(self, failed: Failed) -> bytes:
        """Return an ``error`` event, which SDKs raise as an exception."""
        kind = "overloaded_error" if failed.code == "shutdown" else "api_error"
        return _event("error", error={"type": kind, "message": failed.message})

    def alive(self) -> bytes:
        """Return a ``ping`` event, after ``message_start``; an SSE comment while the prompt's length is unknown."""
        if not self.begun and self.prefill is None:
            return super().alive()
        return self._begin() + _event("ping")

    # --- a document

    def document(self) -> bytes:
        """Return the whole answer as a ``message`` JSON document."""
        self.whole()
        answer, splice, content = self.collected, Splice(), []
        if answer.reasoning:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": self._id})
        if answer.text or not answer.calls:
            content.append({"type": "text", "text": answer.text})
        for index, name, arguments in answer.calls:
            content.append(_tool_use(self.call_id(index), name) | {"input": splice(arguments)})
        message = self._message(content, *self._reason(), self._usage(*answer.counts[:3]))
        return encoded(splice.compact(message) + "\n")

    def error(self, refused: Refused) -> bytes:
        """Return the error as Anthropic's JSON document."""
        shaped = on(self.about.options, "anthropic-errors") or "n_prompt_tokens" in refused.extra
        return _error(refused) if shaped else openai_error(refused)

    # --- both

    def _usage(self, prompt: int, cached: int, completion: int) -> dict[str, int]:
        """Return the usage object. A prompt has the sum of its three counts in tokens: what is evaluated is written to
        the cache, as the other APIs say, and ``input_tokens`` counts what is neither read nor written."""
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

    def _reason(self) -> tuple[str, str | None]:
        stopped = self.collected.last.stopped
        if stopped:
            return "stop_sequence", stopped
        return _STOPS.get(self.collected.finish, "end_turn"), None


def _tool_use(call_id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


def _event(kind: str, **members: Any) -> bytes:
    return sse(compact({"type": kind, **members}), kind)
