"""Sessions without a model, for tests of files and folders: a token is a byte, a payload follows from the tokens."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from ds4ref.errors import PayloadError, PayloadMismatch
from ds4ref.session.boundaries import Policy
from ds4ref.session.directory import Directory
from ds4ref.session.identity import Identity
from ds4ref.session.store import Store

POLICY = Policy(min_tokens=4, cold_max=30_000)


class FakeTokenizer:
    """Token i is the byte i."""

    def decode(self, ids: Sequence[int]) -> bytes:
        return bytes(ids)


class FakeModel:
    """Payloads of ``fixed`` bytes and ``each`` for every token, and what a real one has."""

    def __init__(self, fixed: int = 100, each: int = 20):
        self.fixed, self.each = fixed, each

    def saved_bytes(self, tokens: int) -> int:
        return 12 + 4 * tokens + self.fixed + self.each * tokens


def rows(tokens: Sequence[int], size: int) -> bytes:
    """What the "cache" of these tokens holds: bytes that follow from them and from nothing else."""
    return random.Random(hashlib.sha256(bytes(tokens)).digest()).randbytes(size)


class FakeSession:
    """As far as a store needs one."""

    def __init__(self, tokens: Sequence[int] = (), ctx: int = 4096, model: FakeModel | None = None):
        self.model, self.ctx = model or FakeModel(), ctx
        self.tokens = list(tokens)
        self.rows = rows(self.tokens, self.model.fixed)

    @property
    def pos(self) -> int:
        return len(self.tokens)

    @property
    def valid(self) -> bool:
        return bool(self.tokens)

    def payload_bytes(self) -> int:
        return self.model.saved_bytes(self.pos)

    def save(self, file: Any) -> None:
        file.write(struct.pack("<4sII", b"FAKE", self.ctx, self.pos))
        file.write(struct.pack(f"<{self.pos}I", *self.tokens))
        file.write(self.rows)
        for token in self.tokens:
            file.write(bytes([token]) * self.model.each)

    def load(self, file: Any, check: Callable[[list[int]], None] | None = None) -> None:
        def take(size: int) -> bytes:
            data = b""
            while len(data) < size:
                piece = file.read(size - len(data))
                if not piece:
                    raise PayloadError("the payload ends too early")
                data += piece
            return data

        magic, ctx, count = struct.unpack("<4sII", take(12))
        if magic != b"FAKE":
            raise PayloadError("not a payload")
        if ctx > self.ctx or count >= self.ctx:
            raise PayloadMismatch(f"a context of {ctx}")
        tokens = list(struct.unpack(f"<{count}I", take(4 * count)))
        if max(tokens, default=0) > 255:
            raise PayloadError("a token outside the vocabulary")
        held = take(self.model.fixed)
        take(self.model.each * count)
        if file.read(1):
            raise PayloadError("the payload does not end")
        if check is not None:
            check(tokens)
        self.tokens, self.rows = tokens, held

    @property
    def right(self) -> bool:
        """Whether what it holds is what its tokens make."""
        return self.rows == rows(self.tokens, self.model.fixed)


class Remembered:
    """Calls by their id, as a server's memory of them."""

    def __init__(self) -> None:
        self.blocks: dict[str, str] = {}

    def ids_of(self, block: str) -> list[str]:
        return [call for call, known in reversed(self.blocks.items()) if known == block]

    def restore(self, call: str, block: str) -> None:
        self.blocks[call] = block


def store(path: Any, budget: int = 1 << 30, facts: dict[str, str] | None = None, **options: Any) -> Store:
    """A store of fake sessions, its folder opened."""
    clock = options.pop("clock", None)
    directory = Directory(path, budget, clock) if clock else Directory(path, budget)
    directory.open()
    identity = Identity({"model": "fake"} if facts is None else facts, 2, {"backend": "none"})
    return Store(directory, identity, FakeTokenizer(), options.pop("policy", POLICY), **options)  # type: ignore[arg-type]
