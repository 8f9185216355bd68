"""Each wrong file loads, and the model says something else: what a diagnosis of files has to work with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path

from .badfiles import BAD, BadFile, Draft, write_bad

IDS = PROMPTS["mixed"]()[:160]
"""Past the first window of 128."""


def logits(path: str | Path) -> np.ndarray:
    with Engine.open(path, numerics="exact", threads=1) as engine:
        return engine.session(len(IDS) + 1).extend(IDS)


@pytest.fixture(scope="module")
def good() -> np.ndarray:
    return logits(diagnostic_path())


def effect(folder: Path, name: str, good: np.ndarray) -> tuple[float, list[str]]:
    """rms of what the wrong file does to the logits, and what differs in it."""
    path = folder / f"{name}.gguf"
    changed = write_bad(diagnostic_path(), path, BAD[name])
    found = logits(path)
    path.unlink()
    assert np.isfinite(found).all()
    return float(np.sqrt(np.square(found - good, dtype=np.float64).mean())), changed


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("q8_scale", ["blk.1.attn_output_b.weight"]),
        ("window", ["deepseek4.attention.sliding_window"]),
        ("output_rolled", ["output.weight"]),
    ],
)
def test_what_is_wrong_is_told(tmp_path, good, name, changed) -> None:
    rms, found = effect(tmp_path, name, good)
    assert found == changed and rms > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_every_wrong_file_loads_and_shows(tmp_path, good, name) -> None:
    rms, found = effect(tmp_path, name, good)
    print(f"{name:32} rms {rms:.2e}")
    assert rms > 0.02, (rms, found)


def test_a_copy_without_changes_is_the_file(tmp_path, good) -> None:
    """What shows is the change, not the copying."""
    Draft(diagnostic_path()).write(tmp_path / "same.gguf")
    assert np.array_equal(logits(tmp_path / "same.gguf"), good)


def test_what_cannot_be_is_refused(tmp_path) -> None:
    nothing = BadFile("nothing", "nothing", lambda draft: None)
    with pytest.raises(ValueError, match="changes nothing"):
        write_bad(diagnostic_path(), tmp_path / "x.gguf", nothing)
    with pytest.raises(ValueError, match="do not go into each other's place"):
        Draft(diagnostic_path()).exchange("output.weight", "output_norm.weight")
