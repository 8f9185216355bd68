"""Sessions on disk that were damaged, and disks that fail: nothing wrong is ever loaded."""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ds4ref.session import kvc
from ds4ref.session.directory import Directory

from .fake_kv import FakeSession, FakeTokenizer, store
from .storing import TALK, change, flip, here, loaded, plain, put, saved

# --- damage

UNCHECKED = {7, *range(12, 16), *range(20, 24), *range(32, 40)}
"""Bytes of the header that nothing depends on: reserved ones, and what is counted up in place."""


def sound(path: Path) -> bool:
    """Whether ``ds4-kv verify`` finds nothing wrong with a file."""
    try:
        with kvc.open_file(path) as file:
            kvc.read_through(file, path.name)
    except (kvc.Damaged, kvc.Unknown):
        return False
    return True


def changes(data: bytes, ours: bool) -> Iterator[tuple[int, bytes]]:
    """A file cut at every byte, and, where digests tell, with one bit of every byte flipped."""
    for at in range(len(data)):
        yield -1, data[:at]
        if ours:
            for bit in (at % 8, 7):
                yield at, data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
    for at, value in itertools.product((40, 48), (2**31, 2**32 - 1)):  # huge sizes of payload and text
        yield -1, data[:at] + value.to_bytes(4, "little") + data[at + 4 :]


@pytest.mark.parametrize("ours", [True, False])
def test_a_file_cut_or_changed_anywhere_is_of_no_use_or_harmless(tmp_path: Path, ours: bool) -> None:
    """Never a wrong session (``loaded`` asserts it)."""
    kept = store(tmp_path)
    path = tmp_path / saved(kept, TALK[:12]) if ours else plain(tmp_path, TALK[:12])
    data = path.read_bytes()
    for at, changed in changes(data, ours):
        put(path, changed)
        harmless = at in UNCHECKED or (at == 6 and changed[6] == data[6] ^ 0x80)
        assert sound(path) == harmless
        found = loaded(store(tmp_path), TALK)
        assert (found is not None) <= harmless
        for name in here(tmp_path):
            os.unlink(tmp_path / name)


def test_what_is_damaged_is_put_aside_and_the_next_best_tried(tmp_path: Path) -> None:
    """ds4 KV 15, K2."""
    kept = store(tmp_path)
    short, long = saved(kept, TALK[:20]), saved(kept, TALK)
    change(tmp_path / long, flip(200))
    assert loaded(kept, TALK) == TALK[:20]
    assert here(tmp_path) == {short, f"{long}.bad"}
    saved(kept, TALK)
    assert loaded(kept, TALK) == TALK


def test_a_sparse_file_that_is_as_long_as_it_claims(tmp_path: Path) -> None:
    kept = store(tmp_path)
    path = plain(tmp_path, TALK)
    data = bytearray(path.read_bytes())
    data[40:48] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(data)
    try:
        os.truncate(path, 52 + len(TALK) + (1 << 40))
    except OSError:
        pytest.skip("no such large files on this file system")
    assert loaded(kept, TALK) is None


def test_payloads_that_make_no_sense_although_nothing_was_damaged(tmp_path: Path) -> None:
    """What ds4 does not notice: a payload of other tokens, and one that is no payload."""
    kept = store(tmp_path)
    path = plain(tmp_path, TALK)
    start = 52 + len(TALK)
    change(path, lambda data: data.__setitem__(slice(start, start + 4), b"JUNK"))
    assert loaded(kept, TALK) is None and here(tmp_path) == {f"{path.name}.bad"}


def test_what_vanishes_or_cannot_be_read_meanwhile(tmp_path: Path, monkeypatch) -> None:
    kept = store(tmp_path)
    short, long = saved(kept, TALK[:20]), saved(kept, TALK)
    opened = kvc.open_file

    def gone(path: Path) -> Any:
        if Path(path).name == long:
            raise FileNotFoundError(errno.ENOENT, "gone")
        return opened(path)

    kept.directory.entries()
    monkeypatch.setattr(kvc, "open_file", gone)
    assert loaded(kept, TALK) == TALK[:20]
    assert here(tmp_path) == {short, long}


def test_what_takes_a_files_place_meanwhile_is_looked_at_again(tmp_path: Path, monkeypatch) -> None:
    kept = store(tmp_path)
    name = saved(kept, b"tokens one", "evict", (b"visible", b"a way to say it"))
    matching = Directory.matching

    def slow(self: Directory, *args: Any) -> Any:
        found = matching(self, *args)
        saved(store(tmp_path), b"tokens two", "evict", (b"visible",))
        return found

    monkeypatch.setattr(Directory, "matching", slow)
    assert loaded(kept, b"a way to say it, and more") is None, "nobody says it that way any more"
    assert loaded(kept, b"visible, and more") == b"tokens two" and here(tmp_path) == {name}


def test_bugs_are_told_and_do_no_harm(tmp_path: Path, monkeypatch, caplog) -> None:
    kept = store(tmp_path)
    saved(kept)

    def broken(*args: Any, **options: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(FakeTokenizer, "decode", broken)
    with caplog.at_level(logging.ERROR):
        assert loaded(kept, TALK) is None
        assert not kept.save(FakeSession(TALK), (), "cold")  # type: ignore[arg-type]
    assert [record.message for record in caplog.records] == ["kv cache: loading", "kv cache: saving"]
