"""Keeping sequences of a fake model, and finding them again."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ds4ref.session import kvc
from ds4ref.session.kvc import Header
from ds4ref.session.store import SOURCE, Store

from .fake_kv import FakeSession

TALK = b"once upon a time there was a session"


def here(path: Path) -> set[str]:
    return {name for name in os.listdir(path) if name != ".lock"}


def saved(
    kept: Store, tokens: bytes = TALK, reason: str = "cold", texts: tuple[bytes, ...] = (), ctx: int = 4096
) -> str:
    """Save a session of these tokens; the file's name."""
    assert kept.save(FakeSession(tokens, ctx), texts, reason)  # type: ignore[arg-type]
    return kvc.key_name(texts[0] if texts else tokens)


def loaded(kept: Store, text: bytes, ctx: int = 4096, **options: Any) -> bytes | None:
    """The tokens that a fresh session was brought to. It must be right or untouched."""
    session = FakeSession(b"before", ctx)
    found = kept.load(session, text, **options)  # type: ignore[arg-type]
    assert session.right
    if found is None:
        assert bytes(session.tokens) == b"before"
        return None
    assert found[1] == SOURCE
    return bytes(session.tokens)


def put(path: Path, data: bytes | bytearray) -> None:
    """A file that has been there for a while."""
    path.write_bytes(data)
    os.utime(path, (1_700_000_000, 1_700_000_000))


def change(path: Path, what: Callable[[bytearray], None]) -> None:
    """Damage a file as a disk does, without its times showing it."""
    about = os.stat(path)
    data = bytearray(path.read_bytes())
    what(data)
    path.write_bytes(data)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def flip(at: int) -> Callable[[bytearray], None]:
    return lambda data: data.__setitem__(at, data[at] ^ 0x10)


def plain(
    path: Path, tokens: bytes, text: bytes | None = None, quant: int = 2, flags: int = 0, ctx: int = 4096
) -> Path:
    """A file as ds4 writes it."""
    session, key = FakeSession(tokens, ctx), tokens if text is None else text
    output = io.BytesIO()
    kvc.write(output, Header(quant, 1, flags, len(tokens), ctx, 1, session.payload_bytes()), key, session.save)
    (path / kvc.key_name(key)).write_bytes(output.getvalue())
    return path / kvc.key_name(key)
