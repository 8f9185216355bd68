"""Answers, piece by piece: what the four APIs have in common."""

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
"""Outside JSON strings they cannot occur. Many a client splits a stream into lines with a function that knows them."""


def compact(value: Any) -> str:
    """JSON as it goes out: no spaces, characters as they are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.translate(_LINE_ENDS)


def encoded(text: str) -> bytes:
    """UTF-8, whatever a request had in it."""
    return text.encode("utf-8", "replace")


def new_id(prefix: str, digits: int = 32) -> str:
    """A random id."""
    return prefix + token_hex(digits // 2)


def openai_error(refused: Refused) -> bytes:
    """An error as OpenAI's APIs have it."""
    return encoded(compact({"error": {"message": refused.message, "type": refused.kind, **refused.extra}}) + "\n")


class Splice:
    """JSON text inside other JSON, as it is: what reads it into dicts would merge equal names and respell numbers."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """What stands for ``text`` until then."""
        place = new_id("verbatim-")
        self._texts[place] = text
        return place

    def compact(self, value: Any) -> str:
        """The whole."""
        whole = compact(value)
        for place, text in self._texts.items():
            whole = whole.replace(f'"{place}"', text.translate(_LINE_ENDS), 1)
        return whole


# --- what was generated, added up


class Said:
    """An answer so far. ``calls`` are (name, arguments), ``void`` whether calls were begun that do not count."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str, list[str]]] = {}
        self.steps: list[Step] = []
        self.last = Delta()
        self.void = False

    def add(self, delta: Delta) -> None:
        """One more piece."""
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
        """What is visible."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """What was thought."""
        return "".join(self._reasoning)

    @property
    def calls(self) -> list[tuple[int, str, str]]:
        """(index, name, arguments as JSON text)."""
        return [(index, name, "".join(parts)) for index, (name, parts) in sorted(self._calls.items())]

    @property
    def finish(self) -> Finish:
        """Why it ended; STOP for what no client knows a word for: calls that are void, a block without a call."""
        found = Finish(self.last.finish or Finish.STOP)
        if found is Finish.ERROR or (found is Finish.TOOL_CALLS and not self._calls):
            return Finish.STOP
        return found

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Tokens of the prompt, those of them that were cached, generated ones, and those of them that were thought."""
        usage = self.last.usage or Usage()
        return usage.prompt or 0, usage.cached or 0, usage.completion or 0, usage.reasoning or 0


def openai_usage(counts: Sequence[tuple[int, int, int, int]], thought: bool = True) -> dict[str, Any]:
    """Token counts of a chat or of completions, of several answers together. ``thought``: reasoning counts, too."""
    prompt, cached, made, reasoning = map(sum, zip(*counts, strict=True))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
    } | ({"completion_tokens_details": {"reasoning_tokens": reasoning}} if thought else {})


# --- tools as the client knows them


@dataclass(frozen=True)
class Tool:
    """How a call goes out: ``kind`` is "function", "custom" or "tool_search"."""

    name: str
    kind: str = "function"
    namespace: str = ""


def on_the_wire(tools: Sequence[Schema], name: str) -> Tool:
    """The tool that the model calls ``name``. One that nobody declared is a function."""
    for tool in tools:
        if tool.name == name and tool.kind != "hosted":
            return Tool(tool.name.removeprefix(tool.namespace), tool.kind, tool.namespace)
    return Tool(name)


class PlainInput:
    """The one text parameter of a custom tool, out of the JSON of its arguments, while they arrive."""

    _HEAD = '{"input":"'

    def __init__(self) -> None:
        self._fragments: list[str] = []
        self._given: list[str] = []
        self._held = ""
        self._inside = self._over = False

    def feed(self, fragment: str) -> str:
        """The text that this piece of the arguments makes certain; none if they begin otherwise than they should."""
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
        """(the whole text, what of it was not yet given out)."""
        whole, given = plain_input("".join(self._fragments)), "".join(self._given)
        return whole, whole.removeprefix(given) if whole.startswith(given) else ""


