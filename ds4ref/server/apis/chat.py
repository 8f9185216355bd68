"""/v1/chat/completions: OpenAI's chat completions (docs/reference/server.md).

Left out on purpose: audio, functions (the older form of tools). Reasoning is sent as ``reasoning_content``, as in
DeepSeek's API; log probabilities have reasoning under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...targets.answer import CallDelta, Delta, Step
from ...text.fields import Fields, array
from ...text.fields import fields as members
from ...text.fields import text as string
from ...text.messages import from_openai
from ...text.rawjson import is_string
from ...text.schemas import Schema, read_schemas
from ..api import About, Api, Refused, sse
from ..deviations import on
from ..turn import Choice, Failed, Turn
from . import fields, known
from .common import (
    Base,
    Collected,
    PlainInput,
    Tool,
    compact,
    encoded,
    ids_of,
    on_the_wire,
    openai_error,
    openai_usage,
    per_prompt,
    plain_input,
    several,
)

MAX_TOP = 20
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Chat(Api):
    """The endpoint /v1/chat/completions."""

    path = "/v1/chat/completions"
    name = "chat"

    def read(self, body: bytes, about: About) -> tuple[Turn, ChatReply]:
        """Parse a request into the generation to run (``Turn``) and the object that formats its answer."""
        request = fields.Body(body)
        known.check(request, self.name)
        with fields.reading():
            messages = fields.known_roles(from_openai(request.needed("messages"), placeholders=True), *ROLES)
            tools = read_schemas(request.raw("tools"))
        model = fields.model(request, about)
        thinking = fields.thinking(request, about, model)
        choice, tools = _choice(request.raw("tool_choice"), tools, fields.parallel(request))
        form = fields.schema_format(request.raw("response_format"), "response_format", "json_schema")
        fields.lengthened(request, *(["tools"] if tools and choice.kind != "none" else []),
                          *(["response_format"] if form else []))  # fmt: skip
        stream = request.flag("stream")
        messages = fields.continued(messages, request)
        turn = Turn(
            "chat",
            model,
            fields.replayed(messages, about),
            tuple(tools),
            thinking,
            max_tokens=fields.limit(request, about, *fields.LENGTHS, "max_completion_tokens"),
            sampling=fields.sampling(request, about, thinking),
            stop=fields.stops(request, "stop"),
            choice=choice,
            max_thinking=request.count(*fields.BUDGETS),
            format=form,
            top_logprobs=_top_logprobs(request),
            token_ids=request.flag("return_token_ids"),
            affinity=fields.affinity(request, about),
            hoist=fields.hoist(about),
            recover=on(about.options, "recover-calls"),
        )
        turn = several([fields.open_turn(turn)], request.choices())
        return turn, ChatReply(
            turn, about, stream, fields.include_usage(request), request.flag("include_reasoning", True)
        )

    def error(self, refused: Refused) -> bytes:
        """Return the error as OpenAI's JSON document."""
        return openai_error(refused)


def _top_logprobs(body: fields.Body) -> int | None:
    """Return the number of alternatives per token, None for no log probabilities."""
    wanted, top = body.raw("logprobs"), body.raw("top_logprobs")
    count = 0 if top is None else int(fields.value(top, "top_logprobs"))
    if not 0 <= count <= MAX_TOP:
        raise fields.bad(f"top_logprobs is not between 0 and {MAX_TOP}")
    if wanted is not None and fields.truth(wanted, "logprobs"):
        return count
    if count:
        raise fields.bad("top_logprobs needs logprobs: true")
    return None


def _choice(raw: str | None, tools: list[Schema], parallel: bool) -> tuple[Choice, list[Schema]]:
    """Return the tool choice and the tools that it allows."""
    if raw is None:
        return Choice(parallel=parallel), tools
    with fields.reading():
        if is_string(raw):
            return fields.choose(string(raw, "tool_choice"), "", tools, parallel), tools
        choice = members(raw, "tool_choice")
        kind = string(choice.get("type"), "type of tool_choice")
        if kind == "allowed_tools":
            allowed = members(choice.get(kind, "{}"), kind)
            names = {_named(members(one, "an allowed tool")) for one in array(allowed.get("tools", "[]"), kind)}
            remaining = [tool for tool in tools if tool.name in names]
            return fields.choose(
                string(allowed.get("mode"), "mode of allowed_tools"), "", remaining, parallel
            ), remaining
        return fields.choose("named", _named(choice), tools, parallel), tools


def _named(tool: Fields) -> str:
    """Return the name in {"type": "function", "function": {"name": ...}}."""
    kind = string(tool.get("type"), "type of a tool")
    return string(members(tool.get(kind, "{}"), kind).get("name"), "name of a tool")


