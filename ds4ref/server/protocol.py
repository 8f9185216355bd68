"""HTTP/1.1 connections: uvicorn's protocol class on h11, with limits that both lack.

h11 is used instead of httptools since it is strict (no bare line feeds in headers, no conflicting lengths), limits the
size of headers, and, being Python, exposes the state of a request. It takes tens of microseconds more per request, and
one more per piece of a stream.

Added here: deadlines for headers and body; limits on the number of headers, the length of the path, tiny body pieces,
pipelined requests and open connections; and closing without losing the response. Closing a socket with unread bytes
resets the connection, so that a client that is still sending never sees the response. So the server first closes its
sending side only, and reads and discards what arrives for a moment.

A client that has closed its sending side counts as disconnected (``Link.gone``): generation stops. A complete answer is
still sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from .api import Refused
from .limits import Limits
from .refusals import document

log = logging.getLogger("ds4-server")

CRUMBS, CRUMB = 4096, 64
"""A body that arrives in more than CRUMBS pieces is refused if they have fewer than CRUMB bytes on average."""

BAD = "bad HTTP request"


class Connection(h11.Connection):
    """h11's state machine with limits.

    saw      called with every h11 event of the client
    problem  the protocol error that is to be answered, None if there is none
    """

    def __init__(self, limits: Limits, saw: Callable[[Any], None]):
        super().__init__(h11.SERVER, limits.header_bytes)
        self.limits, self.saw = limits, saw
        self.problem: h11.RemoteProtocolError | None = None
        self._pieces = self._bytes = 0

    def next_event(self) -> Any:
        """Return the next h11 event; raises RemoteProtocolError if the client violates the protocol or a limit."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._request(event)
            elif isinstance(event, h11.Data):
                self._data(event)
        except h11.RemoteProtocolError as error:
            self.problem = error
            raise
        self.saw(event)
        return event

    def _request(self, request: h11.Request) -> None:
        self._pieces = self._bytes = 0
        names = [name for name, _ in request.headers]
        size = sum(len(name) + len(value) + 4 for name, value in request.headers)
        if len(names) > self.limits.headers or size > self.limits.header_bytes:
            raise h11.RemoteProtocolError("too many headers", error_status_hint=431)
        if len(request.target) > self.limits.target_bytes:
            raise h11.RemoteProtocolError("the path is too long", error_status_hint=414)
        if request.http_version not in (b"1.0", b"1.1"):
            raise h11.RemoteProtocolError("another version of HTTP")
        if b"content-length" in names and b"transfer-encoding" in names:
            # two readers of the request might disagree where the next one begins
            raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding together")
        if names.count(b"host") > 1:
            raise h11.RemoteProtocolError("two hosts")

    def _data(self, data: h11.Data) -> None:
        self._pieces, self._bytes = self._pieces + 1, self._bytes + len(data.data)
        if self._pieces > CRUMBS and self._bytes < CRUMB * self._pieces:
            raise h11.RemoteProtocolError("a body in crumbs")


class Link:
    """The application's handle on its connection, for what ASGI lacks: noticing a disconnect, waiting, aborting.

    gone  whether the client disconnected, or closed its sending side
    lost  set once the connection is closed
    """

    def __init__(self, protocol: Protocol):
        self._protocol = protocol
        self.gone = False
        self.lost = asyncio.Event()
        self._tell: Callable[[], None] | None = None

    def leave(self) -> None:
        """Record that the client disconnected, and call the callback set by ``watch``."""
        self.gone = True
        if self._tell is not None:
            self._tell()

    def watch(self, tell: Callable[[], None] | None) -> None:
        """Set the callback for the client's disconnection, called at once if it has happened; None removes it."""
        self._tell = tell
        if self.gone and tell is not None:
            tell()

    @property
    def unsent(self) -> int:
        """Number of bytes in the write buffer."""
        return self._protocol.raw.get_write_buffer_size()

    async def drained(self, seconds: float) -> bool:
        """Wait until the write buffer is short enough for more; return False if it did not shrink for ``seconds``."""
        flow, unsent = self._protocol.flow, self.unsent
        while flow.write_paused and not self.gone:
            try:
                await asyncio.wait_for(flow.drain(), seconds)
            except TimeoutError:
                if self.unsent >= unsent:
                    return False
                unsent = self.unsent
        return True

    async def cut(self) -> None:
        """Abort the connection, unless it is already being closed after a complete answer."""
        if self._protocol.lingering:
            return
        self._protocol.raw.abort()
        await self.lost.wait()


class _Courteous:
    """A transport that reads and discards the client's remaining bytes before it closes."""

    def __init__(self, protocol: Protocol):
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._protocol.raw, name)

    def is_closing(self) -> bool:
        """Return whether the connection is closing."""
        return self._protocol.lingering or self._protocol.raw.is_closing()

    def close(self) -> None:
        """Close once everything is sent and the client had ``linger_seconds`` to read it."""
        self._protocol.linger()


