"""Reads what servers send: server-sent events, and text in which characters may be cut in two.

A token may end inside a UTF-8 character, and some servers put its raw bytes into the answer. Such bytes are kept as
lone surrogates (``surrogateescape``): ``raw_bytes`` restores a token's bytes, and ``printable`` replaces them for
display.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import TargetError


def decoded(data: bytes) -> tuple[str, int]:
    """Decode UTF-8 with every undecodable byte as a lone surrogate; return the text and the number of such bytes."""
    text = data.decode("utf-8", "surrogateescape")
    return text, sum("\udc80" <= c <= "\udcff" for c in text)


def raw_bytes(text: str) -> bytes:
    """Return the bytes of ``text``, with those that ``decoded`` kept as lone surrogates restored.

    Other lone surrogates, which JSON can express but UTF-8 cannot, become U+FFFD.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        whole = "".join("\ufffd" if "\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" else c for c in text)
        return whole.encode("utf-8", "surrogateescape")


def printable(text: str) -> str:
    """Return ``text`` for display, with U+FFFD in place of bytes that were not UTF-8."""
    return raw_bytes(text).decode("utf-8", "replace")


def events(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Yield the data of server-sent events from the chunks of a response.

    An event without its final empty line is dropped, as the standard demands. Raise TargetError for an event larger
    than ``limit`` bytes.
    """
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
    """Yield lines without their line ends (CR LF, LF or CR), which may also be split between two chunks."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        ends_in_cr = rest.endswith(b"\r")
        text = (rest[:-1] if ends_in_cr else rest).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = text.split(b"\n")
        rest += b"\r" if ends_in_cr else b""
        if len(rest) > limit:
            raise TargetError(f"a line of the stream is larger than {limit >> 20} MiB")
        yield from whole
    if rest == b"\r":
        yield b""
