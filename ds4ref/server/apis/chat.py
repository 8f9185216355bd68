"""/v1/chat/completions: OpenAI's chat completions (docs/reference/server.md).

Left out on purpose: audio, functions (the older form of tools). Reasoning is sent as ``reasoning_content``, as in
DeepSeek's API; the log probabilities of its tokens have the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...targets.answer import CallDelta, Completion, Delta, Step
from ...text.chat import Message
from ...text.messages import from_openai
from ...text.schemas import read_schemas
from ..api import About, Api, Refused, bad
from ..turn import Turn
from . import fields, reading
from .common import Choices, Tool, finish_of, on_the_wire, plain_input, several
from .requests import BUDGETS, LENGTHS, ChatRequest

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Chat(Api):
    """The endpoint /v1/chat/completions."""

    path = "/v1/chat/completions"
    name = "chat"

    def read(self, body: bytes, about: About) -> tuple[Turn, ChatReply]:
        """Parse a request into the generation to run (``Turn``) and the object that formats its answer."""
        request: ChatRequest = fields.read(body, self.name, about)
        with reading.reading():
            raw = reading.needed(request.messages, "messages")
            roles = ROLES if about.profile is None else (*ROLES, "latest_reminder")
            messages = reading.known_roles(from_openai(raw), *roles)
            tools = read_schemas(reading.given(request.tools))
        kinds = ("function", "custom")
        choice, tools = reading.choose(request.tool_choice, tools, request.parallel_tool_calls, kinds)
        form = reading.schema_format(request.response_format, "response_format")
        clashing = ["tools"] * bool(tools and choice.kind != "none") + ["response_format"] * bool(form)
        for name in ("min_tokens", "ignore_eos") if clashing else ():
            if getattr(request, name):  # a call, or JSON of a schema, is complete at a certain token
                raise Refused(400, f"{name} is not supported together with {clashing[0]}")
        if request.top_logprobs and not request.logprobs:
            raise bad("top_logprobs needs logprobs: true")
        chosen, explicit = reading.switched(request.thinking, request.think)
        turn = reading.turn_of(
            "chat",
            request,
            about,
            _continued(messages, request),
            (choice, tools),
            LENGTHS,
            thinking=reading.mode(about, request.reasoning_effort, chosen, request.model, explicit),
            stop=request.stops,
            max_thinking=request.first(*BUDGETS),
            format=form,
            top_logprobs=request.top_logprobs or 0 if request.logprobs else None,
            token_ids=bool(request.return_token_ids),
        )
        turn = several([turn], request.n or 1)
        return turn, ChatReply(turn, about, request)


def _continued(messages: list[Message], request: ChatRequest) -> list[Message]:
    """Return the messages, the last one marked with ``prefix`` if the request wants the answer to continue it.

    It does so by ``prefix`` of that message or by ``continue_final_message``. Raises Refused if the message is not the
    last one, not the assistant's, or has tool calls.
    """
    wanted, last = bool(request.continue_final_message), messages[-1]
    if request.add_generation_prompt is False and not wanted:
        raise bad("add_generation_prompt: false needs continue_final_message: true")
    if any(message.prefix for message in messages[:-1]) or (last.prefix or wanted) and last.role != "assistant":
        raise bad("only a last message of the assistant can be continued (prefix, continue_final_message)")
    if (last.prefix or wanted) and last.calls:
        raise bad("a message with tool calls cannot be continued")
    return [*messages[:-1], replace(last, prefix=last.prefix or wanted)]


class ChatReply(Choices):
    """Formats an answer as ``chat.completion.chunk`` events or as one ``chat.completion`` document."""

    id_prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, turn: Turn, about: About, request: ChatRequest):
        self._thoughts = request.include_reasoning is not False
        super().__init__(turn, about, request.stream, request.usage, request.n or 1)

    def begin(self) -> None:
        """Begin the next choice."""
        super().begin()
        self._custom: dict[int, bool] = {}  # for each call that has begun, whether it is of a custom tool
        self._dropping = False  # whether text is no longer sent, after a broken call

    def pieces(self, delta: Delta) -> bytes:
        """Return the chunks of the present choice that carry ``delta``."""
        out = b"" if self.begun else self._chunk({"role": "assistant"})
        self.begun = True
        super().pieces(delta)
        self._steps += [step for step in delta.steps if self._thoughts or not step.thought]
        if delta.void and self._custom:
            # The client already has part of the call: it is not repeated as text, but left incomplete.
            self._dropping = True
        if delta.reasoning and self._thoughts:
            out += self._chunk({"reasoning_content": delta.reasoning})
        if delta.text and not self._dropping:
            out += self._chunk({"content": delta.text})
        return out + b"".join(map(self._call, delta.calls))

    def _call(self, call: CallDelta) -> bytes:
        out = b""
        if call.index not in self._custom:
            tool = on_the_wire(self.turn.tools, call.name)
            self._custom[call.index] = tool.kind == "custom"
            entry = {"index": call.index, **_call_entry(self.call_id(call.index), tool, "")}
            out = self._chunk({"tool_calls": [entry]})
        if call.arguments and not self._custom[call.index]:  # a custom tool's text is sent once it is complete
            entry = {"index": call.index, "function": {"arguments": call.arguments}}
            out += self._chunk({"tool_calls": [entry]})
        return out

    def close(self) -> bytes:
        """Return the chunks that end the present choice."""
        out, answer = b"", self.answer
        for index, call in enumerate(answer.calls):
            if self._custom.get(index) and (text := plain_input(call.arguments)):
                out += self._chunk({"tool_calls": [{"index": index, "custom": {"input": text}}]})
        if self.turn.top_logprobs is not None and self._steps:
            out += self._chunk({"content": ""})
        return out + self._chunk({}, str(finish_of(answer)))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": self.choice, "delta": delta, "finish_reason": finish}
        if "role" not in delta:
            self.with_ids(choice)
            if self.turn.top_logprobs is not None and finish is None:
                choice["logprobs"], self._steps = _logprobs(self._steps), []
        return self.event({"choices": [choice]})

    def one(self, number: int, answer: Completion) -> dict[str, Any]:
        """Return choice ``number`` of a document."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.reasoning and self._thoughts:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                _call_entry(self.call_id(index, number), on_the_wire(self.turn.tools, call.name), call.arguments)
                for index, call in enumerate(answer.calls)
            ]
        choice: dict[str, Any] = {"index": number, "message": message, "finish_reason": str(finish_of(answer))}
        if self.turn.top_logprobs is not None:
            choice["logprobs"] = _logprobs([step for step in answer.steps if self._thoughts or not step.thought])
        return choice


def _logprobs(steps: Sequence[Step]) -> dict[str, Any] | None:
    if not steps:
        return None
    inside = [_entry(step) for step in steps if step.thought]
    outside = [_entry(step) for step in steps if not step.thought]
    return {"content": outside, "refusal": None} | ({"reasoning_content": inside} if inside else {})


def _call_entry(call_id: str, tool: Tool, arguments: str) -> dict[str, Any]:
    name = tool.namespace + tool.name  # chat has no namespaces
    if tool.kind == "custom":
        inner = {"name": name, "input": plain_input(arguments) if arguments else ""}
        return {"id": call_id, "type": "custom", "custom": inner}
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _entry(step: Step) -> dict[str, Any]:
    top = [_token(token.raw, token.logprob) for token in step.top]
    return _token(step.token.raw, step.token.logprob) | {"top_logprobs": top}


def _token(raw: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
