"""Code shared by the replies of the four APIs: JSON output, accumulated deltas, tool-call ids, choices."""

from __future__ import annotations

import abc
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from ...targets.answer import Delta, Finish, Step, Usage
from ...text import rawjson
from ...text.chat import Message
from ...text.schemas import Schema
from ..api import About, Refused, Reply, sse
from ..turn import Answered, Event, Failed, Prefill, Turn

Json = Mapping[str, Any]

token_hex: Callable[[int], str] = secrets.token_hex
_numbers = itertools.count(1)

_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""Escapes for line separators, which JSON allows unescaped in strings; many clients split event streams at them."""


def compact(value: Any) -> str:
    """Serialise ``value`` to JSON without spaces, ``msgspec.Raw`` verbatim, line separators escaped."""
    text = msgspec.json.encode(value).decode()
    return text if text.isascii() else text.translate(_LINE_ENDS)


def new_id(prefix: str, digits: int = 32) -> str:
    """Return a random id: ``prefix`` followed by ``digits`` hex digits."""
    return prefix + token_hex(digits // 2)


# --- the answer so far


class Collected:
    """The accumulated deltas of an answer; ``void`` is True once the model began tool calls that were discarded."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str, list[str]]] = {}
        self.steps: list[Step] = []
        self.last = Delta()
        self.void = False

    def add(self, delta: Delta) -> None:
        """Append a delta to the answer."""
        self._text.append(delta.text)
        self._reasoning.append(delta.reasoning)
        self.steps += delta.steps
        if delta.void:
            self.void = True
            self._calls.clear()
        for more in delta.calls:
            name, fragments = self._calls.setdefault(more.index, (more.name, []))
            fragments.append(more.arguments)
        if delta.finish:
            self.last = delta

    @property
    def text(self) -> str:
        """The visible text so far."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """The reasoning text so far."""
        return "".join(self._reasoning)

    @property
    def calls(self) -> list[tuple[int, str, str]]:
        """The tool calls as (index, name, arguments as JSON text)."""
        return [(index, name, "".join(parts)) for index, (name, parts) in sorted(self._calls.items())]

    @property
    def finish(self) -> Finish:
        """The finish reason.

        STOP stands for ends that no API can express: calls were discarded, or a tool-call block had no call.
        """
        reason = Finish(self.last.finish or Finish.STOP)
        if reason is Finish.ERROR or (reason is Finish.TOOL_CALLS and not self._calls):
            return Finish.STOP
        return reason

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Token counts (prompt, cached, completion, reasoning); zeros until the last delta."""
        usage = self.last.usage or Usage()
        return usage.prompt or 0, usage.cached or 0, usage.completion or 0, usage.reasoning or 0


# --- tools as the client declared them


@dataclass(frozen=True)
class Tool:
    """A tool as clients see it in calls.

    name        without the namespace
    kind        "function", "custom" or "tool_search"
    namespace   the prefix that the model sees before the name, "" for none
    """

    name: str
    kind: str = "function"
    namespace: str = ""


def on_the_wire(tools: Sequence[Schema], name: str) -> Tool:
    """Return the declared tool that the model knows as ``name``, as clients see it; a plain function if undeclared."""
    for tool in tools:
        if tool.name == name and tool.kind != "hosted":
            return Tool(tool.bare, tool.kind, tool.namespace)
    return Tool(name)


def plain_input(arguments: str) -> str:
    """Return a custom tool's text from its JSON arguments.

    This is the value of ``input``, else of the only parameter, else the arguments themselves.
    """
    try:
        values = dict(rawjson.members(arguments))
    except ValueError:
        return arguments
    raw = values.get("input", next(iter(values.values()), '""') if len(values) <= 1 else arguments)
    return rawjson.string(raw) if rawjson.is_string(raw) else raw


# --- a reply


