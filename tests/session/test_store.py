"""Sessions on disk: what is found again, what is refused; and nothing that happens to a file gives a wrong answer."""

from __future__ import annotations

import errno
import io
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4ref.engine import Engine
from ds4ref.session import kvc
from ds4ref.session.boundaries import Policy
from ds4ref.session.directory import Directory
from ds4ref.session.identity import Identity
from ds4ref.session.kvc import Header
from ds4ref.session.session import Session
from ds4ref.session.store import SOURCE, Store

from .fake_kv import FakeModel, FakeSession, FakeTokenizer, Remembered, rows, store

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


def header(path: Path) -> Header:
    with kvc.open_file(path) as file:
        return kvc.examine(file).header


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


# --- finding and keeping


def test_the_longest_checkpoint_that_begins_the_text(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for length in (10, 20, 30):
        saved(kept, TALK[:length])
    assert loaded(kept, TALK[:25] + b"!") == TALK[:20]
    assert loaded(kept, TALK[:30]) == TALK[:30]
    assert loaded(kept, b"twice upon a time") is None


def test_it_is_found_by_another_process(tmp_path: Path) -> None:
    saved(store(tmp_path))
    session = FakeSession()
    assert store(tmp_path).load(session, TALK + b" more") == (len(TALK), "disk-text")  # type: ignore[arg-type]


def test_what_is_written_in_the_header(tmp_path: Path) -> None:
    kept = store(tmp_path, clock=lambda: 1_800_000_000.5)
    for number, reason in enumerate(("cold", "continued", "evict", "shutdown"), 1):
        name = saved(kept, TALK[: 10 + number], reason)
        found = header(tmp_path / name)
        assert (found.reason, found.tokens, found.ctx, found.hits, found.quant) == (number, 10 + number, 4096, 0, 2)
        assert (found.created, found.used, found.kind) == (1_800_000_000, 1_800_000_000, "token-text")


def test_a_hit_is_counted_and_the_file_stays(tmp_path: Path) -> None:
    """ds4 KV 15, K7: large ones are not deleted either."""
    now = [1_800_000_000.0]
    kept = store(tmp_path, clock=lambda: now[0], policy=Policy(min_tokens=4, cold_max=10))
    name = saved(kept)
    for hits in (1, 2, 3):
        now[0] += 60
        assert loaded(kept, TALK) == TALK
        assert (header(tmp_path / name).hits, header(tmp_path / name).used) == (hits, int(now[0]))


def test_short_timelines_are_neither_saved_nor_loaded(tmp_path: Path) -> None:
    saved(store(tmp_path), b"12345")
    strict = store(tmp_path, policy=Policy(min_tokens=6))
    assert not strict.save(FakeSession(b"54321"), (), "cold")  # type: ignore[arg-type]
    assert loaded(strict, b"123456") is None and len(here(tmp_path)) == 1
    assert not strict.save(FakeSession(), (), "evict")  # type: ignore[arg-type]


def test_a_file_that_does_not_fit_the_budget_is_not_written(tmp_path: Path) -> None:
    kept = store(tmp_path)
    size = (tmp_path / saved(kept)).stat().st_size
    other = tmp_path / "other"
    assert not store(other, budget=size).save(FakeSession(TALK), (), "cold")  # type: ignore[arg-type]
    assert here(other) == set()
    assert store(other, budget=size + size // 100 + 1).save(FakeSession(TALK), (), "cold")  # type: ignore[arg-type]


def test_the_folder_never_takes_more_than_its_budget(tmp_path: Path, monkeypatch) -> None:
    kept = store(tmp_path, budget=9000)
    most = 0
    fsync = os.fsync

    def watched(fd: int) -> None:
        nonlocal most
        fsync(fd)
        most = max(most, sum(about.st_size for about in kept.directory.files().values()))

    monkeypatch.setattr(os, "fsync", watched)
    for number in range(30):
        saved(kept, TALK + bytes([number]) * (number % 7))
    assert 6000 < most <= 9000
    assert loaded(kept, TALK + bytes([29])) is not None


# --- several texts


def test_one_payload_is_found_by_what_clients_may_send(tmp_path: Path) -> None:
    kept = store(tmp_path)
    name = saved(kept, TALK, "evict", (b"without thoughts", b"as json", TALK))
    assert here(tmp_path) == {name} and name == kvc.key_name(b"without thoughts")
    assert header(tmp_path / name).kind == "thinking-visible"
    for text in (TALK, b"without thoughts", b"as json"):
        session = FakeSession()
        assert kept.load(session, text + b" more") == (len(text), SOURCE)  # type: ignore[arg-type]
        assert bytes(session.tokens) == TALK


def test_the_text_of_the_tokens_is_always_one_of_them(tmp_path: Path) -> None:
    kept = store(tmp_path)
    saved(kept, TALK, "evict", (b"without thoughts",))
    assert loaded(kept, TALK) == TALK


def test_tokens_that_do_not_fit_the_prompt_give_way_to_the_next_best(tmp_path: Path) -> None:
    kept = store(tmp_path)
    saved(kept, TALK[:10])
    saved(kept, TALK[:20])
    asked = []
    assert loaded(kept, TALK, fit=lambda tokens, known: asked.append((bytes(tokens), known)) or known < 20) == TALK[:10]
    assert asked == [(TALK[:20], 20), (TALK[:10], 10)] and len(here(tmp_path)) == 2


# --- saving again


def test_the_same_again_only_counts_as_used(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    kept = store(tmp_path, clock=lambda: now[0])
    name = saved(kept)
    before = os.stat(tmp_path / name).st_ino
    now[0] += 60
    assert saved(kept, reason="shutdown") == name
    found = header(tmp_path / name)
    assert os.stat(tmp_path / name).st_ino == before
    assert (found.used, found.hits, found.reason_name) == (int(now[0]), 0, "cold")


def test_the_same_text_with_other_thoughts_behind_it_is_replaced(tmp_path: Path) -> None:
    """ds4 KV 15, K11."""
    kept = store(tmp_path)
    saved(kept, b"visible" + b"one", "evict", (b"visible",))
    name = saved(kept, b"visible" + b"two", "evict", (b"visible",))
    assert here(tmp_path) == {name} and loaded(kept, b"visible text") == b"visibletwo"


def test_further_keys_are_added_to_those_there_are(tmp_path: Path) -> None:
    kept = store(tmp_path)
    name = saved(kept, TALK, "evict", (TALK, b"first way"))
    assert loaded(kept, TALK) == TALK
    saved(kept, TALK, "evict", (TALK, b"second way"))
    assert here(tmp_path) == {name} and header(tmp_path / name).hits == 1
    assert loaded(kept, b"first way") == loaded(kept, b"second way") == TALK


def test_files_of_a_larger_context_are_left_alone_and_replaced(tmp_path: Path) -> None:
    """ds4 KV 14.1, scenario 9; 8.1."""
    kept = store(tmp_path)
    name = saved(kept, ctx=4096)
    assert loaded(kept, TALK, ctx=2048) is None and here(tmp_path) == {name}
    saved(kept, ctx=2048)
    assert header(tmp_path / name).ctx == 2048 and loaded(kept, TALK, ctx=2048) == TALK
    saved(kept, ctx=4096)
    assert header(tmp_path / name).ctx == 2048, "the smaller one serves both"


def test_a_session_as_long_as_the_context_is_for_a_larger_one(tmp_path: Path) -> None:
    kept = store(tmp_path)
    saved(kept, TALK, ctx=len(TALK))
    assert loaded(kept, TALK, ctx=len(TALK)) is None and loaded(kept, TALK, ctx=len(TALK) + 1) == TALK


# --- ds4's own files, other engines


def plain(
    path: Path, tokens: bytes, text: bytes | None = None, quant: int = 2, flags: int = 0, ctx: int = 4096
) -> Path:
    """A file as ds4 writes it."""
    session, key = FakeSession(tokens, ctx), tokens if text is None else text
    output = io.BytesIO()
    kvc.write(output, Header(quant, 1, flags, len(tokens), ctx, 1, session.payload_bytes()), key, session.save)
    (path / kvc.key_name(key)).write_bytes(output.getvalue())
    return path / kvc.key_name(key)


def test_ds4s_own_files_are_loaded(tmp_path: Path) -> None:
    kept = store(tmp_path)
    plain(tmp_path, TALK)
    plain(tmp_path, b"with thoughts", b"visible", flags=kvc.THINKING_VISIBLE)
    assert loaded(kept, TALK) == TALK and loaded(kept, b"visible text") == b"with thoughts"


def test_ds4s_own_file_is_given_our_section_when_it_is_saved_again(tmp_path: Path) -> None:
    kept = store(tmp_path)
    path = plain(tmp_path, TALK)
    saved(kept)
    with kvc.open_file(path) as file:
        assert kvc.read_through(file, path.name).identity == {"model": "fake"}


def test_ds4s_own_file_whose_tokens_are_not_its_text(tmp_path: Path) -> None:
    """Another tokenizer made them: of no use here, and no damage."""
    kept = store(tmp_path)
    path = plain(tmp_path, b"other tokens", TALK)
    assert loaded(kept, TALK) is None and here(tmp_path) == {path.name}


@pytest.mark.parametrize(("different", "found"), [(True, TALK), (False, None)])
def test_ds4s_own_files_of_other_quants(tmp_path: Path, different: bool, found: bytes | None) -> None:
    """``--kv-cache-reject-different-quant``; ds4 KV 8.1."""
    kept = store(tmp_path, different_quant=different)
    plain(tmp_path, TALK, quant=4)
    assert loaded(kept, TALK) == found and len(here(tmp_path)) == 1


def test_a_payload_of_another_size_is_another_models(tmp_path: Path) -> None:
    kept = store(tmp_path)
    path = plain(tmp_path, TALK)
    session = FakeSession(b"before", model=FakeModel(each=24))
    assert kept.load(session, TALK) is None and here(tmp_path) == {path.name}  # type: ignore[arg-type]


@pytest.mark.parametrize("fact", ["model", "numerics", "tokenizer", "template", "engine"])
def test_what_was_computed_otherwise_is_passed_over(tmp_path: Path, fact: str) -> None:
    facts = dict.fromkeys(("model", "numerics", "tokenizer", "template", "engine"), "same")
    one, other = store(tmp_path, facts=facts), store(tmp_path, facts=facts | {fact: "another"})
    name = saved(one)
    assert loaded(other, TALK) is None and here(tmp_path) == {name}
    assert loaded(one, TALK) == TALK
    assert saved(other) == name
    assert loaded(other, TALK) == TALK and loaded(one, TALK) is None


def test_one_more_fact_is_a_difference(tmp_path: Path) -> None:
    saved(store(tmp_path, facts={"model": "m"}))
    assert loaded(store(tmp_path, facts={"model": "m", "adapter": "a"}), TALK) is None


# --- damage


def test_what_is_damaged_is_put_aside_and_the_next_best_tried(tmp_path: Path) -> None:
    """ds4 KV 15, K2."""
    kept = store(tmp_path)
    short, long = saved(kept, TALK[:20]), saved(kept, TALK)
    change(tmp_path / long, flip(200))
    assert loaded(kept, TALK) == TALK[:20]
    assert here(tmp_path) == {short, f"{long}.bad"}
    saved(kept, TALK)
    assert loaded(kept, TALK) == TALK


@pytest.mark.parametrize("ours", [True, False])
def test_cut_anywhere(tmp_path: Path, ours: bool) -> None:
    """Never a wrong session, and what cannot be used is put aside."""
    kept = store(tmp_path)
    path = tmp_path / saved(kept, TALK[:12]) if ours else plain(tmp_path, TALK[:12])
    data, whole = path.read_bytes(), 0
    for length in range(len(data)):
        put(path, data[:length])
        assert loaded(store(tmp_path), TALK) is None and here(tmp_path) == {f"{path.name}.bad"}
        os.unlink(f"{path}.bad")
        whole += 1
    assert whole == len(data) > 400


def test_any_bit_of_it(tmp_path: Path) -> None:
    kept = store(tmp_path)
    path = tmp_path / saved(kept, TALK[:12])
    data, fine = path.read_bytes(), set()
    for at in range(len(data)):
        put(path, data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        if loaded(kept, TALK) is not None:
            fine.add(at)
        else:
            for name in here(tmp_path):
                os.unlink(tmp_path / name)
    assert fine <= {7, *range(12, 16), *range(20, 24), *range(32, 40)}, "nothing depends on these"


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=60), st.integers(0, 3))
def test_overwritten_cut_out_or_put_in(tmp_path: Path, at: int, new: bytes, how: int) -> None:
    kept = store(tmp_path / "kv")
    path = tmp_path / "kv" / kvc.key_name(TALK[:12])
    if not (tmp_path / "good").exists():
        saved(kept, TALK[:12])
        path.rename(tmp_path / "good")
    data = (tmp_path / "good").read_bytes()
    at %= len(data)
    changed = (
        data[:at] + new + data[at + len(new) :],
        data[:at] + data[at + len(new) :],
        data[:at] + new + data[at:],
        data + new,
    )[how]
    put(path, changed)
    assert loaded(kept, TALK) in (None, TALK[:12])
    for name in here(tmp_path / "kv"):
        (tmp_path / "kv" / name).unlink()


@pytest.mark.parametrize("size", [2**31, 2**40, 2**63, 2**64 - 1])
def test_huge_claims(tmp_path: Path, size: int) -> None:
    kept = store(tmp_path)
    path = plain(tmp_path, TALK)
    data = bytearray(path.read_bytes())
    data[40:48] = size.to_bytes(8, "little")
    path.write_bytes(data)
    assert loaded(kept, TALK) is None


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


# --- disks that fail


def test_every_call_that_can_fail_while_saving(tmp_path: Path, monkeypatch) -> None:
    """Disk full, or worse, at the first, second, ... call: nothing is raised, nothing is left, what was there is."""
    kept = store(tmp_path)
    old = saved(kept, TALK[:20])
    before = (tmp_path / old).read_bytes()
    calls = ("write", "fsync", "replace", "open")
    counts = dict.fromkeys(calls, 0)
    for call in calls:
        for failing in range(10_000):
            seen = 0
            really = getattr(os, call)

            def maybe(*args: Any, really: Any = really, failing: int = failing, **options: Any) -> Any:
                nonlocal seen
                seen += 1
                if seen == failing + 1:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return really(*args, **options)

            with monkeypatch.context() as patched:
                patched.setattr(os, call, maybe)
                done = kept.save(FakeSession(TALK), (), "cold")  # type: ignore[arg-type]
            left = here(tmp_path)
            assert not any(".tmp." in name for name in left), (call, failing)
            assert (tmp_path / old).read_bytes() == before
            if done:
                assert loaded(kept, TALK) == TALK
            (tmp_path / kvc.key_name(TALK)).unlink(missing_ok=True)
            if seen <= failing:
                break
            counts[call] += 1
    assert counts["write"] > len(TALK) and counts["fsync"] == 2 and counts["replace"] == 1 and counts["open"] >= 4


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """The system's own error, at a size that it enforces."""
    resource = pytest.importorskip("resource", reason="needs limits on the size of files")
    kept = store(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 51, 52, 100, 300, 900):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            done = kept.save(FakeSession(TALK), (), "cold")  # type: ignore[arg-type]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not done and here(tmp_path) == set()
    assert kept.save(FakeSession(TALK), (), "cold")  # type: ignore[arg-type]


def test_a_store_that_cannot_be(tmp_path: Path, nano: Engine, caplog) -> None:
    """ds4 KV 10: no folder, no checkpoints, and no request fails of it."""
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        kept = Store.open(nano, tmp_path / "file")
    assert "no checkpoints in" in caplog.text
    session = nano.session(1024)
    session.sync([5] * 600)
    assert not kept.save(session, (), "cold") and kept.load(session, b"text") is None


# --- calls


BLOCK = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
OTHER = BLOCK.replace("look", "find")


def test_kv_tool_map_filters_by_dsml_text(tmp_path: Path) -> None:
    """server.md 13, 60."""
    calls = Remembered()
    calls.blocks = {"call_x": BLOCK, "call_z": OTHER, "call_y": BLOCK}
    kept = store(tmp_path, calls=calls)
    text = b"before" + BLOCK.encode() + b"between" + BLOCK.encode()
    path = tmp_path / saved(kept, text)
    with kvc.open_file(path) as file:
        found = kvc.read_through(file, path.name)
        assert found.tools(file) == [(b"call_y", BLOCK.encode()), (b"call_x", BLOCK.encode())]
    assert found.tools_end - found.header.end == 8 + 2 * (8 + 6 + len(BLOCK.encode()))
    assert found.header.flags & kvc.TOOLS
    assert not header(tmp_path / saved(kept, TALK)).flags & kvc.TOOLS


def test_kv_tool_map_restores_before_prompt_render(tmp_path: Path) -> None:
    """server.md 13, 61: by id, before there is a prompt to look anything up by; and all of them with their session."""
    calls = Remembered()
    calls.blocks = {"call_x": BLOCK, "call_y": OTHER}
    kept = store(tmp_path, calls=calls)
    saved(kept, b"one" + BLOCK.encode())
    saved(kept, b"two" + OTHER.encode())

    later = store(tmp_path, calls=Remembered())
    assert later.find_calls(["call_x", "call_w"]) == {"call_x": BLOCK}
    assert later.find_calls([]) == {} == later.find_calls(["call_w"])
    assert later.calls is not None and later.calls.blocks == {}  # type: ignore[attr-defined]
    assert loaded(later, b"one" + BLOCK.encode() + b"more") is not None
    assert later.calls.blocks == {"call_x": BLOCK}  # type: ignore[attr-defined]


def test_the_latest_block_of_an_id_counts(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    for number, block in enumerate((BLOCK, OTHER)):
        now[0] += 60
        calls = Remembered()
        calls.blocks = {"call_x": block}
        saved(store(tmp_path, calls=calls, clock=lambda: now[0]), b"%d" % number + block.encode())
    kept = store(tmp_path)
    assert kept.find_calls(["call_x"]) == kept.find_calls(["call_x"]) == {"call_x": OTHER}


def test_maps_are_read_once_and_files_only_for_ids_that_they_have(tmp_path: Path, monkeypatch) -> None:
    """ds4 KV 15, K5."""
    calls = Remembered()
    calls.blocks = {"call_x": BLOCK, "call_y": OTHER}
    kept = store(tmp_path, calls=calls)
    saved(kept, b"one" + BLOCK.encode())
    saved(kept, b"two" + OTHER.encode())
    saved(kept, TALK)
    opened = []
    really = kvc.open_file
    kept.find_calls(["call_w"])
    monkeypatch.setattr(kvc, "open_file", lambda path: opened.append(path) or really(path))
    assert kept.find_calls(["call_w"]) == {} and opened == []
    assert kept.find_calls(["call_x"]) == {"call_x": BLOCK} and len(opened) == 1


def test_a_map_is_kept_although_its_calls_were_forgotten(tmp_path: Path) -> None:
    text = b"one" + BLOCK.encode()
    calls = Remembered()
    calls.blocks = {"call_x": BLOCK}
    saved(store(tmp_path, calls=calls), text)
    forgetful = store(tmp_path, calls=Remembered())
    saved(forgetful, text, "shutdown")
    saved(forgetful, text, "shutdown", (text, b"and by this"))
    assert store(tmp_path).find_calls(["call_x"]) == {"call_x": BLOCK}


def test_a_map_that_is_damaged_costs_the_map_alone(tmp_path: Path) -> None:
    calls = Remembered()
    calls.blocks = {"call_x": BLOCK}
    text = b"one" + BLOCK.encode()
    path = tmp_path / saved(store(tmp_path, calls=calls), text)
    change(path, flip(header(path).end + 40))
    later = store(tmp_path, calls=Remembered())
    assert later.find_calls(["call_x"]) == {}
    assert loaded(later, text) == text and later.calls.blocks == {}  # type: ignore[union-attr, attr-defined]


def test_ids_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    session = FakeSession(TALK)
    output = io.BytesIO()
    tools = kvc.tool_map([(b"\xff", b"x"), (b"call_x", b"\xff"), (b"call_y", b"fine")])
    kvc.write(output, Header(2, 1, 0, len(TALK), 4096, 1, session.payload_bytes()), TALK, session.save, tools)
    (tmp_path / kvc.key_name(TALK)).write_bytes(output.getvalue())
    kept = store(tmp_path, calls=Remembered())
    assert loaded(kept, TALK) == TALK and kept.calls.blocks == {"call_y": "fine"}  # type: ignore[union-attr, attr-defined]


# --- with a model

CTX = 1024


@pytest.fixture(scope="module")
def nano(nano_path: str) -> Engine:
    return Engine.open(nano_path)


@pytest.fixture(scope="module")
def ids(nano: Engine) -> list[int]:
    text = "What a session holds is what its tokens made of it, and nothing else. " * 20
    return nano.prompt(text)[:300]


POLICY = Policy(min_tokens=16)


def at(engine: Engine, tokens: list[int], ctx: int = CTX) -> Session:
    session = engine.session(ctx)
    session.sync(tokens)
    return session


@pytest.fixture
def kept(nano: Engine, tmp_path: Path) -> Store:
    return Store.open(nano, tmp_path, policy=POLICY)


def test_a_session_goes_on_as_if_nothing_had_happened(nano: Engine, kept: Store, ids: list[int]) -> None:
    session, other = at(nano, ids[:200]), at(nano, ids[50:90])
    assert kept.save(session, (), "cold")
    text = nano.tokenizer.decode(ids)
    again = Store.open(nano, kept.directory.path, policy=POLICY)
    assert again.load(other, text) == (len(nano.tokenizer.decode(ids[:200])), SOURCE)
    assert other.tokens == ids[:200]
    np.testing.assert_array_equal(other.logits, session.logits)
    for token in ids[200:210]:
        np.testing.assert_array_equal(other.eval(token), session.eval(token))
    session.sync(ids[:300])
    other.sync(ids[:300])
    np.testing.assert_array_equal(other.logits, session.logits)


def test_the_identity_of_an_engine(nano: Engine, nano_path: str, tmp_path: Path) -> None:
    """Everything that numbers or tokens depend on; backend and threads are float noise."""
    mine = Identity.of(nano)
    assert mine.quant == 2 and mine.about["experts"] == "IQ2_XXS"
    assert mine.differs({}) == "" == mine.differs(mine.facts)
    assert mine.differs(Identity.of(Engine.open(nano_path, backend="reference")).facts) == ""
    assert mine.differs(Identity.of(Engine.open(nano_path, numerics="ds4")).facts) == "numerics"
    assert mine.differs(Identity.of(Engine.open(nano_path, split="ds4")).facts) == "tokenizer"
    other = tmp_path / "other.gguf"
    shutil.copyfile(nano_path, other)
    with open(other, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    assert mine.differs(Identity.of(Engine.open(other)).facts) == "model"


def test_a_template_that_renders_otherwise_is_another_one(monkeypatch) -> None:
    from ds4ref.session import identity
    from ds4ref.text import chat

    before = identity.template_digest()
    assert before == identity.template_digest()
    monkeypatch.setattr(chat, "MAX_PREFIX", "Think. ")
    assert identity.template_digest() != before


@pytest.mark.parametrize("other", [{"numerics": "exact"}, {"split": "ds4"}])
def test_other_engines_leave_each_others_files_alone(
    nano_path: str, kept: Store, nano: Engine, ids: list[int], other: dict[str, str]
) -> None:
    kept.save(at(nano, ids[:60]), (), "cold")
    engine = Engine.open(nano_path, **other)  # type: ignore[arg-type]
    session = engine.session(CTX)
    theirs = Store.open(engine, kept.directory.path, policy=POLICY)
    assert theirs.load(session, nano.tokenizer.decode(ids)) is None and not session.tokens
    assert len(here(kept.directory.path)) == 1
    assert kept.load(nano.session(CTX), nano.tokenizer.decode(ids)) is not None


def test_a_small_context_has_another_payload(nano: Engine, kept: Store, ids: list[int]) -> None:
    """ds4 KV 3: the writer's prefill cap is min(ctx, 2048), and must be the reader's."""
    kept.save(at(nano, ids[:60]), (), "cold")
    session = nano.session(4096)
    assert kept.load(session, nano.tokenizer.decode(ids)) is None and not session.tokens
    assert len(here(kept.directory.path)) == 1
    assert kept.load(nano.session(CTX), nano.tokenizer.decode(ids)) is not None


def test_ds4s_file_of_a_real_session(nano: Engine, kept: Store, ids: list[int]) -> None:
    session, text = at(nano, ids[:60]), nano.tokenizer.decode(ids[:60])
    output = io.BytesIO()
    kvc.write(output, Header(2, 1, 0, 60, CTX, 1, session.payload_bytes()), text, session.save)
    (kept.directory.path / kvc.key_name(text)).write_bytes(output.getvalue())
    other = nano.session(CTX)
    assert kept.load(other, text + b" and more") == (len(text), SOURCE)
    np.testing.assert_array_equal(other.logits, session.logits)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**9), st.integers(0, 7), st.booleans())
def test_a_real_payload_damaged_anywhere(
    nano: Engine, good: tuple[Path, Session], tmp_path: Path, at_byte: int, bit: int, cut: bool
) -> None:
    source, session = good
    tokens, logits, data = session.tokens, session.logits.copy(), source.read_bytes()
    at_byte %= len(data)
    damaged = data[:at_byte] if cut else bytearray(data)
    if isinstance(damaged, bytearray):
        damaged[at_byte] ^= 1 << bit
    put(tmp_path / source.name, damaged)
    kept = Store(Directory(tmp_path), Identity.of(nano), nano.tokenizer, POLICY)
    text = nano.tokenizer.decode(tokens) + b" and more"
    if kept.load(session, text) is None:
        (name,) = here(tmp_path)
        assert name == f"{source.name}.bad" or at_byte == 3 or data[at_byte : at_byte + 8].find(b"IVK") >= 0
        (tmp_path / name).unlink()
    else:
        assert not cut and at_byte in {6, 7, *range(12, 16), *range(20, 24), *range(32, 40)}
    assert session.tokens == tokens
    np.testing.assert_array_equal(session.logits, logits)


@pytest.fixture(scope="module")
def good(nano: Engine, ids: list[int], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Session]:
    """A checkpoint, and the session that it is of."""
    folder, session = tmp_path_factory.mktemp("good"), at(nano, ids[:60])
    assert Store.open(nano, folder, policy=POLICY).save(session, (), "cold")
    return folder / kvc.key_name(nano.tokenizer.decode(ids[:60])), session


def test_not_enough_memory_is_no_crash(nano: Engine, kept: Store, ids: list[int], monkeypatch, caplog) -> None:
    kept.save(at(nano, ids[:60]), (), "cold")

    def none_left(self: Session) -> None:
        raise MemoryError

    session = nano.session(CTX)
    monkeypatch.setattr(Session, "_new_cache", none_left)
    assert kept.load(session, nano.tokenizer.decode(ids)) is None
    assert len(here(kept.directory.path)) == 1


def test_fakes_are_as_strict_as_sessions() -> None:
    """What the tests above rely on."""
    session = FakeSession(TALK)
    data = io.BytesIO()
    session.save(data)
    assert len(data.getvalue()) == session.payload_bytes() and session.right
    assert rows(b"a", 10) != rows(b"b", 10)
    other = replace_rows(data.getvalue())
    loaded_session = FakeSession()
    loaded_session.load(io.BytesIO(other))
    assert not loaded_session.right


def replace_rows(data: bytes) -> bytes:
    at = 12 + 4 * len(TALK) + 5
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
