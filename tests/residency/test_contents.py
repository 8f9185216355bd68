"""Which expert leaves, computed by hand; hot lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4ref.errors import DataError
from ds4ref.residency.contents import HALVING, NOWHERE, Contents, Fading
from ds4ref.residency.hotlist import beside, read_hot_list, write_hot_list


def ids(*experts: int) -> np.ndarray:
    return np.array(experts)


def test_hotness_halves_after_16_decoded_tokens_and_a_prompt_resets_it() -> None:
    order = Fading(1, 4)
    order.used(0, ids(0, 0, 0, 0, 0, 1))
    assert order.hotness.tolist() == [[5, 1, 0, 0]]
    order.decoded(HALVING - 1)
    assert order.hotness.tolist() == [[5, 1, 0, 0]]
    order.decoded(1)
    assert order.hotness.tolist() == [[2, 0, 0, 0]], "rounded down"
    order.decoded(2 * HALVING - 1)
    assert order.hotness.tolist() == [[1, 0, 0, 0]]
    order.decoded(1)
    assert order.hotness.tolist() == [[0, 0, 0, 0]]
    order.used(0, ids(3))
    order.decoded(HALVING - 1)
    order.new_prompt()
    order.used(0, ids(2))
    order.decoded(1)
    assert order.hotness.tolist() == [[0, 0, 1, 0]], "the count to the next halving begins with the prompt, too"


def test_the_least_used_leaves_and_of_equals_the_least_recent() -> None:
    order = Fading(2, 4)
    contents = Contents([10, 10], 4, 30, order)
    kept = np.zeros((2, 4), bool)
    for layer, expert in ((0, 0), (1, 1), (0, 2)):
        order.used(layer, ids(expert))
        (move,) = contents.admit(layer, [expert], kept)
        assert move.victim is None
    order.used(0, ids(0))  # used twice; the others once, (1, 1) before (0, 2)
    order.used(1, ids(3))
    (move,) = contents.admit(1, [3], kept)
    assert (
        move.victim == (1, 1) and contents.place[1, 1] == NOWHERE and contents.present(1, ids(1, 3)).tolist() == [0, 1]
    )
    order.used(1, ids(1))
    (move,) = contents.admit(1, [1], kept)
    assert move.victim == (0, 2)
    assert contents.admit(1, [1, 3], kept) == [], "they are there"


def test_what_is_kept_never_leaves_and_places_are_never_shared() -> None:
    order, rng = Fading(3, 16), np.random.default_rng(3)
    contents = Contents([7, 7, 7], 16, 7 * 9, order)
    for _ in range(300):
        layer, wanted = int(rng.integers(3)), np.unique(rng.integers(0, 16, 6))
        kept = rng.random((3, 16)) < 0.1
        kept[layer, wanted] = True
        before = contents.place.copy()
        order.used(layer, wanted)
        moves = contents.admit(layer, wanted.tolist(), kept, evict=bool(rng.integers(2)))
        held = kept & (before != NOWHERE)
        assert (contents.place[held] == before[held]).all()
        places = contents.place[contents.place != NOWHERE]
        assert len(set(places.tolist())) == len(places) <= 9
        for move in moves:
            assert move.victim is None or not kept[move.victim]
        if rng.random() < 0.1 and len(places):
            at = np.argwhere(contents.place != NOWHERE)[0]
            contents.drop(*at.tolist())


def test_layers_of_other_sizes_have_pools_of_their_own_by_their_part_of_all_bytes() -> None:
    contents = Contents([10, 30, 10], 4, 100, Fading(3, 4))  # 200 bytes in all: half of each pool
    assert [(pool.size, pool.layers.tolist(), pool.places) for pool in contents.pools] == [
        (10, [0, 2], 4),
        (30, [1], 2),
    ]
    kept = np.zeros((3, 4), bool)
    assert [m.place for m in contents.admit(1, [0, 1, 2], kept)] == [0, 1, 0], (
        "its own pool, not the other's free places"
    )
    assert len(contents.admit(0, [0, 1, 2, 3], kept)) == 4
    everything = Contents([10, 30, 10], 4, 10**6, Fading(3, 4))
    assert [pool.places for pool in everything.pools] == [8, 4]


def test_a_hot_list_is_read_as_written_and_checked(tmp_path: Path) -> None:
    path = beside(tmp_path / "m.gguf")
    assert path.name == "m.gguf.experts.json"
    assert write_hot_list(path, np.array([[0, 3, 1], [9, 0, 3]])) == 4
    assert read_hot_list(path, 2, 3) == [(1, 0), (0, 1), (1, 2), (0, 2)]
    with pytest.raises(DataError, match="another model, not of 2 layers of 4 experts"):
        read_hot_list(path, 2, 4)
    for text in ("", "[]", '{"layers": 2}', '{"layers": 2, "experts": 3, "hottest": [[0]]}', "[" * 10**5):
        path.write_text(text)
        with pytest.raises(DataError, match="not a hot list"):
            read_hot_list(path, 2, 3)
    path.write_text('{"layers": 2, "experts": 3, "hottest": [[0, 3]]}')
    with pytest.raises(DataError, match="another model"):
        read_hot_list(path, 2, 3)
