"""The simulator of experts that do not all fit: policies on small traces, prices by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks import expert_cache
from benchmarks.expert_cache import (
    CARDS,
    GIB,
    Parts,
    Rates,
    Run,
    Sizes,
    Skew,
    drawn,
    engine,
    lru,
    oracle,
    parts,
    sizes,
    slots_of,
)
from ds4ref.residency.simulation import Routing


def trace(*tokens: list[int], experts: int = 4) -> Routing:
    """Of one layer."""
    return Routing(np.array(tokens, np.int16)[:, None], np.array([0]), np.ones(1, np.int64), experts)


@pytest.fixture(autouse=True)
def _from_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_cache, "WARM", 0)


def test_what_each_policy_does() -> None:
    """Two slots, which begin with 0 and 1, or with nothing."""
    some = trace([2], [0], [2], [1], [2], [0])
    assert lru(some, 2) == Run(2 / 6, 4 / 6, 4 / 6)
    assert oracle(some, 2) == Run(2 / 6, 4 / 6, 4 / 6), "1 comes for 0, which is wanted after 2"
    assert engine(some, 2) == Run(3 / 6, 3 / 6, 1 / 6), "2 comes for 1 once it was wanted twice, too late"


def test_the_engine_has_an_expert_three_tokens_after_it_paid() -> None:
    some = trace(*[[3]] * 10)
    assert engine(some, 1) == Run(6 / 10, 4 / 10, 1 / 10)


def test_the_oracle_is_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_cache, "WARM", 100)
    some = drawn(Skew(1.0, 40), 200, layers=4, experts=32, chosen=3)
    for slots in (8, 31):  # of few slots the engine makes more, as not every miss takes one
        best = oracle(some, slots).hits
        assert best >= lru(some, slots).hits and best >= engine(some, slots).hits
    assert oracle(some, 32).hits == lru(some, 32).hits == engine(some, 32).hits == 1


def test_nothing_is_counted_while_slots_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_cache, "WARM", 2)
    some = trace([2], [0], [2], [1], [2], [0])
    assert lru(some, 2) == oracle(some, 2) == Run(2 / 4, 2 / 4, 2 / 4)


def test_a_drawn_trace_is_as_skewed_as_asked() -> None:
    some = drawn(Skew(1.0, 10**9), 3000, layers=4, experts=16, chosen=2)
    assert some.ids.shape == (3000, 4, 2)
    assert all(len(set(chosen)) == 2 for chosen in some.ids.reshape(-1, 2).tolist())
    counts = np.sort(np.bincount(some.ids[:, 3].ravel(), minlength=16))[::-1] / 6000
    assert counts[0] > 3.5 * counts[7] and counts[15] < 0.04
    even = np.bincount(drawn(Skew(0.0), 3000, 4, 16, 2).ids[:, 3].ravel(), minlength=16)
    assert even.max() < 1.2 * even.min()


def test_a_token_is_the_sum_of_its_parts() -> None:
    model, rates = Sizes(10**9, 40 * 10**9, 7 * 10**6), Rates(bus=14.0, disk=2.0, host=128.0)
    found = parts(0.010, Run(0.9, 20.0, 4.0), model, rates)
    assert found == Parts(10.0, 10.0, 0.0, 0.0, 2.0)
    assert found.tokens_per_second == 50 and found.prefetched == 100
    assert parts(0.010, Run(0.9, 20.0, 40.0), model, rates).tokens_per_second == pytest.approx(1e3 / 30)
    half = rates._replace(host=4 + 20 * 10**9 / GIB)
    found = parts(0.010, Run(0.9, 20.0, 4.0), model, half)
    assert found.disk == pytest.approx(35.0) and found.waits == expert_cache.HOST_MS * 43 and found.moves == 0


def test_the_file_is_the_published_one_and_cards_hold_what_the_backend_plans() -> None:
    model = sizes()
    assert (model.dense + model.experts) / GIB == pytest.approx(80.76, abs=0.02)
    assert [slots_of(card, model) for card in CARDS] == [46, 74, 131, 244]
    assert slots_of(expert_cache.Card(96, CARDS[0].device), model) == 256
    left = (32 - expert_cache.RESERVED - expert_cache.WORKING) * GIB - model.dense
    assert slots_of(CARDS[1], model) == int(256 * (left / model.experts))


def test_the_bars_of_a_card_of_32_gb(capsys: pytest.CaptureFixture) -> None:
    expert_cache.report({}, CARDS, Rates(25.0, 3.0, 128.0), [])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "given" in line]
    speeds = [float(line[-2]) for line in lines]
    assert [line[2] for line in lines] == ["100%", "90%", "0%"]
    assert speeds[0] >= 40 and speeds[1] >= 12


def test_the_policy_is_the_backends() -> None:
    experts: Any = pytest.importorskip("ds4ref.kernels.cuda.driver.experts")
    backend: Any = pytest.importorskip("ds4ref.kernels.cuda.backend")
    assert experts.MOVES == expert_cache.MOVES and backend.WORKING == expert_cache.WORKING * GIB
