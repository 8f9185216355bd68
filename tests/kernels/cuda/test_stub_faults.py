"""A GPU that fails: each call of the driver that a command makes fails in turn, with an error after which all fail.

``ds4`` then says so in one line and exits with 1: no traceback, also none of what Python destroys at its end, and no
process that stays.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .stubbed import Done, Stub, calls_in

pytestmark = pytest.mark.cuda

ILLEGAL_ADDRESS, LAUNCH_FAILED, OUT_OF_MEMORY = 700, 719, 2

CALLS = {
    "cuCtxPushCurrent": (1,),
    "cuStreamCreate": (1, 2),
    "cuMemAlloc": (1, 20),
    "cuMemHostAlloc": (1,),
    "cuMemGetInfo": (1,),
    "cuMemFree": (1, 12),
    "cuMemcpyHtoDAsync": (1, 20),
    "cuMemcpyDtoHAsync": (1,),
    "cuLaunchKernel": (1, 30),
    "cuStreamSynchronize": (1, 4),
    "cuStreamBeginCapture": (1,),
    "cuEventCreate": (4,),
    "cuEventRecord": (4,),
    "cuStreamWaitEvent": (2,),
    "cuEventDestroy": (1,),
    "cuStreamEndCapture": (1,),
    "cuGraphGetNodes": (1,),
    "cuGraphInstantiate": (1,),
    "cuGraphDestroy": (1,),
    "cuGraphLaunch": (1, 2),
    "cuGraphExecDestroy": (1,),
    "cuStreamDestroy": (1,),
}
"""Which of the calls of each name fail."""

FAULTS = [f"{name}:{number}:{ILLEGAL_ADDRESS}" for name, numbers in CALLS.items() for number in numbers]
FULL = f"cuMemAlloc:20:{OUT_OF_MEMORY},cuMemAlloc:21:{OUT_OF_MEMORY}"
FAULTS += [f"cuGraphLaunch:2:{LAUNCH_FAILED}", FULL]

BRIEFLY_FULL = f"cuMemAlloc:20:{OUT_OF_MEMORY}"

AT_LAST = ("cuMemFree", "cuGraphExecDestroy", "cuStreamDestroy", "cuEventDestroy", "cuGraphDestroy")
"""Calls that give something back: the command may have its answer before, and ends as if nothing had been."""

ARGUMENTS = ["-p", "the sea", "-n", 2, "--temp", 0]


@pytest.fixture(scope="module")
def ended(stub: Stub, story: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """How the command ended with every fault; with "none", too."""
    folder, faults = tmp_path_factory.mktemp("faults"), ["none", BRIEFLY_FULL, *FAULTS]
    done = stub.python("-m", "tests.kernels.cuda.forked", folder, *faults, "--", "--cuda", "-m", story, *ARGUMENTS)
    assert done.code == 0, done.err[-3000:]
    ends = {}
    for number, fault in enumerate(faults):
        code, out, err = ((folder / f"{number}.{kind}").read_text() for kind in ("code", "out", "err"))
        assert code != "hangs", f"{fault}: {err}"
        ends[fault] = Done(int(code), out, err, calls_in(folder / f"{number}.calls"))
    return ends


def test_without_a_fault_there_is_an_answer_and_no_call_fails(ended: dict[str, Done]) -> None:
    done = ended["none"]
    assert done.code == 0 and done.refused() == []
    assert [line.partition(":")[0] for line in done.lines()] == ["ds4"]  # the speed
    assert not done.named("cuLibraryUnload")  # at the end Numba would print a traceback for each that fails
    for name, numbers in CALLS.items():
        assert len(done.named(name)) >= max(numbers), name


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_and_an_exit_code(ended: dict[str, Done], fault: str) -> None:
    done = ended[fault]
    name, _, code = fault.rpartition(",")[2].split(":")
    assert any(call.name == name and call.code == int(code) for call in done.calls), "nothing was made to fail"
    told = [line for line in done.lines() if not line.startswith("ds4: prefill: ")]
    assert all(line.startswith("ds4: ") for line in told), done.err
    if name in AT_LAST and done.code == 0:
        assert told == [] and done.out == ended["none"].out
        return
    assert done.code == 1 and len(told) == 1, done.err
    wanted = {ILLEGAL_ADDRESS: "ILLEGAL_ADDRESS", LAUNCH_FAILED: "LAUNCH_FAILED", OUT_OF_MEMORY: "are free"}[int(code)]
    assert wanted in told[0] and "internal error" not in told[0]
    if name not in AT_LAST and int(code) != OUT_OF_MEMORY:
        assert name in told[0] or "the GPU failed: " in told[0]  # the first failure is told, not one that followed


def test_memory_that_is_there_after_the_pool_is_emptied_is_enough(ended: dict[str, Done]) -> None:
    done = ended[BRIEFLY_FULL]
    assert done.code == 0 and done.out == ended["none"].out
    assert [(call.name, call.code) for call in done.refused()] == [("cuMemAlloc", OUT_OF_MEMORY)]


NOT_LOADED = {
    "cuLibraryLoadData:1": False,
    "cuCtxPushCurrent:1": False,
    "cuLibraryLoadData:2": True,
    "cuLibraryGetKernel:3": True,
}
"""Faults, and whether the command had begun."""


@pytest.mark.parametrize(("fault", "begun"), NOT_LOADED.items())
def test_a_kernel_that_cannot_be_loaded_is_one_line(stub: Stub, story: Path, fault: str, begun: bool) -> None:
    """The first one is the trial of the device, later ones the model's."""
    done = stub.ds4("--cuda", "-m", story, *ARGUMENTS, fail=f"{fault}:{ILLEGAL_ADDRESS}")
    assert done.code == 1 and done.out.strip() == "" and len(done.lines()) == 1, done.err
    expected = "ds4: the GPU failed: " if begun else "ds4: backend cuda cannot run here: no usable CUDA device: "
    assert done.err.startswith(expected) and "ILLEGAL_ADDRESS" in done.err
