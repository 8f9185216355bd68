"""Checkpoint files in ds4's format "KVC": a header, the key text, the session's payload, and optional sections.

    48 bytes   header (``Header``)           4 bytes   length of the key text
    key text   bytes that a prompt must begin with for the payload to be of use
    payload    the session: tokens, logits and caches (docs/explanation/model.md 12)
    "KTM"      tool map: call ids and the markup of the calls as it was generated (if flag TOOLS is set)
    "KVI"      integrity section, an extension of this project (flag OURS)

A file is named by the SHA-1 of its key text. All numbers are little endian.

The integrity section comes last because ds4 accepts and ignores bytes after the sections it knows, so ds4 can read our
files and we can read its own; a new version number would have made it reject them. The section ends with its own length
and a magic number, so that it can be found from the end of the file:

    0    "KVI", version 1             4    n, bytes of the body
    8    body: JSON, see Integrity    8+n  SHA-256 of the header (without fields updated in place) and of 0..8+n
    40+n length of the section: 48+n  44+n "IVK", version 1

Flag OURS is the last of eight bits, so that flags of later ds4 versions can use the others. A file with the flag but no
section was cut short. A file with the section but no flag was modified by a writer that does not know the section.

This module handles bytes, not sessions; ``store`` connects the two, and ``directory`` manages the files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Protocol

from ..errors import PayloadError
from ..text.protocol import DIALECTS, WHITESPACE

MAGIC, VERSION = b"KVC", 1
_HEADER = struct.Struct("<3sBBBBxIIIxxxxQQQ")
_WORD = struct.Struct("<I")
HEAD_BYTES = _HEADER.size + _WORD.size
HITS_AT, USED_AT = 12, 32

REASONS = ("unknown", "cold", "continued", "evict", "shutdown", "agent-system", "agent-session")
TOOLS, RESPONSES_VISIBLE, THINKING_VISIBLE, OURS = 0x01, 0x02, 0x04, 0x80

MAX_ID, MAX_BLOCK, MAX_IDS = 256, 512 << 20, 100_000
MAX_BODY = 1 << 20
_SECTION, _TAIL = struct.Struct("<3sBI"), struct.Struct("<I3sB")
_DIGEST = 32
BLOCK = 1 << 20


class Damaged(PayloadError):
    """A checkpoint whose bytes are not those that were written; no reader can use it."""


class Unknown(PayloadError):
    """A checkpoint of a version that this reader does not know; another reader may."""


@dataclass(frozen=True)
class Header:
    """The first 52 bytes of a checkpoint (header and length of the key text).

    quant     bits of the routed experts' weights: 2 and 4 in ds4, other numbers for formats unknown to ds4
    reason    index into REASONS
    flags     TOOLS, RESPONSES_VISIBLE, THINKING_VISIBLE, OURS
    tokens    number of tokens in the payload
    ctx       the writer's context in tokens
    created   Unix seconds
    payload   size of the payload in bytes
    text      size of the key text in bytes
    hits      number of times the checkpoint was loaded
    used      time of last use, Unix seconds
    """

    quant: int
    reason: int
    flags: int
    tokens: int
    ctx: int
    created: int
    payload: int
    text: int = 0
    hits: int = 0
    used: int = 0

    def pack(self) -> bytes:
        """Return the 52 bytes of the header."""
        head = _HEADER.pack(
            MAGIC, VERSION, self.quant, self.reason, self.flags, self.tokens, self.hits, self.ctx,
            self.created, self.used, self.payload,
        )  # fmt: skip
        return head + _WORD.pack(self.text)

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Parse the 52 bytes of a header; raise Damaged or Unknown."""
        if len(data) < HEAD_BYTES:
            raise Damaged(f"a checkpoint of {len(data)} bytes has no header")
        magic, version, quant, reason, flags, tokens, hits, ctx, created, used, payload = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise Damaged(f"not a checkpoint: starts with {magic!r} instead of {MAGIC.decode()}")
        if version != VERSION:
            raise Unknown(f"checkpoint version {version}; supported: {VERSION}")
        if not tokens or not quant:
            raise Damaged("checkpoint without tokens" if not tokens else "checkpoint of 0-bit weights")
        (text,) = _WORD.unpack_from(data, _HEADER.size)
        return cls(quant, reason, flags, tokens, ctx, created, payload, text, hits, used)

    @property
    def reason_name(self) -> str:
        """Return why the checkpoint was saved, one of the words in ``REASONS``."""
        return REASONS[self.reason] if self.reason < len(REASONS) else REASONS[0]

    @property
    def kind(self) -> str:
        """Return the origin of the key text: the decoded tokens, or the text that clients send back instead."""
        if self.flags & RESPONSES_VISIBLE:
            return "responses-visible"
        return "thinking-visible" if self.flags & THINKING_VISIBLE else "token-text"

    @property
    def end(self) -> int:
        """Return the offset of the first byte after the payload."""
        return HEAD_BYTES + self.text + self.payload

    @property
    def lasting(self) -> bytes:
        """Return the header bytes with the fields that are updated in place (hits, last use, flag OURS) blanked: the
        part that the integrity section's digest covers."""
        return replace(self, hits=0, used=0, flags=self.flags & ~OURS).pack()


