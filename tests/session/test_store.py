"""Sessions on disk: what is found again, what is refused; and nothing that happens to a file gives a wrong answer."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from ds4ref.session import kvc
from ds4ref.session.boundaries import Policy
from ds4ref.session.kvc import Header
from ds4ref.session.store import SOURCE

from .fake_kv import FakeModel, FakeSession, Remembered, store
from .storing import TALK, here, loaded, plain, saved


def header(path: Path) -> Header:
    with kvc.open_file(path) as file:
        return kvc.examine(file).header


# --- finding and keeping


def test_the_longest_checkpoint_that_begins_the_text(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for length in (10, 20, 30):
        saved(kept, TALK[:length])
    assert loaded(kept, TALK[:25] + b"!") == TALK[:20]
    assert loaded(kept, TALK[:30]) == TALK[:30]
    assert loaded(kept, b"twice upon a time") is None


def test_a_hit_is_counted_and_the_file_stays(tmp_path: Path) -> None:
    """ds4 KV 15, K7: large ones are not deleted either."""
    now = [1_800_000_000.0]
    kept = store(tmp_path, clock=lambda: now[0], policy=Policy(min_tokens=4, cold_max=10))
    name = saved(kept)
    for hits in (1, 2, 3):
        now[0] += 60
        assert loaded(kept, TALK) == TALK
        assert (header(tmp_path / name).hits, header(tmp_path / name).used) == (hits, int(now[0]))


def test_short_sequences_are_neither_saved_nor_loaded(tmp_path: Path) -> None:
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


def test_ds4s_own_files_are_loaded(tmp_path: Path) -> None:
    kept = store(tmp_path)
    plain(tmp_path, TALK)
    plain(tmp_path, b"with thoughts", b"visible", flags=kvc.THINKING_VISIBLE)
    assert loaded(kept, TALK) == TALK and loaded(kept, b"visible text") == b"with thoughts"


def test_ds4s_own_file_whose_tokens_are_not_its_text(tmp_path: Path) -> None:
    """Another tokenizer made them: of no use here, and no damage."""
    kept = store(tmp_path)
    path = plain(tmp_path, b"other tokens", TALK)
    assert loaded(kept, TALK) is None and here(tmp_path) == {path.name}


def test_a_payload_of_another_size_is_another_models(tmp_path: Path) -> None:
    kept = store(tmp_path)
    path = plain(tmp_path, TALK)
    session = FakeSession(b"before", model=FakeModel(each=24))
    assert kept.load(session, TALK) is None and here(tmp_path) == {path.name}  # type: ignore[arg-type]
    path.unlink()
    other = FakeSession(TALK, model=FakeModel(each=24))
    assert kept.save(other, (), "cold") and kept.load(session, TALK), "another file of that name"  # type: ignore[arg-type]


@pytest.mark.parametrize("fact", ["model", "numerics", "tokenizer", "template", "engine"])
def test_what_was_computed_otherwise_is_passed_over(tmp_path: Path, fact: str) -> None:
    facts = dict.fromkeys(("model", "numerics", "tokenizer", "template", "engine"), "same")
    one, other = store(tmp_path, facts=facts), store(tmp_path, facts=facts | {fact: "another"})
    name = saved(one)
    assert loaded(other, TALK) is None and here(tmp_path) == {name}
    assert loaded(one, TALK) == TALK
    assert saved(other) == name
    assert loaded(other, TALK) == TALK and loaded(one, TALK) is None


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


def test_a_map_is_kept_although_its_calls_were_forgotten(tmp_path: Path) -> None:
    text = b"one" + BLOCK.encode()
    calls = Remembered()
    calls.blocks = {"call_x": BLOCK}
    saved(store(tmp_path, calls=calls), text)
    forgetful = store(tmp_path, calls=Remembered())
    saved(forgetful, text, "shutdown")
    saved(forgetful, text, "shutdown", (text, b"and by this"))
    assert store(tmp_path).find_calls(["call_x"]) == {"call_x": BLOCK}


def test_ids_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    session = FakeSession(TALK)
    output = io.BytesIO()
    tools = kvc.tool_map([(b"\xff", b"x"), (b"call_x", b"\xff"), (b"call_y", b"fine")])
    kvc.write(output, Header(2, 1, 0, len(TALK), 4096, 1, session.payload_bytes()), TALK, session.save, tools)
    (tmp_path / kvc.key_name(TALK)).write_bytes(output.getvalue())
    kept = store(tmp_path, calls=Remembered())
    assert loaded(kept, TALK) == TALK and kept.calls.blocks == {"call_y": "fine"}  # type: ignore[union-attr, attr-defined]
