"""Drafts of the block: recordings, what a call feeds, what is taken back, and how often they are right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.mtp import Block
from ds4ref.drafts.mtp import MOST_RECORDED, Mtp
from ds4ref.engine import Engine
from ds4ref.nano import mtp_path
from ds4ref.nano.skills import held_out

LONG = 300
"""Tokens of a sequence that goes beyond the block's ring."""


@pytest.fixture(scope="module", params=["exact", "qat", "ds4"])
def engine(request: pytest.FixtureRequest, trained_path: str) -> Iterator[Engine]:
    with Engine.open(trained_path, numerics=request.param, threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def block(engine: Engine) -> Block:
    return Block.open(mtp_path(), engine.model)


@pytest.fixture(scope="module")
def sequence(engine: Engine) -> tuple[list[int], np.ndarray]:
    """Tokens of a story and the streams of all of them."""
    text = "".join(item.prompt().text + item.answer() for item in held_out("story", 20, seed=2))
    tokens = engine.tokenizer.encode(text)[:LONG]
    assert len(tokens) == LONG
    streams: list[np.ndarray] = []
    engine.session(LONG + 1).extend(tokens, streams=streams)
    return tokens, np.concatenate(streams)


class Watched(Mtp):
    """Keeps what every pass was given and gave."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.passes: list[tuple[int, int, list[int], np.ndarray, list[float]]] = []

    def _step(self, X: np.ndarray, ids: Any) -> Any:
        at = self._rows.pos, self._rows.first
        out = super()._step(X, ids)
        self.passes.append((*at, list(ids), out[0].copy(), out[2]))
        return out

    @property
    def fed(self) -> list[tuple[int, list[int]]]:
        """Position and tokens of every pass."""
        return [(pos, ids) for pos, _, ids, _, _ in self.passes]


def equal(one: Watched, other: Watched, last: int) -> bool:
    """Whether the last passes gave the same bits."""
    return all(
        np.array_equal(a[3], b[3]) and a[4] == b[4]
        for a, b in zip(one.passes[-last:], other.passes[-last:], strict=True)
    )


def unrecorded(block: Block) -> Watched:
    mtp = Watched(block)
    mtp._records = False
    return mtp


# --- recorded


def test_recorded_passes_give_the_bits_of_single_ops(block: Block, sequence: tuple[list[int], np.ndarray]) -> None:
    """Of one to eight new tokens and more than that, over the end of the ring, drafts in between."""
    tokens, X = sequence
    fast, slow = Watched(block), unrecorded(block)
    end = known = 1
    for new in itertools.cycle((1, 2, 8, 3, 9, 1, 5, 4, 7, 6)):
        end = known + new
        if end >= LONG:
            break
        one, two = (mtp.propose(tokens[: end + 1], X[known:end], 3) for mtp in (fast, slow))
        assert one == two and equal(fast, slow, 3)
        known = end
    assert fast._rows.pos > 2 * block.shape.window + 100 and fast._rows.first > 0
    assert {count for count, _ in fast._recordings} == set(range(1, MOST_RECORDED + 1)) and not slow._recordings


def test_sequences_share_no_rows(block: Block, sequence: tuple[list[int], np.ndarray]) -> None:
    """Two drafters in turn, whose recordings come from one template, each as if it were alone."""
    tokens, X = sequence
    pair, alone = (Watched(block), Watched(block)), (unrecorded(block), unrecorded(block))
    for end in range(1, 90):
        for shift, mtp, other in zip((0, 100), pair, alone, strict=True):
            for one in (mtp, other):
                one.propose(tokens[shift : shift + end + 1], X[shift + end - 1 : shift + end], 2)
            assert equal(mtp, other, 2)


# --- what is fed


def test_each_call_feeds_what_is_new_with_the_token_after_it(
    block: Block, sequence: tuple[list[int], np.ndarray]
) -> None:
    tokens, X = sequence
    mtp = Watched(block)
    assert len(mtp.propose(tokens[:21], X[:20], 3)) == 3
    first, *rest = mtp.fed
    assert first == (0, tokens[1:21])
    assert [pos for pos, _ in rest] == [20, 21] and all(len(ids) == 1 for _, ids in rest)
    mtp.passes.clear()
    mtp.propose(tokens[:22], X[:21], 1)  # all streams again: only one is new
    mtp.propose(tokens[:24], X[21:23], 1)
    mtp.propose(tokens[:24], X[21:23], 1)  # nothing is new: the last one again
    assert mtp.fed == [(20, [tokens[21]]), (21, tokens[22:24]), (22, [tokens[23]])]


def test_a_gap_begins_anew(block: Block, sequence: tuple[list[int], np.ndarray]) -> None:
    """Streams that were not given leave no hole in the window: what was before them is forgotten."""
    tokens, X = sequence
    mtp, fresh = Watched(block), Watched(block)
    mtp.propose(tokens[:21], X[:20], 2)
    mtp.propose(tokens[:23], X[21:22], 2)
    fresh.propose(tokens[:23], X[21:22], 2)
    assert mtp.fed[2][0] == 21 and mtp._rows.first == 21 and equal(mtp, fresh, 2)
    mtp.propose(tokens[:24], X[22:23], 2)
    assert mtp._rows.first == 21


def test_the_margin_is_of_the_second_of_two_drafts(block: Block, sequence: tuple[list[int], np.ndarray]) -> None:
    """Not of the first, and not where there are three."""
    tokens, X = sequence
    mtp = Watched(block)
    drafts = mtp.propose(tokens[:21], X[:20], 2)
    (_, _, _, _, first), (_, _, _, _, second) = mtp.passes
    margins = first[0] - first[1], second[0] - second[1]
    assert margins[0] != margins[1] and min(margins) > 0
    for margin, count in ((margins[1], 2), (np.nextafter(margins[1], 9e9), 1)):
        assert Mtp(block, margin=margin).propose(tokens[:21], X[:20], 2) == drafts[:count]
        assert len(Mtp(block, margin=margin).propose(tokens[:21], X[:20], 3)) == 3
    assert Mtp(block, margin=1000).propose(tokens[:21], X[:20], 1) == drafts[:1]


# --- what is taken back


def test_drafts_leave_no_trace(block: Block, sequence: tuple[list[int], np.ndarray]) -> None:
    """Sixteen drafts a call, or one: the same bits next time, also where drafts run over the end of the ring."""
    tokens, X = sequence
    many, one = Watched(block), Watched(block)
    for end in range(1, LONG - 1, 3):
        known = max(0, end - 3)
        many.propose(tokens[: end + 1], X[known:end], 16)
        one.propose(tokens[: end + 1], X[known:end], 1)
        (at, _, ids, streams, values), last = many.passes[-16], one.passes[-1]
        assert (at, ids, values) == (last[0], last[2], last[4]) and np.array_equal(streams, last[3])
    assert many._rows.first > one._rows.first > 0  # the ring was overwritten, and further by drafts


@pytest.mark.parametrize("back", [1, 2, 5, 64, 95, 96])
def test_after_a_rewind_it_is_as_if_one_had_never_gone_there(
    block: Block, sequence: tuple[list[int], np.ndarray], back: int
) -> None:
    """Other tokens and streams beyond, then ``truncate``: bits of a drafter that saw only what is left."""
    tokens, X = sequence
    end = 150
    gone, stayed = Watched(block), Watched(block)
    for mtp in (gone, stayed):
        for at in range(1, end + 1):
            mtp.propose(tokens[: at + 1], X[at - 1 : at], 1)
    for at in range(end + 1, end + back):
        gone.propose([*tokens[: end + 1], *([7] * (at - end))], -X[at : at + 1], 2)
    gone.truncate(end + 1)
    assert (gone._rows.pos, stayed._rows.pos) == (end, end)
    for at in range(end + 1, end + 6):
        for mtp in (gone, stayed):
            mtp.propose(tokens[: at + 1], X[at - 1 : at], 2)
        assert equal(gone, stayed, 2) == (back <= 96)


# --- how often it is right


def leading(block: Block, tokens: list[int], X: np.ndarray, start: int, depth: int) -> list[int]:
    """How many leading drafts are what was written then, at each position from ``start`` on."""
    mtp, known, right = Mtp(block), 0, []
    for end in range(start, len(tokens) - depth):
        drafts = mtp.propose(tokens[: end + 1], X[known:end], depth)
        known = end
        pairs = zip(drafts, tokens[end + 1 :], strict=False)
        right.append(next((n for n, (draft, token) in enumerate(pairs) if draft != token), len(drafts)))
    return right


def test_most_drafts_are_right_on_what_the_model_writes(engine: Engine, block: Block) -> None:
    right: list[int] = []
    for skill in ("think/sums3", "tools/open"):
        for item in held_out(skill, 2, seed=1):
            tokens = list(item.prompt().encode(engine.tokenizer))
            start, streams = len(tokens), []
            session = engine.session(start + 50)
            session.extend(tokens, streams=streams)
            while len(tokens) < start + 48 and (token := session.argmax()) != engine.tokenizer.eos:
                tokens.append(token)
                session.append(token)
                streams.append(session.streams)
            right += leading(block, tokens, np.concatenate(streams), start, 4)
    to = [np.mean(np.array(right) >= depth) for depth in (1, 2, 4)]
    assert to[0] > 0.85 and to[1] > 0.7 and to[2] > 0.4
