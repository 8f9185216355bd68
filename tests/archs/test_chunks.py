"""However a prompt is cut, the result is the same.

To the bit where one kernel serves both cuts: among chunks that all go through the prefill GEMM, and among all chunks
when it is off. Between the two kernels, to float noise in mode exact; modes that round turn noise into flips, which
the golden tests bound.
"""

from __future__ import annotations

import numpy as np
import pytest

from ds4ref.archs.deepseek4.hooks import NAMES, Recorder
from ds4ref.engine import Engine
from ds4ref.nano import random_path
from tests.marking import sampled

CTX = 400


@pytest.fixture(scope="module", params=["exact", "qat", "ds4"])
def cpu(request: pytest.FixtureRequest) -> Engine:
    return Engine.open(random_path(), backend="cpu", numerics=request.param)


@pytest.fixture(scope="module")
def exact() -> Engine:
    """For what is the same question in every mode."""
    return Engine.open(random_path(), backend="cpu", numerics="exact")


@pytest.fixture(scope="module")
def ids(exact: Engine) -> np.ndarray:
    return np.random.default_rng(5).integers(0, exact.shape.vocab, 300).astype(np.int32)


@pytest.fixture(scope="module")
def whole(cpu: Engine, ids: np.ndarray) -> np.ndarray:
    return cpu.session(CTX).extend(ids, chunk=10_000)


@pytest.mark.parametrize("chunk", sampled([127, 128, 129], [129]))
def test_large_chunks(cpu: Engine, ids: np.ndarray, whole: np.ndarray, chunk: int) -> None:
    np.testing.assert_array_equal(cpu.session(CTX).extend(ids, chunk=chunk), whole)


@pytest.mark.thorough
def test_reference_agrees_with_cpu_and_with_itself(exact: Engine, ids: np.ndarray) -> None:
    """Float noise only in mode exact, whichever backend and however cut."""
    cpu = exact.session(CTX).extend(ids)
    reference = Engine.open(random_path(), backend="reference", numerics="exact")
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
    assert names == set(NAMES)
    assert recorder["kqv_out", 0].shape == (300, shape.n_heads, shape.head_dim)
    assert recorder["KVcompress", 3].shape == (300 // 128, shape.head_dim)
    assert recorder["result_output", -1].shape == (300, shape.vocab)
    with pytest.raises(KeyError, match="no intermediate"):
        Recorder("nonsense")
