"""What the CUDA backend asks of a driver for a decoded token and for a large product, on a stand-in that checks it."""

from __future__ import annotations

import re
import textwrap

import pytest

from ds4ref.kernels.cuda.backend import BRANCHES

from .stubbed import Call, Done, Stub

pytestmark = pytest.mark.cuda

OUTPUTS = 2
"""Copies to the host in a replay: the ranking and the error flag."""


def script(stub: Stub, text: str, **settings: object) -> Done:
    """Run a script; lines it prints with ``mark`` appear in the log between calls."""
    done = stub.python("-c", MARK + textwrap.dedent(text), **settings)
    assert done.code == 0, done.err[-3000:]
    return done


MARK = """
import ctypes
mark = ctypes.CDLL("libcuda.so.1").stub_mark
"""


def between_marks(done: Done) -> list[list[Call]]:
    """Calls before the first mark, between marks, after the last one."""
    parts: list[list[Call]] = [[]]
    for call in done.calls:
        if call.name == "mark":
            parts.append([])
        else:
            parts[-1].append(call)
    return parts


@pytest.fixture(scope="module")
def decoded(stub: Stub, nano_path: str) -> Done:
    """The embedded model: a prompt, a first token, which is recorded, and three more of the same kind."""
    return script(
        stub,
        f"""
        from ds4ref.engine import Engine
        engine = Engine.open({nano_path!r}, backend="cuda", numerics="ds4")
        session = engine.session(64)
        session.sync([1, 2, 3, 4, 5])
        session.prepare(range(5, 9))
        for token in range(5, 9):
            mark()
            session.append(token)
            session.argmax()
        mark()
        """,
    )


def test_every_call_for_a_token_is_right(decoded: Done) -> None:
    """Launches are within limits, copies inside their arrays, streams and events known, captures joined."""
    assert decoded.refused() == [] and len(decoded.named("cuLaunchKernel")) > 200
    assert len(decoded.named("cuLibraryLoadData")) == len({call.details for call in decoded.named("cuLibraryLoadData")})


def test_a_token_is_one_launch_of_a_graph_and_one_wait(decoded: Done) -> None:
    tokens = between_marks(decoded)[1:-1]
    assert len(tokens) == 4
    for calls in tokens:
        names = [call.name for call in calls if not call.name.startswith("cuCtx")]
        assert names == ["cuGraphLaunch", "cuStreamSynchronize"]


def test_graphs_are_captured_in_all_lanes(decoded: Done) -> None:
    ends = decoded.named("cuStreamEndCapture")
    assert len(ends) == len(decoded.named("cuGraphInstantiate")) > 1
    for end in ends:
        lanes, nodes = map(int, re.fullmatch("([0-9]+) streams, ([0-9]+) nodes", end.details).groups())  # type: ignore[union-attr]
        assert lanes == BRANCHES and nodes > 100
    assert len(decoded.named("cuEventCreate")) == len(decoded.named("cuEventDestroy")) > 10


def test_what_was_made_is_given_back(decoded: Done) -> None:
    counted = decoded.counted()
    assert counted["cuGraphExecDestroy"] == counted["cuGraphInstantiate"] == counted["cuGraphDestroy"]


PRODUCT = """
    import numpy as np
    from ds4ref.kernels.cuda import CUDA
    from ds4ref.kernels.cuda.products import matvec
    from ds4ref.kernels.formats import FORMATS, Matrix
    {change}
    ops = CUDA()
    w = ops.place(Matrix("IQ2_XXS", np.zeros((64, FORMATS["IQ2_XXS"].row_bytes(4096)), np.uint8), 64, 4096))
    print(ops.host(ops.linear(ops.upload(np.ones((1, 4096), np.float32)), w)).shape)
"""


def shared_of(call: Call) -> int:
    """Bytes of dynamic shared memory of a launch."""
    return int(call.details.rpartition(" ")[2])


@pytest.mark.parametrize(("capability", "most"), [("8.9", 99), ("9.0", 227)])
def test_a_product_gets_the_shared_memory_it_asked_for(stub: Stub, capability: str, most: int) -> None:
    done = script(stub, PRODUCT.format(change=""), capability=capability)
    assert done.out == "(1, 64)\n" and done.refused() == []
    (asked,) = done.named("cuKernelSetAttribute")
    launched = [shared_of(call) for call in done.named("cuLaunchKernel") if shared_of(call) > 48 << 10]
    assert launched == [int(asked.details.rpartition(" ")[2])] and launched[0] <= most << 10


def test_a_product_that_does_not_ask_is_refused(stub: Stub) -> None:
    """Which is also the proof that the stand-in looks."""
    done = stub.python("-c", textwrap.dedent(PRODUCT.format(change="matvec.allow_shared = lambda *asked: None")))
    assert done.code == 1 and done.err.splitlines()[-1].startswith("RuntimeError: the GPU failed: ")
    assert "INVALID_VALUE" in done.err.splitlines()[-1]
    assert [call.name for call in done.refused()] == ["cuLaunchKernel"]


THREAD = """
    import threading
    import numpy as np
    from ds4ref.kernels.cuda import CUDA
    ops = CUDA()
    x = ops.upload(np.ones(64, np.float32))
    ops.add(x, x)  # whose memory is the next result's, so that a launch is the thread's first call
    thread = threading.Thread(target=lambda: print("launched", ops.add(x, x).shape))
    thread.start()
    thread.join()
"""


def test_a_thread_may_begin_with_a_launch(stub: Stub) -> None:
    done = script(stub, THREAD)
    assert done.out == "launched (64,)\n" and done.refused() == []


PARTS = """
    from benchmarks.gpu_check import Check
    from benchmarks.gpu_products import measure
    told = []
    measure(Check(told.append, True))
    print(len(told))
"""


def test_what_gpu_check_measures_is_launched_and_captured(stub: Stub) -> None:
    """Nothing is copied from the host inside of a graph that is timed."""
    done = script(stub, PARTS)
    assert int(done.out) > 15 and done.refused() == []
