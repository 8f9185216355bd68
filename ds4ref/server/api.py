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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..text.chat import Message
from .turn import Event, Failed, Turn

if TYPE_CHECKING:
    from ..targets.answer import Delta
    from ..text.official import Profile
    from .tools import Memory


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


class Reply(abc.ABC):
    """The formatter of the answer to one request; ``stream`` is True if the client wants server-sent events."""

    stream = False

    @abc.abstractmethod
    def feed(self, event: Event) -> bytes:
        """Add ``event`` to the answer; return the complete server-sent events to send for it, b"" for none.

        The last ``Delta`` has ``finish`` set. Without ``stream`` the result is always b"".
        """

    @abc.abstractmethod
    def document(self) -> bytes:
        """Return the whole answer as one JSON document; called after the last event of a request without ``stream``."""

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
        """Return the answer as the client will send it back in its history: with the ids assigned to its tool calls.

        Called in the inference thread, once for each of the turn's answers (``choice``, from 0).
        """
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


def sse(data: str, event: str = "") -> bytes:
    """Return one server-sent event as UTF-8 bytes, with an ``event:`` line unless ``event`` is empty."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data}\n\n".encode()
