"""The record of one HTTP request, from which log, metrics and trace are made.

The endpoint's handler updates it, and it notifies its watchers. Times are seconds of ``time.monotonic``.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from ..targets.answer import Delta, Usage
from .turn import Answered, Event, Failed, Prefill, Turn

if TYPE_CHECKING:
    from .job import Job

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

SESSIONS = ("x-claude-code-session-id", "session-id", "x-session-id", "x-session-affinity", "thread-id")
"""Headers in which clients send the id of a conversation (docs/evidence/clients.md)."""

LEFT = 499
"""Status recorded for a request whose client disconnected before the answer (nginx's code)."""


class Watcher:
    """Base class of observers of requests: log, metrics, trace. Its methods do nothing."""

    def event(self, x: Exchange, event: Event) -> None:
        """Handle an event of the turn (queue position, prefill progress, delta or failure)."""

    def ended(self, x: Exchange) -> None:
        """Handle the end of the request: ``x`` holds its final counts, times and status."""


class Exchange:
    """The record of one request: its turn, progress, counts, times and result.

    id              the client's x-request-id, or a new one
    api             name of the API
    client          name of the client, for the fair queue
    first           when the client could first see something of the answer
    source          where cached prompt tokens came from (``sequences.Start``)
    tokens, cached  number of generated tokens, and of prompt tokens that were cached
    """

    def __init__(self, api: str, headers: Mapping[str, str], peer: str, watchers: tuple[Watcher, ...] = ()):
        sent_id = headers.get("x-request-id", "")
        self.id = sent_id if _ID.fullmatch(sent_id) else "req_" + secrets.token_hex(12)
        self.api, self.watchers = api, watchers
        self.client = client(headers, peer)
        self.started = time.monotonic()
        self.turn: Turn | None = None
        self.job: Job | None = None
        self.prefill: Prefill | None = None
        self.first: float | None = None
        self.ended: float | None = None
        self.shows: Callable[[Delta], bool] = attrgetter("shows")
        """Whether the client sees something of a delta (``Reply.shows``)."""
        self.body, self.finish, self.error, self.source = b"", "", "", ""
        self.thinking = False
        self.tokens = self.cached = self.status = 0
        self.usage = Usage()

    def take_on(self, turn: Turn, job: Job) -> None:
        """Record that the turn was submitted as ``job``."""
        self.turn, self.job = turn, job
        self.thinking = turn.thinking != "none"

    def note(self, event: Event) -> None:
        """Record an event of the turn; notify the watchers."""
        delta = event.delta if isinstance(event, Answered) else event
        if self.first is None and isinstance(delta, Delta) and self.shows(delta):
            self.first = time.monotonic()
        match event:
            case Prefill():
                self.prefill, self.cached, self.source = event, event.cached, event.source
            case Delta():
                self.tokens += len(event.steps)
                if event.finish:
                    self.finish, self.error = str(event.finish), event.error
                    self.usage = event.usage or self.usage
            case Failed(_, message):
                self.finish, self.error = "error", message
        for watcher in self.watchers:
            watcher.event(self, event)

    def end(self, status: int, error: str = "") -> None:
        """Record the end of the request with its HTTP ``status``; notify the watchers. Later calls do nothing."""
        if self.ended is not None:
            return
        self.ended, self.status, self.error = time.monotonic(), status, error or self.error
        if self.turn is not None:
            for watcher in self.watchers:
                watcher.ended(self)

    # --- durations in seconds, so far

    def _since(self, begin: float | None, end: float | None) -> float:
        """Return the seconds from ``begin`` to ``end``; if that is None to the job's end, or to now. 0 without a
        ``begin``."""
        ended = None if self.job is None else self.job.ended
        return 0.0 if begin is None else (end or ended or time.monotonic()) - begin

    @property
    def queued(self) -> float:
        """Seconds in the queue."""
        return 0.0 if self.job is None else self._since(self.job.submitted, self.job.began)

    @property
    def prefilling(self) -> float:
        """Seconds of prefill."""
        return 0.0 if self.job is None else self._since(self.job.began, self.job.decoding)

    @property
    def decoding(self) -> float:
        """Seconds of decode."""
        return 0.0 if self.job is None else self._since(self.job.decoding, None)

    @property
    def lasted(self) -> float:
        """Seconds from the request's arrival to its end, or until now."""
        return (self.ended or time.monotonic()) - self.started

    @property
    def ttft(self) -> float | None:
        """Seconds from the request's arrival to the first token that the client can see, None before it."""
        return None if self.first is None else self.first - self.started

    @property
    def prompt(self) -> int:
        """Number of prompt tokens."""
        return self.prefill.total if self.prefill is not None else len(self.job.ids) if self.job is not None else 0

    @property
    def timing(self) -> str:
        """Queue, prefill and decode times so far, as the value of a Server-Timing header (milliseconds)."""
        parts = self.times.items()
        return ", ".join(f"{name};dur={1000 * seconds:.1f}" for name, seconds in parts if seconds or name == "queue")

    @property
    def times(self) -> dict[str, float]:
        """The seconds of each stage ("queue", "prefill", "decode") so far."""
        return {"queue": self.queued, "prefill": self.prefilling, "decode": self.decoding}


def client(headers: Mapping[str, str], peer: str) -> str:
    """Return the client's name for the fair queue: a conversation id from a header, else IP address and User-Agent."""
    for name in SESSIONS:
        if headers.get(name):
            return f"{name}:{headers[name][:128]}"
    return f"{peer} {headers.get('user-agent', '')[:128]}"
