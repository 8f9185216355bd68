"""A folder of checkpoints: what is found, what goes, and what several users of it do to each other."""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ds4ref.session import directory as directories
from ds4ref.session import kvc
from ds4ref.session.directory import Directory, fits, score
from ds4ref.session.kvc import Header, Integrity

NOW = 1_800_000_000
HOUR = 3600


def clock() -> float:
    return float(NOW)


def put(
    directory: Directory, text: bytes, tokens: int = 100, payload: int = 500, hits: int = 0, used: int = NOW,
    created: int = NOW, ours: bool = True, keys: tuple[bytes, ...] = (), **more: int,
) -> str:  # fmt: skip
    """A file, written past the directory, as another process would; its name."""
    header = Header(2, 1, 0, tokens, more.pop("ctx", 4096), created, payload, hits=hits, used=used)
    integrity = Integrity({"model": "m"}, tuple(map(kvc.key, keys))) if ours else None
    output = io.BytesIO()
    kvc.write(output, header, text, lambda file: file.write(bytes(payload)), b"", integrity)
    name = kvc.key_name(text)
    (directory.path / f"new-{name}").write_bytes(output.getvalue())
    os.replace(directory.path / f"new-{name}", directory.path / name)
    return name


@pytest.fixture
def folder(tmp_path: Path) -> Directory:
    made = Directory(tmp_path / "deep" / "kv", clock=clock)
    made.open()
    return made


def names(directory: Directory) -> set[str]:
    return {name for name in os.listdir(directory.path) if name != ".lock"}


def found(directory: Directory, text: bytes, usable: Callable[[kvc.Checkpoint], bool] = lambda c: True) -> list[int]:
    return [length for length, _ in directory.matching(text, usable)]


# --- finding


def test_the_folder_is_made_for_nobody_else(folder: Directory) -> None:
    assert folder.path.stat().st_mode & 0o777 == 0o700
    with folder.writing("0" * 40 + ".kv", 3) as output:
        output.write(b"abc")
    assert (folder.path / ("0" * 40 + ".kv")).stat().st_mode & 0o777 == 0o600


def test_kv_cache_lookup_uses_longest_text_prefix(folder: Directory) -> None:
    """server.md 13, 85."""
    for text in (b"once", b"once upon", b"once upon a time", b"once upon a tune", b"twice"):
        put(folder, text)
    assert found(folder, b"once upon a time there") == [16, 9, 4]
    assert found(folder, b"once upon a time") == [16, 9, 4]
    assert found(folder, b"once upon a tim") == [9, 4]
    assert found(folder, b"onc") == [] == found(folder, b"")


def test_an_empty_key_finds_nothing(folder: Directory) -> None:
    put(folder, b"", ours=False)
    assert found(folder, b"anything") == [] and len(folder.entries()) == 1


def test_names_in_capitals_count_and_others_do_not(folder: Directory) -> None:
    name = put(folder, b"text")
    os.rename(folder.path / name, folder.path / (name[:40].upper() + ".kv"))
    for other in ("sysprompt.kv", name[:39] + ".kv", name + "x", name[:40] + ".KV"):
        (folder.path / other).write_bytes(b"what")
    assert found(folder, b"text") == [4]
    assert [entry.name for entry in folder.entries()] == [name[:40].upper() + ".kv"]


def test_a_settled_folder_is_not_listed_again(folder: Directory, monkeypatch) -> None:
    put(folder, b"text")
    long_ago = os.stat(folder.path).st_mtime_ns - 3600 * 10**9
    os.utime(folder.path, ns=(long_ago, long_ago))
    assert found(folder, b"text") == [4]
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    assert found(folder, b"text") == [4] and not listed
    put(folder, b"more")
    assert found(folder, b"more") == [4] and len(listed) == 1


def test_a_folder_that_is_gone_is_empty_and_comes_back(folder: Directory) -> None:
    name = put(folder, b"text")
    for one in (name, ".lock"):
        (folder.path / one).unlink()
    folder.path.rmdir()
    assert found(folder, b"text") == [] == folder.entries()
    with folder.writing(name, 0):
        pass
    assert names(folder) == {name}


def test_only_regular_files_count(folder: Directory, tmp_path: Path) -> None:
    name = put(folder, b"text")
    os.rename(folder.path / name, tmp_path / name)
    os.symlink(tmp_path / name, folder.path / name)
    os.mkdir(folder.path / kvc.key_name(b"folder"))
    os.mkfifo(folder.path / kvc.key_name(b"pipe"))
    assert folder.entries() == [] and folder.get(name) is None


# --- scores, budget


