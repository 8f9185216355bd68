"""Which experts get a slot, without a device: counts that fade, victims, moves under way."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.kernels.cuda.driver.residency import MARGIN, NOBODY, SHIFT, Move, Residency


def one(experts: int = 4, slots: int = 2, layers: int = 1) -> Residency:
    residency = Residency(layers, experts, slots)
    residency.fill()
    return residency


def use(residency: Residency, *experts: int, times: int = 1) -> None:
    for _ in range(times):
        residency.used(np.bincount(experts, minlength=residency.hot.shape[1])[None])


@pytest.mark.parametrize(("tokens", "hot"), [(SHIFT - 1, 15), (SHIFT, 8), (SHIFT + 1, 9), (2 * SHIFT, 12)])
def test_counts_are_halved_after_sixteen_tokens(tokens: int, hot: int) -> None:
    residency = one()
    use(residency, 3, times=tokens)
    assert SHIFT == 16 and residency.hot[0].tolist() == [0, 0, 0, hot]


def test_layers_fade_by_their_own_tokens() -> None:
    """As where the host looks at them one by one."""
    residency = one(layers=2)
    for _ in range(SHIFT - 1):
        residency.used(np.array([0, 0, 1, 0]), layer=1)
    use_both = np.array([[1, 0, 0, 0], [0, 0, 1, 0]])
    residency.used(use_both)
    assert residency.hot.tolist() == [[1, 0, 0, 0], [0, 0, 8, 0]]


def test_uses_are_hits_or_misses() -> None:
    residency = one()
    use(residency, 0, 3)
    use(residency, 3, 3)
    assert (residency.hits, residency.misses) == (1, 2)


def test_a_prompt_begins_anew() -> None:
    """Counts are those of tokens that came at the chunk's rate for ever; the next token is the first of sixteen."""
    residency = one(layers=2)
    use_layer = np.array([3, 0, 0, 0])
    for _ in range(10):
        residency.used(use_layer, layer=0)
        residency.used(use_layer, layer=1)
    residency.prompted(0, np.array([0, 20, 5, 0]), 20)
    assert residency.hot.tolist() == [[0, 32, 8, 0], [30, 0, 0, 0]]
    for _ in range(SHIFT - 1):
        residency.used(np.array([0, 1, 0, 0]), layer=0)
    assert residency.hot[0, 1] == 47
    residency.used(np.array([0, 1, 0, 0]), layer=0)
    assert residency.hot[0, 1] == 24


def test_the_coldest_goes_for_one_that_is_hotter_by_the_margin() -> None:
    residency = one()
    use(residency, 0, times=3)
    use(residency, 3, times=MARGIN - 1)
    assert residency.choose(8) == []
    use(residency, 3)
    assert residency.choose(8) == [Move(0, 3, 1)]
    assert residency.slot_of[0].tolist() == [0, NOBODY, NOBODY, NOBODY] and residency.expert_in[0, 1] == NOBODY
    assert residency.choose(8) == [], "it is coming, and its slot is nobody's"
    residency.arrived(residency.coming)
    assert residency.slot_of[0].tolist() == [0, NOBODY, NOBODY, 1] and residency.coming == []


def test_moves_go_where_they_pay_most() -> None:
    residency = one(layers=3)
    for layer, times in ((0, 3), (1, 9), (2, 5)):
        for _ in range(times):
            residency.used(np.array([0, 0, 0, 1]), layer)
    assert [move.layer for move in residency.choose(2)] == [1, 2]
    assert [move.layer for move in residency.choose(0)] == []
    assert [move.layer for move in residency.choose(9)] == [0]


def test_a_free_slot_costs_nobody_anything() -> None:
    residency = Residency(1, 4, 2)
    use(residency, 3)
    assert residency.choose(8) == [Move(0, 3, 0)]


def test_settling_moves_everybody_that_pays() -> None:
    residency = one(experts=6, slots=3)
    residency.hot[0] = [1, 9, 0, 5, 8, 4]
    moves = residency.settle(0)
    residency.arrived(moves)
    assert [(move.expert, move.slot) for move in moves] == [(4, 2), (3, 0)]
    assert sorted(residency.expert_in[0]) == [1, 3, 4]


def test_room_is_made_by_the_coldest_that_are_not_wanted() -> None:
    residency = one(experts=5, slots=3)
    residency.hot[0] = [0, 7, 3, 0, 0]
    moves = residency.make_room(0, np.array([0, 4]))
    assert moves == [Move(0, 4, 2)], "0 is colder, and wanted now"
    residency.arrived(moves)
    assert residency.make_room(0, np.array([0, 4])) == []
    assert sorted(residency.expert_in[0]) == [0, 1, 4]


def test_no_slot_is_two_experts() -> None:
    """Whatever is used and moved, in whatever order copies end."""
    rng = np.random.default_rng(3)
    residency = one(experts=12, slots=4, layers=3)
    for _ in range(400):
        counts = np.zeros((3, 12), np.int64)
        for layer in range(3):
            counts[layer, rng.choice(12, 3, replace=False)] = 1
        residency.used(counts)
        residency.choose(int(rng.integers(0, 4)))
        some = [move for move in residency.coming if rng.random() < 0.5]
        residency.arrived(some)
        for layer in range(3):
            there = np.flatnonzero(residency.slot_of[layer] >= 0)
            assert np.array_equal(residency.expert_in[layer, residency.slot_of[layer, there]], there)
            assert len(there) + sum(move.layer == layer for move in residency.coming) == 4
