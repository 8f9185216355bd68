"""A dense model whose file has one metadata key changed: the diagnosis names the key with its value.

The other engine is ours on the changed file; ``benchmarks.dense_keys`` has llama.cpp in its place, on trained weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.dense.forward import Model
from ds4ref.archs.dense.shape import DenseShape, Scaling, every
from ds4ref.engine import Engine
from ds4ref.numerics import MODES
from ds4ref.session.session import Session
from ds4ref.test_vectors.diagnose import run_diagnosis
from ds4ref.test_vectors.diagnosis import prompt_keys
from ds4ref.test_vectors.observation import Observation, from_logits
from ds4ref.variants import Runner
from tests.archs import dense
from tests.marking import sampled

TOKENS = 48
Change = dict[str, Any]


def shape_of(name: str) -> DenseShape:
    """A model with several layers and heads; Gemma's sixth of seven layers has no window."""
    family = {**dense.FAMILIES, "gemma3": dense.GEMMA}[name]
    shape = replace(dense.draw_shape(3, family, block=32, sharing=2), vocab=400, n_layers=7 if family.gemma else 3)
    windows = {"window": 9, "windowed": every(6, 7), "window_theta": 10_000.0}
    return replace(shape, **windows) if family.gemma else shape  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """name -> engine, and a function that observes the model with other fields of its shape."""
    folder: Path = tmp_path_factory.mktemp("dense")
    engines: dict[str, Engine] = {}
    ids = np.random.default_rng(5).integers(0, 400, TOKENS).tolist()

    def opened(name: str) -> Engine:
        if name not in engines:
            path, shape = folder / f"{name}.gguf", shape_of(name)
            dense.write(path, shape, dense.draw_tensors(shape, 3, tied=False))
            engines[name] = Engine.open(path, numerics="exact", threads=1)
        return engines[name]

    def changed(name: str, **fields: Any) -> Observation:
        model = opened(name).model
        other = Model(replace(model.shape, **fields), model.weights, model.ops, MODES["exact"])
        return from_logits(ids, np.asarray(Session(other, TOKENS + 1).extend(ids)))

    yield opened, changed
    for engine in engines.values():
        engine.close()


TABLE: list[tuple[str, Change, str, float]] = [
    # model, fields of its shape that the other engine has, key that is named, its value
    ("llama", {"rope_theta": 3e4}, "llama.rope.freq_base", 3e4),
    ("gemma3", {"window": 7}, "gemma3.attention.sliding_window", 7),
    ("llama", {"rms_eps": 3e-2}, "llama.attention.layer_norm_rms_epsilon", 3e-2),
    ("llama", {"scaling": Scaling("linear", 3.0)}, "llama.rope.scaling.factor (linear)", 3.0),
    ("llama", {"scaling": Scaling("yarn", 4.0, 2048)}, "llama.rope.scaling.factor (yarn)", 4.0),
    ("qwen3", {"scaling": Scaling(gain=1.2)}, "qwen3.rope.scaling.attn_factor (or attention.scale)", 1.2),
    ("qwen2", {"window": 13}, "qwen2.attention.sliding_window", 13),
    ("gemma3", {"window_theta": 2e5}, "gemma3.rope.freq_base_swa", 2e5),
    ("gemma3", {"windowed": every(3, 7)}, "gemma3.attention.sliding_window_pattern", 3),
]


@pytest.mark.parametrize(("name", "fields", "key", "value"), sampled(TABLE, 3))
def test_the_key_is_named(models: Any, name: str, fields: Change, key: str, value: float) -> None:
    opened, changed = models
    result = run_diagnosis(opened(name), changed(name, **fields))
    assert (result.verdict, result.fault) == ("fault", key), result.says
    assert result.parameter is not None and result.parameter["value"] == pytest.approx(value, rel=0.02)
    assert result.says.startswith(key.partition(" (")[0] + " is ")


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_key_without_effect_is_no_mistake(models: Any, name: str) -> None:
    opened, changed = models
    assert run_diagnosis(opened(name), changed(name, trained_ctx=100)).verdict == "exact"


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
def test_right_values_change_nothing_and_wrong_ones_do(models: Any, name: str) -> None:
    """Of every key; where the prompt is too short for a value, another of its grid has an effect."""
    engine = models[0](name)
    runner, ids = Runner(engine), list(range(40, 72))
    right, shape = runner.run(ids, "exact")[0], engine.shape
    for family in runner.families().values():
        same = runner.run(ids, "exact", [family.fault(family.neutral(shape))])[0]
        assert np.abs(same - right).max() < 2e-3, family.name
        moved = [np.abs(runner.run(ids, "exact", [family.fault(v)])[0] - right).max() for v in family.grid(shape)]
        assert not moved or max(moved) > 1e-2, family.name


@pytest.mark.parametrize(("moved", "name"), [(0, "exact"), (1, "ids_up"), (-1, "ids_down")])
def test_a_large_vocabulary_is_compared_in_part(tmp_path: Path, moved: int, name: str) -> None:
    """Columns of neighbours remain, which show ids that are off by one; top tokens alone do, too."""
    shape = replace(shape_of("llama"), vocab=20_000, n_layers=1)
    path = dense.write(tmp_path / "wide.gguf", shape, dense.draw_tensors(shape, 3, tied=False))
    ids = np.random.default_rng(5).integers(0, shape.vocab, 32).tolist()
    with Engine.open(path, numerics="exact", threads=1) as engine:
        seen = from_logits(ids, np.roll(engine.logits(ids), moved, axis=1))
        whole = run_diagnosis(engine, seen)
        assert name in (whole.verdict, whole.fault), whole.says
        if not moved:
            assert run_diagnosis(engine, seen.top(20)).verdict == name


def test_each_wrong_tokenizer_cuts_texts_itself() -> None:
    """Whichever is asked first."""
    cuts = [prompt_keys._cut(lambda n=n: SimpleNamespace(encode=lambda text: [n, len(text)])) for n in range(2)]
    assert [cut(None, b"ab") for cut in cuts * 2] == [[0, 2], [1, 2]] * 2
