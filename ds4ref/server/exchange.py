"""The record of one request, from which log, metrics, trace and status page are made.

The endpoint's handler updates it; it notifies its watchers. Times are seconds of ``time.monotonic``.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from ..targets.answer import Delta, Usage
from .turn import Answered, Event, Failed, Prefill, Queued, Turn

if TYPE_CHECKING:
    from .job import Job

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

SESSIONS = ("x-claude-code-session-id", "session-id", "x-session-id", "x-session-affinity", "thread-id")
"""Headers in which clients send the id of a conversation (clients.md 2, 3, 4)."""

LEFT = 499
"""Status recorded for a request whose client disconnected before the answer (nginx's code)."""


class Watcher:
    """An observer of requests: log, metrics, status page or trace; by itself it does nothing."""

    def began(self, x: Exchange) -> None:
        """Handle the submission of the request's turn to the worker."""

    def event(self, x: Exchange, event: Event) -> None:
        """Handle an event of the turn (queue position, prefill progress, delta or failure)."""

    def ended(self, x: Exchange) -> None:
        """Handle the end of the request: ``x`` holds its final counts, times and status."""


class Exchange:
    """The record of one request: its turn, progress, counts, times and result."""

    def __init__(self, api: str, headers: Mapping[str, str], peer: str, watchers: tuple[Watcher, ...] = ()):
        sent_id = headers.get("x-request-id", "")
        self.id = sent_id if _ID.fullmatch(sent_id) else "req_" + secrets.token_hex(12)
        self.api, self.watchers = api, watchers
        self.client = client(headers, peer)
        self.started = time.monotonic()
        self.turn: Turn | None = None
        self.job: Job | None = None
        self.body = b""
        self.stream = False
        self.ahead = 0
        self.prefill: Prefill | None = None
        self.first: float | None = None
        self.shows: Callable[[Delta], bool] = attrgetter("shows")
        """Whether the client sees something of a delta (``Reply.shows``)."""
        self.tokens = 0
        self.thinking = False
        self.usage = Usage()
        self.finish = ""
        self.error = ""
        self.status = 0
        self.ended: float | None = None

    def take_on(self, turn: Turn, job: Job, stream: bool) -> None:
        """Record that the turn was submitted as ``job``; notify the watchers."""
        self.turn, self.job, self.stream = turn, job, stream
        self.thinking = turn.thinking != "none"
        for watcher in self.watchers:
            watcher.began(self)

    def note(self, event: Event) -> None:
        """Record an event of the turn; notify the watchers."""
        delta = event.delta if isinstance(event, Answered) else event
        if self.first is None and isinstance(delta, Delta) and self.shows(delta):
            self.first = time.monotonic()
        match event:
            case Queued(ahead):
                self.ahead = ahead
            case Prefill():
                self.prefill = event
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

    # --- durations

    @property
    def queued(self) -> float:
        """Seconds spent in the queue so far."""
        if self.job is None:
            return 0.0
        return (self.job.began or self.job.ended or time.monotonic()) - self.job.submitted

    @property
    def prefilling(self) -> float:
        """Seconds of prefill so far."""
        if self.job is None or self.job.began is None:
            return 0.0
        return (self.job.decoding or self.job.ended or time.monotonic()) - self.job.began

    @property
    def decoding(self) -> float:
        """Seconds of decode so far."""
        if self.job is None or self.job.decoding is None:
            return 0.0
        return (self.job.ended or time.monotonic()) - self.job.decoding

    @property
    def lasted(self) -> float:
        """Seconds from the request's arrival to its end, or until now."""
        return (self.ended or time.monotonic()) - self.started

    @property
    def ttft(self) -> float | None:
        """Seconds from the request's arrival to the first token that the client can see, None before it."""
        return None if self.first is None else self.first - self.started

    @property
    def cached(self) -> int:
        """Number of prompt tokens reused from a cached sequence."""
        return 0 if self.prefill is None else self.prefill.cached

    @property
    def prompt(self) -> int:
        """Number of prompt tokens."""
        if self.prefill is not None:
            return self.prefill.total
        return 0 if self.job is None else len(self.job.ids)

    @property
    def source(self) -> str:
        """The source of the reused tokens (see ``sequences.Start.source``), "" before prefill."""
        return "" if self.prefill is None else self.prefill.source

    @property
    def timing(self) -> str:
        """Queue, prefill and decode times so far, as the value of a Server-Timing header."""
        parts = (("queue", self.queued), ("prefill", self.prefilling), ("decode", self.decoding))
        return ", ".join(f"{name};dur={1000 * seconds:.1f}" for name, seconds in parts if seconds or name == "queue")


def client(headers: Mapping[str, str], peer: str) -> str:
    """Return the client's name for the fair queue: the conversation id in a header, else its address and User-Agent."""
    for name in SESSIONS:
        if headers.get(name):
            return f"{name}:{headers[name][:128]}"
    return f"{peer} {headers.get('user-agent', '')[:128]}"
