"""Effect and cost over scales: what is a movement, where the cost exceeds it, and the numbers they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.steering import digest
from ds4ref.engine_options import Steering
from ds4ref.errors import ContextError, DataError, UsageError
from ds4ref.runs.stats import Interval, unknown
from ds4ref.steering import metrics, sidecar
from ds4ref.steering.measure import Point, Result, Trial, measure
from ds4ref.steering.prompts import mark, prompts_in, rendered, unseen

NONE = Interval(0.0, 0.0, 0.0, 9, "")


def point(scale: float, effect: float, cost: float, width: float = 0.1) -> Point:
    return Point(scale, Interval(effect, effect - width, effect + width, 9, ""), Interval(cost, cost, cost, 9, ""))


# --- the curve


def test_the_verdict() -> None:
    assert (
        Result([point(1, 0.1, 0)], prompts=7).verdict == "does not move the 7 prompts: at no scale beyond chance (95%)"
    )
    still = Result([Point(1, unknown(5.0, 2), NONE)])
    assert not still.points[0].moves and still.verdict.startswith("does not move")
    moved = Result([point(1, -0.5, 0.1), point(2, -1, 0.2), point(-1, 0.05, 0)], prompts=7)
    assert [p.moves for p in moved.points] == [-1, -1, 0] and moved.best is moved.points[1]
    assert moved.verdict == (
        "moves the 7 prompts by -1 nats at scale 2 (95% of all scales: -1.1..-0.9), for +0.2 nats a token of the text"
    )
    dear = Result([point(1, 0.5, 0.6), point(2, 1, 9)])
    assert dear.best is None and dear.verdict.endswith(": more than it moves, as at every scale that moves them")


# --- the numbers


@pytest.fixture(scope="module")
def rows(nano_engine: Any) -> np.ndarray:
    drawn = np.random.default_rng(1).standard_normal((nano_engine.shape.n_layers, nano_engine.shape.dim))
    drawn[2] = 0
    return (drawn / np.maximum(1, np.linalg.norm(drawn, axis=1, keepdims=True))).astype(np.float32)


IDS = np.random.default_rng(2).integers(0, 500, 400).tolist()


def test_loss_is_that_of_a_softmax(nano_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece, and in several."""
    logits = nano_engine.session(60).extend(IDS[:50]).astype(np.float64)
    wanted = [np.log(np.exp(row).sum()) - row[token] for row, token in zip(logits[9:], IDS[10:50], strict=False)]
    for piece in (7, 256):
        monkeypatch.setattr(metrics, "PIECE", piece)
        np.testing.assert_allclose(metrics.nll(nano_engine.session(60), IDS[:10], IDS[10:50]), wanted, atol=2e-3)
    one, other = IDS[10:13], IDS[20:22]
    got = metrics.logprob(one, other)(nano_engine, IDS[:10])
    means = [metrics.nll(nano_engine.session(60), IDS[:10], text).mean() for text in (one, other)]
    assert got == pytest.approx(means[1] - means[0], abs=1e-9)


def test_words_are_those_of_the_greedy_answer(nano_engine: Any) -> None:
    answer = "".join(piece.text for piece in nano_engine.stream(IDS[:10], max_tokens=12))
    assert metrics.words(12)(nano_engine, IDS[:10]) == pytest.approx(np.log(1 + len(answer.split())))


@pytest.mark.thorough
def test_measure(nano_engine: Any, rows: np.ndarray) -> None:
    trial = Trial([IDS[i : i + 12] for i in range(0, 96, 12)], IDS[100:260], metrics.logprob(IDS[:2], IDS[5:6]))
    seen: list[tuple[int, int]] = []
    result = measure(nano_engine, rows, trial, [4.0, 0.0, -4.0], lambda *at: seen.append(at))
    assert [p.scale for p in result.points] == [-4, 4] and seen == [(1, 3), (2, 3)] and result.prompts == 8
    steered = nano_engine.steered(Steering(rows, ffn=4.0))
    loss, base = (metrics.nll(one.session(200), IDS[100:132], IDS[132:260]) for one in (steered, nano_engine))
    assert result.points[1].cost.estimate == pytest.approx((loss - base).mean()) and result.points[1].cost.n == 2
    changes = [trial.metric(steered, ids) - trial.metric(nano_engine, ids) for ids in trial.prompts]
    assert min(changes) < result.points[1].effect.estimate < max(changes)
    assert result.base[1] == pytest.approx(base.mean())
    # an engine that is steered already is measured unsteered
    again = measure(steered, rows, trial, [4.0])
    assert again.points[0].cost.estimate == result.points[1].cost.estimate