class ChatReply(Base):
    """Formats an answer as ``chat.completion.chunk`` events or as one ``chat.completion`` document."""

    def __init__(self, turn: Turn, about: About, stream: bool, usage: bool, thoughts: bool = True):
        super().__init__(turn, about, stream)
        self._usage, self._thoughts = usage, thoughts
        self._done: list[Collected] = []  # the choices before the one that is being generated
        self._begin_choice()

    def _begin_choice(self) -> None:
        self.collected, self.choice = Collected(), len(self._done)
        self.begun = self._dropping = False
        self._inputs: dict[int, PlainInput | None] = {}
        self._steps: list[Step] = []
        self._token_ids: list[int] = []

    def answered(self, delta: Delta) -> bytes:
        """Finish one of several choices; return the server-sent events that end it."""
        out = self._pieces(delta) + self._close() if self.stream else b""
        self._done.append(self.collected)
        self._begin_choice()
        return out

    # --- a stream

    def delta(self, delta: Delta) -> bytes:
        """Return the chunks that carry ``delta``, as server-sent events."""
        out = self._pieces(delta)
        return out + self._end() if delta.finish else out

    def _pieces(self, delta: Delta) -> bytes:
        out = b"" if self.begun else self._chunk({"role": "assistant"})
        self.begun = True
        self._token_ids += ids_of(delta.steps)
        self._steps += [step for step in delta.steps if self._thoughts or not step.thought]
        if delta.void and self._inputs:
            # The client already has part of the call: it is not repeated as text, but left incomplete.
            self._dropping = True
        if delta.reasoning and self._thoughts:
            out += self._chunk({"reasoning_content": delta.reasoning})
        if delta.text and not self._dropping:
            out += self._chunk({"content": delta.text})
        for call in delta.calls:
            out += self._call(call)
        return out

    def _call(self, call: CallDelta) -> bytes:
        out = b""
        if call.index not in self._inputs:
            tool = on_the_wire(self.turn.tools, call.name)
            self._inputs[call.index] = PlainInput() if tool.kind == "custom" else None
            entry = {"index": call.index, **_call_entry(self.call_id(call.index), _full(tool), "")}
            out = self._chunk({"tool_calls": [entry]})
        plain, text, kind = self._inputs[call.index], call.arguments, {"function": "arguments"}
        if plain is not None:
            text, kind = plain.feed(text), {"custom": "input"}
        for name, member in kind.items():
            if text:
                out += self._chunk({"tool_calls": [{"index": call.index, name: {member: text}}]})
        return out

    def _close(self) -> bytes:
        out = b""
        if not self.collected.void:
            for index, plain in self._inputs.items():
                rest = "" if plain is None else plain.finish()[1]
                if rest:
                    out += self._chunk({"tool_calls": [{"index": index, "custom": {"input": rest}}]})
        if self.turn.top_logprobs is not None and self._steps:
            out += self._chunk({"content": ""})
        return out + self._chunk({}, str(self.collected.finish))

    def _end(self) -> bytes:
        out = self._close()
        if self._usage:
            out += self._event({"choices": [], "usage": self._counted()})
        return out + sse("[DONE]")

    def _counted(self) -> dict[str, Any]:
        return openai_usage(per_prompt([*self._done, self.collected], len(self._done) + 1))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": self.choice, "delta": delta, "finish_reason": finish}
        if self.turn.token_ids and "role" not in delta:
            choice["token_ids"], self._token_ids = self._token_ids, []
        if self.turn.top_logprobs is not None and "role" not in delta and finish is None:
            choice["logprobs"], self._steps = _logprobs(self._steps), []
        return self._event({"choices": [choice]})

    def _event(self, more: dict[str, Any]) -> bytes:
        return sse(compact(self._head("chat.completion.chunk") | more))

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.number}",
            "object": kind,
            "created": self.about.created,
            "model": self.turn.model,
        }

    def late_error(self, failed: Failed) -> bytes:
        """Return a chunk with an ``error`` member; an unknown finish reason could make clients retry forever."""
        return sse(compact({"error": {"message": failed.message, "type": "server_error"}}))

    # --- a document

    def document(self) -> bytes:
        """Return the whole answer as a ``chat.completion`` JSON document."""
        self.whole()
        choices = [self._choice(index, answer) for index, answer in enumerate([*self._done, self.collected])]
        document = self._head("chat.completion") | {"choices": choices, "usage": self._counted()}
        return encoded(compact(document) + "\n")

    def _choice(self, number: int, answer: Collected) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.reasoning and self._thoughts:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                _call_entry(self.call_id(index, number), _full(on_the_wire(self.turn.tools, name)), arguments)
                for index, name, arguments in answer.calls
            ]
        choice: dict[str, Any] = {"index": number, "message": message, "finish_reason": str(answer.finish)}
        if self.turn.token_ids:
            choice["token_ids"] = ids_of(answer.steps)
        if self.turn.top_logprobs is not None:
            choice["logprobs"] = _logprobs([step for step in answer.steps if self._thoughts or not step.thought])
        return choice


def _logprobs(steps: Sequence[Step]) -> dict[str, Any] | None:
    if not steps:
        return None
    inside = [_entry(step) for step in steps if step.thought]
    outside = [_entry(step) for step in steps if not step.thought]
    return {"content": outside, "refusal": None} | ({"reasoning_content": inside} if inside else {})


def _full(tool: Tool) -> Tool:
    """Return the tool with its namespace in its name: chat has no namespaces."""
    return Tool(tool.namespace + tool.name, tool.kind)


def _call_entry(call_id: str, tool: Tool, arguments: str) -> dict[str, Any]:
    if tool.kind == "custom":
        inner = {"name": tool.name, "input": plain_input(arguments) if arguments else ""}
        return {"id": call_id, "type": "custom", "custom": inner}
    return {"id": call_id, "type": "function", "function": {"name": tool.name, "arguments": arguments}}


def _entry(step: Step) -> dict[str, Any]:
    top = [_token(token.raw, token.logprob) for token in step.top]
    return _token(step.token.raw, step.token.logprob) | {"top_logprobs": top}


def _token(raw: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
