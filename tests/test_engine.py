"""The engine's edges: closing, threads, what it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from ds4ref.archs.deepseek4.shape import ModelShape
from ds4ref.engine import Engine
from ds4ref.errors import ModelFileError, SessionError, ShapeError
from ds4ref.kernels.cpu import CPU
from ds4ref.kernels.formats import Matrix
from ds4ref.sampling import Sampler
from ds4ref.targets.base import Prompt, Request
from ds4ref.targets.local import LocalTarget
from ds4ref.weights.gguf import GGUFFile
from ds4ref.weights.writer import write_gguf
from tests.weights.modelfile import SMALL, write_model


@pytest.mark.parametrize("most", [6, 7, 8, 9])
def test_a_context_is_large_enough_for_the_whole_answer(nano_path: str, monkeypatch, most: int) -> None:
    """Prompt and answer fill a step of the context but for one token, just so, or begin the next one."""
    monkeypatch.setattr("ds4ref.engine.CTX_STEP", 16)
    with Engine.open(nano_path) as engine:
        generation = engine.stream([5] * 9, max_tokens=most)
        assert len(list(generation)) >= most == len(generation.tokens) and generation.finish == "length"
        assert generation.session.ctx == (16 if most < 7 else 32)


def test_weights_that_are_not_normalised_are_refused(tmp_path: Path) -> None:
    """The flag was once read and ignored: wrong numbers without a word."""
    path = tmp_path / "model.gguf"
    write_model(path, dataclasses.replace(SMALL, norm_weights=False))
    with GGUFFile.open(path) as file, pytest.raises(ShapeError, match="expert_weights_norm is false"):
        ModelShape.from_metadata(file)


def test_an_architecture_that_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    with write_gguf(path, [("general.architecture", "string", "gpt2")], []):
        pass
    with pytest.raises(ModelFileError, match="'gpt2' is not one of deepseek4"):
        Engine.open(path, backend="reference")


def test_a_broken_engine_is_not_recorded_as_truth(nano_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever decodes, a NaN that is picked is an error: one loop serves all."""
    monkeypatch.setattr(Sampler, "pick", lambda self, logits: int(np.isnan(logits).argmax()))
    real = CPU.linear
    target = LocalTarget(Engine.open(nano_path), 64)
    vocab = target.engine.shape.vocab

    def linear(ops: CPU, x: np.ndarray, w: Matrix, act: str = "float") -> np.ndarray:
        out = real(ops, x, w, act)
        if w.rows == vocab:
            out[:, 77] = np.nan
        return out

    monkeypatch.setattr(CPU, "linear", linear)
    with pytest.raises(SessionError, match="not finite"):
        list(target.stream(Request(Prompt(ids=[1, 2, 3]), max_tokens=3)))
    target.close()


def test_a_recording_shares_its_memory_over_layers(nano_path: str) -> None:
    """Work areas of 64 threads are there once, not once a layer, and places are reused."""
    with Engine.open(nano_path, numerics="ds4") as engine:
        session = engine.session(60)
        session.sync([1, 2, 3])
        sizes = {}
        try:
            for threads in (1, 64):
                engine.threads = threads
                session.eval(5)
                sizes[threads] = session._decoder.last.nbytes
        finally:
            engine.threads = 1
        shape = engine.shape
        per_thread = 4 * 64 * shape.head_dim + 64 * 1024
        assert sizes[64] - sizes[1] < 64 * per_thread * 2
