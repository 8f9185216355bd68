"""Code shared by the replies of the four APIs: the answer so far, tools, blocks, choices."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...targets.answer import CallDelta, Completion, Delta, Finish, Step
from ...text import rawjson
from ...text.schemas import Schema
from ..api import About, Reply, compact, sse
from ..turn import Failed, Turn

Json = Mapping[str, Any]


# --- the answer so far


def finish_of(answer: Completion) -> Finish:
    """Return the finish reason of an answer.

    It is STOP where no API has a word for what happened: calls were discarded, or a tool-call block had no call.
    """
    reason = Finish(answer.finish or Finish.STOP)
    return Finish.STOP if reason is Finish.ERROR or (reason is Finish.TOOL_CALLS and not answer.calls) else reason


def counts_of(answer: Completion) -> tuple[int, int, int, int]:
    """Return an answer's token counts (prompt, cached, completion, reasoning), which are 0 until its last delta."""
    usage = answer.usage
    return usage.prompt or 0, usage.cached or 0, usage.completion or 0, usage.reasoning or 0


def ids_of(steps: Sequence[Step]) -> list[int]:
    """Return the token ids of generated tokens."""
    return [step.token.id for step in steps if step.token.id is not None]


# --- tools as the client declared them


@dataclass(frozen=True)
class Tool:
    """A tool under the names that clients use in calls.

    name        name without the namespace
    kind        "function", "custom" or "tool_search"
    namespace   the prefix that the model sees before the name, "" for none
    """

    name: str
    kind: str = "function"
    namespace: str = ""


def on_the_wire(tools: Sequence[Schema], name: str) -> Tool:
    """Return the tool that the model calls ``name``, as clients see it; a plain function if it was not declared."""
    for tool in tools:
        if tool.name == name and tool.kind != "hosted":
            return Tool(tool.bare, tool.kind, tool.namespace)
    return Tool(name)


def plain_input(arguments: str) -> str:
    """Return the text that a custom tool receives, from the JSON arguments that the model wrote.

    This is the value of the parameter ``input``, else of the only parameter, else the arguments themselves.
    """
    try:
        values = dict(rawjson.members(arguments))
    except ValueError:
        return arguments
    raw = values.get("input", next(iter(values.values()), '""') if len(values) <= 1 else arguments)
    return rawjson.string(raw) if rawjson.is_string(raw) else raw


# --- answers in blocks


class Blocks(Reply):
    """Base class of replies (messages, responses) that stream an answer as a sequence of blocks.

    At most one block is open at a time; ``open`` is its kind: "reasoning", "text" or "call", "" for none.
    """

    reasons = True
    """Whether the reasoning is sent to the client."""

    def __init__(self, turn: Turn, about: About, stream: bool | None):
        super().__init__(turn, about, stream)
        self.open = ""
        self._calls = 0  # number of calls that have begun

    def delta(self, delta: Delta) -> bytes:
        """Return the server-sent events that carry ``delta``."""
        out = self.start()
        lost = delta.void and self._calls > 0
        if lost and delta.finish != Finish.LENGTH:
            # The client must not take an incomplete call for a complete one, and it cannot be revoked.
            self.over = True
            return out + self.late_error(Failed("engine", "the model's tool call was malformed"))
        if delta.reasoning and self.reasons:
            out += self._more("reasoning", delta.reasoning)
        if delta.text and not lost:
            out += self._more("text", delta.text)
        for call in delta.calls:
            begins = call.index >= self._calls
            self._calls = max(self._calls, call.index + 1)
            out += self._more("call", call.arguments, call if begins else None)
        return out + self.end(lost) if delta.finish else out

    def _more(self, kind: str, text: str, call: CallDelta | None = None) -> bytes:
        """Return the events for more text of kind ``kind``: in the open block, or in a new one if the kind differs or
        ``call`` begins."""
        out = b""
        if call is not None or self.open != kind:
            out = self.close()
            self.open = kind
            out += self.begin(call)
        return out + self.piece(text) if text else out

    @abc.abstractmethod
    def start(self) -> bytes:
        """Return the event that begins the stream, b"" if that was sent already."""

    @abc.abstractmethod
    def begin(self, call: CallDelta | None) -> bytes:
        """Return the events that begin a block of the kind ``open``; ``call``: the first piece if it is a call."""

    @abc.abstractmethod
    def piece(self, text: str) -> bytes:
        """Return the events for more text of the open block."""

    @abc.abstractmethod
    def close(self) -> bytes:
        """Return the events that end the open block, b"" if there is none."""

    @abc.abstractmethod
    def end(self, lost: bool) -> bytes:
        """Return the events that end the stream; ``lost``: whether its last call was cut off."""


