"""The token program against the op-by-op pass: the same bits, in every mode, through every kind of change."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.session.session import Session


@pytest.fixture(scope="module", params=["exact", "qat", "ds4"])
def engine(request: pytest.FixtureRequest, nano_path: str) -> Engine:
    return Engine.open(nano_path, numerics=request.param)


def pair(engine: Engine, ctx: int) -> tuple[Session, Session]:
    """A session that uses programs, and one that does not because something listens."""
    fast, slow = engine.session(ctx), engine.session(ctx)
    slow.hooks = Recorder("result_norm")
    return fast, slow


def tokens(engine: Engine, count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(11).integers(0, engine.shape.vocab, count)]


def test_same_bits_token_by_token(engine: Engine) -> None:
    """From the first token until the indexer selects, buffers grow, windows of both ratios close several times."""
    fast, slow = pair(engine, 400)
    for at, token in enumerate(tokens(engine, 4 * engine.shape.index_topk + 30)):
        np.testing.assert_array_equal(fast.eval(token), slow.eval(token), err_msg=f"position {at}")


def test_same_bits_after_prefill_snapshot_restore_and_load(engine: Engine, tmp_path) -> None:
    ids = tokens(engine, 320)
    fast, slow = pair(engine, 400)
    for session in (fast, slow):
        session.sync(ids[:250])
    early = fast.snapshot(), slow.snapshot()
    for token in ids[250:300]:
        np.testing.assert_array_equal(fast.eval(token), slow.eval(token))
    for session, snapshot in zip((fast, slow), early, strict=True):
        session.restore(snapshot)
    for token in reversed(ids[270:320]):
        np.testing.assert_array_equal(fast.eval(token), slow.eval(token))
    fast.save(tmp_path / "saved")
    for session in (fast, slow):
        session.load(tmp_path / "saved")
    for token in ids[:20]:
        np.testing.assert_array_equal(fast.eval(token), slow.eval(token))


def test_thread_count_may_change(engine: Engine) -> None:
    ids, ops = tokens(engine, 40), engine.model.ops
    before = ops.threads()
    fast, slow = pair(engine, 60)
    try:
        for at, token in enumerate(ids):
            ops.set_threads(1 + at // 10 % 3)
            np.testing.assert_array_equal(fast.eval(token), slow.eval(token))
    finally:
        ops.set_threads(before)