def _whole(body: str) -> int:
    """How much of a JSON string's inside is whole: up to its closing quote, or to the start of half an escape."""
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
    """The text in a custom tool's arguments: that of ``input``, of the only parameter, or the arguments themselves."""
    try:
        found = dict(rawjson.members(arguments))
    except ValueError:
        return arguments
    raw = found.get("input", next(iter(found.values()), '""') if len(found) <= 1 else arguments)
    return rawjson.string(raw) if rawjson.is_string(raw) else raw


# --- a reply


class Base(Reply):
    """What every reply keeps: the answer so far, and the ids of its calls."""

    call_prefix = "call_"

    def __init__(self, turn: Turn, about: About, stream: bool):
        self.turn, self.about, self.stream = turn, about, stream
        self.said = Said()
        self.prefill: Prefill | None = None
        self.begun = self.over = False
        self._ids: dict[int, str] = {}

    @cached_property
    def number(self) -> int:
        """Of all answers of this process, counted from 1."""
        return next(_numbers)

    def call_id(self, index: int) -> str:
        """The id of a call. Both threads may ask: the one that generates, to remember it, and the one that sends."""
        return self._ids.get(index) or self._ids.setdefault(index, new_id(self.call_prefix))

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Those of ``Said``; of an answer without an end what is known of it."""
        if self.said.last.usage is None and self.prefill is not None:
            return self.prefill.total, self.prefill.cached, len(self.said.steps), 0
        return self.said.counts

    def feed(self, event: Event) -> bytes:
        """What goes out because of ``event``; after an end, nothing."""
        out = b""
        match event:
            case Prefill():
                self.prefill = event
            case Answered(delta):
                self.said.add(delta)
                out = self.answered(delta)
            case Delta():
                self.said.add(event)
                if self.stream and not self.over:
                    out = self.late_error(_CUT_OFF) if event.finish == Finish.CANCELLED else self.delta(event)
                    self.over = self.over or bool(event.finish)
            case Failed() if self.stream and not self.over:
                self.over, out = True, self.late_error(event)
        return out

    @abc.abstractmethod
    def delta(self, delta: Delta) -> bytes:
        """A piece of the stream."""

    def answered(self, delta: Delta) -> bytes:
        """One of several prompts is answered; only completions take several, and say so."""
        return b""

    def whole(self) -> None:
        """Refused if the answer was cut off, by the server itself: a client that left reads nothing."""
        if self.said.last.finish == Finish.CANCELLED:
            raise Refused(503, _CUT_OFF.message, "server_error", headers={"x-should-retry": "false"})

    def error(self, refused: Refused) -> bytes:
        """The error document."""
        return openai_error(refused)

    def remember(self, answer: Message) -> Message:
        """The answer with the ids of its calls, under which it is kept as the model wrote it."""
        calls = tuple(replace(call, id=self.call_id(index)) for index, call in enumerate(answer.calls))
        answer = replace(answer, calls=calls)
        if self.about.tools is not None:
            self.about.tools.remember(answer)
        return answer


_CUT_OFF = Failed("shutdown", "server shutting down")


def stands_in_thinking(turn: Turn) -> bool:
    """Whether the answer to a conversation begins inside ``<think>``."""
    asked = [m.role for m in turn.messages if turn.hoist == "leading" or m.role not in ("system", "developer")]
    return turn.thinking != "none" and bool(asked) and asked[-1] != "assistant"


class Thinking:
    """Follows the tokens of an answer: which were thought."""

    def __init__(self, inside: bool):
        self.inside = inside

    def thought(self, step: Step) -> bool:
        """Whether this token was; the tags themselves are part of the thinking."""
        was, raw = self.inside, step.token.raw
        if raw in (_OPEN, _CLOSE):
            self.inside = raw == _OPEN
        return was or self.inside


_OPEN, _CLOSE = THINK_OPEN.encode(), THINK_CLOSE.encode()
