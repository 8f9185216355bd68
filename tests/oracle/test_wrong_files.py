"""Wrong model files seen through another engine: the same file says the same wrong thing to Hugging Face.

So the wrong file, not our reading of it, is what a diagnosis gets to see.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from tests.badfiles import BAD, write_bad

IDS = PROMPTS["text"]()[:144]
KINDS = [
    "gate_up_interleaved",
    "rope_rows_both",
    "hash_table_transposed",
    "expert_scale",
    "attn_compressor_ape_wrong_layer",
    "layers_exchanged",
    "original_context",
    "expert_used",
]
"""Of each kind of wrong file a few: both read them on their own, so a few tell."""


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x, dtype=np.float64).mean()))


def ours(path: str | Path) -> np.ndarray:
    with Engine.open(path, numerics="exact", threads=1) as engine:
        return engine.session(len(IDS) + 1).extend(IDS, chunk=len(IDS))


@pytest.fixture(scope="module")
def good() -> np.ndarray:
    return ours(diagnostic_path())


@pytest.mark.oracle
@pytest.mark.parametrize("name", KINDS)
def test_hugging_face_reads_the_same_wrong_file(load_oracle: Any, tmp_path, good, name) -> None:
    """To float noise, and far from the good file."""
    path = tmp_path / f"{name}.gguf"
    write_bad(diagnostic_path(), path, BAD[name])
    theirs = load_oracle(path).logits(IDS)
    assert rms(theirs - ours(path)) < 3e-5
    assert rms(theirs - good) > 0.02
