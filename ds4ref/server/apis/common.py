"""Building answers: what the replies of the four APIs share."""

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
from ...text.protocol import THINK_CLOSE, THINK_OPEN
from ...text.schemas import Schema
from ..api import About, Refused, Reply
from ..turn import Answered, Event, Failed, Prefill, Turn

Json = Mapping[str, Any]

token_hex: Callable[[int], str] = secrets.token_hex
_numbers = itertools.count(1)

_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""They occur only inside JSON strings; many clients split streams into lines with a function that breaks at them."""


def compact(value: Any) -> str:
    """Serialise to JSON without spaces and without ASCII escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.translate(_LINE_ENDS)


def encoded(text: str) -> bytes:
    """Encode as UTF-8; lone surrogates become question marks."""
    return text.encode("utf-8", "replace")


def new_id(prefix: str, digits: int = 32) -> str:
    """Return a random id of ``digits`` hex digits behind ``prefix``."""
    return prefix + token_hex(digits // 2)


def openai_error(refused: Refused) -> bytes:
    """Return the error document of OpenAI's APIs."""
    return encoded(compact({"error": {"message": refused.message, "type": refused.kind, **refused.extra}}) + "\n")


class Splice:
    """Insert JSON text verbatim into other JSON; parsing it would merge equal names and respell numbers."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Return a placeholder for ``text``."""
        place = new_id("verbatim-")
        self._texts[place] = text
        return place

    def compact(self, value: Any) -> str:
        """Serialise ``value`` with every placeholder replaced by its text."""
        whole = compact(value)
        for place, text in self._texts.items():
            whole = whole.replace(f'"{place}"', text.translate(_LINE_ENDS), 1)
        return whole


# --- the answer so far


class Collected:
    """The deltas of an answer, accumulated. ``void``: calls were begun and discarded."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str, list[str]]] = {}
        self.steps: list[Step] = []
        self.last = Delta()
        self.void = False

    def add(self, delta: Delta) -> None:
        """Append a delta."""
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
        """Visible text."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """Reasoning text."""
        return "".join(self._reasoning)

    @property
    def calls(self) -> list[tuple[int, str, str]]:
        """Calls as (index, name, arguments as JSON text)."""
        return [(index, name, "".join(parts)) for index, (name, parts) in sorted(self._calls.items())]

    @property
    def finish(self) -> Finish:
        """Finish reason; STOP for ends that clients have no reason for: discarded calls, a block without a call."""
        reason = Finish(self.last.finish or Finish.STOP)
        if reason is Finish.ERROR or (reason is Finish.TOOL_CALLS and not self._calls):
            return Finish.STOP
        return reason

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Token counts (prompt, cached, completion, reasoning)."""
        usage = self.last.usage or Usage()
        return usage.prompt or 0, usage.cached or 0, usage.completion or 0, usage.reasoning or 0


def openai_usage(counts: Sequence[tuple[int, int, int, int]], thought: bool = True) -> dict[str, Any]:
    """Return OpenAI's usage object for several answers. ``thought``: include reasoning tokens."""
    prompt, cached, completion, reasoning = map(sum, zip(*counts, strict=True))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
    } | ({"completion_tokens_details": {"reasoning_tokens": reasoning}} if thought else {})


# --- tools as the client declared them


@dataclass(frozen=True)
class Tool:
    """A tool as its calls are sent: ``kind`` is "function", "custom" or "tool_search"."""

    name: str
    kind: str = "function"
    namespace: str = ""


def on_the_wire(tools: Sequence[Schema], name: str) -> Tool:
    """Return the tool that the model calls ``name``; an undeclared one is a function."""
    for tool in tools:
        if tool.name == name and tool.kind != "hosted":
            return Tool(tool.name.removeprefix(tool.namespace), tool.kind, tool.namespace)
    return Tool(name)


class PlainInput:
    """Decode the text parameter of a custom tool from its JSON arguments as they arrive."""

    _HEAD = '{"input":"'

    def __init__(self) -> None:
        self._fragments: list[str] = []
        self._given: list[str] = []
        self._held = ""
        self._inside = self._over = False

    def feed(self, fragment: str) -> str:
        """Return the text that this fragment completes; "" if the arguments do not start as expected."""
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
        """Return (whole text, the part of it that ``feed`` did not return)."""
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
    """Return a custom tool's text: the value of ``input``, of the only parameter, or the arguments themselves."""
    try:
        values = dict(rawjson.members(arguments))
    except ValueError:
        return arguments
    raw = values.get("input", next(iter(values.values()), '""') if len(values) <= 1 else arguments)
    return rawjson.string(raw) if rawjson.is_string(raw) else raw


# --- a reply


class Base(Reply):
    """State of every reply: the answer so far, and the ids of its calls."""

    call_prefix = "call_"

    def __init__(self, turn: Turn, about: About, stream: bool):
        self.turn, self.about, self.stream = turn, about, stream
        self.collected = Collected()
        self.prefill: Prefill | None = None
        self.begun = self.over = False
        self._ids: dict[int, str] = {}

    @cached_property
    def number(self) -> int:
        """Number of the answer in this process, from 1."""
        return next(_numbers)

    def call_id(self, index: int) -> str:
        """Return the id of a call. Called by the inference thread (to remember it) and by the sending one."""
        return self._ids.get(index) or self._ids.setdefault(index, new_id(self.call_prefix))

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """``Collected.counts``; for an unfinished answer, the counts known so far."""
        if self.collected.last.usage is None and self.prefill is not None:
            return self.prefill.total, self.prefill.cached, len(self.collected.steps), 0
        return self.collected.counts

    def feed(self, event: Event) -> bytes:
        """Return the server-sent events that ``event`` causes; nothing after the end."""
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
        """Return the server-sent events of ``delta``."""

    def answered(self, delta: Delta) -> bytes:
        """Return the events at the end of one of several prompts; only completions take several."""
        return b""

    def whole(self) -> None:
        """Raise Refused if the server cut the answer off (a client that disconnected reads nothing)."""
        if self.collected.last.finish == Finish.CANCELLED:
            raise Refused(503, _CUT_OFF.message, "server_error", headers={"x-should-retry": "false"})

    def error(self, refused: Refused) -> bytes:
        """Return the error document."""
        return openai_error(refused)

    def remember(self, answer: Message) -> Message:
        """Return the answer with the ids of its calls, and store its calls under them."""
        calls = tuple(replace(call, id=self.call_id(index)) for index, call in enumerate(answer.calls))
        answer = replace(answer, calls=calls)
        if self.about.tools is not None:
            self.about.tools.remember(answer)
        return answer


_CUT_OFF = Failed("shutdown", "server shutting down")


def stands_in_thinking(turn: Turn) -> bool:
    """Return whether the answer begins inside ``<think>``."""
    asked = [m.role for m in turn.messages if turn.hoist == "leading" or m.role not in ("system", "developer")]
    return turn.thinking != "none" and bool(asked) and asked[-1] != "assistant"


class Thinking:
    """Tracks which tokens of an answer are reasoning."""

    def __init__(self, inside: bool):
        self.inside = inside

    def thought(self, step: Step) -> bool:
        """Return whether this token is reasoning; the tags themselves are."""
        was, raw = self.inside, step.token.raw
        if raw in (_OPEN, _CLOSE):
            self.inside = raw == _OPEN
        return was or self.inside


_OPEN, _CLOSE = THINK_OPEN.encode(), THINK_CLOSE.encode()
