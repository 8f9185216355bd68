"""With drafts a session says what it says without: real drafts on the embedded model, greedy and drawn.

Whether logits are equal to the bit: ``tests/session/test_passes.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ds4ref.eval
from ds4ref.engine import Engine
from ds4ref.engine_options import Drafting
from ds4ref.errors import UsageError
from ds4ref.generate import Generation, Timing, prefill
from ds4ref.nano.trained import dspark_path, embedded_path, mtp_path
from ds4ref.sampling.adjust import Adjustment
from ds4ref.session.session import Session
from tests.marking import sampled

CTX, LENGTH = 4096, 48
DEPTHS = range(1, 9)


def questions() -> list[str]:
    lines = (Path(ds4ref.eval.__file__).parent / "questions" / "nano.jsonl").read_text().splitlines()[1:]
    asked = [json.loads(line)["question"] for line in lines]
    return (asked + [f"Copy: {' '.join('abc' * n)}" for n in range(1, 9)])[:200]


@pytest.fixture(scope="module")
def engines() -> Iterator[Callable[..., Engine]]:
    """Engines by kind and depth of drafts; kept open."""
    made: dict[tuple[str, int], Engine] = {}
    files = {"dspark": dspark_path()}

    def engine(kind: str, depth: int = 0) -> Engine:
        if (kind, depth) not in made:
            mtp = None if kind in ("off", "lookup") else files.get(kind, mtp_path())
            made[kind, depth] = Engine.open(embedded_path(), drafts=Drafting(kind, mtp, depth=depth))
        return made[kind, depth]

    yield engine
    for one in made.values():
        one.close()


def greedy(session: Session, count: int, every: int = 0) -> list[int]:
    """Decode; with ``every``, a snapshot, a wrong turn and a way back after so many tokens, and a fork that goes on."""
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(session.argmax())
        session.append(tokens[-1])
        if every and len(tokens) % every == 0:
            kept, best = session.snapshot(), session.argmax()
            session.append(best)
            session.append((best + 7) % 1000)
            session.restore(kept)
    return tokens


@pytest.mark.parametrize("number", sampled(range(200), 25))
def test_greedy_text_is_the_same(engines: Callable[..., Engine], number: int) -> None:
    """200 prompts, all drafts, depths 1 to 8 (of which 7 are tried), snapshots and forks in between."""
    question, depth = questions()[number], DEPTHS[number % len(DEPTHS)]
    plain = engines("off").session(CTX)
    ids = engines("off").prompt(question)
    plain.sync(ids)
    wanted = greedy(plain, LENGTH)
    for kind in ("lookup", "mtp", "dspark"):
        session = engines(kind, depth).session(CTX)
        session.sync(ids)
        assert greedy(session, LENGTH, every=5 + number % 7) == wanted, (kind, depth)
        np.testing.assert_array_equal(session.logits, plain.logits)
        if kind != "lookup":
            assert session.speculation is not None and session.speculation.counts.of("accepted") > 0
        fork = engines(kind, depth).session(CTX)
        fork.restore(session.snapshot())
        again = greedy(fork, 12)
        assert again == greedy(session, 12)


@pytest.mark.parametrize("kind", sampled(["lookup", "mtp", "dspark", "auto"], ["dspark"]))
def test_drawn_text_is_the_same(engines: Callable[..., Engine], kind: str) -> None:
    """With one seed: temperature, nucleus, least share, best few, penalties, and what a grammar forbids; 40 settings.
    Equal draws are more than an equal distribution, which a test of chi-square would show."""
    settings: list[tuple[dict[str, Any], Adjustment | None, Any]] = [
        ({"temperature": 1.0}, None, None),
        ({"temperature": 1.3, "top_p": 0.8}, None, None),
        ({"temperature": 0.9, "min_p": 0.1}, None, None),
        ({"temperature": 1.0, "top_k": 5}, None, None),
        ({"temperature": 1.0}, Adjustment({}, 0.5, 0.7), None),
        ({"temperature": 0.0}, Adjustment({}, 0.0, 1.5), None),
        ({"temperature": 1.0, "top_p": 0.9}, None, even),
    ]
    chance = np.random.default_rng(5)
    for _ in range(33):
        sampling = {"temperature": chance.uniform(0.3, 2), "top_p": chance.uniform(0.5, 1)}
        settings.append((sampling | [{}, {"min_p": 0.05}, {"top_k": 8}][chance.integers(3)], None, None))
    for number, (sampling, adjust, guide) in enumerate(settings):
        texts = []
        for chosen, depth in (("off", 0), (kind, 0), (kind, 3)):
            engine = engines(chosen, depth)
            session = engine.session(CTX)
            prefill(session, engine.prompt(questions()[3 * number]), Timing())
            sampler = engine.sampler(seed=number + 1, **sampling)
            made = Generation(
                session, engine.tokenizer, sampler, limit=80 if number < 7 else 24, adjust=adjust, guide=guide
            )
            pieces = [(piece.token, piece.text) for piece in made]
            texts.append((pieces, made.finish, session.tokens))
        assert texts[0] == texts[1] == texts[2], sampling


def even(generation: Generation, logits: np.ndarray) -> np.ndarray:
    """Forbid all but every third token, others after each: a grammar."""
    allowed = (np.arange(len(logits)) + len(generation.tokens)) % 3 == 0
    return np.where(allowed, logits, -np.inf)


# --- settings


def test_settings_that_cannot_be_met_are_refused() -> None:
    for drafts, backend, told in (
        (Drafting("mtp"), "cpu", "--mtp FILE"),
        (Drafting("dspark"), "cpu", "--mtp FILE"),
        (Drafting("some"), "cpu", "choose from off, auto, lookup, mtp"),
        (Drafting("lookup"), "reference", "backend reference evaluates one token a pass"),
    ):
        with pytest.raises(UsageError, match=told):
            Engine.open(embedded_path(), backend=backend, drafts=drafts)


@pytest.mark.thorough
def test_a_block_knows_the_prompt(engines: Callable[..., Engine]) -> None:
    """Streams of a whole window of a prompt are kept for it, of a longer prompt the newest ones."""
    engine = engines("mtp", 2)
    window = engine.drafts.drafter.shape.window  # type: ignore[union-attr]
    for length in (window - 1, window, window + 1, 600):
        session = engine.session(CTX)
        session.sync([1 + n % 50 for n in range(length)])
        assert len(session._streams) == min(length, window)
        plain = engines("off").session(CTX)
        plain.sync([1 + n % 50 for n in range(length)])
        np.testing.assert_array_equal(session.streams, plain.streams)
