"""The server process: sockets, signals, graceful shutdown.

uvicorn runs as a library in this process. There is only one process: it holds the model, and several would not be
faster.
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
"""Seconds at shutdown, beyond the sum of all other time limits, before the tasks that remain are cancelled."""

SPARE_FILES = 64
"""Number of file descriptors that connections leave free, for files and other sockets."""


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet, since scripts take a successful connect for a ready server.

    Port 0 selects a free port. Raises Ds4Error if the address cannot be bound.
    """
    family, address = resolve(host)
    # asyncio sets TCP_NODELAY only on sockets created with IPPROTO_TCP; without it the first event of a stream waits
    # 40 ms, until the client has acknowledged the headers
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except OSError as error:
        sock.close()
        raise Ds4Error(f"cannot listen on {url(host, port)}: {error.strerror or error}") from None
    return sock


def url(host: str, port: int) -> str:
    """Return the http URL of ``host`` and ``port``; IPv6 addresses in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def name_of(sock: socket.socket) -> str:
    """Return the http URL of a bound socket, with loopback for the unspecified address (0.0.0.0)."""
    host, port = sock.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return url(host, port)


def most_connections(wanted: int) -> int:
    """Return ``wanted``, reduced to what this process's limit on open files allows."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - SPARE_FILES))


class Server(uvicorn.Server):
    """A uvicorn server for one ``Service``, with graceful shutdown; ``name``: its URL, for the log."""

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
        """Start listening, and set ``ready``."""
        await super().startup(sockets)
        log.info("listening on %s", self.name)
        self.ready.set()

    async def main_loop(self) -> None:
        """Wait until ``end`` is called; replaces uvicorn's polling loop."""
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._asked.wait()

    def end(self) -> None:
        """Request shutdown; may be called from any thread or a signal handler."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._asked.set)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals: the first SIGINT, SIGTERM or SIGHUP shuts down gracefully, the second exits at once with 130.

        A SIGHUP that is ignored, as under nohup, stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle a signal: shut down gracefully, or exit at once if already shutting down."""
        if self.should_exit:
            os._exit(130)
        self.end()  # before the log line: a second signal may follow it at once
        log.info("shutdown requested, draining requests")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer the requests in progress within their limits, and close the service."""
        service, limits, state = self.service, self.service.limits, self.server_state
        service.draining = True
        for server in self.servers:
            server.close()
        drained = asyncio.ensure_future(service.drain())
        # drain() takes at most drain_seconds; the answers that it ends are written, or given up, shortly after
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
    """Serve requests on ``sock`` until SIGINT or SIGTERM, then finish the requests in progress."""
    asyncio.run(Server(service, name_of(sock)).serve([sock]))


class Background:
    """Context manager that runs a server in a thread of this process, for tests, smoke runs and notebooks.

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
        """Shut the server down gracefully, and wait for its thread."""
        self.server.end()
        self.thread.join()

    def __exit__(self, *exc: object) -> None:
        self.stop()
