"""Small models on compiled CUDA kernels: the random model beside the CPU, with the bars of ``gpu-check``; a layer of
every dense family; the commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_models
from benchmarks.gpu_check import Check
from benchmarks.report import Row
from ds4ref.archs.deepseek4.mtp import Block
from ds4ref.cli import ds4
from ds4ref.drafts.mtp import Mtp
from ds4ref.engine import Engine
from ds4ref.nano import embedded_path, mtp_path
from ds4ref.runs.results import read_rows
from ds4ref.speed_bench import cli as bench
from ds4ref.test_vectors import cli as vectors
from tests.archs import dense
from tests.archs.test_dense import BAR, apart, ids_of
from tests.marking import sampled
from tests.weights import llama2c

from .hosted import LAUNCHED

pytestmark = pytest.mark.cuda
STORY = llama2c.Config(dim=16, hidden=16, layers=1, heads=2, shared=1, vocab=300, context=48)


@pytest.fixture(autouse=True)
def _kernels_ran(_cuda_kernels: None) -> Any:
    LAUNCHED.clear()
    yield
    assert LAUNCHED, "no kernel ran"


@pytest.mark.parametrize("mode", sampled(gpu_models.MODES, ["ds4"], pytest.mark.slow))
def test_a_prompt_and_recorded_tokens_are_as_near_as_orders_of_adding_allow(
    mode: str, nano_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_models, "MODES", (mode,))
    told: list[dict[str, Any]] = []
    gpu_models.beside_the_cpu(Check(told.append), "random model", nano_path, gpu_models.Length(20, 3))
    judged = [row for row in (Row(**message["row"]) for message in told) if row.bar is not None]
    assert judged and all(row.met for row in judged), judged


def test_drafts_of_multi_token_prediction() -> None:
    """Op by op for more pairs than are recorded, then from recordings of one and two: as on the CPU."""
    results: dict[str, list[tuple[np.ndarray, list[float]]]] = {}

    class Watched(Mtp):
        def _step(self, X: np.ndarray, ids: Any) -> Any:
            out = super()._step(X, ids)
            results[self.block.ops.name].append((out[0].copy(), out[2]))
            return out

    X = np.random.default_rng(1).standard_normal((12, 4, 256)).astype(np.float32)
    for backend in ("cpu", "cuda"):
        results[backend] = []
        with Engine.open(embedded_path("q4"), backend=backend, numerics="ds4") as engine:
            block = Block.open(mtp_path("q4"), engine.model)
            mtp = Watched(block)
            for known, end in ((0, 9), (9, 10), (10, 12)):
                mtp.propose(range(end + 1), engine.model.ops.upload(X[known:end]), 2)
            assert {count for count, _ in mtp._recordings} == {1, 2}
            block.close()
    for (streams, values), (wanted, best) in zip(results["cuda"], results["cpu"], strict=True):
        assert np.abs(streams - wanted).max() < 1e-5 * wanted.std() and np.allclose(values, best, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", [*dense.FAMILIES, "qwen3moe", "gemma3"])
def test_a_layer_of_a_dense_family(family: str, tmp_path: Path) -> None:
    """Prefill, then tokens from a recording, past the window of what has one: Gemma, Qwen3 with experts."""
    drawn = dense.draw_shape(1, (dense.FAMILIES | dense.WITH_EXPERTS | {"gemma3": dense.GEMMA})[family])
    shape = replace(drawn, n_layers=1, dim=12, ff=8, n_heads=4, n_kv_heads=2, head_dim=6, vocab=10)
    if family == "qwen3moe":
        shape = replace(shape, n_experts=5, n_used=2, expert_ff=8, window=3)
    if family == "gemma3":
        shape = replace(shape, window=3, windowed=(True,), window_theta=1e3)
    tensors = dense.draw_tensors(shape, 1, True)
    path, ids = dense.write(tmp_path / "small.gguf", shape, tensors, "BF16"), ids_of(shape, 6)
    with Engine.open(path, backend="cuda", numerics="exact") as engine:
        session = engine.session(10)
        got = [*session.extend(ids[:3]), *(session.eval(token) for token in ids[3:])]
    assert apart(np.array(got), dense.logits_of(shape, dense.rounded(tensors, "BF16"), ids)) < BAR


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of llama2.c."""
    tokens, weights = llama2c.vocabulary(STORY), llama2c.draw(STORY)
    return llama2c.write(tmp_path_factory.mktemp("story"), llama2c.legacy(STORY, weights), tokens)


def answer(model: Path, backend: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What ``ds4`` prints, greedily."""
    argv = ["-m", model, "--backend", backend, "-p", "sea", "-n", 3, "--temp", 0, "--nothink", "-sys", ""]
    assert ds4.main(list(map(str, argv))) == 0
    return capsys.readouterr().out


def test_ds4_answers_as_on_the_reference(story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(story, "cuda", capsys) == answer(story, "reference", capsys) != "\n"


def test_ds4_bench_decodes_the_same_tokens(story: Path, tmp_path: Path) -> None:
    swept = []
    for backend in ("cuda", "reference"):
        csv = tmp_path / f"{backend}.csv"
        argv = ["-m", story, "--backend", backend, "--frontiers", "2,4", "-n", 2, "-r", 1, "--csv", csv]
        assert bench.main([*map(str, argv), "--no-warmup", "--no-roofline", "--no-store"]) == 0
        swept.append(list(read_rows(csv)))
    cuda, wanted = swept
    assert [row["gen_digest"] for row in cuda] == [row["gen_digest"] for row in wanted] and len(cuda) == 2
    assert all(row["gen_tps"] > 0 and row["prefill_tps"] > 0 for row in cuda)


def test_ds4_vectors_of_the_reference_hold(story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, folder = tmp_path / "prompts.jsonl", str(tmp_path / "vectors")
    prompts.write_text(json.dumps({"id": "one", "prompt": "sea"}) + "\n")
    target = ["--target", f"local:{story}", "--numerics", "exact", "--ctx", "40"]
    captured = ["--prompts", str(prompts), "-n", "2", "--repeat", "1", "--backend", "reference"]
    assert vectors.main(["capture", folder, *target, *captured]) == 0
    capsys.readouterr()
    assert vectors.main(["check", folder, *target, "--backend", "cuda", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
