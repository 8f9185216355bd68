"""Small models on compiled CUDA kernels: not all experts fit; drafts; a dense family; the command. Logits of golden
models: ``test_golden``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4ref.archs.deepseek4.dspark import Drafter
from ds4ref.archs.deepseek4.mtp import Block
from ds4ref.cli import ds4
from ds4ref.drafts.dspark import DSpark
from ds4ref.drafts.mtp import Mtp
from ds4ref.engine import Engine
from ds4ref.kernels.cuda import backend
from ds4ref.nano import dspark_path, embedded_path, mtp_path
from tests import v41
from tests.archs import dense
from tests.archs.test_dense import BAR, apart, ids_of

pytestmark = pytest.mark.cuda


def test_a_model_that_does_not_fit_has_the_bits_of_one_that_does(
    nano_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for spare in (None, 1 << 20):
        monkeypatch.setattr(backend.CUDA, "prepare", lambda self, *sizes, spare=spare: setattr(self, "spare", spare))
        with Engine.open(nano_path, backend="cuda", numerics="ds4") as engine:
            session = engine.session(64)
            session.sync([7, 8, 9])
            found.append(np.stack([session.eval(token) for token in (3, 1, 4)]))
    assert np.array_equal(*found)


def test_drafts_of_multi_token_prediction() -> None:
    """Op by op for more pairs than are recorded, then from recordings of one and two: as on the CPU."""
    results: dict[str, list[tuple[np.ndarray, list[float]]]] = {}

    class Watched(Mtp):
        def _step(self, X: np.ndarray, ids: Any) -> Any:
            out = super()._step(X, ids)
            results[self.block.ops.name].append((out[0].copy(), out[2]))
            return out

    X = np.random.default_rng(1).standard_normal((12, 4, 256)).astype(np.float32)
    for name in ("cpu", "cuda"):
        results[name] = []
        with Engine.open(embedded_path("q4"), backend=name, numerics="exact") as engine:
            block = Block.open(mtp_path("q4"), engine.model)
            mtp = Watched(block)
            for known, end in ((0, 9), (9, 10), (10, 12)):
                mtp.propose(range(end + 1), engine.model.ops.upload(X[known:end]), 2)
            assert {count for count, _ in mtp._recordings} == {1, 2}
            block.close()
    for (streams, values), (wanted, best) in zip(results["cuda"], results["cpu"], strict=True):
        assert np.abs(streams - wanted).max() < 1e-5 * wanted.std() and np.allclose(values, best, atol=1e-4, rtol=0)


def test_drafts_of_dspark() -> None:
    """A block op by op, before a window of rows and past it, then from the recording: as on the CPU."""
    results: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    means = np.random.default_rng(2).standard_normal((80, 3, 256)).astype(np.float32)
    for name in ("cpu", "cuda"):
        with Engine.open(embedded_path("q4"), backend=name, numerics="exact") as engine:
            drafter = Drafter.open(dspark_path(), engine.model)
            source, results[name] = DSpark(drafter), []
            for start, end in ((0, 5), (5, 79), (79, 80)):
                drafter.inject(means[start:end], source._rows)
                guess = drafter.guess(7, source._rows) if start < 79 else drafter.chained(7, *source._block(7))
                results[name].append((guess.logits, guess.confidence))
            drafter.close()
    for (logits, chances), (wanted, best) in zip(results["cuda"], results["cpu"], strict=True):
        assert np.abs(logits - wanted).max() < 1e-5 * wanted.std() and np.allclose(chances, best, atol=1e-5)


def test_a_layer_of_a_dense_family_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gemma: prefill, then tokens from a recording, past the window."""
    drawn = dense.draw_shape(1, dense.GEMMA)
    shape = replace(drawn, n_layers=1, dim=12, ff=8, n_heads=4, n_kv_heads=2, head_dim=6, vocab=10)
    shape = replace(shape, window=3, windowed=(True,), window_theta=1e3)
    tensors = dense.draw_tensors(shape, 1, True)
    path, ids = dense.write(tmp_path / "small.gguf", shape, tensors, "BF16"), ids_of(shape, 6)
    with Engine.open(path, backend="cuda", numerics="exact") as engine:
        session = engine.session(10)
        got = [*session.extend(ids[:3]), *(session.eval(token) for token in ids[3:])]
    assert apart(np.array(got), dense.logits_of(shape, dense.rounded(tensors, "BF16"), ids)) < BAR
    said = []
    for name in ("cuda", "cpu"):
        argv = ["-m", embedded_path(), "--backend", name, "-p", "2+2", "-n", "2", "--temp", "0", "--nothink"]
        assert ds4.main(argv) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != "\n"


def test_a_model_that_looks_up_n_grams(tmp_path: Path) -> None:
    """DeepSeek V4.1: tables stay on the host; prefill, then recorded tokens, which select among candidate blocks."""
    z = v41.golden()
    ids = z["engram.ids"][:26].tolist()
    with Engine.open(v41.model(tmp_path, "engram"), backend="cuda", numerics="exact") as engine:
        assert isinstance(engine.model.weights.layers[1].engram_embd.data, np.ndarray)
        session = engine.session(40)
        got = np.array([*session.extend(ids[:22]), *(session.eval(token) for token in ids[22:])])
    at = z["engram.positions"]
    at = at[at < len(ids)]
    assert at[-1] == 25 and np.abs(got[at] - z["engram.logits"][: len(at)]).max() < 1e-4
