"""A simulated engine with drafts: a right verifier decodes greedily whatever is drafted, a wrong one does not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ds4ref.variants.verifiers import VERIFIERS, Timeline, adversary, best_of, each_row, oracle, row_zero, speculate

VOCAB = 7


class Toy:
    """A timeline whose logits are drawn anew for every history; ``seed`` chooses the model."""

    def __init__(self, seed: int) -> None:
        self.seed, self.tokens = seed, []

    @property
    def pos(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> np.ndarray:
        rows = []
        for token in tokens:
            self.tokens.append(int(token))
            rows.append(np.random.default_rng([self.seed, *self.tokens]).normal(size=VOCAB))
        return np.array(rows)

    def rewind(self, pos: int) -> None:
        assert 0 < pos <= self.pos
        del self.tokens[pos:]


def greedy(seed: int, tokens: int) -> list[int]:
    toy: Timeline = Toy(seed)
    row, ids = toy.extend([0])[-1], []
    for _ in range(tokens):
        ids.append(int(np.argmax(row)))
        row = toy.extend(ids[-1:])[-1]
    return ids


def drafters(seed: int):
    rng = np.random.default_rng(seed)
    return {"adversary": adversary, "oracle": oracle(0.0, rng), "corrupted": oracle(0.4, rng)}


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("drafter", ["adversary", "oracle", "corrupted"])
def test_a_right_verifier_decodes_greedily(depth, drafter) -> None:
    for seed in range(20):
        done = speculate(Toy(seed), [0], 25, depth, drafters(seed)[drafter], each_row)
        assert done.ids == greedy(seed, 25) and sum(done.passes) == 25
        if drafter == "oracle":
            assert set(done.passes[:-1]) == {depth}  # every draft was right


def test_the_wrong_verifier_is_right_at_depth_2() -> None:
    for seed in range(20):
        for drafter in drafters(seed).values():
            assert speculate(Toy(seed), [0], 25, 2, drafter, row_zero).ids == greedy(seed, 25)


@pytest.mark.parametrize("depth", [3, 4, 8])
def test_the_wrong_verifier_commits_runners_up_of_row_0(depth) -> None:
    """Token r of a pass, r > 1, is then the r-th best after the first token."""
    toy, start = Toy(1), [0]
    done = speculate(toy, start, 4 * depth, depth, adversary, row_zero)
    count = min(depth - 1, VOCAB)
    assert done.passes[:2] == [1 + count] * 2 and done.ids != greedy(1, 4 * depth)
    again = Toy(1)
    row = again.extend(start)[-1]
    first = int(np.argmax(row))
    assert done.ids[0] == first and done.ids[1 : 1 + count] == best_of(again.extend([first])[0], count)
    row = again.extend(done.ids[1 : 1 + count])[-1]
    assert done.ids[1 + count] == int(np.argmax(row))  # the next pass goes on after what was committed


def test_a_refused_draft_leaves_nothing_behind() -> None:
    toy = Toy(3)
    done = speculate(toy, [0], 12, 4, lambda timeline, row, count: [int(np.argmin(row))] * count, each_row)
    assert done.passes == [1] * 12 and toy.tokens == [0, *done.ids]


def test_the_last_pass_is_cut() -> None:
    assert speculate(Toy(4), [0], 5, 4, oracle(0.0, np.random.default_rng(0)), each_row).passes == [4, 1]
    assert speculate(Toy(4), [0], 4, 4, oracle(0.0, np.random.default_rng(0)), each_row).passes == [4]
    assert speculate(Toy(4), [0], 0, 4, adversary, each_row).ids == []


def test_what_drafts_are_held_against() -> None:
    rows = np.array([[0.0, 3.0, 2.0], [5.0, 0.0, 1.0]])
    assert each_row(rows).tolist() == [1, 0] and row_zero(rows).tolist() == [1, 2]
    assert best_of(np.array([1.0, 2.0, 2.0]), 3) == [1, 2, 0]
    assert set(VERIFIERS) == {"each row", "runners-up of row 0"}
