"""Wrong model files seen through other engines: the same file says the same wrong thing to Hugging Face and llama.cpp.

So the wrong file, not our reading of it, is what a diagnosis gets to see.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from tests.badfiles import BAD, LLAMA_ONLY, BadFile, write_bad

from .conftest import missing

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


def wrong_file(folder: Path, bad: BadFile) -> Path:
    path = folder / f"{bad.name}.gguf"
    write_bad(diagnostic_path(), path, bad)
    return path


@pytest.mark.oracle
@pytest.mark.parametrize("name", KINDS)
def test_hugging_face_reads_the_same_wrong_file(load_oracle: Any, tmp_path, good, name) -> None:
    """To float noise, and far from the good file."""
    from .wrong_files import hugging_face

    path = wrong_file(tmp_path, BAD[name])
    theirs = hugging_face(IDS)(str(path))
    assert rms(theirs - ours(path)) < 3e-5
    assert rms(theirs - good) > 0.02


@pytest.fixture(scope="module")
def llama() -> Any:
    """path -> logits by llama.cpp; skips where it is not installed."""
    try:
        import llama_cpp  # noqa: F401
    except ImportError:
        missing("llama-cpp-python is not installed (pip install 'ds4ref[peers]')")
    from .wrong_files import llama_cpp as runner

    return runner(IDS)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BAD if name not in ("one_ratio", "hash_layers")])
def test_llama_cpp_on_a_wrong_file_is_nearer_to_us_on_it(llama: Any, tmp_path, good, name) -> None:
    """Its roundings move it by 0.4 to 0.6; a wrong file that moves us by more pulls it along."""
    path = wrong_file(tmp_path, BAD[name])
    here, theirs = ours(path), llama(str(path))
    noise = rms(llama(diagnostic_path()) - good)
    assert 0.2 < noise < 0.7
    apart, from_good = rms(theirs - here), rms(theirs - good)
    if rms(here - good) > 2 * noise:
        assert apart < 0.8 * from_good, (apart, from_good)
    else:
        assert apart < 2 * noise, (apart, from_good)


@pytest.mark.peers
@pytest.mark.slow
def test_keys_that_llama_cpp_alone_reads(llama: Any, tmp_path) -> None:
    """Some it refuses, which is an answer; the others change what it says, and it alone notices."""
    clean = llama(diagnostic_path())
    refused, effect = [], {}
    for bad in LLAMA_ONLY:
        path = wrong_file(tmp_path, bad)
        try:
            effect[bad.name] = rms(llama(str(path)) - clean)
        except ValueError:
            refused.append(bad.name)
    assert set(refused) == {"gating_sigmoid", "gating_softmax"}
    assert set(effect) == {"weights_not_normalised", "scaling_linear", "scaling_none"}, effect
    assert effect["scaling_linear"] > 0.5, effect
