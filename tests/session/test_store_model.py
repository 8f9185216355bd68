"""Sessions of a model on disk: they go on as if nothing had happened, and other engines leave them alone."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.session.boundaries import Policy
from ds4ref.session.identity import Identity
from ds4ref.session.session import Session
from ds4ref.session.store import SOURCE, Store

from .storing import here

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


def test_not_enough_memory_is_no_crash(nano: Engine, kept: Store, ids: list[int], monkeypatch, caplog) -> None:
    kept.save(at(nano, ids[:60]), (), "cold")

    def none_left(self: Session) -> None:
        raise MemoryError

    session = nano.session(CTX)
    monkeypatch.setattr(Session, "_new_cache", none_left)
    assert kept.load(session, nano.tokenizer.decode(ids)) is None
    assert len(here(kept.directory.path)) == 1


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
