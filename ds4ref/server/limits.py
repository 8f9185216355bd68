"""Limits on requests; receiving, decompressing and measuring a body within them.

uvicorn and Starlette limit neither the size of a body nor the time it takes to arrive. ``protocol`` limits connections,
this module limits bodies. A body is refused as soon as its length is known, decompressed no further than the limit, and
its JSON values are counted before parsing, since millions of them would exhaust a JSON parser. The depth of nesting is
limited by the parsers themselves.
"""

from __future__ import annotations

import asyncio
import importlib
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .api import Refused

Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Limits:
    """Limits on connections and requests; times in seconds, sizes in bytes.

    header_seconds   time to receive the headers, from the connection's start or a later request's first byte
    body_seconds     time to receive the body, after the headers
    idle_seconds     how long a keep-alive connection may stay without a request
    write_seconds    how long a client may read nothing of its answer
    alive_seconds    silence in a stream before a keep-alive is sent
    linger_seconds   how long received bytes are still read and discarded after closing
    drain_seconds    time for the running turn to finish at shutdown
    header_bytes     request line and headers together
    headers          number of headers
    target_bytes     length of the request path
    body_bytes       size of a body, before and after decompression
    held_bytes       total size of all bodies being received or parsed
    pipelined_bytes  size of requests sent before the previous one is answered
    connections      number of open connections; beyond it, the one idle for longest is closed
    values           number of values in a JSON document: commas and opening brackets
    """

    header_seconds: float = 10.0
    body_seconds: float = 60.0
    idle_seconds: float = 75.0
    write_seconds: float = 2.0
    alive_seconds: float = 5.0
    linger_seconds: float = 1.0
    drain_seconds: float = 30.0
    header_bytes: int = 64 << 10
    headers: int = 128
    target_bytes: int = 8 << 10
    body_bytes: int = 64 << 20
    held_bytes: int = 256 << 20
    pipelined_bytes: int = 64 << 10
    connections: int = 512
    values: int = 1_000_000


class BodyBudget:
    """Counter of the bytes of all request bodies in memory, at most ``limit``. Not thread-safe: for the event loop."""

    def __init__(self, limit: int):
        self.limit, self.bytes = limit, 0

    def take(self, nbytes: int) -> None:
        """Reserve ``nbytes``; raises Refused (503) beyond the limit."""
        if self.bytes + nbytes > self.limit:
            raise Refused(503, "too much is being received at once", headers={"retry-after": "1"})
        self.bytes += nbytes

    def give(self, nbytes: int) -> None:
        """Release ``nbytes`` reserved by ``take``."""
        self.bytes -= nbytes


class Disconnected(Exception):
    """Raised when the client has disconnected."""


async def receive_body(receive: Receive, headers: Mapping[str, str], limits: Limits, budget: BodyBudget) -> bytes:
    """Receive a request's body; its length stays reserved in ``budget``, unless an exception is raised.

    Raises Refused beyond a limit, Disconnected if the client disconnected. A too large Content-Length is refused before
    any byte is read, and before ``100 Continue`` is sent.
    """
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.body_bytes:
        raise too_large(limits)
    body, taken = bytearray(), 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            more = message.get("body", b"")
            if len(body) + len(more) > limits.body_bytes:
                raise too_large(limits)
            budget.take(len(more))
            taken += len(more)
            body += more
            if not message.get("more_body", False):
                return bytes(body)
    except (Refused, Disconnected, asyncio.CancelledError):
        budget.give(taken)
        raise


def too_large(limits: Limits) -> Refused:
    """Return the error for a body larger than ``limits.body_bytes``."""
    return Refused(413, f"the request body is larger than {limits.body_bytes} bytes")


# ------------------------------------------------------------------------------------------------ compressed bodies


CODINGS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "deflate": lambda: zlib.decompressobj(),
}
"""Constructors of decompressors by content coding. Each has ``decompress(data, max_length)``, ``eof``,
``unused_data``."""

with suppress(ImportError):
    _zstd = importlib.import_module("compression.zstd")  # from Python 3.14 on
    CODINGS["zstd"] = lambda: _zstd.ZstdDecompressor()


def inflate(data: bytes, coding: str, limits: Limits) -> bytes:
    """Return ``data`` decompressed from the content coding ``coding``.

    Raises Refused: 415 for an unknown coding or several of them, 413 beyond the size limit (decompression stops there),
    400 for damaged data.
    """
    name = coding.strip().lower()
    if name in ("", "identity"):
        return data
    if name not in CODINGS:
        known = ", ".join(CODINGS)
        raise Refused(415, f"Content-Encoding: choose from {known}", headers={"accept-encoding": known})
    try:
        undo = CODINGS[name]()
        out = undo.decompress(data, limits.body_bytes + 1)
    except Exception:  # each library has an error of its own
        raise Refused(400, f"the request body is not {name}") from None
    if len(out) > limits.body_bytes:
        raise too_large(limits)
    if not undo.eof:
        raise Refused(400, f"the request body ends inside its {name} data")
    if undo.unused_data:
        raise Refused(400, f"the request body goes on after its {name} data")
    return out


def check_json(data: bytes, limits: Limits) -> None:
    """Raise Refused (400) if JSON text may have more values than the limit.

    Counts commas and opening brackets, also those inside strings.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") >= limits.values:
        raise Refused(400, f"JSON of more than {limits.values} values")
