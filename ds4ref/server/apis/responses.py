"""/v1/responses: OpenAI's responses (docs/reference/server.md).

Stateless: every request must carry its whole history. Left out on purpose: hosted tools, log probabilities, an
endpoint for compaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from ...targets.answer import CallDelta, Completion, Delta, Finish
from ...text.chat import Message
from ...text.messages import from_responses
from ...text.protocol import THINK_CLOSE
from ...text.schemas import Schema, brought, read_schemas
from ..api import About, Api, bad, compact, new_id, sse
from ..turn import Failed, Turn
from . import fields, reading
from .common import Blocks, Tool, counts_of, on_the_wire, plain_input
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
    """Drop a last message that has nothing but reasoning, which Codex sends when it repeats a request after a stream
    that was cut; a history that ends with the assistant's turn could not be answered."""
    last = messages[-1]
    alone = last.role == "assistant" and last.reasoning and not last.content and not last.calls
    return messages[:-1] if alone and len(messages) > 1 else messages


def _merged(tools: list[Schema], late: list[Schema]) -> list[Schema]:
    """Merge the tools that a request declares with those (``late``) that tool searches in its history brought."""
    known = {tool.name for tool in tools if not tool.deferred}
    new = {tool.name: tool for tool in late if tool.name not in known}
    return [tool for tool in tools if tool.name not in new] + list(new.values())


_TEXTS = {
    "reasoning": ("rs_", "reasoning", "summary", "reasoning_summary_part", "reasoning_summary_text", "summary_index"),
    "text": ("msg_", "message", "content", "content_part", "output_text", "content_index"),
}
"""By kind of block ("reasoning", "text"): the prefix of item ids, the item's type, its member with the list of its only
part, the names of the events for the part and for its text, and the name of the part's index in them."""


@dataclass
class _Item:
    """An unfinished output item.

    id      its id
    at      its index in the output
    text    its text so far, or a call's arguments
    index   the call's number in the answer, -1 if it is not a call
    tool    the called tool
    """

    id: str
    at: int
    text: str = ""
    index: int = -1
    tool: Tool = field(default_factory=lambda: Tool(""))


