"""The handler of all generating endpoints: request body to turn, events to response.

    receive the body within limits -> Api.read and Worker.submit in a thread -> events -> Reply.feed -> the client

A stream's status and headers are sent with the first prefill event or, if the turn waits in the queue for long, with
the first keep-alive; an error before that has its own HTTP status. A later error ends the stream as the API defines it
(``Reply.late_error``), since clients take a truncated stream for a lost connection and retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import Ds4Error
from ..targets.answer import Delta, Finish
from . import refusals
from .api import Api, Refused, Reply
from .job import Job
from .limits import Disconnected, check_json, inflate, receive_body
from .mailbox import Mailbox
from .queue import Busy
from .turn import Event, Failed, Prefill, Turn
from .worker import Overflow

if TYPE_CHECKING:
    from .exchange import Exchange
    from .protocol import Link
    from .service import Service

log = logging.getLogger("ds4-server")

JSON = "application/json"
STREAM = "text/event-stream; charset=utf-8"
"""Names the encoding, since clients such as Python's requests take text without one for Latin-1."""

PACE = 0.004
"""Minimum time in seconds between two writes to a stream once the client has seen something of the answer.

Tokens generated in between are sent together. A model that takes 5 ms or more per token sends each by itself.
"""


class Slow(Exception):
    """Raised when a client does not read its answer fast enough."""


class Generate:
    """The ASGI application that handles POST requests to one generating endpoint."""

    def __init__(self, api: Api, service: Service):
        self.api, self.service = api, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one POST request."""
        link: Link = scope["state"]["link"]
        x: Exchange = scope["state"]["exchange"]
        mail = Mailbox(asyncio.get_running_loop())
        link.watch(mail.wake)
        try:
            try:
                body = await body_of(scope, receive, self.service, x)
                turn, reply, job = await self._submitted(body, scope["state"]["headers"], mail, x)
            except Refused as refused:
                x.error = refused.message
                await respond(send, refused, self.api.name)
                return
            x.shows = reply.shows
            try:
                x.take_on(turn, job)
                await _Answer(self.service, x, turn, reply, link, mail, send).run()
            finally:
                if job.ended is None:
                    self.service.worker.abandon(job)
        except (Disconnected, Slow) as why:
            x.end(499, "client left" if isinstance(why, Disconnected) else "client does not read")
            await link.cut()
        finally:
            link.watch(None)

    async def _submitted(
        self, body: bytes, headers: Mapping[str, str], mail: Mailbox, x: Exchange
    ) -> tuple[Turn, Reply, Job]:
        """Run ``_submit`` in a thread, then release the body's bytes in the budget."""
        try:
            return await self.service.aside(self._submit, body, headers, mail, x)
        finally:
            self.service.body_budget.give(len(body))

    def _submit(self, body: bytes, headers: Mapping[str, str], mail: Mailbox, x: Exchange) -> tuple[Turn, Reply, Job]:
        """Decompress and parse ``body``, and submit its turn to the worker; raises Refused if any of that fails.

        headers: the request's; mail: receives the events; x: the request's record.
        """
        service, name = self.service, self.api.name
        body = inflate(body, headers.get("content-encoding", ""), service.limits)
        check_json(body, service.limits)
        if service.trace is not None:
            x.body = body
        with translated():
            turn, reply = self.api.read(body, service.about(headers))
            if any(one.ids == () for one in (turn, *turn.more)):
                raise Refused(400, "the prompt is empty")
            turn = replace(turn, client=turn.client or x.client)
            try:
                job = service.worker.submit(turn, mail.put, reply.remember)
            except Overflow as error:
                raise refusals.overflow(name, error.tokens, error.ctx) from None
            except Busy as error:
                raise refusals.busy(error) from None
        return turn, reply, job


