"""How much a client may ask of the server, and for how long: the figures, and the body that is received within them.

uvicorn and Starlette bound none of this (a body of any size, sent as slowly as one likes); what concerns connections is
in ``protocol``, what concerns a body is here. A body is refused as early as its length is known, inflated only as far
as it may grow, and measured before it is parsed: a parser that meets a million brackets has already lost.
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
    """Times in seconds, sizes in bytes.

    header_seconds   from a connection's start, or a later request's first byte, to the end of its headers
    body_seconds     from there to the end of its body
    idle_seconds     a connection that is kept without a request
    write_seconds    without any progress of an answer; progress starts it anew
    alive_seconds    without an event, until a stream says that it is alive
    linger_seconds   a closed connection's other side may go on sending, unread
    drain_seconds    what runs at shutdown may go on for so long
    header_bytes     request line and headers together; ``headers`` is how many, ``target_bytes`` the longest path
    body_bytes       of a body, before and after inflation
    held_bytes       of all bodies that are being received or parsed
    pipelined_bytes  of requests sent before the answer to the one before them
    connections      at once; beyond that, the one that has been slowest to ask for something makes room
    depth            of JSON: arrays and objects in each other, the document and 256 in it
    values           of JSON, in all; ``containers`` of them may be arrays and objects, which cost more to read
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


class Held:
    """Bytes of bodies in memory. Not thread-safe: the event loop's."""

    def __init__(self, limit: int):
        self.limit, self.bytes = limit, 0

    def take(self, nbytes: int) -> None:
        """Refused (503) if there is no room."""
        if self.bytes + nbytes > self.limit:
            raise Refused(503, "too much is being received at once", "server_error", headers={"retry-after": "1"})
        self.bytes += nbytes

    def give(self, nbytes: int) -> None:
        """What was taken is free again."""
        self.bytes -= nbytes


class Left(Exception):
    """The client has gone."""


async def receive_body(receive: Receive, headers: Mapping[str, str], limits: Limits, held: Held) -> bytes:
    """A request's body as it is sent, and as much of ``held`` taken as it is long. Refused, Left; nothing is held then.

    A length that is too large is refused before a byte is read, and before 100-continue is answered.
    """
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.body_bytes:
        raise too_large(limits)
    body, taken = bytearray(), 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Left
            more = message.get("body", b"")
            if len(body) + len(more) > limits.body_bytes:
                raise too_large(limits)
            held.take(len(more))
            taken += len(more)
            body += more
            if not message.get("more_body", False):
                return bytes(body)
    except (Refused, Left, asyncio.CancelledError):
        held.give(taken)
        raise


def too_large(limits: Limits) -> Refused:
    """The body is more than a body may be."""
    return Refused(413, f"the request body is larger than {limits.body_bytes} bytes", "request_too_large")


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
"""Content codings, and what undoes them: objects with ``decompress(data, most)``, ``eof`` and ``unused_data``."""

if (_found := _zstd()) is not None:
    CODINGS["zstd"] = _found


def inflate(data: bytes, coding: str, limits: Limits) -> bytes:
    """``data`` without its content coding. Refused: 415 for one that is not known (or several), 413 for what grows too
    large, of which no more than the limit is ever made, 400 for what is damaged."""
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
    """(depth, values, containers) of JSON text, without parsing it: how deep arrays and objects are nested, about how
    many values there are (commas and openers), and how many arrays and objects. Of text that is not JSON it says
    anything, and its parser will object.

    In chunks, so that other threads have their turn; linear in time, constant in memory.
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
    """Take out of ``quotes`` those behind an odd run of backslashes, of which ``before`` end the text so far; how many
    end it now."""
    found = np.flatnonzero(slashes)
    if not len(found) or found[0] != 0:
        quotes[0] &= before % 2 == 0
        before = 0
    if not len(found):
        return 0
    breaks = np.flatnonzero(np.diff(found) != 1)
    starts, ends = found[np.append(0, breaks + 1)], found[np.append(breaks, len(found) - 1)]
    runs = ends - starts + 1
    runs[0] += before
    escaped = ends[runs % 2 == 1] + 1
    quotes[escaped[escaped < len(quotes)]] = False
    return int(runs[-1]) if ends[-1] == len(quotes) - 1 else 0


def check_json(data: bytes, limits: Limits) -> None:
    """Refused (400) if JSON text is nested deeper, or has more values, than a parser should meet."""
    openers = data.count(b"[") + data.count(b"{")
    if openers <= limits.depth and openers + data.count(b",") < limits.values:
        return  # wherever they stand
    depth, values, containers = measure(data)
    if depth > limits.depth:
        raise Refused(400, f"JSON nested more than {limits.depth - 1} deep")
    if values > limits.values or containers > limits.containers:
        raise Refused(400, f"JSON of more than {limits.values} values, or {limits.containers} arrays and objects")
