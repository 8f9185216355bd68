"""/v1/responses: OpenAI's responses (docs/reference/server.md).

Stateless: every request must carry its whole history. Left out on purpose: hosted tools, log probabilities, an
endpoint for compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...targets.answer import CallDelta, Delta, Finish
from ...text.chat import Message
from ...text.fields import Fields, array
from ...text.fields import fields as members
from ...text.fields import text as string
from ...text.messages import from_responses
from ...text.protocol import THINK_CLOSE
from ...text.rawjson import is_string
from ...text.schemas import Schema, brought, read_schemas
from ..api import About, Api, Refused, sse
from ..deviations import on
from ..turn import Choice, Failed, Turn
from . import fields, known
from .common import (
    Base,
    PlainInput,
    Splice,
    Tool,
    encoded,
    new_id,
    on_the_wire,
    openai_error,
    plain_input,
)  # fmt: skip

ROLES = ("user", "assistant", "system", "developer", "tool")
SUMMARIES = ("auto", "concise", "detailed")
DIGITS = 24

_CLOSE = THINK_CLOSE.encode()

Item = dict[str, Any]


class Responses(Api):
    """The endpoint /v1/responses."""

    path = "/v1/responses"
    name = "responses"

    def read(self, body: bytes, about: About) -> tuple[Turn, ResponsesReply]:
        """Parse a request into the generation to run (``Turn``) and the object that formats its answer."""
        request = fields.Body(body)
        for name in ("previous_response_id", "conversation"):
            if request.raw(name) is not None:
                raise Refused(400, f"{name} is not supported; replay full input instead")
        known.check(request, self.name)
        with fields.reading():
            instructions = string(request.raw("instructions"), "instructions")
            in_place = on(about.options, "tools-in-place")
            messages, loaded = from_responses(
                request.needed("input"), instructions, placeholders=True, in_place=in_place
            )
            if not messages or (len(messages) == 1 and instructions):
                raise fields.bad("input is empty")
            messages = _asked_again(list(fields.known_roles(messages, *ROLES)))
            late = brought(loaded) if in_place else read_schemas("[" + ",".join(loaded) + "]")
            tools = _merged(read_schemas(request.raw("tools")), late, in_place)
        model = fields.model(request, about)
        asked = request.object("reasoning")
        effort = fields.effort(asked.get("effort"), "effort")
        thinking = fields.mode(about, effort, None, model, effort is not None)
        choice, tools = _choice(request.raw("tool_choice"), tools, fields.parallel(request))
        turn = Turn(
            "responses",
            model,
            fields.replayed(messages, about),
            tuple(tools),
            thinking,
            max_tokens=fields.limit(request, about, "max_output_tokens", "max_tokens"),
            sampling=fields.sampling(request, about, thinking),
            choice=choice,
            format=fields.schema_format(request.object("text").get("format"), "text.format"),
            affinity=fields.affinity(request, about),
            hoist=fields.hoist(about),
            recover=on(about.options, "recover-calls"),
            results_only=fields.results_only(messages, about, "Responses", "call_id", "input"),
        )
        with fields.reading():
            summary = string(asked.get("summary"), "summary") in SUMMARIES
        return turn, ResponsesReply(turn, about, request.flag("stream"), summary)

    def error(self, refused: Refused) -> bytes:
        """Return the error as OpenAI's JSON document."""
        return openai_error(refused)


def _asked_again(messages: list[Message]) -> list[Message]:
    """Drop trailing reasoning items from the history, which Codex sends after a stream that was cut.

    A history that ends with the assistant's turn could not be answered.
    """
    last = messages[-1] if messages else Message("user")
    alone = last.role == "assistant" and last.reasoning and not last.content and not last.calls
    return messages[:-1] if alone and len(messages) > 1 else messages


def _merged(tools: list[Schema], late: list[Schema], in_place: bool) -> list[Schema]:
    """Merge the tools declared by a request with those that tool searches in its history added.

    ``in_place``: the search's result shows the added tools; otherwise the prompt's start shows all of them.
    """
    known = {tool.name for tool in tools if not tool.deferred}
    new = {tool.name: tool if in_place else replace(tool, deferred=False) for tool in late if tool.name not in known}
    return [tool for tool in tools if tool.name not in new] + list(new.values())


def _choice(raw: str | None, tools: list[Schema], parallel: bool) -> tuple[Choice, list[Schema]]:
    """Return the tool choice and the tools that it allows."""
    if raw is None:
        return Choice(parallel=parallel), tools
    with fields.reading():
        if is_string(raw):
            kind = string(raw, "tool_choice")
            if kind not in ("auto", "none", "required"):
                raise Refused(400, f"tool_choice={kind[:100]} not supported")
            return fields.choose(kind, "", tools, parallel), tools
        choice = members(raw, "tool_choice")
        kind = string(choice.get("type"), "type of tool_choice")
        if kind == "allowed_tools":
            allowed = array(choice.get("tools", "[]"), "tools of tool_choice")
            names = {_named(members(one, "an allowed tool"), tools) for one in allowed}
            remaining = [tool for tool in tools if tool.name in names]
            return fields.choose(string(choice.get("mode"), "mode of tool_choice"), "", remaining, parallel), remaining
        if kind not in ("function", "custom", "tool_search"):
            raise Refused(400, f"forced tool_choice not supported for {kind[:100]!r}")
        return fields.choose("named", _named(choice, tools), tools, parallel), tools