class ResponsesReply(Blocks):
    """Formats an answer as a stream of events or as one ``response`` document.

    ``summary``: whether the client wants a summary of the reasoning, for which it gets the reasoning itself.
    """

    last_byte = ""  # no newline at the end, as in ds4's server

    def __init__(self, turn: Turn, about: About, stream: bool | None, summary: bool):
        super().__init__(turn, about, stream)
        self.id = new_id("resp_", DIGITS)
        self.reasons = summary
        self._sequence = 0
        self._items: list[Item] = []  # the finished items
        self._opened = 0
        self._item = _Item("", 0)

    # --- a stream

    def shows(self, delta: Delta) -> bool:
        """Return whether the client sees something of ``delta``; it sees reasoning only if it asked for a summary."""
        return bool(delta.text or delta.calls or (delta.reasoning and self.reasons))

    def start(self) -> bytes:
        """Return the event that begins the stream, b"" if that was sent already."""
        if self.begun:
            return b""
        self.begun = True
        return self._event("response.created", response=self._response("in_progress", []))

    def begin(self, call: CallDelta | None) -> bytes:
        """Return the events that begin an item of the kind ``open``; ``call``: the first piece if it is a call."""
        tool = Tool("") if call is None else on_the_wire(self.turn.tools, call.name)
        prefix = _TEXTS[self.open][0] if call is None else "ctc_" if tool.kind == "custom" else "fc_"
        item = self._item = _Item(new_id(prefix, DIGITS), self._opened, "", -1 if call is None else call.index, tool)
        self._opened += 1
        made = self._made(item, "in_progress")
        out = self._event("response.output_item.added", output_index=item.at, item=made)
        if call is None:
            _, _, _, part, _, number = _TEXTS[self.open]
            out += self._of_item(f"{part}.added", **{number: 0}, part=_part(self.open, ""))
        return out

    def piece(self, text: str) -> bytes:
        """Return the event for more text of the open item, b"" for a custom tool, whose text is sent when complete."""
        item = self._item
        item.text += text
        if self.open in _TEXTS:
            _, _, _, _, words, number = _TEXTS[self.open]
            return self._of_item(f"{words}.delta", **{number: 0}, delta=text)
        return self._of_item("function_call_arguments.delta", delta=text) if item.tool.kind == "function" else b""

    def _of_item(self, kind: str, /, **members: Any) -> bytes:
        """Return an event ``response.<kind>`` about the open item."""
        where = {"item_id": self._item.id, "output_index": self._item.at}
        return self._event(f"response.{kind}", **where, **members)

    def close(self, status: str = "completed") -> bytes:
        """Return the events that end the open item, b"" if there is none."""
        item, kind = self._item, self.open
        if not kind:
            return b""
        out = b""
        if kind in _TEXTS:
            _, _, _, part, words, number = _TEXTS[kind]
            out = self._of_item(f"{words}.done", **{number: 0}, text=item.text)
            out += self._of_item(f"{part}.done", **{number: 0}, part=_part(kind, item.text))
        elif item.tool.kind == "custom":
            whole = plain_input(item.text)
            if whole:
                out = self._of_item("custom_tool_call_input.delta", delta=whole)
            out += self._of_item("custom_tool_call_input.done", input=whole)
        elif item.tool.kind == "function":
            space = {"namespace": item.tool.namespace} if item.tool.namespace else {}
            named = {"name": item.tool.name, **space, "arguments": item.text}
            out = self._of_item("function_call_arguments.done", **named)
        made = self._made(item, status)
        self.open = ""
        self._items.append(made)
        return out + self._event("response.output_item.done", output_index=item.at, item=made)

    def _made(self, item: _Item, status: str) -> Item:
        """Return the open item as JSON values, with the text so far."""
        if self.open in _TEXTS:
            return _text_item(self.open, item.id, item.text, status)
        return _call_item(item.id, self.call_id(item.index), item.tool, item.text, status)

    def end(self, lost: bool) -> bytes:
        """Return the events that end the stream; ``lost``: whether its last call was cut off, which gets no "done"."""
        answer, out = self.answer, b""
        status = _status(answer.finish)
        last = "completed" if status == "completed" else "incomplete"
        if _cut_in_reasoning(answer) and not self.open:
            item = _text_item("reasoning", new_id("rs_", DIGITS), "", "in_progress")
            out = self._event("response.output_item.added", output_index=0, item=item)
            self._items.append({**item, "status": "incomplete"})
            out += self._event("response.output_item.done", output_index=0, item=self._items[0])
        if not lost:
            out += self.close({"reasoning": _thought(answer), "text": last}.get(self.open, "completed"))
        return out + self._event(f"response.{status}", response=self._response(status, self._items))

    def late_error(self, failed: Failed) -> bytes:
        """Return a ``response.failed`` event, which ends the stream; clients retry or show the message."""
        out = self.start()
        code = "context_length_exceeded" if failed.code == "context" else "server_error"
        error = {"code": code, "message": failed.message}
        return out + self._event("response.failed", response=self._response("failed", self._items, error))

    def alive(self) -> bytes:
        """Return an event of a type that clients do not know; it resets the timeout of those that ignore SSE comments
        (Codex)."""
        return self.start() + self._event("response.keepalive")

    # --- a document

    def whole(self) -> Item:
        """Return the members of the whole answer as a ``response``."""
        answer, items = self.answer, list[Item]()
        status = _status(answer.finish)
        last = "completed" if status == "completed" else "incomplete"
        if answer.reasoning and self.reasons or _cut_in_reasoning(answer):
            shown, thought = (answer.reasoning, _thought(answer)) if self.reasons else ("", "incomplete")
            items.append(_text_item("reasoning", new_id("rs_", DIGITS), shown, thought))
        if answer.text:
            items.append(_text_item("text", new_id("msg_", DIGITS), answer.text, last))
        for index, call in enumerate(answer.calls):
            tool = on_the_wire(self.turn.tools, call.name)
            item_id = new_id("ctc_" if tool.kind == "custom" else "fc_", DIGITS)
            items.append(_call_item(item_id, self.call_id(index), tool, call.arguments, "completed"))
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
            prompt, cached, completion, thought = self._counts()
            response["usage"] = {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": thought},
                "total_tokens": prompt + completion,
            }
        return response

    def _counts(self) -> tuple[int, int, int, int]:
        """Return the token counts (prompt, cached, completion, reasoning), those so far if the answer is unfinished."""
        answer = self.answer
        if self.prefill is not None and not (self.deltas and self.deltas[-1].usage):
            return self.prefill.total, self.prefill.cached, len(answer.steps), 0
        return counts_of(answer)

    def _event(self, kind: str, **more: Any) -> bytes:
        self._sequence += 1
        return sse(compact({"type": kind, "sequence_number": self._sequence - 1, **more}))


def _status(finish: Finish | str) -> str:
    return {Finish.LENGTH: "incomplete", Finish.ERROR: "failed"}.get(Finish(finish or Finish.STOP), "completed")


def _cut_in_reasoning(answer: Completion) -> bool:
    """Return whether the length limit ended the answer before anything but reasoning was generated.

    Then a reasoning item is sent even to clients that did not ask for a summary.
    """
    return answer.finish == Finish.LENGTH and bool(answer.reasoning) and not (answer.text or answer.calls)


def _thought(answer: Completion) -> str:
    """Return the status of the reasoning item: "completed" if text, a call or the closing tag came after it."""
    ended = [not step.thought or step.token.raw == _CLOSE for step in answer.steps[-1:]]
    return "completed" if answer.text or answer.calls or True in ended else "incomplete"


def _part(kind: str, text: str) -> Item:
    if kind == "reasoning":
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": []}


def _text_item(kind: str, item_id: str, text: str, status: str) -> Item:
    _, of_type, member, *_ = _TEXTS[kind]
    role = {"role": "assistant"} if kind == "text" else {}
    return {"id": item_id, "type": of_type, "status": status, **role, member: [_part(kind, text)] if text else []}


def _call_item(item_id: str, call_id: str, tool: Tool, arguments: str, status: str) -> Item:
    """Return the output item of a call, whose type depends on the tool; ``arguments``: JSON text so far."""
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
