"""Servers for tests: real sockets on the loopback interface, in a thread.

    server      over the real worker on the embedded model
    scripted    over the real worker on an engine that says what it is told to (``scripted.py``)
    serving     makes either, with settings of one's own

Each has ``url``, ``client`` (httpx2, base URL set), ``service``, ``worker``; ``scripted`` also has ``engine``. The APIs
are all there are (``apis()``), and a small one of the tests' own at /v1/echo.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from ds4ref.server.app import apis
from ds4ref.server.constrain import guide_of
from ds4ref.server.exchange import Watcher
from ds4ref.server.limits import Limits
from ds4ref.server.listen import Background
from ds4ref.server.service import Service, Settings
from ds4ref.server.tools import Memory
from ds4ref.server.worker import Worker
from ds4ref.targets.transport import tls_context

from .echo import Echo
from .scripted import ScriptedEngine, ScriptedWorker

QUICK = Limits(drain_seconds=5.0)


class Seen(Watcher):
    """The requests under way, and those that have ended, the last first."""

    def __init__(self):
        self.live, self.ended_ones = [], []

    def event(self, x, event):
        if x not in self.live and x.ended is None:
            self.live.append(x)

    def ended(self, x):
        self.ended_ones.insert(0, x)
        self.live = [one for one in self.live if one is not x]


@dataclass
class Running:
    """A server that runs."""

    url: str
    client: httpx2.Client
    service: Service
    background: Background
    worker: Any
    engine: Any
    seen: Seen
    sockets: list[socket.socket] = field(default_factory=list)

    @property
    def address(self):
        parts = urlsplit(self.url)
        return parts.hostname, parts.port

    def connect(self, **options):
        """A socket that is connected to it."""
        sock = socket.create_connection(self.address, timeout=30)
        for name, value in options.items():
            sock.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        self.sockets.append(sock)
        return sock

    def little_room(self):
        """Connections made from now on have small buffers in the kernel, so that who does not read is soon noticed."""
        self.background.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def raw(self, *pieces, shut=False):
        """Everything that the server says to these bytes, until it closes."""
        sock = self.connect()
        for piece in pieces:
            sock.sendall(piece)
        if shut:
            sock.shutdown(socket.SHUT_WR)
        return read_all(sock)

    def ask(self, say="hi", **more):
        """The echo endpoint's answer."""
        return self.client.post("/v1/echo", json={"say": say, **more})

    def until(self, what, seconds=30.0):
        """Wait until ``what()`` is true."""
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.005)


def read_all(sock):
    """Bytes until the other side closes; a reset counts as that."""
    found = b""
    try:
        while data := sock.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def read_one(sock):
    """One response that has a length, and not a byte more: its status and body."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        data = sock.recv(1)
        assert data, f"closed after {head!r}"
        head += data
    names = dict(line.lower().split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
    body, length = b"", int(names[b"content-length"])
    while len(body) < length:
        data = sock.recv(length - len(body))
        assert data, f"closed after {body!r}"
        body += data
    return int(head.split()[1]), body


def post(path, body, *headers):
    """A POST as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextmanager
def running(worker, settings=None, trace=None, extra_apis=()):
    """A server over ``worker``."""
    service = Service(
        worker, [*apis(), Echo(), *extra_apis], settings or Settings(limits=QUICK), tools=Memory(), trace=trace
    )
    seen = Seen()
    service.watchers = (*service.watchers, seen)
    background = Background(service)
    with background as url, httpx2.Client(base_url=url, timeout=60.0, verify=tls_context(), trust_env=False) as client:
        made = Running(url, client, service, background, worker, worker.engine, seen)
        try:
            yield made
        finally:
            for sock in made.sockets:
                sock.close()
            if isinstance(worker.engine, ScriptedEngine):
                worker.engine.release()


@pytest.fixture
def serving(nano_engine):
    """``serving(limits=..., settings=..., real=False, ctx=4096, **worker)``: a server until the test ends; ``real`` may
    be an engine."""
    opened = []

    def make(*, limits=None, settings=None, real=False, ctx=4096, trace=None, extra_apis=(), chunk=None, **worker):
        settings = settings or Settings()
        settings = replace(settings, limits=limits or QUICK)
        worker.setdefault("constrain", guide_of)
        worker.setdefault("streams", 1)  # so that it is known who runs and who waits; ``test_streams`` has several
        if real:
            made = Worker(nano_engine if real is True else real, ctx=ctx, **worker)
        else:
            engine = ScriptedEngine(nano_engine.tokenizer, *([chunk] if chunk else []))
            made = ScriptedWorker(engine, ctx=ctx, **worker)
        context = running(made, settings, trace, extra_apis)
        opened.append(context)
        return context.__enter__()

    yield make
    for context in reversed(opened):
        context.__exit__(None, None, None)


@pytest.fixture
def server(serving):
    """A server on the embedded model."""
    return serving(real=True)


@pytest.fixture
def scripted(serving):
    """A server on a scripted engine."""
    return serving()
