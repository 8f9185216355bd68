"""Commands with --backend cuda as processes of their own: in numba's simulator, and where nothing can run it.

A checkpoint of llama2.c with one small layer goes through the simulator in seconds, the embedded model in minutes. What
they say is what the reference backend says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ds4ref.runs.results import read_rows
from tests.weights import llama2c

ROOT = Path(__file__).resolve().parents[1]
MODULES = {"ds4": "ds4ref.cli.ds4", "ds4-bench": "speed_bench.cli", "ds4-vectors": "test_vectors.cli"}
C = llama2c.Config(dim=16, hidden=16, layers=1, heads=2, shared=1, vocab=300, context=48)


def run(tool: str, *argv: Any, simulated: bool = True, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command in a process, which sees no GPU."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "NUMBA_ENABLE_CUDASIM": str(int(simulated))}
    command = [sys.executable, "-m", MODULES[tool], *map(str, argv)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == code, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens, weights = llama2c.vocabulary(C), llama2c.draw(C)
    return llama2c.write(tmp_path_factory.mktemp("story"), llama2c.legacy(C, weights), tokens)


def told(model: Path | str, backend: str, prompt: str, tokens: int) -> str:
    """What ``ds4`` answers, greedily."""
    argv = ["-m", model, "--backend", backend, "-p", prompt, "-n", tokens, "--temp", 0, "--nothink", "-sys", ""]
    return run("ds4", *argv).stdout


def swept(model: Path | str, backend: str, folder: Path, frontiers: str) -> list[dict[str, Any]]:
    """Rows of ``ds4-bench``."""
    csv = folder / f"{backend}.csv"
    argv = ["--frontiers", frontiers, "-n", 2, "-r", 1, "--no-warmup", "--no-roofline", "--no-store", "--csv", csv]
    run("ds4-bench", "-m", model, "--backend", backend, *argv)
    return list(read_rows(csv))


def checked(model: Path | str, folder: Path, prompt: str, tokens: int) -> dict[str, Any]:
    """What ``ds4-vectors`` says of vectors of the reference, told by cuda."""
    prompts, vectors = folder / "prompts.jsonl", folder / "vectors"
    prompts.write_text(json.dumps({"id": "one", "prompt": prompt}) + "\n")
    target = ["--target", f"local:{model}", "--numerics", "exact", "--ctx", 40]
    argv = ["--prompts", prompts, "-n", tokens, "--repeat", 1, "--backend", "reference"]
    run("ds4-vectors", "capture", vectors, *target, *argv)
    done = run("ds4-vectors", "check", vectors, *target, "--backend", "cuda", "--json")
    assert done.stdout.count("\n") == 1
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_small_model_tells_in_the_simulator_what_it_tells_elsewhere(story: Path) -> None:
    assert told(story, "cuda", "sea", 3) == told(story, "reference", "sea", 3) != "\n"


@pytest.mark.thorough
def test_a_sweep_in_the_simulator_decodes_the_same_tokens(story: Path, tmp_path: Path) -> None:
    cuda, wanted = (swept(story, backend, tmp_path, "2,4") for backend in ("cuda", "reference"))
    assert [row["gen_digest"] for row in cuda] == [row["gen_digest"] for row in wanted] and len(cuda) == 2
    assert all(row["gen_tps"] > 0 and row["prefill_tps"] > 0 for row in cuda)


@pytest.mark.thorough
def test_vectors_of_the_reference_hold_in_the_simulator(story: Path, tmp_path: Path) -> None:
    assert checked(story, tmp_path, "sea", 2)["passed"] is True


@pytest.mark.slow
def test_the_embedded_model_tells_in_the_simulator_what_it_tells_elsewhere(nano_path: str) -> None:
    assert told(nano_path, "cuda", "W", 2) == told(nano_path, "reference", "W", 2)


@pytest.mark.slow
def test_a_sweep_of_the_embedded_model_in_the_simulator(nano_path: str, tmp_path: Path) -> None:
    cuda, wanted = (swept(nano_path, backend, tmp_path, "2") for backend in ("cuda", "reference"))
    assert [row["gen_digest"] for row in cuda] == [row["gen_digest"] for row in wanted] and len(cuda) == 1


@pytest.mark.slow
def test_vectors_of_the_embedded_model_in_the_simulator(nano_path: str, tmp_path: Path) -> None:
    assert checked(nano_path, tmp_path, "W", 2)["passed"] is True


@pytest.mark.parametrize("tool", list(MODULES))
def test_without_a_device_one_line_says_so(tool: str, story: Path, tmp_path: Path) -> None:
    argv = {
        "ds4": ["-m", story, "--cuda", "-p", "the sea", "-n", 1],
        "ds4-bench": ["-m", story, "--cuda", "--frontiers", 3, "-n", 1, "--no-store"],
        "ds4-vectors": ["capture", tmp_path / "v", "--target", f"local:{story}", "--backend", "cuda", "-n", 1],
    }[tool]
    done = run(tool, *argv, simulated=False, code=1)
    assert done.stdout == "" and not (tmp_path / "v").exists()
    said = done.stderr.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith(f"{tool}: ") and "backend cuda cannot run here: no CUDA device" in said[0]
    assert "NUMBA_ENABLE_CUDASIM=1" in said[0]


def test_devices_are_listed_whether_there_are_any_or_not() -> None:
    bare = run("ds4", "--devices", simulated=False).stdout.splitlines()
    assert bare[0].startswith("cpu: ") and bare[-1].startswith("cuda: no CUDA device: ")
    simulated = run("ds4", "--devices").stdout.splitlines()
    assert simulated[-1] == "cuda: 0: numba's CUDA simulator: usable"


def test_memory_that_does_not_suffice_is_one_line(nano_path: str) -> None:
    argv = ["-m", nano_path, "--frontiers", 2, "--no-store", "--no-roofline"]
    said = run("ds4-bench", *argv, "--cuda", "--gpu-memory", "0.002", code=1).stderr.strip().splitlines()
    assert len(said) == 1 and said[0].startswith("ds4-bench: ") and "GiB of GPU memory" in said[0]
    done = run("ds4-bench", *argv, "--gpu-memory", "1", code=2)
    assert "--gpu-memory is for --backend cuda" in done.stderr