class Base(Reply):
    """Base class of all replies: holds the answer so far and the ids of its tool calls."""

    call_prefix, last_byte = "call_", "\n"

    def __init__(self, turn: Turn, about: About, stream: bool | None):
        self.turn, self.about, self.stream = turn, about, bool(stream)
        self.collected = Collected()
        self.prefill: Prefill | None = None
        self.begun = self.over = False
        self.choice = 0
        self._ids: dict[tuple[int, int], str] = {}

    @cached_property
    def number(self) -> int:
        """The sequence number of this answer in the process, from 1."""
        return next(_numbers)

    def call_id(self, index: int, choice: int | None = None) -> str:
        """Return the id of tool call number ``index`` of a choice (None: the present one), generated at first use.

        Called from two threads: the inference thread stores the id, the event loop sends it.
        """
        key = self.choice if choice is None else choice, index
        return self._ids.get(key) or self._ids.setdefault(key, new_id(self.call_prefix))

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Token counts (prompt, cached, completion, reasoning), as known so far if the answer is unfinished."""
        if self.collected.last.usage is None and self.prefill is not None:
            return self.prefill.total, self.prefill.cached, len(self.collected.steps), 0
        return self.collected.counts

    def feed(self, event: Event) -> bytes:
        """Add ``event`` to the answer; return the server-sent events to send for it, b"" for none."""
        out = b""
        match event:
            case Prefill():
                self.prefill = event
            case Answered(delta):
                self.collected.add(delta)
                out = self.answered(delta)
            case Delta():
                self.collected.add(event)
                if self.stream and not self.over:
                    out = self.late_error(_CUT_OFF) if event.finish == Finish.CANCELLED else self.delta(event)
                    self.over = self.over or bool(event.finish)
            case Failed() if self.stream and not self.over:
                self.over, out = True, self.late_error(event)
        return out

    @abc.abstractmethod
    def delta(self, delta: Delta) -> bytes:
        """Return the server-sent events that carry ``delta``."""

    def answered(self, delta: Delta) -> bytes:
        """Return the server-sent events that end the answer to one of a completion's several prompts."""
        return b""

    def document(self) -> bytes:
        """Return the whole answer as one JSON document; Refused (503) if the server's shutdown cut it off."""
        if self.collected.last.finish == Finish.CANCELLED:
            raise Refused(503, _CUT_OFF.message, headers={"x-should-retry": "false"})
        return f"{compact(self.whole())}{self.last_byte}".encode()

    @abc.abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the members of the whole answer."""

    def remember(self, answer: Message, choice: int = 0) -> Message:
        """Return the answer with ids assigned to its tool calls, and store the calls in the memory of calls."""
        calls = tuple(replace(call, id=self.call_id(index, choice)) for index, call in enumerate(answer.calls))
        answer = replace(answer, calls=calls)
        if self.about.tools is not None:
            self.about.tools.remember(answer)
        return answer


_CUT_OFF = Failed("shutdown", "server shutting down")


# --- OpenAI's older APIs


def several(turns: Sequence[Turn], count: int) -> Turn:
    """Return one turn that answers each of ``turns`` ``count`` times, the choices of a prompt one after the other."""
    first, *more = [replace(turn, sampling=turn.sampling.numbered(n)) for turn in turns for n in range(count)]
    return replace(first, more=tuple(more))


class Choices(Base):
    """Base class of the replies of OpenAI's older APIs: several choices, in chunks or one document.

    usage     the stream ends with token counts
    choices   answers to each prompt
    """

    id_prefix, kind, chunk_kind, reasoned = "", "", "", True

    def __init__(self, turn: Turn, about: About, stream: bool | None, usage: bool, choices: int):
        super().__init__(turn, about, stream)
        self._usage, self._choices = usage, choices
        self._done: list[Collected] = []  # the choices before the one that is being generated
        self.begin()

    def begin(self) -> None:
        """Begin the next choice."""
        self.collected, self.choice, self.begun = Collected(), len(self._done), False
        self._steps: list[Step] = []  # whose log probabilities are still to be sent
        self._token_ids: list[int] = []

    def answered(self, delta: Delta) -> bytes:
        """Finish one of several choices; return the server-sent events that end it."""
        out = self.pieces(delta) + self.close() if self.stream else b""
        self._done.append(self.collected)
        self.begin()
        return out

    def delta(self, delta: Delta) -> bytes:
        """Return the chunks that carry ``delta``, as server-sent events."""
        out = self.pieces(delta)
        if not delta.finish:
            return out
        out += self.close()
        if self._usage:
            out += self.event({"choices": [], "usage": self._counted()})
        return out + sse("[DONE]")

    def pieces(self, delta: Delta) -> bytes:
        """Return the chunks of the present choice that carry ``delta``."""
        self._token_ids += ids_of(delta.steps)
        return b""

    @abc.abstractmethod
    def close(self) -> bytes:
        """Return the chunks that end the present choice."""

    @abc.abstractmethod
    def one(self, number: int, answer: Collected) -> dict[str, Any]:
        """Return choice ``number`` of a document, but for its ``token_ids``."""

    def event(self, more: Json) -> bytes:
        """Return one chunk as a server-sent event."""
        return sse(compact(self._head(self.chunk_kind) | dict(more)))

    def _head(self, kind: str) -> dict[str, Any]:
        named = {"id": f"{self.id_prefix}-{self.number}", "object": kind}
        return {**named, "created": self.about.created, "model": self.turn.model}

    def with_ids(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Add the ids of the tokens since the last chunk, where the request asks for them."""
        if self.turn.token_ids:
            choice["token_ids"], self._token_ids = self._token_ids, []
        return choice

    def late_error(self, failed: Failed) -> bytes:
        """Return a chunk with an ``error`` member; an unknown finish reason could make clients retry forever."""
        return sse(compact({"error": {"message": failed.message, "type": "server_error"}}))

    def whole(self) -> dict[str, Any]:
        """Return the members of a document with all choices."""
        choices = []
        for number, answer in enumerate([*self._done, self.collected]):
            ids = {"token_ids": ids_of(answer.steps)} if self.turn.token_ids else {}
            choices.append(self.one(number, answer) | ids)
        return self._head(self.kind) | {"choices": choices, "usage": self._counted()}

    def _counted(self) -> dict[str, Any]:
        """Return the ``usage`` of all choices; a prompt counts once."""
        counts = [answer.counts for answer in (*self._done, self.collected)]
        prompt, cached = (sum(one[k] for one in counts[:: self._choices]) for k in (0, 1))
        completion, reasoning = (sum(one[k] for one in counts) for k in (2, 3))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
        } | ({"completion_tokens_details": {"reasoning_tokens": reasoning}} if self.reasoned else {})


def ids_of(steps: Sequence[Step]) -> list[int]:
    """Return the ids of the tokens."""
    return [step.token.id for step in steps if step.token.id is not None]
