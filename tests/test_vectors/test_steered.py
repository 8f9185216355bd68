"""A steered engine is named as such, with its scale; one that is not is not, whatever directions are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.steering import write_directions
from ds4ref.engine import Engine
from ds4ref.engine_options import Steering
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from ds4ref.test_vectors.cli import main
from ds4ref.test_vectors.diagnosis import Signatures, diagnose, search
from ds4ref.test_vectors.observation import from_logits
from ds4ref.variants import Runner
from ds4ref.variants.families import FAMILIES
from tests.marking import sampled

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