def key_name(text: bytes) -> str:
    """Return the file name for a key text: its SHA-1 and the extension."""
    return hashlib.sha1(text, usedforsecurity=False).hexdigest() + ".kv"


def key(text: bytes) -> tuple[int, str]:
    """Return (length in bytes, SHA-256) of a key text, as the integrity section lists further keys."""
    return len(text), digest(text)


def digest(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


# --- the integrity section


@dataclass(frozen=True)
class Integrity:
    """The integrity section; digests are SHA-256 in hexadecimal.

    identity   settings of the engine that computed the payload (``identity.Identity.facts``); only an engine with equal
               ones loads it
    keys       further key texts (``key``): a prompt that begins with one of them can continue from the payload
    tokens     digest of the token ids as u32, to find out whether two payloads hold the same tokens
    about      further information for people
    text       digest of the key text
    payload    digest of the payload
    tools      digest of the tool map, "" if absent; the last three are filled in by ``write``
    """

    identity: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[tuple[int, str], ...] = ()
    tokens: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    payload: str = ""
    tools: str = ""

    def pack(self, header: Header) -> bytes:
        """Return the bytes of the integrity section of a file with this header."""
        body = json.dumps(vars(self), default=dict, sort_keys=True, separators=(",", ":")).encode()
        head = _SECTION.pack(b"KVI", VERSION, len(body)) + body
        seal = hashlib.sha256(header.lasting + head).digest()
        return head + seal + _TAIL.pack(len(head) + _DIGEST + _TAIL.size, b"IVK", VERSION)

    @classmethod
    def unpack(cls, data: bytes, header: Header) -> Integrity:
        """Parse an integrity section; raise Damaged, or Unknown for another version."""
        magic, version, size = _SECTION.unpack_from(data)
        if magic == b"KVI" and version != VERSION:
            raise Unknown(f"integrity section of version {version}; supported: {VERSION}")
        head, seal = data[: _SECTION.size + size], data[_SECTION.size + size : -_TAIL.size]
        if magic != b"KVI" or seal != hashlib.sha256(header.lasting + head).digest():
            raise Damaged("header and integrity section do not match")
        try:
            fields = json.loads(head[_SECTION.size :])
            keys = tuple((int(length), str(sha)) for length, sha in fields["keys"])
            identity, about = ({str(k): str(v) for k, v in fields[name].items()} for name in ("identity", "about"))
            tokens, text, payload, tools = (str(fields[name]) for name in ("tokens", "text", "payload", "tools"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Damaged(f"integrity section: {type(error).__name__}: {error}") from None
        return cls(identity, keys, tokens, about, text, payload, tools)


def _read_integrity(file: BinaryIO, header: Header, size: int) -> tuple[Integrity | None, int]:
    """Return the integrity section and its offset, or None and the file's size if there is none."""
    room = size - header.end
    if room >= _SECTION.size + _DIGEST + _TAIL.size:
        length, magic, version = _TAIL.unpack(_read_at(file, size - _TAIL.size, _TAIL.size))
        if magic == b"IVK":
            if version != VERSION:
                raise Unknown(f"integrity section of version {version}; supported: {VERSION}")
            if not _SECTION.size + _DIGEST + _TAIL.size <= length <= min(room, MAX_BODY + 64):
                raise Damaged(f"integrity section of {length} bytes, but only {room} bytes left in the file")
            return Integrity.unpack(_read_at(file, size - length, length), header), size - length
    if header.flags & OURS:
        raise Damaged("no integrity section: the file is truncated")
    return None, size


def _read_at(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    data = file.read(size)
    if len(data) != size:
        raise Damaged(f"truncated file: {size} bytes expected at {at}")
    return data


# --- a whole file


@dataclass(frozen=True)
class Checkpoint:
    """The checked metadata of a checkpoint file: its sizes fit, and header and integrity section belong together.

    The payload has not been read. ``tools_end`` is the offset of the first byte after the tool map.
    """

    header: Header
    integrity: Integrity | None
    tools_end: int
    size: int

    @property
    def identity(self) -> Mapping[str, str]:
        """Return the settings of the engine that computed the session; empty for ds4's own files, which do not record
        them."""
        return {} if self.integrity is None else self.integrity.identity

    def text(self, file: BinaryIO) -> bytes:
        """Read the key text; raise Damaged if its digest differs."""
        text = _read_at(file, HEAD_BYTES, self.header.text)
        if self.integrity is not None and digest(text) != self.integrity.text:
            raise Damaged("checksum mismatch in the key text")
        return text

    def payload(self, file: BinaryIO) -> Payload:
        """Return a stream of the payload, which raises Damaged at its end if the digest differs."""
        file.seek(HEAD_BYTES + self.header.text)
        return Payload(file, self.header.payload, None if self.integrity is None else self.integrity.payload)

    def tools(self, file: BinaryIO) -> list[tuple[bytes, bytes]]:
        """Return the tool map as (call id, the tool-call block in which it occurs, as generated) pairs.

        Of a damaged map return the entries before the damage in ds4's files, and none in files with an integrity
        section.
        """
        if not self.header.flags & TOOLS:
            return []
        span = self.tools_end - self.header.end
        if self.integrity is None:
            file.seek(self.header.end)
            return list(_tool_entries(file, span))
        if span > MAX_BLOCK:
            return []
        data = _read_at(file, self.header.end, span)
        if digest(data) != self.integrity.tools:
            return []
        return list(_tool_entries(io.BytesIO(data), span))


def examine(file: BinaryIO) -> Checkpoint:
    """Read the metadata of an open file, but not its payload; raise Damaged or Unknown."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    header = Header.unpack(file.read(HEAD_BYTES))
    if header.end > size:
        raise Damaged(f"truncated file: {size} bytes instead of at least {header.end}")
    integrity, tools_end = _read_integrity(file, header, size)
    if integrity is None and header.quant not in (2, 4):
        raise Damaged(f"checkpoint of {header.quant}-bit weights")
    return Checkpoint(header, integrity, tools_end, size)


class Output(Protocol):
    """A file-like object that a checkpoint is written to."""

    def write(self, data: Any, /) -> Any: ...


class _Hashed:
    """A writer that passes bytes on to ``output``, while hashing and counting them."""

    def __init__(self, output: Output):
        self._output, self.digest, self.count = output, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if view.nbytes:
            view = view.cast("B")
            self._output.write(view)
            self.digest.update(view)
        self.count += view.nbytes
        return view.nbytes


def write(
    output: Output,
    header: Header,
    text: bytes,
    save: Callable[[Any], None],
    tools: bytes = b"",
    integrity: Integrity | None = None,
) -> None:
    """Write a checkpoint; ``save`` is called with a file-like object to write the payload to.

    text: the key text. tools: the tool map section. Lengths, flags and digests in the header and ``integrity`` are
    filled in. Without ``integrity`` that section is left out, as in ds4's own files. Raise PayloadError if the
    payload's size is not ``header.payload``.
    """
    flags = header.flags & ~(TOOLS | OURS) | (TOOLS if tools else 0) | (0 if integrity is None else OURS)
    header = replace(header, text=len(text), flags=flags)
    output.write(header.pack())
    output.write(text)
    payload = _Hashed(output)
    save(payload)
    if payload.count != header.payload:
        raise PayloadError(f"a payload of {payload.count} bytes was announced with {header.payload}")
    output.write(tools)
    if integrity is not None:
        output.write(_filled(integrity, text, tools, payload.digest.hexdigest()).pack(header))


def _filled(integrity: Integrity, text: bytes, tools: bytes, payload: str) -> Integrity:
    return replace(integrity, text=digest(text), payload=payload, tools=digest(tools) if tools else "")


def size_of(text: bytes, payload: int, tools: bytes = b"", integrity: Integrity | None = None) -> int:
    """Return the size in bytes of the checkpoint file that ``write`` makes of these parts (``payload``: size in
    bytes)."""
    size = HEAD_BYTES + len(text) + payload + len(tools)
    if integrity is None:
        return size
    return size + len(_filled(integrity, text, tools, "0" * 64).pack(Header(2, 0, 0, 1, 1, 0, 0)))


class Payload(io.RawIOBase):
    """A stream of the next ``size`` bytes of ``file``.

    Reading to the end raises Damaged if the bytes do not have the SHA-256 ``digest``, so a reader that checks for the
    end before it trusts its input, as sessions do, never accepts damaged bytes.
    """

    def __init__(self, file: BinaryIO, size: int, digest: str | None):
        self._file, self._remaining, self._wanted, self._sha = file, size, digest, hashlib.sha256()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` and return the number of bytes read, 0 at the end."""
        view = memoryview(buffer).cast("B")[: self._remaining]
        if not self._remaining and self._wanted is not None and self._sha.hexdigest() != self._wanted:
            raise Damaged("checksum mismatch in the payload")
        if not view:
            return 0
        count = self._file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise Damaged("truncated file: incomplete payload")
        if self._wanted is not None:
            self._sha.update(view[:count])
        self._remaining -= count
        return count

    def finish(self) -> None:
        """Read the rest of the payload; raise Damaged if its digest differs."""
        while self.read(BLOCK):
            pass


# --- tool maps


def tool_map(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the tool map section for pairs of (call id, tool-call block), b"" if there are none."""
    parts = [_WORD.pack(len(call)) + _WORD.pack(len(block)) + call + block for call, block in entries]
    return b"".join([b"KTM\x01", _WORD.pack(len(parts)), *parts]) if parts else b""


def _tool_entries(file: BinaryIO, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the well-formed entries at the start of a tool map of ``size`` bytes."""
    head = file.read(8)
    if len(head) < 8 or head[:4] != b"KTM\x01":
        return
    count, size = _WORD.unpack_from(head, 4)[0], size - 8
    if count > 4 * MAX_IDS:
        return
    for _ in range(count):
        sizes = file.read(8)
        if len(sizes) < 8:
            return
        (call, block), size = struct.unpack("<II", sizes), size - 8
        if not 0 < call <= MAX_ID or not 0 < block <= MAX_BLOCK or call + block > size:
            return
        data, size = file.read(call + block), size - call - block
        if len(data) < call + block:
            return
        yield data[:call], data[call:]


_OPENERS = re.compile(b"|".join(re.escape(tags.block_open.encode()) for tags in DIALECTS))
_CLOSERS = {tags.block_open.encode(): tags.block_close.encode() for tags in DIALECTS}
_SPACE = WHITESPACE.encode()


def blocks(text: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield the tool-call blocks in a text, each as a tuple of the spellings under which the server may remember it.

    The spellings differ in leading white space: all of it, two line feeds if it ends with them, none.
    """
    at = 0
    while (match := _OPENERS.search(text, at)) is not None:
        close = _CLOSERS[match.group()]
        end = text.find(close, match.end())
        if end < 0:
            at = match.end()
            continue
        end += len(close)
        start = len(text[at : match.start()].rstrip(_SPACE)) + at
        bare = text[match.start() : end]
        lead = (b"\n\n" + bare,) if text[start : match.start()].endswith(b"\n\n") else ()
        yield tuple(dict.fromkeys((text[start:end], *lead, bare)))
        at = end


def read_through(file: BinaryIO, name: str = "") -> Checkpoint:
    """Check everything in a file that can be checked without a model, its name included; raise Damaged or Unknown."""
    checkpoint = examine(file)
    text = checkpoint.text(file)
    if name and key_name(text) != name.lower():
        raise Damaged("file name does not match the key text")
    checkpoint.payload(file).finish()
    if checkpoint.integrity is not None:
        tools = _read_at(file, checkpoint.header.end, checkpoint.tools_end - checkpoint.header.end)
        if (digest(tools) if tools else "") != checkpoint.integrity.tools:
            raise Damaged("checksum mismatch in the tool map")
    return checkpoint


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a checkpoint for reading; refuse symbolic links."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    return open(fd, "rb", buffering=0)
