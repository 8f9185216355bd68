"""The interface of an API module: JSON requests become turns, events become JSON answers.

    class Chat(Api):
        path = "/v1/chat/completions"
        def read(self, body, about): ...          -> Turn, Reply

HTTP is handled in ``app`` and ``endpoint``; an API module only converts JSON and never blocks. A ``Reply`` formats the
answer to one request: it receives every event of the turn in order and returns server-sent events or, without
streaming, one document at the end.
"""

from __future__ import annotations

import abc
import itertools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ..targets.answer import Completion, Delta, Finish, added_up
from ..text.chat import Message
from .turn import Answered, Event, Failed, Prefill, Turn

if TYPE_CHECKING:
    from ..text.official import Profile
    from .tools import Memory

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


def sse(data: str, event: str = "") -> bytes:
    """Return one server-sent event as UTF-8 bytes, with an ``event:`` line unless ``event`` is empty."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data}\n\n".encode()


class Refused(Exception):
    """Raised for a request that is answered with an HTTP error.

    extra     further members of the JSON error object
    headers   additional response headers
    """

    def __init__(
        self,
        status: int,
        message: str,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message = status, message
        self.extra, self.headers = dict(extra or {}), dict(headers or {})


def bad(message: str) -> Refused:
    """Return a Refused (400) for a request that cannot be parsed."""
    line = " ".join(message.split())
    return Refused(400, "invalid JSON request: " + (line if len(line) <= 300 else line[:300] + "..."))


@dataclass(frozen=True)
class About:
    """The context of a request beyond its body.

    model         id of the served model
    ctx           context length in tokens
    max_tokens    the server's limit on the length of an answer, None for no limit
    created       current Unix time in seconds
    headers       request headers, names in lower case
    tools         the memory of tool calls by id, or None
    usual_tokens  limit on the length of an answer to a request that names none, None for ``max_tokens``
    profile       form of the prompts (``text.prompts``), None for May's
    """

    model: str
    ctx: int
    max_tokens: int | None = None
    created: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    tools: Memory | None = None
    usual_tokens: int | None = None
    profile: Profile | None = None


_CUT_OFF = Failed("shutdown", "server shutting down")


class Reply(abc.ABC):
    """The formatter of the answer to one request: events of its turn become server-sent events, or one document.

    stream   whether the client wants server-sent events
    deltas   the answer so far
    over     whether the stream has ended
    """

    call_prefix, last_byte = "call_", "\n"

    def __init__(self, turn: Turn, about: About, stream: bool | None):
        self.turn, self.about, self.stream = turn, about, bool(stream)
        self.deltas: list[Delta] = []
        self.prefill: Prefill | None = None
        self.begun = self.over = False
        self.choice = 0
        self._ids: dict[tuple[int, int], str] = {}

    @cached_property
    def number(self) -> int:
        """The sequence number of this answer in the process, from 1."""
        return next(_numbers)

    @property
    def answer(self) -> Completion:
        """What the deltas so far add up to."""
        return added_up(self.deltas)

    def call_id(self, index: int, choice: int | None = None) -> str:
        """Return the id of tool call number ``index`` of a choice (None: the present one), generated at first use.

        Called from two threads: the inference thread stores the id, the event loop sends it.
        """
        key = self.choice if choice is None else choice, index
        return self._ids.get(key) or self._ids.setdefault(key, new_id(self.call_prefix))

    def feed(self, event: Event) -> bytes:
        """Add ``event`` to the answer; return the complete server-sent events to send for it, b"" for none.

        The last ``Delta`` has ``finish`` set. Without ``stream`` the result is always b"".
        """
        out = b""
        match event:
            case Prefill():
                self.prefill = event
            case Answered(delta):
                self.deltas.append(delta)
                out = self.answered(delta)
            case Delta():
                self.deltas.append(event)
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
        """Return the whole answer as one JSON document, after the last event of a request without ``stream``.

        Raises Refused (503) if the server's shutdown cut it off.
        """
        if self.deltas and self.deltas[-1].finish == Finish.CANCELLED:
            raise Refused(503, _CUT_OFF.message, headers={"x-should-retry": "false"})
        return f"{compact(self.whole())}{self.last_byte}".encode()

    @abc.abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the members of the whole answer."""

    @abc.abstractmethod
    def late_error(self, failed: Failed) -> bytes:
        """Return the server-sent events that report a failure in the middle of a stream, as this API defines them."""

    def alive(self) -> bytes:
        """Return the bytes that keep an idle stream open: an SSE comment, or an event if clients ignore comments."""
        return b": keep-alive\n\n"

    def shows(self, delta: Delta) -> bool:
        """Return whether the client sees something of ``delta``; the first such delta ends its wait."""
        return delta.shows

    def remember(self, answer: Message, choice: int = 0) -> Message:
        """Return the answer as the client will send it back in its history, and store its calls in the memory of calls.

        Called in the inference thread, once for each of the turn's answers (``choice``, from 0).
        """
        calls = tuple(replace(call, id=self.call_id(index, choice)) for index, call in enumerate(answer.calls))
        answer = replace(answer, calls=calls)
        if self.about.tools is not None:
            self.about.tools.remember(answer)
        return answer


class Api(abc.ABC):
    """An endpoint that generates text; ``name`` decides the shape of its errors (``refusals``)."""

    path = ""
    name = ""

    @abc.abstractmethod
    def read(self, body: bytes, about: About) -> tuple[Turn, Reply]:
        """Parse a request into the generation to run (``Turn``) and the object that formats its answer (``Reply``).

        Raises Refused, which names the wrong field.
        """