class _Answer:
    """The sender of the answer to one turn: takes its events from ``mail``, and writes what ``reply`` makes of them."""

    def __init__(self, service: Service, x: Exchange, turn: Turn, reply: Reply, link: Link, mail: Mailbox, send: Any):
        self.service, self.limits = service, service.limits
        self.x, self.turn, self.reply, self.link, self.mail, self.send = x, turn, reply, link, mail, send
        self.begun = self.over = False
        self.ready = False  # the stream may begin: a failure is no longer sent with its own HTTP status
        self.body = b""  # the document, without streaming
        self.spoke = mail.loop.time()  # when something was last written
        self.rest = 0.0  # loop time before which nothing is to be written

    async def run(self) -> None:
        """Send the answer until its last event; raises Disconnected if the client did, Slow if it does not read."""
        while not self.over:
            events = await self.mail.take(self.spoke + self.limits.alive_seconds, self.rest)
            if self.link.gone:
                raise Disconnected
            if self.mail.full:
                raise Slow
            try:
                out = self._told(events)
            except Refused as refused:
                self.over = True
                await respond(self.send, refused, self.turn.api)
                self.x.end(refused.status, refused.message)
                return
            await (self._stream(out) if self.reply.stream else self._collect())
            if self.over:
                self.x.end(200)

    def _told(self, events: list[Event]) -> bytes:
        """Record events and pass them to the reply; return the bytes to send for them.

        Raises Refused if the turn failed before the stream began.
        """
        out = bytearray()
        for event in events:
            event = _or_shutdown(event)
            self.x.note(event)
            if isinstance(event, Failed):
                if not self.ready:
                    raise refusals.failed(self.turn.api, event, self.service.ctx)
                return bytes(out + self._late(event))
            self.ready = self.reply.stream and (self.ready or isinstance(event, (Prefill, Delta)))
            try:
                out += self.reply.feed(event)
                if isinstance(event, Delta) and event.finish:
                    self.over = True
                    self.body = b"" if self.reply.stream else self.reply.document()
            except Refused:
                raise
            except Exception:
                log.exception("%s: an event could not be sent", self.x.id)
                assert self.x.job is not None
                self.service.worker.abandon(self.x.job)
                if not self.ready:
                    raise refusals.internal() from None
                return bytes(out + self._late(Failed("engine", "internal error")))
        return bytes(out)

    async def _stream(self, out: bytes) -> None:
        if not out and not self.over and self.mail.loop.time() - self.spoke >= self.limits.alive_seconds:
            self.ready, out = True, self.reply.alive()
        if self.ready and not self.begun:
            self.begun = True
            await self._write(start(200, STREAM, {"cache-control": "no-cache", "server-timing": self.x.timing}))
        if out or self.over:
            await self._write({"type": "http.response.body", "body": out, "more_body": not self.over})
        if self.x.first is not None:
            self.rest = self.spoke + PACE

    async def _collect(self) -> None:
        self.spoke = self.mail.loop.time()
        if self.x.first is not None:
            self.rest = self.spoke + 10 * PACE
        for message in whole(200, JSON, self.body, {"server-timing": self.x.timing}) if self.over else ():
            await self._write(message)

    async def _write(self, message: dict[str, Any]) -> None:
        """Send an ASGI message; raises Slow if the client reads nothing for too long, Disconnected if it is gone."""
        if not await self.link.drained(self.limits.write_seconds):
            raise Slow
        if self.link.gone:
            raise Disconnected
        await self.send(message)
        self.spoke = self.mail.loop.time()

    def _late(self, failed: Failed) -> bytes:
        self.over = True
        if not self.x.finish:
            self.x.note(failed)
        return self.reply.late_error(failed)


def _or_shutdown(event: Event) -> Event:
    """Return ``event``, but a shutdown failure for a cancelled answer: its client is still there, so did not cancel."""
    if isinstance(event, Delta) and event.finish == Finish.CANCELLED:
        return Failed("shutdown", "server shutting down")
    return event


# ------------------------------------------------------------------------------------------- shared with ``plain``


async def body_of(scope: Any, receive: Any, service: Service, x: Exchange) -> bytes:
    """Receive a request's body; its size stays reserved in ``service.body_budget`` until the caller releases it.

    Raises Refused during shutdown or beyond a limit, Disconnected if the client disconnected.
    """
    if service.draining:
        raise refusals.ending()
    try:
        return await receive_body(receive, scope["state"]["headers"], service.limits, service.body_budget)
    except Refused as refused:
        # The rest of the body is still arriving: the connection cannot be reused.
        refused.headers["connection"] = "close"
        raise


@contextmanager
def translated() -> Iterator[None]:
    """Context manager that turns exceptions of an API module into Refused.

    Ds4Error and ValueError become 400 (the client's mistake); any other one, including panics of Rust libraries, is a
    bug, which is logged and answered with 500.
    """
    try:
        yield
    except Refused:
        raise
    except Ds4Error as error:
        raise Refused(400, str(error)) from None
    except (ValueError, RecursionError):
        raise Refused(400, "invalid JSON request") from None
    except BaseException as error:
        log.error("a request could not be read", exc_info=error)
        raise refusals.internal() from None


def start(status: int, kind: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the ASGI message that starts a response; ``kind``: content type."""
    fields = [(b"content-type", kind.encode())] if kind else []
    fields += [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": fields}


def whole(status: int, kind: str, body: bytes, headers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the ASGI messages of a complete response; ``kind``: content type."""
    return [
        start(status, kind, {"content-length": str(len(body)), **headers}),
        {"type": "http.response.body", "body": body},
    ]


async def respond(send: Any, refused: Refused, api: str) -> None:
    """Send the error response ``refused`` in the shape of ``api``."""
    for message in whole(refused.status, JSON, refusals.document(refused, api), refused.headers):
        await send(message)