def test_kv_cache_eviction_score_decays_stale_hits() -> None:
    """server.md 13, 89."""
    assert score(10, 2048, 1000, NOW - 14 * 6 * HOUR, 0, NOW) == 2048 / 1000
    assert score(0, 2048, 1000, NOW, NOW, NOW) == 2048 / 1000
    assert score(10, 2048, 1000, 0, NOW - 6 * HOUR, NOW) == 6 * 2048 / 1000, "age counts from the last use, or creation"
    assert score(10, 2048, 1000, 0, 0, NOW) == 2048 / 1000, "no time known: hits count for nothing"


def test_what_was_popular_yesterday_goes_before_what_is_used_now(folder: Directory) -> None:
    """A hundred hits are worth 6.25 after a day, less than a hundredth is none; of equals the longest unused goes."""
    assert score(100, 1000, 1000, NOW - 24 * HOUR, 0, NOW) == 7.25
    assert score(10, 1000, 1000, NOW - 59 * HOUR, 0, NOW) > 1 == score(10, 1000, 1000, NOW - 60 * HOUR, 0, NOW)
    stale, fresh = put(folder, b"stale", hits=100, used=NOW - 24 * HOUR), put(folder, b"fresh", hits=7)
    newer, older = (put(folder, text, hits=0, used=NOW - age) for text, age in ((b"newer", 5), (b"older", 50)))
    gone = []
    while len(names(folder)) > 1:
        folder.budget = weigh(folder) - 1
        gone += folder.make_room()
    assert gone == [older, newer, stale] and names(folder) == {fresh}


def test_kv_cache_file_size_must_fit_budget() -> None:
    """server check 83; ds4 KV 9: file and a hundredth of it."""
    text, payload = b"t" * 100, 930
    assert kvc.size_of(text, payload) == 1082 and fits(1082, 1100)
    assert not fits(kvc.size_of(text, 938), 1100) and fits(kvc.size_of(text, 937), 1100)
    assert not fits(kvc.size_of(text, 900, b"m" * 40), 1100)
    assert not fits(2**64, 2**63)


def weigh(directory: Directory) -> int:
    return sum(about.st_size for about in directory.files().values())


def test_kv_cache_eviction_protects_current_store(folder: Directory) -> None:
    """server.md 13, 87."""
    dense, sparse = put(folder, b"dense", tokens=400), put(folder, b"sparse", tokens=100)
    folder.budget = weigh(folder) - 1
    assert folder.make_room(protected=sparse) == [dense] and names(folder) == {sparse}


def test_kv_cache_eviction_does_not_protect_oversize_current_store(folder: Directory) -> None:
    """server.md 13, 88: one that is too large by itself would cost all others and still be too large."""
    small, large = put(folder, b"small"), put(folder, b"large", payload=5000, tokens=2000)
    folder.budget = folder.get(large).size - 1  # type: ignore[union-attr]
    assert folder.make_room(protected=large) == [small, large]


def test_damaged_files_go_first_and_what_nobody_knows_next(folder: Directory) -> None:
    good = put(folder, b"good", hits=0, tokens=1)
    bad, later = kvc.key_name(b"damaged") + ".bad", kvc.key_name(b"later")
    (folder.path / bad).write_bytes(bytes(700))
    data = bytearray((folder.path / good).read_bytes())
    data[3] = 9
    (folder.path / later).write_bytes(data)
    folder.budget = weigh(folder) - 1
    assert folder.make_room() == [bad]
    folder.budget = weigh(folder) - 1
    assert folder.make_room() == [later]
    assert names(folder) == {good}


def test_unused_is_longer_than_so_many_days(folder: Directory) -> None:
    put(folder, b"just used enough", used=NOW - 30 * 24 * HOUR)
    unused = put(folder, b"a second less", used=NOW - 30 * 24 * HOUR - 1)
    never = put(folder, b"never used", used=0, created=NOW - 31 * 24 * HOUR)
    assert sorted(folder.expendable(unused_days=30)) == sorted([(unused, "unused"), (never, "unused")])
    assert folder.expendable() == [] and len(names(folder)) == 3


def test_what_cannot_be_read_is_unused_since_it_was_written(folder: Directory) -> None:
    for name, since in ((put(folder, b"new"), 0), (put(folder, b"just"), 1), (old := put(folder, b"old"), 2)):
        path = folder.path / name
        data = bytearray(path.read_bytes())
        data[3] = 9  # a later version
        path.write_bytes(data)
        os.utime(path, (NOW, NOW - 30 * 24 * HOUR + 1 - since))
    assert folder.expendable(unused_days=30) == [(old, "unused")]


def test_the_file_that_is_replaced_needs_no_room_of_its_own(folder: Directory) -> None:
    other, name = put(folder, b"other", tokens=1), put(folder, b"same")
    size = folder.get(name).size  # type: ignore[union-attr]
    folder.budget = weigh(folder)
    with folder.writing(name, size) as output:
        assert names(folder) >= {other, name}, "the old one is there until the new one is"
        output.write(bytes(size))
    assert other in names(folder)


# --- writing


