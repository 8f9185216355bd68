"""Modes qat and ds4 on drawn configurations, against Hugging Face's model with the same roundings put in from outside.

Rounding turns float noise into single steps ("flips"), and a flipped cache row shows at every position that sees it. So
each half layer gets the oracle's own input stream, the lower quartile tells whether the arithmetic is right, and the
share of positions without a flip says that flips are all that is left. Angles are the oracle's in both (recipe "f32").
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.forward import Model
from ds4ref.engine import Engine
from ds4ref.numerics import MODES
from ds4ref.session.session import Session

from .compare import difference
from .test_hf_live import Forced

pytestmark = pytest.mark.oracle

LENGTH = 200


SEEDS = [int(seed) for seed in os.environ.get("DS4_ORACLE_SEEDS", "5").split(",")]
"""Seed 5 has seven layers of every kind, heads of 352 with a rotary part of 32, and YaRN."""


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed{seed}")
def drawn(request: pytest.FixtureRequest, load_oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(oracle, path, ids) of one drawn model."""
    from .modelgen import draw_shape, write_model

    shape = draw_shape(request.param)
    path: Path = tmp_path_factory.mktemp("rounded") / f"seed{request.param}.gguf"
    write_model(path, shape, request.param)
    ids = np.random.default_rng(request.param).integers(0, shape.vocab, LENGTH).tolist()
    return load_oracle(path), path, ids


@pytest.fixture(scope="module", params=["qat", "ds4"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def trace(drawn: Any, mode: str) -> Any:
    """The rounded oracle's own run."""
    from .hf_rounded import rounded

    oracle, _, ids = drawn
    with rounded(oracle, activations=mode == "ds4"):
        return oracle.record(ids)


def half_layer_errors(drawn: Any, trace: Any, backend: str, mode: str) -> dict[str, np.ndarray]:
    """half -> (layers, positions) largest error, in standard deviations of the layer's output."""
    _, path, ids = drawn
    with Engine.open(path, backend=backend, numerics="exact", threads=2) as engine:
        numerics = MODES[mode]._replace(rope="f32")
        model = Model(engine.shape, engine.model.weights, engine.model.ops, numerics)
        session = Session(model, LENGTH + 1)
        session.hooks = forced = Forced(trace, halves=True)
        session.extend(ids)
        errors = {}
        for half, name, wanted in (
            ("attn", "hc_attn_post", trace.after_attention),
            ("ffn", "hc_ffn_post", trace.after),
        ):
            rows = [
                np.abs(forced[name, n].reshape(LENGTH, -1) - wanted(n)).max(axis=1) / wanted(n).std()
                for n in range(engine.shape.n_layers)
            ]
            errors[half] = np.array(rows)
    return errors


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_half_layers(drawn: Any, trace: Any, backend: str, mode: str) -> None:
    errors = half_layer_errors(drawn, trace, backend, mode)
    for half, share in (("attn", 0.4), ("ffn", 0.95)):
        quartiles = np.quantile(errors[half], (0.25, 0.4), axis=1)
        clean = (errors[half] < 5e-5).mean(axis=1)
        print(f"{mode} {backend} {half}: quantiles 0.25 and 0.4 {quartiles}, without a flip {clean}")
        assert quartiles[0].max() <= 1e-5 and quartiles[1].max() <= 5e-5  # with flips in up to six tenths, below
        assert clean.min() >= share


def test_without_the_roundings_it_would_show(drawn: Any, trace: Any, mode: str) -> None:
    """The same comparison in mode exact is off by orders of magnitude wherever the mode rounds."""
    errors = half_layer_errors(drawn, trace, "reference", "exact")
    assert np.median(errors["attn"], axis=1).min() > 1e-3
    if mode == "ds4":
        assert np.median(errors["ffn"], axis=1).min() > 1e-3


def test_rounded_oracle_is_the_one_of_the_golden_files(golden: Path, load_oracle: Any) -> None:
    """Another author's roundings in transformers, end to end on smooth: flips only (0.076 without any rounding)."""
    from .hf_rounded import rounded

    stored = np.load(golden / "smooth.t200.npz")
    oracle, ids = load_oracle(golden / "smooth.gguf"), stored["ids"].tolist()
    with rounded(oracle, activations=False):
        found = difference(oracle.logits(ids), stored["hf_qat"])
    assert found.rms < 0.02 and found.kl < 2e-4, found
    assert difference(oracle.logits(ids), stored["hf_qat"]).rms > 0.03, "the roundings stay inside their context"
