"""Every dense family in mode exact against Hugging Face, 20 drawn configurations each: one folder, read by both.

Prefill, chunks, decode and a rewind, at the bars of DeepSeek's drawn models, scaled to the logits at hand. With experts
a router's tie could fall either way; the seeds have none. DS4_ORACLE_FAMILY_SEEDS="50,51" draws others.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ds4ref.engine import Engine

from ..archs import families
from .golden_families import theirs
from .test_dense import Folder, agrees

pytestmark = pytest.mark.oracle

SEEDS = [int(seed) for seed in os.environ.get("DS4_ORACLE_FAMILY_SEEDS", "").split(",") if seed] or range(20)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", families.KINDS)
def test_drawn_configurations(kind: str, seed: int, tmp_path: Path) -> None:
    model = families.draw(kind, seed)
    path = model.folder(tmp_path / "m")
    wanted = Folder(path, model.ids, *theirs(path, model.ids))
    with Engine.open(path, numerics="exact") as engine:
        agrees(engine, wanted)
        session = engine.session(len(model.ids) + 1)
        session.sync(model.ids)
        session.rewind(9)
        again = session.extend(model.ids[9:])
    assert float(np.abs(again - wanted.logits[9:]).max()) <= wanted.bar


@pytest.mark.parametrize("kind", families.KINDS)
def test_long_texts(kind: str, tmp_path: Path) -> None:
    """Far past every window, over several blocks of attention's rows."""
    model = families.draw(kind, 7, length=500)
    path = model.folder(tmp_path / "m")
    with Engine.open(path, numerics="exact") as engine:
        agrees(engine, Folder(path, model.ids, *theirs(path, model.ids)))


@pytest.mark.parametrize("kind", families.KINDS)
def test_as_transformers_saves_it(kind: str, tmp_path: Path) -> None:
    """The folder that it writes of what it read means the same model."""
    import torch
    import transformers

    model = families.draw(kind, 4)
    path = model.folder(tmp_path / "m")
    transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).save_pretrained(tmp_path / "saved")
    with Engine.open(path, numerics="exact") as ours, Engine.open(tmp_path / "saved", numerics="exact") as saved:
        assert np.array_equal(ours.logits(model.ids), saved.logits(model.ids))
