"""What an API module is: requests in its shape become turns, and events become answers in its shape.

    class Chat(Api):
        path = "/v1/chat/completions"
        def read(self, body, about): ...          -> Turn, Reply

``app`` does all that is HTTP; a module knows JSON alone and never waits. A ``Reply`` belongs to one request: it sees
every event of its turn in order, and says what goes out, as server-sent events or, where nothing is to be streamed, as
one document at the end.
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
    """A request that is answered with an error. ``extra`` are further members of the error object, ``headers`` of the
    response."""

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
    """The memory of calls by id, as far as an API needs it (``tools.Memory``)."""

    enabled: bool

    def remember(self, answer: Message) -> None:
        """A finished answer, its calls with their ids and its block as the model wrote it."""

    def attach(self, messages: Iterable[Message]) -> list[Message]:
        """The messages of a request, those with calls as the model wrote them where the ids tell."""

    def __contains__(self, call_id: str) -> bool:
        """Whether a call of this id is known."""


@dataclass(frozen=True)
class About:
    """What a module may need to know beyond a request's body.

    model    the served model's id, ctx its context, max_tokens the server's own limit on an answer (None: the context)
    headers  of the request, names in lower case
    created  now, in seconds since 1970
    tools    the memory of calls by id, None where there is none
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
    """The answer to one request. ``stream``: it wants server-sent events."""

    stream = False

    @abc.abstractmethod
    def feed(self, event: Event) -> bytes:
        """What goes out because of ``event``: complete server-sent events, b"" for none. Deltas come as they are
        generated; the last one has a finish. Without ``stream`` nothing goes out before the end."""

    @abc.abstractmethod
    def document(self) -> bytes:
        """The whole answer as one JSON document, after the last event (``stream`` False)."""

    @abc.abstractmethod
    def error(self, refused: Refused) -> bytes:
        """The error document of this API."""

    @abc.abstractmethod
    def late_error(self, failed: Failed) -> bytes:
        """What ends a stream that has begun: the protocol's own end with an error, never a cut."""

    def alive(self) -> bytes:
        """What keeps an idle client waiting: a comment, or an event where the client's timer ignores comments."""
        return b": keep-alive\n\n"

    def remember(self, answer: Message) -> Message:
        """The answer as the client will send it back, with the ids that its calls were given."""
        return answer


class Api(abc.ABC):
    """One endpoint."""

    path = ""
    name = ""

    @abc.abstractmethod
    def read(self, body: bytes, about: About) -> tuple[Turn, Reply]:
        """A request's turn and the reply to it. Refused for what cannot be, with the field that is wrong."""

    @abc.abstractmethod
    def error(self, refused: Refused) -> bytes:
        """The error document where there is no reply yet."""


class Question(abc.ABC):
    """An endpoint that is answered at once and off the queue: nothing is generated (count_tokens)."""

    path = ""
    name = ""

    @abc.abstractmethod
    def answer(self, body: bytes, about: About, tokenizer: Tokenizer) -> bytes:
        """The document. Refused for what cannot be."""

    @abc.abstractmethod
    def error(self, refused: Refused) -> bytes:
        """The error document of this API."""


def sse(data: str, event: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")
