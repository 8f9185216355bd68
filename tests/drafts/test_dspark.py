"""Drafts of a DSpark drafter in a session: what the model's passes leave for it, and what becomes of it when the
sequence changes. The text stays the same: ``test_exact.py``; the drafter itself: ``tests/archs/test_dspark.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.hooks import Recorder
from ds4ref.drafts.dspark import DSpark
from ds4ref.drafts.estimates import Acceptance
from ds4ref.engine import Engine
from ds4ref.engine_options import Drafting
from ds4ref.errors import UsageError
from ds4ref.nano import dspark_path, mtp_path
from ds4ref.session.together import Together

CTX, LONG, BLOCK = 1024, 400, 5


@pytest.fixture(scope="module", params=["exact", "ds4"])
def engine(request: pytest.FixtureRequest, trained_path: str) -> Iterator[Engine]:
    drafts = Drafting("dspark", dspark_path(), depth=BLOCK)
    with Engine.open(trained_path, numerics=request.param, threads=1, drafts=drafts) as engine:
        yield engine


@pytest.fixture(scope="module")
def tokens(engine: Engine) -> list[int]:
    return [1 + (7 * i + i // 11) % 900 for i in range(LONG)]


@pytest.fixture(scope="module")
def wanted(engine: Engine, tokens: list[int]) -> np.ndarray:
    """The means (T, layers, D) of all streams, by hooks."""
    recorder = Recorder("hc_ffn_post")
    session = engine.session(CTX)
    session.hooks = recorder
    session.sync(tokens)
    return np.stack([recorder["hc_ffn_post", layer].mean(1) for layer in range(engine.shape.n_layers)], 1)


def means(session: Any, start: int = 0) -> tuple[int, np.ndarray]:
    return session._cache.means(start)


def source(session: Any) -> DSpark:
    (draft,) = session.speculation.drafts
    return draft


def test_passes_of_all_kinds_leave_the_means_of_the_newest_positions(
    engine: Engine, tokens: list[int], wanted: np.ndarray
) -> None:
    """A prompt in one chunk, in chunks, and tokens decoded in passes of six with drafts taken back; two sequences in
    one pass. Rounding modes differ by what chunks round."""
    whole, single, other = (engine.session(CTX) for _ in range(3))
    whole.sync(tokens)
    first, values = means(whole)
    size = engine.shape.window + 64
    assert (first, len(values)) == (LONG - size, size)
    single.sync(tokens[:50], chunk=17)
    other.sync(tokens[:60])
    for at in range(50, 300):
        Together(engine.model).look_ahead([(single, tokens[at]), (other, tokens[at])])
        single.append(tokens[at])
        other.append(tokens[at])
    for token in tokens[300:]:
        single.append(token)
    to = 1e-4 if engine.options.numerics == "exact" else 0.2
    for session in (whole, single):
        first, values = means(session)
        assert np.abs(values - wanted[first:LONG]).max() < to * np.abs(wanted).max()
    assert means(single)[0] >= LONG - size and len(means(single)[1]) >= engine.shape.window


def test_only_what_is_asked_for_and_known_is_returned(engine: Engine, tokens: list[int]) -> None:
    session = engine.session(CTX)
    assert means(session)[0] == 0 and means(session)[1].shape == (0, engine.shape.n_layers, engine.shape.dim)
    session.sync(tokens[:40])
    assert means(session, 38)[0] == 38 and len(means(session, 38)[1]) == 2
    assert means(session, 40)[0] == 40 and len(means(session, 41)[1]) == 0
    kept = session.snapshot()
    session.append(5)
    session.restore(kept)
    assert means(session)[0] == 40  # snapshots have none
    session.append(5)
    assert means(session)[0] == 40 and len(means(session)[1]) == 1


def test_a_draft_does_not_depend_on_how_its_rows_came_about(engine: Engine, tokens: list[int]) -> None:
    """Read one by one, several at a time, after a gap, after a rewind: the block of a drafter that reads all at
    once."""
    session, fresh = engine.session(CTX), DSpark(engine.drafts.drafter)  # type: ignore[union-attr,arg-type]
    session.sync(tokens[:100])
    for end in range(100, 180):
        if end % 7 and not 130 < end < 140:
            source(session).propose([*tokens[:end], tokens[end]], None, BLOCK)
        session._settle()
        session._decoder.run([tokens[end]])  # no drafts asked for
        session._tokens.append(tokens[end])
        if end == 150:
            source(session).propose(tokens[:152], None, BLOCK)
            session._cache_ahead.rewind(140)
            session._tokens = session._tokens[:140]
            session._truncated(140)
            for token in tokens[140:151]:
                session._decoder.run([token])
                session._tokens.append(token)
    fresh.attach(session._cache_ahead)
    drafts = [one.propose(tokens[:181], None, BLOCK) for one in (source(session), fresh)]
    assert drafts[0] == drafts[1] and len(drafts[0]) == BLOCK
    # in mode ds4 a chunk's inputs can round to other integers than a single token's
    rtol = 1e-4 if engine.model.numerics.name == "exact" else 1e-2
    np.testing.assert_allclose(source(session).chances, fresh.chances, rtol=rtol)


def test_a_draft_ends_before_the_first_unlikely_token(engine: Engine, tokens: list[int]) -> None:
    session = engine.session(CTX)
    session.sync(tokens[:70])
    draft = source(session)
    whole = draft.propose(tokens[:71], None, BLOCK)
    chances = list(draft.chances)
    assert len(whole) == len(chances) == BLOCK and min(chances) < max(chances)
    least = sorted(chances)[1]
    draft.least = np.nextafter(least, 1)
    cut = draft.propose(tokens[:71], None, BLOCK)
    assert cut == whole[: next(i for i, chance in enumerate(chances) if chance <= least)]
    assert draft.propose(tokens[:71], None, 2) == cut[:2]


@pytest.mark.parametrize(("kind", "other"), [("mtp", "dspark"), ("dspark", "mtp")])
def test_the_file_must_be_of_the_kind_asked_for(trained_path: str, kind: str, other: str) -> None:
    files = {"mtp": mtp_path(), "dspark": dspark_path()}
    with pytest.raises(UsageError, match=f"--draft {other}, not {kind}"):
        Engine.open(trained_path, drafts=Drafting(kind, files[other]))
    with Engine.open(trained_path, drafts=Drafting("auto", files[kind])) as engine:
        assert [draft.name for draft in engine.session(64).speculation.drafts] == [kind, "lookup"]


def test_chances_are_corrected_by_what_is_accepted() -> None:
    """A source that is always half as often right as it says."""
    acceptance = Acceptance()
    assert acceptance.tokens([0.8, 0.5]) == pytest.approx([1, 1.8, 2.2, 2.2, 2.2, 2.2, 2.2, 2.2])
    for number in range(400):
        acceptance.add(int(number % 5 < 2), 2, [0.8, 0.5])
    first = acceptance.tokens([0.8, 0.5])[1] - 1
    assert first == pytest.approx(0.4, abs=0.07)
    assert acceptance.tokens([0.2])[1] - 1 == pytest.approx(first / 4)
