"""The interface of an API module, which converts JSON requests to turns and the worker's events to JSON answers.

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

    status    HTTP status
    message   the error's text for the client
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
    """What an API module needs to know to read a request, besides its body.

    model         id of the served model
    ctx           context length in tokens
    max_tokens    the server's limit on the length of an answer in tokens, None for no limit
    created       current Unix time in seconds
    headers       request headers, names in lower case
    tools         the model's own text of its tool calls, by call id, or None
    usual_tokens  limit on the length of an answer if the request does not set one, None for ``max_tokens``
    profile       DeepSeek's prompt format (``text.prompts``), None for that of May, ds4's own
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
    """The formatter of the answer to one request: the turn's events become server-sent events, or one JSON document.

    turn, about   the request
    stream        whether the client wants server-sent events
    deltas        the answer so far
    prefill       the newest report of prefill progress, None before it
    begun, over   whether the stream has begun, and has ended
    choice        number of the present answer, from 0, where a request asks for several
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
        """The number of this answer among all of this process, from 1, for ids."""
        return next(_numbers)

    @property
    def answer(self) -> Completion:
        """The answer so far: all deltas added up."""
        return added_up(self.deltas)

    def call_id(self, index: int, choice: int | None = None) -> str:
        """Return the id of tool call number ``index`` of answer ``choice`` (None: the present one).

        It is generated at first use. Called from two threads: the inference thread stores it, the event loop sends it.
        """
        key = self.choice if choice is None else choice, index
        return self._ids.get(key) or self._ids.setdefault(key, new_id(self.call_prefix))

    def feed(self, event: Event) -> bytes:
        """Add an event of the turn to the answer; return the server-sent events to send for it, b"" for none.

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
        """Return the server-sent events that end one of several answers; ``delta`` is its last one."""
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
        """Return the members of the JSON document that holds the whole answer."""

    @abc.abstractmethod
    def late_error(self, failed: Failed) -> bytes:
        """Return the server-sent events that report a failure in the middle of a stream, as this API defines them."""

    def alive(self) -> bytes:
        """Return the bytes that keep a silent stream open: an SSE comment, or an event if clients ignore comments."""
        return b": keep-alive\n\n"

    def shows(self, delta: Delta) -> bool:
        """Return whether the client sees something of ``delta``; the first such delta sets the time to first token."""
        return delta.shows

    def remember(self, answer: Message, choice: int = 0) -> Message:
        """Give the calls of a finished answer their ids, and store the model's own text of them in ``about.tools``.

        Return the answer as the client will send it back in its history. Called in the inference thread, once for each
        answer (``choice``, from 0).
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

        body: the request's JSON; about: what else to know of it. Raises Refused, naming the field that is wrong.
        """
