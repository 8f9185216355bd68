"""/v1/responses: OpenAI's responses (docs/reference/server.md).

Stateless: every request must carry its whole history. Left out on purpose: hosted tools, log probabilities, an
endpoint for compaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from ...targets.answer import CallDelta, Delta, Finish
from ...text.chat import Message
from ...text.messages import from_responses
from ...text.protocol import THINK_CLOSE
from ...text.schemas import Schema, brought, read_schemas
from ..api import About, Api, bad, sse
from ..turn import Failed, Turn
from . import fields, reading
from .common import Base, Tool, compact, new_id, on_the_wire, plain_input
from .requests import Reasoning, ResponsesRequest

ROLES = ("user", "assistant", "system", "developer", "tool")
SUMMARIES = ("auto", "concise", "detailed")
LOGPROBS = "message.output_text.logprobs"
DIGITS = 24

_CLOSE = THINK_CLOSE.encode()
_NO_CALL = "Responses continuation state is not available for call_id {}; retry by replaying the full input history"

Item = dict[str, Any]


class Responses(Api):
    """The endpoint /v1/responses."""

    path = "/v1/responses"
    name = "responses"

    def read(self, body: bytes, about: About) -> tuple[Turn, ResponsesReply]:
        """Parse a request into the generation to run (``Turn``) and the object that formats its answer."""
        request: ResponsesRequest = fields.read(body, self.name, about)
        asked = request.reasoning or Reasoning()
        if LOGPROBS in (request.include or ()):
            raise fields.unsupported(f"include: {LOGPROBS}", fields.CHAT)
        for name, value, usual in (("context", asked.context, "auto"), ("mode", asked.mode, "standard")):
            if value not in (None, usual):
                raise fields.unsupported(f"reasoning.{name}")
        with reading.reading():
            raw, instructions = reading.needed(request.input, "input"), request.instructions or ""
            messages, loaded = from_responses(raw, instructions)
            if not messages or (len(messages) == 1 and instructions):
                raise bad("input is empty")
            messages = _asked_again(reading.known_roles(messages, *ROLES))
            tools = _merged(read_schemas(reading.given(request.tools)), brought(loaded))
        reading.check_results(messages, _NO_CALL)
        kinds = ("function", "custom", "tool_search")
        turn = reading.turn_of(
            "responses",
            request,
            about,
            messages,
            reading.choose(request.tool_choice, tools, request.parallel_tool_calls, kinds),
            ("max_output_tokens", "max_tokens"),
            thinking=reading.mode(about, asked.effort, None, request.model, asked.effort is not None),
            format=reading.schema_format(request.text.format if request.text is not None else None, "text.format"),
        )
        return turn, ResponsesReply(turn, about, request.stream, asked.summary in SUMMARIES)


def _asked_again(messages: list[Message]) -> list[Message]:
    """Drop trailing reasoning items from the history, which Codex sends after a stream that was cut.

    A history that ends with the assistant's turn could not be answered.
    """
    last = messages[-1]
    alone = last.role == "assistant" and last.reasoning and not last.content and not last.calls
    return messages[:-1] if alone and len(messages) > 1 else messages


def _merged(tools: list[Schema], late: list[Schema]) -> list[Schema]:
    """Merge the tools declared by a request with those that tool searches in its history added, shown there."""
    known = {tool.name for tool in tools if not tool.deferred}
    new = {tool.name: tool for tool in late if tool.name not in known}
    return [tool for tool in tools if tool.name not in new] + list(new.values())


_PARTS = {
    "reasoning": ("rs_", "summary", "reasoning_summary_part", "reasoning_summary_text", "summary_index"),
    "message": ("msg_", "content", "content_part", "output_text", "content_index"),
}
"""Of items of text: prefix of ids, member with the only part, events of the part and of its text, name of its index."""


@dataclass
class _Open:
    """An unfinished output item: its id, its index in the output, its text so far; of a call its number and tool."""

    id: str
    at: int
    parts: list[str] = field(default_factory=list)
    index: int = -1
    tool: Tool = field(default_factory=lambda: Tool(""))

    @property
    def where(self) -> Item:
        """Members that identify the item in its events."""
        return {"item_id": self.id, "output_index": self.at}

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.parts)


class ResponsesReply(Base):
    """Formats an answer as a stream of events or as one ``response`` document.

    ``summary``: the client wants the reasoning as a summary.
    """

    last_byte = ""  # as ds4 has it

    def __init__(self, turn: Turn, about: About, stream: bool | None, summary: bool):
        super().__init__(turn, about, stream)
        self.id = new_id("resp_", DIGITS)
        self._summary = summary
        self._sequence = 0
        self._items: list[Item] = []  # finished ones
        self._opened = 0
        self._texts: dict[str, _Open] = {}  # open items of text by kind
        self._call: _Open | None = None
        self._called = False  # a call was begun

    # --- a stream

    def shows(self, delta: Delta) -> bool:
        """Return whether the client sees something of ``delta``: reasoning only if it asked for its summary."""
        return bool(delta.text or delta.calls or (delta.reasoning and self._summary))

    def delta(self, delta: Delta) -> bytes:
        """Return the server-sent events that carry ``delta``."""
        out = self._begin()
        lost = delta.void and self._called
        if lost and delta.finish != Finish.LENGTH:
            # The client must not take an incomplete call for a complete one, and it cannot be revoked.
            self.over = True
            return out + self.late_error(Failed("engine", "the model's tool call was malformed"))
        if lost:
            self._call = None  # never closed
        if delta.reasoning and self._summary:
            out += self._say("reasoning", delta.reasoning)
        if delta.text or delta.calls:
            out += self._close_text("reasoning", "completed")
        if delta.text and not lost:
            out += self._say("message", delta.text)
        for call in delta.calls:
            out += self._call_piece(call)
        return out + self._end(delta.finish) if delta.finish else out

    def _begin(self) -> bytes:
        if self.begun:
            return b""
        self.begun = True
        return self._event("response.created", response=self._response("in_progress", []))

    def _say(self, kind: str, text: str) -> bytes:
        prefix, _, part, words, number = _PARTS[kind]
        out, item = b"", self._texts.get(kind)
        if item is None:
            item = self._texts[kind] = self._open(prefix)
            out += self._added(item.at, _text_item(kind, item.id, "", "in_progress"))
            out += self._event(f"response.{part}.added", **item.where, **{number: 0}, part=_part(kind, ""))
        item.parts.append(text)
        return out + self._event(f"response.{words}.delta", **item.where, **{number: 0}, delta=text)

    def _call_piece(self, piece: CallDelta) -> bytes:
        out, call = b"", self._call
        if call is None or call.index != piece.index:
            out += self._close_call() + self._close_text("reasoning", "completed")
            out += self._close_text("message", "completed")
            self._called, tool = True, on_the_wire(self.turn.tools, piece.name)
            call = self._call = self._open("ctc_" if tool.kind == "custom" else "fc_")
            call.index, call.tool = piece.index, tool
            out += self._added(call.at, _call_item(call.id, self.call_id(call.index), tool, "", "in_progress"))
        call.parts.append(piece.arguments)
        if piece.arguments and call.tool.kind == "function":  # a custom tool's text is sent when it is whole
            out += self._event("response.function_call_arguments.delta", **call.where, delta=piece.arguments)
        return out

    # --- the ends of items

    def _close_text(self, kind: str, status: str) -> bytes:
        _, _, part, words, number = _PARTS[kind]
        item = self._texts.pop(kind, None)
        if item is None:
            return b""
        out = self._event(f"response.{words}.done", **item.where, **{number: 0}, text=item.text)
        out += self._event(f"response.{part}.done", **item.where, **{number: 0}, part=_part(kind, item.text))
        return out + self._done(item.at, _text_item(kind, item.id, item.text, status))

    def _close_call(self) -> bytes:
        call, self._call = self._call, None
        if call is None:
            return b""
        out, tool = b"", call.tool
        if tool.kind == "custom":
            whole = plain_input(call.text)
            if whole:
                out += self._event("response.custom_tool_call_input.delta", **call.where, delta=whole)
            out += self._event("response.custom_tool_call_input.done", **call.where, input=whole)
        elif tool.kind == "function":
            space = {"namespace": tool.namespace} if tool.namespace else {}
            named = {"name": tool.name, **space, "arguments": call.text}
            out += self._event("response.function_call_arguments.done", **call.where, **named)
        return out + self._done(call.at, _call_item(call.id, self.call_id(call.index), tool, call.text, "completed"))

    def _end(self, finish: Finish | str) -> bytes:
        status = _status(finish)
        last = "completed" if status == "completed" else "incomplete"
        out = b""
        if self._cut_in_reasoning(status) and "reasoning" not in self._texts:
            item = self._open("rs_")
            out += self._added(item.at, _text_item("reasoning", item.id, "", "in_progress"))
            out += self._done(item.at, _text_item("reasoning", item.id, "", "incomplete"))
        out += self._close_text("reasoning", self._thought(last)) + self._close_text("message", last)
        out += self._close_call()
        return out + self._event(f"response.{status}", response=self._response(status, self._items))

    def _cut_in_reasoning(self, status: str) -> bool:
        """Whether nothing but reasoning was generated: then its item is sent even to who wants no summary of it."""
        answer = self.collected
        return status == "incomplete" and bool(answer.reasoning) and not (answer.text or answer.calls)

    def _thought(self, last: str) -> str:
        """The status of reasoning that is open at the end: completed only if something came after it."""
        answer = self.collected
        ended = [not step.thought or step.token.raw == _CLOSE for step in answer.steps[-1:]]
        closed = bool(answer.text or answer.calls) or True in ended
        return "completed" if closed else "incomplete"

    def late_error(self, failed: Failed) -> bytes:
        """Return a ``response.failed`` event, which ends the stream; clients retry or show the message."""
        out = self._begin()
        code = "context_length_exceeded" if failed.code == "context" else "server_error"
        error = {"code": code, "message": failed.message}
        return out + self._event("response.failed", response=self._response("failed", self._items, error))

    def alive(self) -> bytes:
        """Return an event of an unknown type: it resets the timeout of clients that ignore SSE comments (Codex)."""
        return self._begin() + self._event("response.keepalive")

    # --- a document

    def whole(self) -> Item:
        """Return the members of the whole answer as a ``response``."""
        answer, items = self.collected, list[Item]()
        status = _status(answer.last.finish)
        last = "completed" if status == "completed" else "incomplete"
        if answer.reasoning and self._summary or self._cut_in_reasoning(status):
            shown, thought = (answer.reasoning, self._thought(last)) if self._summary else ("", "incomplete")
            items.append(_text_item("reasoning", new_id("rs_", DIGITS), shown, thought))
        if answer.text:
            items.append(_text_item("message", new_id("msg_", DIGITS), answer.text, last))
        for index, name, arguments in answer.calls:
            tool = on_the_wire(self.turn.tools, name)
            item_id = new_id("ctc_" if tool.kind == "custom" else "fc_", DIGITS)
            items.append(_call_item(item_id, self.call_id(index), tool, arguments, "completed"))
        return self._response(status, items)

    # --- both

    def _response(self, status: str, output: list[Item], error: Item | None = None) -> Item:
        response: Item = {"id": self.id, "object": "response", "created_at": self.about.created, "status": status}
        response["model"] = self.turn.model
        if status == "failed":
            response["error"] = error or {"code": "server_error", "message": "generation failed"}
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["output"] = output
        if status != "in_progress":
            prompt, cached, completion, thought = self.counts
            response["usage"] = {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": thought},
                "total_tokens": prompt + completion,
            }
        return response

    def _open(self, prefix: str) -> _Open:
        self._opened += 1
        return _Open(new_id(prefix, DIGITS), self._opened - 1)

    def _added(self, at: int, item: Item) -> bytes:
        return self._event("response.output_item.added", output_index=at, item=item)

    def _done(self, at: int, item: Item) -> bytes:
        self._items.append(item)
        return self._event("response.output_item.done", output_index=at, item=item)

    def _event(self, kind: str, **more: Any) -> bytes:
        self._sequence += 1
        return sse(compact({"type": kind, "sequence_number": self._sequence - 1, **more}))


def _status(finish: Finish | str) -> str:
    return {Finish.LENGTH: "incomplete", Finish.ERROR: "failed"}.get(Finish(finish or Finish.STOP), "completed")


def _part(kind: str, text: str) -> Item:
    if kind == "reasoning":
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": []}


def _text_item(kind: str, item_id: str, text: str, status: str) -> Item:
    role = {"role": "assistant"} if kind == "message" else {}
    return {"id": item_id, "type": kind, "status": status, **role, _PARTS[kind][1]: [_part(kind, text)] if text else []}


def _call_item(item_id: str, call_id: str, tool: Tool, arguments: str, status: str) -> Item:
    """Return a call as the item kind of its tool. ``arguments``: JSON text, "" at the beginning."""
    if tool.kind == "tool_search":
        head = {"id": item_id, "type": "tool_search_call", "status": status, "call_id": call_id, "execution": "client"}
        return head | {"arguments": Raw((arguments or "{}").encode())}
    space = {"namespace": tool.namespace} if tool.namespace else {}
    if tool.kind == "custom":
        plain = plain_input(arguments) if arguments else ""
        head = {"id": item_id, "type": "custom_tool_call", "status": status, "call_id": call_id}
        return head | {"name": tool.name, **space, "input": plain}
    head = {"id": item_id, "type": "function_call", "status": status, "name": tool.name}
    return head | space | {"call_id": call_id, "arguments": arguments}