@pytest.mark.thorough
def test_what_changes_nothing_does_not_move(nano_engine: Any, rows: np.ndarray) -> None:
    trial = Trial([IDS[i : i + 8] for i in range(0, 48, 8)], IDS[:100], metrics.logprob(IDS[:1], IDS[5:6]))
    result = measure(nano_engine, np.where(rows, 1e-12, 0).astype(np.float32), trial, [1.0])
    assert not result.points[0].moves and result.points[0].cost.estimate == 0
    assert result.verdict.startswith("does not move")


# --- prompts and sidecars


def test_prompts() -> None:
    assert prompts_in("\n# no\n a \n\n#b\nc # d\n", "f") == ["a", "c # d"]
    for empty in ("", "\n \n", "# one\n#two"):
        with pytest.raises(DataError, match="f.txt: no prompts"):
            prompts_in(empty, "f.txt")
    assert unseen(["a", "b"], {mark("a")}) == ["b"] and unseen(["a"], ()) == ["a"]
    with pytest.raises(DataError, match="built from all 1 prompts"):
        unseen(["a"], {mark("a")})


def test_prompts_must_fit(trained_path: str) -> None:
    from ds4ref.engine import Engine

    with Engine.open(trained_path, backend="reference") as engine:
        (ids,) = rendered(engine, ["Copy: a b"], "", "none", 100)
        assert ids == engine.prompt("Copy: a b", "", "none")
        assert rendered(engine, ["Copy: a b"], "", "none", len(ids) + 5, 5) == [ids]
        with pytest.raises(ContextError, match=rf"prompt 1 takes {len(ids)} tokens and 6 of an answer"):
            rendered(engine, ["Copy: a b"], "", "none", len(ids) + 5, 6)


def test_a_sidecar_belongs_to_its_directions(tmp_path: Path, rows: np.ndarray) -> None:
    path = tmp_path / "d.f32"
    assert sidecar.read(path, rows) == {}
    sidecar.write(path, {"format": sidecar.FORMAT, "sha256": digest(rows), "used": ["x"]})
    assert sidecar.read(path, rows)["used"] == ["x"]
    with pytest.raises(DataError, match=r"d.json: describes other directions than those in .*d.f32"):
        sidecar.read(path, rows + 1)
    sidecar.write(path, {"format": sidecar.FORMAT})  # ds4's have no digest
    assert sidecar.read(path, rows + 1) == {"format": sidecar.FORMAT}
    for text in ("", "[]", '{"format": "other"}', "\xff"):
        sidecar.beside(path).write_bytes(text.encode("latin-1"))
        with pytest.raises(DataError, match="d.json: "):
            sidecar.read(path, rows)


@pytest.mark.parametrize("wrong", [{"component": "x"}, {"component": None}, {"used": None}, {"used": [3]}])
def test_a_sidecar_of_other_values_is_one_line(tmp_path: Path, rows: np.ndarray, wrong: dict[str, Any]) -> None:
    sidecar.write(tmp_path / "d.f32", {"format": sidecar.FORMAT, **wrong})
    with pytest.raises(DataError, match="d.json: "):
        sidecar.read(tmp_path / "d.f32", rows)


def test_nothing_but_directions_is_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "d.f32"
    sidecar.check_free(out, str(tmp_path / "a.txt"))
    sidecar.write(out, {"format": sidecar.FORMAT})
    sidecar.check_free(out, str(tmp_path / "a.txt"))
    for name in ("d.json", "d.f32"):
        with pytest.raises(UsageError, match=f"{name} is a file of prompts"):
            sidecar.check_free(out, str(tmp_path / "a.txt"), str(tmp_path / "." / name))
    (tmp_path / "d.json").write_text("[]")
    with pytest.raises(UsageError, match="no description of directions"):
        sidecar.check_free(out)