class _Flow(FlowControl):
    """Flow control that keeps reading while a pipelined request waits, so that a disconnect is noticed."""

    def __init__(self, transport: Any, protocol: Protocol):
        super().__init__(transport)
        self._protocol = protocol

    def pause_reading(self) -> None:
        conn = self._protocol.conn
        if conn.their_state is h11.SEND_BODY or len(conn.trailing_data[0]) > self._protocol.limits.pipelined_bytes:
            super().pause_reading()


class Protocol(H11Protocol):
    """The asyncio protocol of one HTTP connection."""

    conn: Connection
    raw: asyncio.Transport

    def __init__(self, *args: Any, limits: Limits, **named: Any):
        super().__init__(*args, **named)
        self.limits = limits
        self.conn = Connection(limits, self._saw)
        self.link = Link(self)
        self.app_state = {**self.app_state, "link": self.link}
        self.timeout_keep_alive = limits.idle_seconds  # type: ignore[assignment]
        self.lingering = False
        self.since = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self._ended = False

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a new connection; refuse it (503) beyond the maximum number of connections."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self.raw = transport
        self.transport = _Courteous(self)  # type: ignore[assignment]
        self.flow = _Flow(transport, self)
        self._arm(self.limits.header_seconds)
        if not self._has_room():
            log.warning("refused a connection: there are %d", self.limits.connections)
            self.refuse(503, "too many connections")

    def data_received(self, data: bytes) -> None:
        """Pass received bytes to the parser, or discard them while closing."""
        if self.lingering:
            return
        if self._timer is None and self.conn.their_state is h11.IDLE:
            self._arm(self.limits.header_seconds)
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle that the client closed its sending side; return True to keep the connection for a pending answer."""
        self._ended = True
        self.link.leave()
        if self.lingering:
            return False
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            return True
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self.refuse(400, BAD)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadline and mark the client as disconnected."""
        self.lingering = True
        self._disarm()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self.link.leave()
        self.link.lost.set()

    # --- called by uvicorn

    def send_400_response(self, msg: str) -> None:
        """Answer a request that violates HTTP or a limit, with the status of the error."""
        problem, self.conn.problem = self.conn.problem, None  # whose frames hold this connection, and megabytes of it
        status = 400 if problem is None else problem.error_status_hint
        if status not in (414, 431, 501):
            status = 400
        log.info("bad request from %s: %s", self.client and self.client[0], problem or msg)
        self.refuse(status, BAD if status == 400 else str(problem))

    def _should_upgrade(self) -> bool:
        return False  # no websockets: an upgrade request is answered in HTTP

    def shutdown(self) -> None:
        """End the connection for the server's shutdown: a request that has arrived is still answered, one whose body is
        still arriving is refused (503)."""
        if self.lingering:
            return
        if self.cycle is not None and not self.cycle.response_complete and self.cycle.more_body:
            self.refuse(503, "server shutting down")
        else:
            super().shutdown()

    # --- inside

    def _saw(self, event: Any) -> None:
        if isinstance(event, h11.Request):
            self._arm(self.limits.body_seconds)
        elif isinstance(event, h11.EndOfMessage):
            self._disarm()

    def refuse(self, status: int, message: str) -> None:
        """Send an error response and close; if a response has begun already, abort the connection."""
        if self.lingering or self.raw.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = document(Refused(status, message))
            headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
            headers += [("retry-after", "1")] if status == 503 else []
            events = (
                h11.Response(
                    status_code=status, headers=[*headers, ("connection", "close")], reason=HTTPStatus(status).phrase
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            for event in events:
                self.raw.write(self.conn.send(event))
        elif self.conn.our_state is h11.SEND_BODY:
            self.raw.abort()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.link.leave()
        self.linger()

    def linger(self) -> None:
        """Close without losing the response: send the rest, then read and discard for ``linger_seconds``."""
        if self.lingering or self.raw.is_closing():
            return
        self.lingering = True
        self._disarm()
        if self._ended:
            self.raw.close()
        elif self.raw.can_write_eof():
            self.raw.write_eof()
            self.raw.resume_reading()
        self._unsent = self.raw.get_write_buffer_size()
        self._arm(self.limits.linger_seconds)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self.since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """Handle an expired deadline: a late request is refused (408), an idle or finished connection closed."""
        self._timer = None
        if self.lingering:
            unsent = self.raw.get_write_buffer_size()
            if 0 < unsent < self._unsent:
                self._unsent = unsent
                self._arm(self.limits.linger_seconds)
            else:
                self.raw.abort()
        elif self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.linger()  # no request has begun
        else:
            self.refuse(408, "the request did not arrive in time")

    def _has_room(self) -> bool:
        """Return whether this new connection is within the maximum number of connections.

        If not, abort the connection that has been waiting for its client longest, if there is one, and return True.
        """
        if len(self.connections) <= self.limits.connections:
            return True
        others = [other for other in self.connections if isinstance(other, Protocol) and other is not self]
        others = [other for other in others if not other.raw.is_closing()]
        if len(others) < self.limits.connections:
            return True
        waiting = [
            other
            for other in others
            if (other.lingering or other.conn.their_state in (h11.IDLE, h11.SEND_BODY, h11.DONE))
            and (other.cycle is None or other.cycle.response_complete or other.cycle.more_body)
        ]
        if not waiting:
            return False
        min(waiting, key=lambda other: other.since).raw.abort()
        return True
