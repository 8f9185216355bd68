"""Sessions of a model on disk: they go on as if nothing had happened, and other engines leave them alone."""

from __future__ import annotations

import io
import logging
import os
import shutil
from pathlib import Path

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

from .fake_kv import FakeSession, rows
from .storing import TALK, here, put

CTX = 1024


@pytest.fixture(scope="module")
def nano(nano_path: str) -> Engine:
    return Engine.open(nano_path)


POLICY = Policy(min_tokens=16)


def at(engine: Engine, tokens: list[int], ctx: int = CTX) -> Session:
    session = engine.session(ctx)
    session.sync(tokens)
    return session


@pytest.fixture
def kept(nano: Engine, tmp_path: Path) -> Store:
    return Store.open(nano, tmp_path, policy=POLICY)


@pytest.fixture(scope="module")
def ids(nano: Engine) -> list[int]:
    text = "What a session holds is what its tokens made of it, and nothing else. " * 20
    return nano.prompt(text)[:300]


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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_store_that_cannot_be(tmp_path: Path, nano: Engine, caplog) -> None:
    """ds4 KV 10: no folder, no checkpoints, and no request fails of it."""
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        kept = Store.open(nano, tmp_path / "file")
    assert "no checkpoints in" in caplog.text
    session = nano.session(1024)
    session.sync([5] * 600)
    assert not kept.save(session, (), "cold") and kept.load(session, b"text") is None
