"""Limits on requests; receiving, decompressing and measuring a body within them.

uvicorn and Starlette limit neither the size of a body nor the time it takes to arrive. ``protocol`` limits connections,
this module limits bodies. A body is refused as soon as its length is known, decompressed no further than the limit, and
measured before parsing, since a million brackets already exhaust a JSON parser.
"""

from __future__ import annotations

import asyncio
import importlib
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    depth            nesting of a JSON document, including the document itself
    values           number of values in a JSON document
    containers       number of arrays and objects in a JSON document, which cost more than other values
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
    depth: int = 257
    values: int = 1_000_000
    containers: int = 200_000


class BodyBudget:
    """Counter of the bytes of request bodies in memory. Not thread-safe: used by the event loop only."""

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
    """Receive a request's body; its length stays reserved in ``budget``, unless Refused or Disconnected is raised.

    A too large Content-Length is refused before any byte is read, and before ``100 Continue`` is sent.
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


def _deflate(data: bytes) -> Any:
    # "deflate" means zlib's format; some clients send the bare one.
    framed = len(data) >= 2 and data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if framed else -zlib.MAX_WBITS)


def _zstd() -> Callable[[bytes], Any] | None:
    try:
        module = importlib.import_module("compression.zstd")  # from Python 3.14 on
    except ImportError:
        return None
    return lambda data: module.ZstdDecompressor()


CODINGS: dict[str, Callable[[bytes], Any]] = {
    "gzip": lambda data: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "x-gzip": lambda data: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "deflate": _deflate,
}
"""Constructors of decompressors by content coding; each has ``decompress(data, most)``, ``eof`` and ``unused_data``."""

if (_found := _zstd()) is not None:
    CODINGS["zstd"] = _found


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
        undo = CODINGS[name](data)
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


# -------------------------------------------------------------------------------------------------- before parsing

_CHUNK = 1 << 20
_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE, _CASE = b'"\\,{} '  # [ and ] are { and } without the bit that makes capitals


def measure(data: bytes) -> tuple[int, int, int]:
    """Return (depth, values, containers) of JSON text without parsing it.

    depth        nesting of arrays and objects
    values       approximate number of values (commas and opening brackets)
    containers   number of arrays and objects

    The result for invalid JSON is arbitrary, since its parser will reject it. Linear in time, constant in memory; works
    in chunks, so that other threads can run.
    """
    level = deepest = commas = containers = 0
    inside, slashes_before = False, 0
    for at in range(0, len(data), _CHUNK):
        text = np.frombuffer(data, np.uint8, min(_CHUNK, len(data) - at), at)
        quotes = text == _QUOTE
        slashes = text == _BACKSLASH
        if slashes_before or slashes.any():
            slashes_before = _drop_escaped(quotes, slashes, slashes_before)
        parity = np.cumsum(quotes, dtype=np.uint8) & 1  # wraps around, which leaves it even or odd
        outside = parity == inside
        inside ^= bool(parity[-1])
        folded = text | _CASE
        opens, closes = (folded == _OPEN) & outside, (folded == _CLOSE) & outside
        levels = np.cumsum(opens.astype(np.int8) - closes, dtype=np.int32)
        deepest = max(deepest, level + int(levels.max()))
        level += int(levels[-1])
        containers += int(opens.sum())
        commas += int(((text == _COMMA) & outside).sum())
    return deepest, commas + containers + 1, containers


def _drop_escaped(quotes: np.ndarray, slashes: np.ndarray, before: int) -> int:
    """Clear the ``quotes`` that follow an odd run of backslashes; return the length of the run that ends this chunk.

    ``before``: backslashes at the end of the chunk before.
    """
    places = np.flatnonzero(slashes)
    if not len(places) or places[0] != 0:
        quotes[0] &= before % 2 == 0
        before = 0
    if not len(places):
        return 0
    breaks = np.flatnonzero(np.diff(places) != 1)
    starts, ends = places[np.append(0, breaks + 1)], places[np.append(breaks, len(places) - 1)]
    runs = ends - starts + 1
    runs[0] += before
    escaped = ends[runs % 2 == 1] + 1
    quotes[escaped[escaped < len(quotes)]] = False
    return int(runs[-1]) if ends[-1] == len(quotes) - 1 else 0


def check_json(data: bytes, limits: Limits) -> None:
    """Raise Refused (400) if JSON text exceeds the limits on nesting or number of values."""
    openers = data.count(b"[") + data.count(b"{")
    if openers <= limits.depth and openers + data.count(b",") < limits.values:
        return  # even if none of them is inside a string
    depth, values, containers = measure(data)
    if depth > limits.depth:
        raise Refused(400, f"JSON nested more than {limits.depth - 1} deep")
    if values > limits.values or containers > limits.containers:
        raise Refused(400, f"JSON of more than {limits.values} values, or {limits.containers} arrays and objects")
