"""A steered engine is named as such, with its scale; one that is not is not, whatever directions are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.steering import Steering, write_directions
from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from ds4ref.test_vectors.cli import main
from ds4ref.test_vectors.diagnosis import Signatures, diagnose, search
from ds4ref.test_vectors.observation import from_logits
from ds4ref.test_vectors.trace.record import record
from ds4ref.test_vectors.trace.steered import scale_of
from ds4ref.variants import Runner
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.steered import steering_families
from tests.marking import sampled

from .tracing import as_dump, examined, recorded
from .tracing import engine as open_engine

IDS = PROMPTS["mixed"]()[:60]


@pytest.fixture(scope="module")
def engine(_model_cache: None) -> Iterator[Engine]:
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as opened:
        yield opened


@pytest.fixture(scope="module")
def rows(engine: Engine) -> np.ndarray:
    drawn = np.random.default_rng(8).standard_normal((engine.shape.n_layers, engine.shape.dim))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few faults and families: each costs a run."""
    names = ("routed_scale", "sinkhorn_rounds", "logit_scale")
    monkeypatch.setattr(search, "FAMILIES", {name: FAMILIES[name] for name in names})
    faults = Runner.faults
    few = ("no_sink", "window_short", "shared_twice", "head_mean")
    monkeypatch.setattr(
        Runner, "faults", lambda self, mode, tokens: [f for f in faults(self, mode, tokens) if f.name in few]
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("half", "scale"), sampled([("ffn", 0.6), ("attn", -1.5)], [("attn", -1.5)]))
def test_a_steered_engine_is_named(engine: Engine, rows: np.ndarray, half: str, scale: float) -> None:
    steered = engine.steered(Steering(rows, **{"attn": 0.0, "ffn": 0.0, half: scale}))
    found = diagnose(Signatures(engine, IDS, rows), from_logits(np.array(IDS), steered.logits(IDS)))
    assert (found.verdict, found.mode, found.fault) == ("fault", "exact", f"{half}_steering")
    assert found.says.startswith("directional steering along the file's directions after ")
    assert found.parameter is not None and found.parameter["value"] == pytest.approx(scale, abs=0.01)


def test_an_engine_that_is_not_steered_is_not(engine: Engine, rows: np.ndarray) -> None:
    library = Signatures(engine, IDS, rows)
    found = diagnose(library, from_logits(np.array(IDS), engine.logits(IDS)))
    assert (found.verdict, found.fault) == ("exact", None)
    fault = engine.logits(IDS) * np.float32(1.3)
    assert diagnose(library, from_logits(np.array(IDS), fault)).fault == "scaled"


@pytest.mark.thorough
def test_steering_along_other_directions_is_not_taken_for_these(engine: Engine, rows: np.ndarray) -> None:
    others = np.roll(rows, 1, axis=0)
    steered = engine.steered(Steering(others, ffn=1.0))
    found = diagnose(Signatures(engine, IDS, rows), from_logits(np.array(IDS), steered.logits(IDS)))
    assert found.verdict == "unknown", found


def test_results_are_kept_apart_by_directions(engine: Engine, rows: np.ndarray) -> None:
    folders = {Signatures(engine, IDS, given)._folder for given in (None, rows, rows + 1)}
    assert len(folders) == 3


def test_the_command(engine: Engine, rows: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The flags steer a local target, and name the file to try; our side stays as it is."""
    path = tmp_path / "d.f32"
    write_directions(path, rows)
    np.savez(tmp_path / "theirs.npz", ids=np.array(IDS), logits=engine.steered(Steering(rows, ffn=2.0)).logits(IDS))
    given = ["--logits", str(tmp_path / "theirs.npz"), "--dir-steering-file", str(path)]
    assert main(["diagnose", *given]) == 1
    out = capsys.readouterr().out
    assert "verdict      fault: ffn_steering" in out and "at scale 2" in out
    assert main(["diagnose", "--logits", "x", "--dir-steering-ffn", "1"]) == 2
    assert "--dir-steering-ffn needs --dir-steering-file" in capsys.readouterr().err


# --- traces, along directions that nobody gave


SHORT = PROMPTS["mixed"]()[:40]


@pytest.mark.thorough
@pytest.mark.parametrize("after", sampled([True, False], [False]))
def test_a_trace_shows_steering_along_unknown_directions(rows: np.ndarray, after: bool) -> None:
    """In what the half adds, dumped after steering, or else in the streams."""
    if after:
        dump = recorded("exact", [steering_families(rows)["ffn_steering"].fault(0.5)], ids=SHORT)
    else:
        dump = record(open_engine().steered(Steering(rows, ffn=0.5)), SHORT)[0]
    result = examined(as_dump(dump), [1, 3], ids=SHORT)
    (cause,) = result.causes
    assert cause.kind == "steering" and cause.names == ("directional_steering",)
    point = "ffn_out" if after else "hc_ffn_post"
    assert set(cause.explains) == {(point, 1), (point, 3)} == {wrong.key for wrong in result.wrong}
    assert cause.text == (
        "directional steering: one direction in each of 2 layers, after the feed-forward half, at scale 0.5 along its "
        "unit vector"
    )


def test_what_is_apart_in_another_way_is_no_steering() -> None:
    rng = np.random.default_rng(1)
    added, d = rng.standard_normal((20, 16)), rng.standard_normal(16)
    steered = -3 * np.outer(added @ d, d)
    assert scale_of(steered, added) == pytest.approx(3 * (d @ d))
    assert scale_of(-steered, added) == pytest.approx(-3 * (d @ d)), "amplified"
    assert scale_of(np.outer(np.ones(20), d), added) is None, "a bias"
    assert scale_of(0.1 * added, added) is None, "a factor"
    assert scale_of(steered - 3 * np.outer(added[:, 0], np.eye(16)[0]) * 9, added) is None, "two directions"
    assert scale_of(steered[:8], added[:8]) is not None and scale_of(steered[:7], added[:7]) is None
    assert scale_of(np.zeros((20, 16)), added) is None


@pytest.mark.parametrize("mistake", ["factor", "noise of its size", "one row", "one direction, another length each"])
def test_what_a_large_row_does_is_not_taken_for_steering(mistake: str) -> None:
    """The first token of a real model has values hundreds of times as large as others."""
    drawn = np.random.default_rng(5)
    added = drawn.standard_normal((60, 512))
    added[0] *= 300
    noise = drawn.standard_normal(added.shape)
    u = noise[0] / np.linalg.norm(noise[0])
    apart = {
        "factor": 0.1 * added,
        "noise of its size": 0.01 * noise * np.abs(added).max(axis=1, keepdims=True),
        "one row": np.where(np.arange(60)[:, None] == 0, 0.1 * added, 0.0),
        "one direction, another length each": drawn.standard_normal((60, 1)) * u,
    }[mistake]
    assert scale_of(apart, added) is None
    assert scale_of(-0.6 * (added @ u)[:, None] * u, added) == pytest.approx(0.6)