def test_the_file_is_synced_before_its_name_and_the_folder_after(folder: Directory, monkeypatch) -> None:
    order: list[str] = []
    fsync, rename = os.fsync, os.replace

    def synced(fd: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda a, b: order.append("rename") or rename(a, b))
    with folder.writing(kvc.key_name(b"text"), 1) as output:
        output.write(b"x")
    assert order == ["file", "rename", "folder"]


def test_using_a_file_changes_two_numbers_of_it(folder: Directory) -> None:
    name = put(folder, b"text", hits=7, used=NOW - HOUR, created=NOW - 2 * HOUR)
    before = (folder.path / name).read_bytes()
    folder.touch(name, hit=True)
    after = (folder.path / name).read_bytes()
    assert struct.unpack_from("<I", after, 12) == (8,) and struct.unpack_from("<Q", after, 32) == (NOW,)
    assert {i for i in range(len(before)) if before[i] != after[i]} <= {*range(12, 16), *range(32, 40)}
    folder.touch(name, hit=False)
    assert (folder.path / name).read_bytes() == after
    assert kvc.read_through(io.BytesIO(after), name).header == replace(
        kvc.examine(io.BytesIO(before)).header, hits=8, used=NOW
    )
    folder.touch(kvc.key_name(b"gone"), hit=True)
    (folder.path / kvc.key_name(b"short")).write_bytes(b"KVC")
    folder.touch(kvc.key_name(b"short"), hit=True)


# --- what is left behind, what is damaged


def test_left_over_files_go_when_nobody_holds_them(folder: Directory) -> None:
    name = kvc.key_name(b"text")
    left = f"{name}.tmp.12345.abcdef01"
    (folder.path / left).write_bytes(bytes(100))
    theirs = f"{name}.tmp.12345"
    (folder.path / theirs).write_bytes(bytes(100))
    with folder.writing(kvc.key_name(b"being written"), 3) as output:
        output.write(b"abc")
        other = Directory(folder.path)
        assert other.sweep() == [left]
        held = names(folder) - {theirs}
        assert len(held) == 1 and ".tmp." in held.pop()
    assert names(folder) == {theirs, kvc.key_name(b"being written")}


def test_a_damaged_file_is_put_aside_but_not_what_took_its_place(folder: Directory) -> None:
    name = put(folder, b"text")
    old = folder.get(name)
    assert old is not None
    put(folder, b"text", payload=600)
    folder.quarantine(name, old.state[:2], "damaged")
    assert names(folder) == {name}, "somebody has put a new one there"
    assert found(folder, b"text") == [4]
    new = folder.get(name)
    assert new is not None
    folder.quarantine(name, new.state[:2], "damaged")
    assert names(folder) == {f"{name}.bad"} and found(folder, b"text") == []


# --- several at once


def read_only(monkeypatch, folder: Path) -> None:
    """Nothing in the folder can be opened for writing, made, deleted or renamed."""
    really = os.open

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def guarded(path, flags, *args, **options):
        if Path(os.fsdecode(path)).is_relative_to(folder) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse()
        return really(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", guarded)
    for name in ("replace", "rename", "unlink", "mkdir"):
        monkeypatch.setattr(os, name, refuse)


def test_a_read_only_folder_is_read(folder: Directory, monkeypatch) -> None:
    name = put(folder, b"text")
    (folder.path / kvc.key_name(b"damaged")).write_bytes(b"what")
    read_only(monkeypatch, folder.path)
    other = Directory(folder.path, budget=1)
    other.open()
    assert found(other, b"text") == [4]
    other.touch(name, hit=True)
    damaged = other.get(kvc.key_name(b"damaged"))
    assert damaged is not None
    other.quarantine(damaged.name, damaged.state[:2], "damaged")
    with pytest.raises(OSError):
        other.sweep()
    with pytest.raises(OSError), other.writing(name, 1):
        pass


def test_nobody_waits_for_ever(folder: Directory, monkeypatch) -> None:
    monkeypatch.setattr(directories, "LOCK_SECONDS", 0.0)
    other = Directory(folder.path)
    put(folder, b"text")
    with folder.locked():
        with pytest.raises(TimeoutError), other.writing(kvc.key_name(b"new"), 1):
            pass
        assert found(other, b"text") == [4], "reading needs no lock"
    with other.writing(kvc.key_name(b"new"), 1) as output:
        output.write(b"x")


def test_without_locks_files_are_still_whole(folder: Directory, monkeypatch) -> None:
    monkeypatch.setattr(directories, "fcntl", None)
    put(folder, b"text")
    with folder.writing(kvc.key_name(b"new"), 1) as output:
        output.write(b"x")
    young, old = (folder.path / f"{kvc.key_name(b'text')}.tmp.{n}.aa" for n in (1, 2))
    for path in (young, old):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    assert old.name in folder.sweep() and young.exists()
