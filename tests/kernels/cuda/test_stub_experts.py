"""What is asked of a driver where experts do not all fit, on a stand-in that checks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .stubbed import Done, Stub
from .test_stub_token import between_marks, script

pytestmark = pytest.mark.cuda

OPEN = """
    import os
    import numpy as np
    from ds4ref import backends
    from ds4ref.engine import Engine
    from ds4ref.errors import BackendError
    from ds4ref.kernels.cuda import backend
    def prepare(self, nbytes, of_experts):
        self.share = 0.4
    backend.CUDA.prepare = prepare
"""


@pytest.fixture(scope="module")
def decoded(stub: Stub, nano_path: str) -> Done:
    """The small model of tests, six of sixteen experts of a layer in slots: three tokens at which nothing moves, then
    some at which another expert seems to be used (the stand-in counts nothing)."""
    return script(
        stub,
        f"""{OPEN}
    engine = Engine.open({nano_path!r}, backend="cuda", numerics="ds4")
    ops, session = engine.model.ops, engine.session(64)
    session.sync([1, 2, 3])
    session.prepare(range(3, 20))
    for token in range(3, 6):
        mark()
        session.append(token)
    mark()
    cache, counts = ops.experts, np.zeros(ops.experts.table.shape, np.int64)
    for token in range(6, 16):
        counts[:, 9] += 1
        cache._fetched.values[: counts.nbytes] = counts.view(np.uint8).ravel()
        session.append(token)
    print(cache.reachable, cache.residency.slot_of[:, 9].tolist())
    mark()
    del cache, session, ops
    engine.close()
    """,
    )


def test_every_call_is_right(decoded: Done) -> None:
    assert decoded.refused() == []
    assert decoded.out == "True [0, 0, 0, 0, 0, 0]\n"


def test_a_token_is_one_launch_and_one_wait(decoded: Done) -> None:
    for calls in between_marks(decoded)[1:4]:
        names = [call.name for call in calls if not call.name.startswith("cuCtx")]
        assert names == ["cuGraphLaunch", "cuStreamSynchronize"]


def test_an_expert_moves_without_another_wait(decoded: Done) -> None:
    """The table changes, copies wait for it, three matrices of six layers come from registered memory, the table
    changes again."""
    calls = [call.name for call in between_marks(decoded)[4] if not call.name.startswith("cuCtx")]
    assert calls.count("cuStreamSynchronize") == calls.count("cuGraphLaunch") == 10
    assert not {"cuMemAlloc", "cuMemHostAlloc", "cuEventSynchronize"} & set(calls)
    first = calls.index("cuMemcpyHtoDAsync")
    around = calls[first:]
    assert "cuStreamWaitEvent" in around[:6] and around.count("cuMemcpyHtoDAsync") == 3 * 6 + 2
    assert around.index("cuStreamWaitEvent") < around.index("cuMemcpyHtoDAsync", 1), "copies wait for the table"


def test_pages_are_registered_and_given_back(decoded: Done) -> None:
    counted = decoded.counted()
    assert counted["cuMemHostRegister"] == counted["cuMemHostUnregister"] > 0


CUT = """
    backends.memory_bytes = lambda: {memory}
    engine = Engine.open({path!r}, backend="cuda", numerics="ds4")
    os.truncate({path!r}, 4096)
    stack = engine.model.weights.layers[0].ffn_gate_exps
    ops = engine.model.ops
    try:
        ids = ops.upload(np.full(({tokens}, 1), 9, np.int32))
        ops.expert_linear(ops.upload(np.zeros(({tokens}, stack.cols), np.float32)), ids, stack)
        print("went on")
    except BackendError as error:
        print(error)
"""


@pytest.mark.parametrize("tokens", [1, 20])
def test_a_file_that_is_cut_short_is_one_line(stub: Stub, nano_path: str, tmp_path: Path, tokens: int) -> None:
    """Where experts are read when they are wanted; registered pages stay."""
    path = tmp_path / "model.gguf"
    path.write_bytes(Path(nano_path).read_bytes())
    done = script(stub, OPEN + CUT.format(path=str(path), memory=0, tokens=tokens))
    assert done.out == "the model's file cannot be read any more: it was cut short, or its disk failed\n"


def test_what_the_driver_refuses_is_copied(stub: Stub, nano_path: str) -> None:
    """And the command goes on."""
    text = f"""{OPEN}
    engine = Engine.open({nano_path!r}, backend="cuda", numerics="ds4")
    print(engine.model.ops.experts.reachable)
    """
    done = script(stub, text, fail="cuMemHostRegister:2:1")
    counted = done.counted()
    assert done.out == "True\n" and counted["cuMemHostRegister"] == 2 and counted["cuMemHostUnregister"] == 1
    assert counted["cuMemHostAlloc"] >= 9


MEMORY = """
    from ds4ref.kernels.cuda import CUDA
    from ds4ref.kernels.cuda.driver import gpu
    gpu.available = lambda: {available}
    print(CUDA().driver.memory())
"""


@pytest.mark.parametrize(
    ("integrated", "available", "free"),
    [(0, 5000 << 20, 100 << 20), (1, 5000 << 20, 5000 << 20), (1, 50 << 20, 100 << 20), (1, None, 100 << 20),
     (1, 90000 << 20, 8000 << 20)],
)  # fmt: skip
def test_caches_of_files_are_free_where_memory_is_shared(
    stub: Stub, integrated: int, available: int | None, free: int
) -> None:
    """What the driver says is free, or if that is more what the system can give, of the memory there is."""
    text = MEMORY.format(available=available)
    sizes = {"memory": 8000 << 20, "free": 100 << 20}
    done = script(stub, text, integrated=integrated, **sizes)
    taken = done.out.strip("()\n").split(", ")
    assert int(taken[1]) == 8000 << 20
    assert abs(int(taken[0]) - free) < 1 << 20