def _named(choice: Fields, tools: Sequence[Schema]) -> str:
    """Return a tool's name as the model sees it."""
    name, namespace = string(choice.get("name"), "name of a tool"), string(choice.get("namespace"), "namespace")
    if not name and string(choice.get("type"), "type of a tool") == "tool_search":
        return "tool_search"
    return namespace + name


class ResponsesReply(Base):
    """Formats an answer as a stream of events or as one ``response`` document.

    ``summary``: the client wants the reasoning as a summary.
    """

    def __init__(self, turn: Turn, about: About, stream: bool, summary: bool):
        super().__init__(turn, about, stream)
        self.id = new_id("resp_", DIGITS)
        self._summary = summary
        self._sequence = 0
        self._items: list[Item] = []  # finished ones
        self._opened = 0
        self._reasoning: _Open | None = None
        self._message: _Open | None = None
        self._call: _Call | None = None
        self._called = False  # a call was begun
        self._splice = Splice()

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
            out += self._think(delta.reasoning)
        if (delta.text or delta.calls) and on(self.about.options, "close-reasoning"):
            out += self._close_reasoning("completed")
        if delta.text and not lost:
            out += self._say(delta.text)
        for call in delta.calls:
            out += self._call_piece(call)
        return out + self._end(delta.finish) if delta.finish else out

    def _begin(self) -> bytes:
        if self.begun:
            return b""
        self.begun = True
        return self._event("response.created", response=self._response("in_progress", []))

    def _think(self, text: str) -> bytes:
        out, item = b"", self._reasoning
        if item is None:
            item = self._reasoning = self._open("rs_")
            out += self._added(item.at, {"id": item.id, "type": "reasoning", "status": "in_progress", "summary": []})
            part = {"type": "summary_text", "text": ""}
            out += self._event("response.reasoning_summary_part.added", **item.where, summary_index=0, part=part)
        item.parts.append(text)
        return out + self._event("response.reasoning_summary_text.delta", **item.where, summary_index=0, delta=text)

    def _say(self, text: str) -> bytes:
        out, item = b"", self._message
        if item is None:
            item = self._message = self._open("msg_")
            empty = {"id": item.id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
            out += self._added(item.at, empty)
            out += self._event("response.content_part.added", **item.where, content_index=0, part=_output_text(""))
        item.parts.append(text)
        return out + self._event("response.output_text.delta", **item.where, content_index=0, delta=text)

    def _call_piece(self, piece: CallDelta) -> bytes:
        out, call = b"", self._call
        if call is None or call.index != piece.index:
            out += self._close_call() + self._close_reasoning("completed") + self._close_message("completed")
            self._called, tool = True, on_the_wire(self.turn.tools, piece.name)
            call = self._call = _Call(piece.index, tool, self._open("ctc_" if tool.kind == "custom" else "fc_"))
            item = _call_item(call.open.id, self.call_id(call.index), tool, "", "in_progress", self._splice)
            out += self._added(call.open.at, item)
        return out + self._argument(call, call.feed(piece.arguments))

    def _argument(self, call: _Call, text: str) -> bytes:
        kind = {"function": "function_call_arguments", "custom": "custom_tool_call_input"}.get(call.tool.kind)
        if not text or kind is None:
            return b""
        return self._event(f"response.{kind}.delta", **call.open.where, delta=text)

    # --- the ends of items

    def _close_reasoning(self, status: str) -> bytes:
        item, self._reasoning = self._reasoning, None
        if item is None:
            return b""
        out = self._event("response.reasoning_summary_text.done", **item.where, summary_index=0, text=item.text)
        part = {"type": "summary_text", "text": item.text}
        out += self._event("response.reasoning_summary_part.done", **item.where, summary_index=0, part=part)
        return out + self._done(item.at, _reasoning_item(item.id, item.text, status))

    def _close_message(self, status: str) -> bytes:
        item, self._message = self._message, None
        if item is None:
            return b""
        out = self._event("response.output_text.done", **item.where, content_index=0, text=item.text)
        part = _output_text(item.text)
        out += self._event("response.content_part.done", **item.where, content_index=0, part=part)
        return out + self._done(item.at, _message_item(item.id, item.text, status))

    def _close_call(self) -> bytes:
        call, self._call = self._call, None
        if call is None:
            return b""
        item, tool = call.open, call.tool
        out = b""
        if tool.kind == "custom":
            out += self._argument(call, call.rest())
            whole = plain_input(item.text)
            out += self._event("response.custom_tool_call_input.done", **item.where, input=whole)
        elif tool.kind == "function":
            space = {"namespace": tool.namespace} if tool.namespace else {}
            named = {"name": tool.name, **space, "arguments": item.text}
            out += self._event("response.function_call_arguments.done", **item.where, **named)
        done = _call_item(item.id, self.call_id(call.index), tool, item.text, "completed", self._splice)
        return out + self._done(item.at, done)

    def _end(self, finish: Finish | str) -> bytes:
        status = _status(finish)
        last = "completed" if status == "completed" else "incomplete"
        out = b""
        if self._cut_in_reasoning(status) and self._reasoning is None:
            item = self._open("rs_")
            out += self._added(item.at, {"id": item.id, "type": "reasoning", "status": "in_progress", "summary": []})
            out += self._done(item.at, _reasoning_item(item.id, "", "incomplete"))
        out += self._close_reasoning(self._thought(last)) + self._close_message(last) + self._close_call()
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
        """Return an event of an unknown type: it resets the timeout of clients that ignore SSE comments."""
        if not on(self.about.options, "json-keepalive"):
            return super().alive()
        return self._begin() + self._event("response.keepalive")

    # --- a document

    def document(self) -> bytes:
        """Return the whole answer as a ``response`` JSON document."""
        self.whole()
        answer, items = self.collected, []
        status = _status(answer.last.finish)
        last = "completed" if status == "completed" else "incomplete"
        if answer.reasoning and self._summary:
            items.append(_reasoning_item(new_id("rs_", DIGITS), answer.reasoning, self._thought(last)))
        elif self._cut_in_reasoning(status):
            items.append(_reasoning_item(new_id("rs_", DIGITS), "", "incomplete"))
        if answer.text:
            items.append(_message_item(new_id("msg_", DIGITS), answer.text, last))
        for index, name, arguments in answer.calls:
            tool = on_the_wire(self.turn.tools, name)
            item_id = new_id("ctc_" if tool.kind == "custom" else "fc_", DIGITS)
            items.append(_call_item(item_id, self.call_id(index), tool, arguments, "completed", self._splice))
        return encoded(self._splice.compact(self._response(status, items)))

    # --- both

    def _response(self, status: str, output: list[Item], error: Item | None = None) -> Item:
        response: Item = {
            "id": self.id,
            "object": "response",
            "created_at": self.about.created,
            "status": status,
            "model": self.turn.model,
        }
        if status == "failed":
            response["error"] = error or {"code": "server_error", "message": "generation failed"}
        if status == "incomplete":
            known = on(self.about.options, "limit-reason")
            response["incomplete_details"] = {"reason": "max_output_tokens" if known else "max_tokens"}
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
        return sse(self._splice.compact({"type": kind, "sequence_number": self._sequence - 1, **more}))


class _Open:
    """An unfinished output item: id, index in the output, text so far."""

    def __init__(self, item_id: str, at: int):
        self.id, self.at = item_id, at
        self.parts: list[str] = []

    @property
    def where(self) -> Item:
        """Members that identify the item in its events."""
        return {"item_id": self.id, "output_index": self.at}

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.parts)


