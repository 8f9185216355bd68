"""Foreign engines as bugs of ``ds4-vectors diagnose``: Hugging Face and llama.cpp, right and with mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.nano.diagnostic import PROMPTS, diagnostic_path
from ds4ref.test_vectors import cli
from ds4ref.test_vectors.diagnosis import Signatures, diagnose
from ds4ref.test_vectors.observation import from_logits
from ds4ref.variants import LIBRARY
from tests.marking import sampled

from ..stored import stored

IDS = PROMPTS["text"]()[:144]
BARS = {"float32": 0.95, "float16": 0.95, "bfloat16": 0.9, "csv": 0.9, "top20": 0.8}
EVERY = 3
"""Of the bugs, each third; vectors.md has the figures of all."""


def diagnosed(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Exit code and what the command found."""
    code = cli.main(["diagnose", "--logits", str(path), *more, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def library(_model_cache: Any) -> Any:
    with Engine.open(diagnostic_path(), backend="cpu", numerics="exact") as engine:
        yield Signatures(engine, IDS)


@pytest.fixture(scope="module")
def bugs(load_oracle: Any) -> dict[str, np.ndarray]:
    """Logits of Hugging Face with one fault of the library at a time, those above float noise."""
    from .bugs_library import LIBRARY_BUGS

    oracle = load_oracle(diagnostic_path())
    clean, found = oracle.logits(IDS), {}
    for bug in LIBRARY_BUGS[::EVERY]:
        if LIBRARY[bug.name].quiet:
            continue
        with bug.apply(oracle):
            logits = oracle.logits(IDS)
        if np.abs(logits - clean).max() > 1e-3:
            found[bug.name] = logits
    return found


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["mixed", "text"])
def test_hugging_face_is_exact(load_oracle, tmp_path, capsys, name) -> None:
    ids = PROMPTS[name]()
    np.savez(tmp_path / "hf.npz", ids=np.array(ids, np.int32), logits=load_oracle(diagnostic_path()).logits(ids))
    for more in ([], ["--top", "20"]):
        code, found = diagnosed(capsys, tmp_path / "hf.npz", *more)
        assert code == 0 and found["verdict"] == "exact" and found["confidence"] > 0.8


@pytest.mark.oracle
@pytest.mark.parametrize("seed", sampled(list(range(30)), [3, 7], others=pytest.mark.slow))
def test_right_float_engines_are_exact(load_oracle, tmp_path, seed) -> None:
    """On a model that nobody has: none accused, none undecided, however it sums, rotates or approximates."""
    from .builds import builds
    from .modelgen import draw_shape, write_model

    shape, path = draw_shape(seed), tmp_path / "drawn.gguf"
    write_model(path, shape, seed)
    ids = np.random.default_rng([seed, 200]).integers(0, shape.vocab, 200).tolist()
    with Engine.open(str(path), backend="cpu", numerics="exact") as engine:
        library = Signatures(engine, ids)
        for name, logits in builds(load_oracle(path), ids):
            found = diagnose(library, from_logits(ids, logits))
            assert (found.verdict, found.fault, found.first_position) == ("exact", None, None), (name, found.notes)
            assert found.limit is not None and found.limit["size"] > found.limit["noise"]


@pytest.mark.oracle
@pytest.mark.parametrize("way", list(BARS))
def test_mistakes_in_hugging_face_are_named(library, bugs, tmp_path, way) -> None:
    """Not our engine's mistakes, nor its noise; and however the numbers were kept."""
    wrong, missed = [], []
    for name, logits in bugs.items():
        found = diagnose(library, stored(tmp_path, way, IDS, logits), library.engine.tokenizer.bos)
        assert not found.clean, name
        if name not in found.faults:
            (wrong if found.fault else missed).append(f"{name}: {found.fault or found.verdict}")
    assert len(bugs) >= 16
    assert not wrong, wrong
    assert len(missed) <= (1 - BARS[way]) * len(bugs) + 0.5, missed
