"""Directions from drawn activations: what was planted is found, chance is not; pairs held out decide nothing."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.errors import DataError
from ds4ref.steering.build import LEAST_PAIRS, Options, build, directions, unit

PAIRS, LAYERS, DIM = 48, 3, 32


def drawn(seed: int = 0, pairs: int = PAIRS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets and controls (pairs, layers, dim), and the unit directions planted: strong, none, weak."""
    rng = np.random.default_rng(seed)
    planted = unit(rng.standard_normal((LAYERS, DIM)))
    control = rng.standard_normal((pairs, LAYERS, DIM)) + 3 * rng.standard_normal((LAYERS, DIM))
    target = control + rng.standard_normal((pairs, LAYERS, DIM))
    return (target + np.array([4, 0, 1])[:, None] * planted).astype(np.float32), control.astype(np.float32), planted


def by_hand(target: np.ndarray, control: np.ndarray, pair_normalize: bool, orthogonalize: bool) -> np.ndarray:
    """One layer (pairs, dim), as ds4's tool is described."""
    differences = [t.astype(float) - c for t, c in zip(target, control, strict=True)]
    if pair_normalize:
        differences = [d / np.sqrt((d * d).sum()) for d in differences]
    d = sum(differences) / len(differences)
    d = d / np.sqrt((d * d).sum())
    if orthogonalize:
        m = control.astype(float).mean(axis=0)
        m /= np.sqrt((m * m).sum())
        d = d - (d @ m) * m
        d = d / np.sqrt((d * d).sum())
    return d


@pytest.mark.parametrize("pair_normalize", [False, True])
@pytest.mark.parametrize("orthogonalize", [False, True])
def test_the_formula(pair_normalize: bool, orthogonalize: bool) -> None:
    target, control, planted = drawn()
    target[::7] += 20 * (target[::7] - control[::7])  # pairs of other lengths
    rows = directions(target, control, Options(pair_normalize, orthogonalize))
    for layer in range(LAYERS):
        wanted = by_hand(target[:, layer], control[:, layer], pair_normalize, orthogonalize)
        np.testing.assert_allclose(rows[layer], wanted, atol=1e-12)
        along = rows[layer] @ unit(control[:, layer].astype(float).mean(axis=0))
        assert (abs(along) < 1e-12) == orthogonalize
    if not orthogonalize:
        assert rows[0] @ planted[0] > 0.9 > 0.5 > abs(rows[1] @ planted[1])


def test_nothing_is_left_of_a_direction_along_the_controls() -> None:
    control = np.ones((6, 2, 4), np.float32)
    target = control.copy()
    target[:, 0] *= 2
    assert not directions(target, control, Options()).any(), "layer 0 along the mean, layer 1 equal"
    assert directions(target, control, Options(orthogonalize=False)).any(axis=1).tolist() == [True, False]


def test_layers_count_by_their_folds() -> None:
    target, control, _ = drawn()
    built = build(target, control, Options())
    assert (built.pairs, built.held_out) == (24, 24)
    strong, none, weak = built.layers
    assert strong.weight == 1 and strong.folds.estimate == strong.held_out.estimate == 1
    assert none.weight == 0 and not built.rows[1].any() and not none.separates
    assert 0 < weak.weight < 1 and weak.weight == pytest.approx(2 * weak.folds.estimate - 1)
    np.testing.assert_allclose(np.linalg.norm(built.rows, axis=1) ** 2, [1, 0, weak.weight], atol=1e-6)
    assert "separates the 24 pairs held out in " in built.verdict and "best layer 0: 100% in order" in built.verdict


def test_the_pairs_held_out_have_no_part_in_it() -> None:
    target, control, _ = drawn()
    before = build(target, control, Options())
    target[1::2], control[1::2] = control[1::2] - target[1::2], 0
    after = build(target, control, Options())
    np.testing.assert_array_equal(after.rows, before.rows)
    assert [layer.weight for layer in after.layers] == [layer.weight for layer in before.layers]
    assert after.layers[0].held_out.estimate < 0.1
    assert after.verdict == "does not separate the 24 pairs held out, in any layer"


def test_chance_is_no_direction() -> None:
    """Of many draws without any difference hardly one passes, whatever the number of layers."""
    passed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        target, control = rng.standard_normal((2, 24, 12, 8)).astype(np.float32)
        try:
            build(target, control, Options())
        except DataError as error:
            assert "no layer tells targets from controls: of 12 pairs" in str(error)
        else:
            passed += 1
    assert passed <= 6


def test_few_pairs() -> None:
    target, control, _ = drawn(pairs=LEAST_PAIRS)
    with pytest.raises(DataError, match="3 pairs of prompts are too few: at least 4"):
        build(target[:3], control[:3], Options())
    with pytest.raises(DataError, match="no layer tells"):
        build(target, control, Options())  # two pairs prove nothing
    built = build(*drawn(pairs=47)[:2], Options())
    assert (built.pairs, built.held_out) == (24, 23)