class _Call:
    """An unfinished tool call in a stream."""

    def __init__(self, index: int, tool: Tool, item: _Open):
        self.index, self.tool, self.open = index, tool, item
        self._plain = PlainInput() if tool.kind == "custom" else None

    def feed(self, fragment: str) -> str:
        """Append a fragment of the arguments; return what can be sent."""
        self.open.parts.append(fragment)
        return fragment if self._plain is None else self._plain.feed(fragment)

    def rest(self) -> str:
        """Return what could not be sent before the arguments were complete."""
        return "" if self._plain is None else self._plain.finish()[1]


def _status(finish: Finish | str) -> str:
    return {Finish.LENGTH: "incomplete", Finish.ERROR: "failed"}.get(Finish(finish or Finish.STOP), "completed")


def _output_text(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": []}


def _reasoning_item(item_id: str, text: str, status: str) -> Item:
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"id": item_id, "type": "reasoning", "status": status, "summary": summary}


def _message_item(item_id: str, text: str, status: str) -> Item:
    content = [_output_text(text)]
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def _call_item(item_id: str, call_id: str, tool: Tool, arguments: str, status: str, splice: Splice) -> Item:
    """Return a call as the item kind of its tool. ``arguments``: JSON text, "" at the beginning."""
    if tool.kind == "tool_search":
        head = {"id": item_id, "type": "tool_search_call", "status": status, "call_id": call_id, "execution": "client"}
        return head | {"arguments": splice(arguments or "{}")}
    space = {"namespace": tool.namespace} if tool.namespace else {}
    if tool.kind == "custom":
        plain = plain_input(arguments) if arguments else ""
        head = {"id": item_id, "type": "custom_tool_call", "status": status, "call_id": call_id}
        return head | {"name": tool.name, **space, "input": plain}
    head = {"id": item_id, "type": "function_call", "status": status, "name": tool.name}
    return head | space | {"call_id": call_id, "arguments": arguments}
