"""The server process: sockets, signals, graceful shutdown.

uvicorn is used as a library in this process: one process holds one model, so several workers would not help.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from ..errors import Ds4Error
from .app import create_app
from .auth import resolve
from .protocol import Protocol

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger("ds4-server")

GRACE = 5.0
"""Seconds beyond all limits after which remaining tasks are cancelled at shutdown."""

SPARE_FILES = 64
"""File descriptors reserved for other uses than connections."""


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket without listening: scripts take a successful connect for a ready server.

    Port 0 takes a free one. Raises Ds4Error if the address cannot be bound.
    """
    family, address = resolve(host)
    # asyncio sends small pieces at once (TCP_NODELAY) only on sockets that name their protocol: without it the first
    # event of a stream waits 40 ms for the acknowledgement of its headers
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        raise Ds4Error(f"cannot listen on {url(host, port)}: {error.strerror or error}") from None
    return sock


def url(host: str, port: int) -> str:
    """Return the URL of ``host`` and ``port``."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def name_of(sock: socket.socket) -> str:
    """Return the URL of a socket; the unspecified address becomes loopback."""
    host, port = sock.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return url(host, port)


def most_connections(wanted: int) -> int:
    """Return ``wanted``, bounded by the files that this process may open."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - SPARE_FILES))


class Server(uvicorn.Server):
    """uvicorn's server over one service."""

    def __init__(self, service: Service, name: str):
        self.name = name
        limits = service.limits
        config = uvicorn.Config(
            create_app(service),
            http=functools.partial(Protocol, limits=limits),  # type: ignore[arg-type]
            ws="none", lifespan="off", loop="asyncio", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, date_header=False,
        )  # fmt: skip
        super().__init__(config)
        self.service = service
        self.ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        await super().startup(sockets)
        log.info("listening on %s", self.name)
        self.ready.set()

    async def main_loop(self) -> None:
        """Wait for ``end``; nothing is polled."""
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._asked.wait()

    def end(self) -> None:
        """Ask the server to end, from any thread or a signal handler."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._asked.set)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM drains, the second ends the process at once (130)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle SIGINT or SIGTERM."""
        if self.should_exit:
            os._exit(130)
        self.end()  # before the log line: a second signal may follow it at once
        log.info("shutdown requested, draining requests")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening and answer requests in flight."""
        service, limits, state = self.service, self.service.limits, self.server_state
        service.draining = True
        for server in self.servers:
            server.close()
        drained = asyncio.ensure_future(service.drain())
        # drain() is over in drain_seconds, and what it ends is written, or given up, shortly after
        loop = asyncio.get_running_loop()
        end = loop.time() + limits.drain_seconds + limits.write_seconds + limits.linger_seconds + GRACE
        while (state.connections or state.tasks) and loop.time() < end:
            for connection in list(state.connections):  # including those just accepted
                connection.shutdown()
            await asyncio.sleep(0.005)
        for task in state.tasks:
            task.cancel()
        await drained
        service.close()


def serve(service: Service, sock: socket.socket) -> None:
    """Serve requests on ``sock`` until a signal arrives and all are answered."""
    asyncio.run(Server(service, name_of(sock)).serve([sock]))


class Background:
    """A server in a thread of this process: for tests, smoke runs, notebooks.

    with Background(service) as url: ...
    """

    def __init__(self, service: Service, host: str = "127.0.0.1"):
        self.sock = bind(host, 0)
        self.url = name_of(self.sock)
        self.server = Server(service, self.url)
        self.thread = threading.Thread(target=self._run, name="server", daemon=True)

    def _run(self) -> None:
        asyncio.run(self.server.serve([self.sock]))

    def __enter__(self) -> str:
        self.thread.start()
        self.server.ready.wait()
        return self.url

    def stop(self) -> None:
        """Drain and end."""
        self.server.end()
        self.thread.join()

    def __exit__(self, *exc: object) -> None:
        self.stop()
