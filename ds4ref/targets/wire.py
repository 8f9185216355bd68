"""Bytes as servers send them: server-sent events, and text that is cut inside a character.

A token may end inside a UTF-8 character, and there are servers that put its bytes into the answer as they are. Such
bytes travel as lone surrogates (``surrogateescape``) until it is known what they are for: ``raw_bytes`` gives a token
its own bytes back, and ``shown`` is for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import TargetError


def decoded(data: bytes) -> tuple[str, int]:
    """Text of ``data`` with every undecodable byte as a lone surrogate, and how many there are."""
    text = data.decode("utf-8", "surrogateescape")
    return text, sum("\udc80" <= c <= "\udcff" for c in text)


def raw_bytes(text: str) -> bytes:
    """The bytes behind ``text``. Halves of a surrogate pair, which JSON can hold and UTF-8 cannot, become U+FFFD."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        whole = "".join("\ufffd" if "\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" else c for c in text)
        return whole.encode("utf-8", "surrogateescape")


def shown(text: str) -> str:
    """``text`` fit for people: U+FFFD in place of what is no character."""
    return raw_bytes(text).decode("utf-8", "replace")


def events(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """The data of server-sent events from the bytes of a response, as bytes. An event without its final empty line is
    dropped, as the standard has it. TargetError for one larger than ``limit``."""
    data: list[bytes] = []
    for line in _lines(chunks, limit):
        if not line:
            if data:
                yield b"\n".join(data)
            data = []
            continue
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
            if sum(map(len, data)) > limit:
                raise TargetError(f"an event of the stream is larger than {limit >> 20} MiB")


def _lines(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Lines that end with CR LF, LF or CR, without their ends. A CR at the end of a chunk may be half of a CR LF."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        held = rest.endswith(b"\r")
        text = (rest[:-1] if held else rest).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = text.split(b"\n")
        rest += b"\r" if held else b""
        if len(rest) > limit:
            raise TargetError(f"a line of the stream is larger than {limit >> 20} MiB")
        yield from whole
    if rest == b"\r":
        yield b""
