"""However a prompt is cut, the result is the same; with the CPU backend, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.engine import Engine
from ds4ref.model.hooks import Recorder
from ds4ref.nano import embedded_path

CTX = 400


@pytest.fixture(scope="module", params=["exact", "qat", "ds4"])
def cpu(request: pytest.FixtureRequest) -> Engine:
    return Engine.open(embedded_path(), backend="cpu", numerics=request.param)


@pytest.fixture(scope="module")
def ids(cpu: Engine) -> np.ndarray:
    return np.random.default_rng(5).integers(0, cpu.shape.vocab, 300).astype(np.int32)


@pytest.fixture(scope="module")
def whole(cpu: Engine, ids: np.ndarray) -> np.ndarray:
    return cpu.session(CTX).extend(ids, chunk=10_000)


@pytest.mark.parametrize("chunk", [1, 3, 4, 127, 128, 129])
def test_fixed_chunks(cpu: Engine, ids: np.ndarray, whole: np.ndarray, chunk: int) -> None:
    np.testing.assert_array_equal(cpu.session(CTX).extend(ids, chunk=chunk), whole)


@pytest.mark.parametrize("seed", range(3))
def test_random_cuts(cpu: Engine, ids: np.ndarray, whole: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    session, parts, at = cpu.session(CTX), [], 0
    while at < len(ids):
        n = int(rng.integers(1, 90))
        parts.append(session.extend(ids[at : at + n], chunk=10_000))
        at += n
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_reference_agrees_with_cpu_and_with_itself(ids: np.ndarray) -> None:
    """Float noise only in mode exact, whichever backend and however cut."""
    cpu = Engine.open(embedded_path(), backend="cpu", numerics="exact").session(CTX).extend(ids)
    reference = Engine.open(embedded_path(), backend="reference", numerics="exact")
    whole = reference.session(CTX).extend(ids)
    pieces = reference.session(CTX).extend(ids, chunk=37)
    assert np.abs(whole - pieces).max() <= 2e-4
    assert np.abs(whole - cpu).max() <= 2e-4


def test_recorder_sees_every_named_intermediate(cpu: Engine, ids: np.ndarray) -> None:
    """Each name of hooks.NAMES is tapped where it applies, once per chunk, with the token axis first."""
    recorder = Recorder()
    session = cpu.session(CTX)
    session.hooks = recorder
    session.extend(ids, chunk=150)
    shape = cpu.shape
    names = {name for name, _ in recorder.parts}
    assert names == recorder.names
    assert recorder["kqv_out", 0].shape == (300, shape.n_heads, shape.head_dim)
    assert recorder["KVcompress", 3].shape == (300 // 128, shape.head_dim)
    assert recorder["result_output", -1].shape == (300, shape.vocab)
    with pytest.raises(KeyError, match="no intermediate"):
        Recorder("nonsense")
