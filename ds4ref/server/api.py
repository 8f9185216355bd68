"""The interface of an API module: JSON requests become turns, events become JSON answers.

    class Chat(Api):
        path = "/v1/chat/completions"
        def read(self, body, about): ...          -> Turn, Reply

HTTP is handled elsewhere (``app``, ``endpoint``); a module only converts JSON and never blocks. A ``Reply`` belongs to
one request: it receives every event of the turn in order and returns server-sent events or, without streaming, one
document at the end.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..text.chat import Message
from .turn import Event, Failed, Turn

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer


class Refused(Exception):
    """A request is answered with an error.

    ``extra``: further members of the error object; ``headers``: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.extra, self.headers = dict(extra or {}), dict(headers or {})


class Calls(Protocol):
    """The memory of tool calls by id, as an API uses it (``tools.Memory``)."""

    enabled: bool

    def remember(self, answer: Message) -> None:
        """Store the calls of a finished answer: their ids and the block as the model wrote it."""

    def attach(self, messages: Iterable[Message]) -> list[Message]:
        """Return the messages with known calls replaced by what the model wrote."""

    def __contains__(self, call_id: str) -> bool:
        """Return whether a call of this id is known."""


@dataclass(frozen=True)
class About:
    """The context of a request beyond its body.

    model    id of the served model; ctx: context length in tokens; max_tokens: the server's limit on an answer or None
    headers  request headers, names in lower case
    created  current Unix time
    tools    the memory of calls by id, or None
    options  deviations from the reference server, by name (``deviations``)
    """

    model: str
    ctx: int
    max_tokens: int | None = None
    created: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    tools: Calls | None = None
    options: Mapping[str, bool] = field(default_factory=dict)


class Reply(abc.ABC):
    """The answer to one request. ``stream``: the client wants server-sent events."""

    stream = False

    @abc.abstractmethod
    def feed(self, event: Event) -> bytes:
        """Return the complete server-sent events that ``event`` causes, b"" for none.

        Deltas arrive as they are generated; the last one has ``finish``. Without ``stream`` nothing is sent here.
        """

    @abc.abstractmethod
    def document(self) -> bytes:
        """Return the whole answer as one JSON document, after the last event (``stream`` False)."""

    @abc.abstractmethod
    def error(self, refused: Refused) -> bytes:
        """Return the error document of this API."""

    @abc.abstractmethod
    def late_error(self, failed: Failed) -> bytes:
        """Return the protocol's own error ending of a stream that has begun."""

    def alive(self) -> bytes:
        """Return a keep-alive: a comment, or an event where the client's timer ignores comments."""
        return b": keep-alive\n\n"

    def remember(self, answer: Message) -> Message:
        """Return the answer as the client will send it back, with the ids of its calls."""
        return answer


class Api(abc.ABC):
    """A generating endpoint."""

    path = ""
    name = ""

    @abc.abstractmethod
    def read(self, body: bytes, about: About) -> tuple[Turn, Reply]:
        """Return the turn of a request and the reply to it; Refused names the field that is wrong."""

    @abc.abstractmethod
    def error(self, refused: Refused) -> bytes:
        """Return the error document where there is no reply yet."""


class Question(abc.ABC):
    """An endpoint that is answered without the queue, since nothing is generated (count_tokens)."""

    path = ""
    name = ""

    @abc.abstractmethod
    def answer(self, body: bytes, about: About, tokenizer: Tokenizer) -> bytes:
        """Return the JSON document; Refused if the request is invalid."""

    @abc.abstractmethod
    def error(self, refused: Refused) -> bytes:
        """Return the error document of this API."""


def sse(data: str, event: str = "") -> bytes:
    """Format one server-sent event."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")