# --- OpenAI's older APIs


def several(turns: Sequence[Turn], count: int) -> Turn:
    """Return one turn that answers each of ``turns`` ``count`` times, with different seeds; all answers to the first
    one come first."""
    first, *more = [replace(turn, sampling=turn.sampling.numbered(n)) for turn in turns for n in range(count)]
    return replace(first, more=tuple(more))


class Choices(Reply):
    """Base class of the replies of OpenAI's older APIs (chat and completions): one or several answers, called choices,
    sent as chunks or as one document.

    usage     whether the stream ends with token counts
    choices   number of answers to each prompt
    """

    id_prefix, kind, chunk_kind, reasoned = "", "", "", True

    def __init__(self, turn: Turn, about: About, stream: bool | None, usage: bool, choices: int):
        super().__init__(turn, about, stream)
        self._usage, self._choices = usage, choices
        self._done: list[Completion] = []  # the finished choices
        self.begin()

    def begin(self) -> None:
        """Begin the next choice."""
        self.deltas, self.choice, self.begun = [], len(self._done), False
        self._steps: list[Step] = []  # tokens whose log probabilities are still to be sent
        self._token_ids: list[int] = []

    def answered(self, delta: Delta) -> bytes:
        """Finish one of several choices; return the server-sent events that end it."""
        out = self.pieces(delta) + self.close() if self.stream else b""
        self._done.append(self.answer)
        self.begin()
        return out

    def delta(self, delta: Delta) -> bytes:
        """Return the chunks that carry ``delta``, as server-sent events."""
        out = self.pieces(delta)
        if not delta.finish:
            return out
        out += self.close()
        if self._usage:
            out += self.event({"choices": [], "usage": self._counted([*self._done, self.answer])})
        return out + sse("[DONE]")

    def pieces(self, delta: Delta) -> bytes:
        """Return the chunks of the present choice that carry ``delta``."""
        self._token_ids += ids_of(delta.steps)
        return b""

    @abc.abstractmethod
    def close(self) -> bytes:
        """Return the chunks that end the present choice."""

    @abc.abstractmethod
    def one(self, number: int, answer: Completion) -> dict[str, Any]:
        """Return choice ``number`` of a document, without its ``token_ids``."""

    def event(self, more: Json) -> bytes:
        """Return a chunk with the members ``more`` as a server-sent event."""
        return sse(compact(self._head(self.chunk_kind) | dict(more)))

    def _head(self, kind: str) -> dict[str, Any]:
        named = {"id": f"{self.id_prefix}-{self.number}", "object": kind}
        return {**named, "created": self.about.created, "model": self.turn.model}

    def with_ids(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return ``choice`` with the ids of the tokens since the last chunk, if the request asks for them."""
        if self.turn.token_ids:
            choice["token_ids"], self._token_ids = self._token_ids, []
        return choice

    def late_error(self, failed: Failed) -> bytes:
        """Return a chunk with an ``error`` member; an unknown finish reason could make clients retry forever."""
        return sse(compact({"error": {"message": failed.message, "type": "server_error"}}))

    def whole(self) -> dict[str, Any]:
        """Return the members of a document with all choices."""
        choices, answers = [], [*self._done, self.answer]
        for number, answer in enumerate(answers):
            ids = {"token_ids": ids_of(answer.steps)} if self.turn.token_ids else {}
            choices.append(self.one(number, answer) | ids)
        return self._head(self.kind) | {"choices": choices, "usage": self._counted(answers)}

    def _counted(self, answers: Sequence[Completion]) -> dict[str, Any]:
        """Return the ``usage`` object of all choices together; each prompt is counted once."""
        counts = [counts_of(answer) for answer in answers]
        prompt, cached = (sum(one[k] for one in counts[:: self._choices]) for k in (0, 1))
        completion, reasoning = (sum(one[k] for one in counts) for k in (2, 3))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
        } | ({"completion_tokens_details": {"reasoning_tokens": reasoning}} if self.reasoned else {})
