"""Code shared by the replies of the four APIs: JSON output, accumulated deltas, tool-call ids."""

from __future__ import annotations

import abc
import itertools
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...targets.answer import Delta, Finish, Step, Usage
from ...text import rawjson
from ...text.chat import Message
from ...text.schemas import Schema
from ..api import About, Refused, Reply
from ..turn import Answered, Event, Failed, Prefill, Turn

Json = Mapping[str, Any]

token_hex: Callable[[int], str] = secrets.token_hex
_numbers = itertools.count(1)

_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""Escapes for line separators, which JSON allows unescaped in strings; many clients split event streams at them."""


def compact(value: Any) -> str:
    """Serialise ``value`` to JSON without spaces; only unusual line separators are escaped as ASCII."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.translate(_LINE_ENDS)


def encoded(text: str) -> bytes:
    """Encode text as UTF-8; lone surrogates become question marks."""
    return text.encode("utf-8", "replace")


def new_id(prefix: str, digits: int = 32) -> str:
    """Return a random id: ``prefix`` followed by ``digits`` hex digits."""
    return prefix + token_hex(digits // 2)


def openai_error(refused: Refused) -> bytes:
    """Return an error as OpenAI's JSON document."""
    return encoded(compact({"error": {"message": refused.message, "type": refused.kind, **refused.extra}}) + "\n")


class Splice:
    """Insert JSON text verbatim into other JSON.

    Parsing and serialising the text would merge members of the same name and respell numbers.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Return a placeholder string for the JSON ``text``, which ``compact`` replaces by that text."""
        place = new_id("verbatim-")
        self._texts[place] = text
        return place

    def compact(self, value: Any) -> str:
        """Serialise ``value`` to JSON, with each placeholder string replaced by its JSON text."""
        whole = compact(value)
        for place, text in self._texts.items():
            whole = whole.replace(f'"{place}"', text.translate(_LINE_ENDS), 1)
        return whole


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


def openai_usage(counts: Sequence[tuple[int, int, int, int]], thought: bool = True) -> dict[str, Any]:
    """Return OpenAI's ``usage`` object with the summed token ``counts`` of several answers.

    ``thought``: include the number of reasoning tokens.
    """
    prompt, cached, completion, reasoning = map(sum, zip(*counts, strict=True))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
    } | ({"completion_tokens_details": {"reasoning_tokens": reasoning}} if thought else {})


def ids_of(steps: Sequence[Step]) -> list[int]:
    """Return the ids of the tokens."""
    return [step.token.id for step in steps if step.token.id is not None]


def several(turns: Sequence[Turn], count: int) -> Turn:
    """Return one turn that answers each of ``turns`` ``count`` times, the choices of a prompt one after the other."""
    first, *more = [replace(turn, sampling=turn.sampling.numbered(n)) for turn in turns for n in range(count)]
    return replace(first, more=tuple(more))


def per_prompt(answers: Sequence[Collected], choices: int) -> list[tuple[int, int, int, int]]:
    """Return the token counts of answers, ``choices`` to each prompt: a prompt counts once."""
    counts = [answer.counts for answer in answers]
    return [found if n % choices == 0 else (0, 0, *found[2:]) for n, found in enumerate(counts)]


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
            return Tool(tool.name.removeprefix(tool.namespace), tool.kind, tool.namespace)
    return Tool(name)


class PlainInput:
    """Incremental decoder of a custom tool's text: the value of ``input`` in the call's JSON arguments."""

    _HEAD = '{"input":"'

    def __init__(self) -> None:
        self._fragments: list[str] = []
        self._given: list[str] = []
        self._held = ""
        self._inside = self._over = False

    def feed(self, fragment: str) -> str:
        """Append a fragment of the arguments; return the newly decoded text.

        Returns "" if the arguments do not begin with ``{"input":"``; ``finish`` then returns the text.
        """
        self._fragments.append(fragment)
        if self._over:
            return ""
        self._held += fragment
        if not self._inside:
            self._inside = self._held.startswith(self._HEAD)
            self._over = not self._inside and len(self._held) >= len(self._HEAD)
            if not self._inside:
                return ""
            self._held = self._held[len(self._HEAD) :]
        end = _whole(self._held)
        text = rawjson.string(f'"{self._held[:end]}"')
        self._over, self._held = self._held[end : end + 1] == '"', self._held[end:]
        self._given.append(text)
        return text

    def finish(self) -> tuple[str, str]:
        """Return (whole text, the end of the text that ``feed`` has not returned), once all arguments were fed."""
        whole, sent = plain_input("".join(self._fragments)), "".join(self._given)
        return whole, whole.removeprefix(sent) if whole.startswith(sent) else ""


def _whole(body: str) -> int:
    """Return the length of the complete part of a JSON string: up to its closing quote or an incomplete escape."""
    at = 0
    while at < len(body):
        if body[at] == '"':
            return at
        if body[at] == "\\":
            size = 6 if body[at + 1 : at + 2] == "u" else 2
            high = body[at + 2 : at + 4].lower() in ("d8", "d9", "da", "db") and size == 6
            size += 6 if high else 0  # the second half of the pair belongs to it
            if at + size > len(body):
                return at
            at += size
        else:
            at += 1
    return at


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

    call_prefix = "call_"

    def __init__(self, turn: Turn, about: About, stream: bool):
        self.turn, self.about, self.stream = turn, about, stream
        self.collected = Collected()
        self.prefill: Prefill | None = None
        self.begun = self.over = False
        self.choice = 0
        self._remembered = 0
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

    def whole(self) -> None:
        """Raise Refused (503) if the answer is incomplete because the server shut down."""
        if self.collected.last.finish == Finish.CANCELLED:
            raise Refused(503, _CUT_OFF.message, "server_error", headers={"x-should-retry": "false"})

    def error(self, refused: Refused) -> bytes:
        """Return the error as OpenAI's JSON document."""
        return openai_error(refused)

    def remember(self, answer: Message, choice: int = 0) -> Message:
        """Return the answer with ids assigned to its tool calls, and store the calls in the memory of calls."""
        calls = tuple(replace(call, id=self.call_id(index, choice)) for index, call in enumerate(answer.calls))
        answer = replace(answer, calls=calls)
        if self.about.tools is not None:
            self.about.tools.remember(answer)
        return answer


_CUT_OFF = Failed("shutdown", "server shutting down")
