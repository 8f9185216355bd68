"""Which devices are usable, and the one line that says why one is not, with numba-cuda on a stand-in for the driver."""

from __future__ import annotations

import re
from ctypes.util import find_library
from pathlib import Path

import pytest

from .stubbed import Done, Stub

pytestmark = pytest.mark.cuda

PTX, BINARY, MISMATCH = 222, 209, 803


def device_line(done: Done) -> str:
    """The last line of ``ds4 --devices``."""
    assert done.code == 0 and done.err == "", done.err
    return done.out.splitlines()[-1]


def refusal(done: Done) -> str:
    """The only line of a command that could not begin."""
    assert done.code == 1 and done.out == "", done.out
    assert len(done.lines()) == 1, done.err
    before, _, reason = done.err.strip().partition("ds4: backend cuda cannot run here: ")
    assert before == "" and reason
    return reason


def test_a_device_is_usable_once_a_kernel_was_loaded_into_it(stub: Stub) -> None:
    done = stub.ds4("--devices", name="Some GPU", capability="8.9", memory=24 << 30)
    assert device_line(done) == "cuda: 0: Some GPU, compute capability 8.9, 24.0 GiB: usable"
    assert len(done.named("cuLibraryLoadData")) == 1 and not done.refused()


def test_every_device_is_tried_once(stub: Stub) -> None:
    done = stub.ds4("--devices", devices=3)
    assert [line.rpartition(": ")[2] for line in done.out.splitlines()[2:]] == ["usable"] * 3
    assert len(done.named("cuLibraryLoadData")) == 3


@pytest.mark.parametrize(
    ("driver", "code", "said"),
    [
        (12040, PTX, "12.4, .* install a driver for CUDA 13.0 or newer, or pip install 'ds4ref.cuda12.'$"),
        (12090, BINARY, "12.9, .* install a driver for CUDA 13.0 or newer, or pip install 'ds4ref.cuda12.'$"),
        (11080, MISMATCH, "11.8, .* install a driver for CUDA 13.0 or newer$"),
        (13000, PTX, "13.0, .* install a driver for CUDA 13.[1-9][0-9]* or newer, or pip install 'ds4ref.cuda13.'$"),
    ],
)
def test_a_driver_that_is_too_old_is_told_with_versions(stub: Stub, driver: int, code: int, said: str) -> None:
    """The versions are of numba-cuda[cu13], which ``make cuda`` installs."""
    line = device_line(stub.ds4("--devices", driver=driver, fail=f"cuLibraryLoadData:1:{code}"))
    assert line.startswith("cuda: 0: Stub of a GPU, compute capability 9.0, 16.0 GiB: the driver is for CUDA ")
    assert re.search(f"for CUDA {said}", line), line


def test_commands_refuse_a_driver_that_is_too_old(stub: Stub, story: Path) -> None:
    done = stub.ds4("--cuda", "-m", story, "-p", "sea", "-n", 1, driver=12040, fail=f"cuLibraryLoadData:1:{PTX}")
    reason = refusal(done)
    assert reason.startswith("no usable CUDA device: Stub of a GPU: the driver is for CUDA 12.4, kernels are compiled")
    assert reason.endswith("or pip install 'ds4ref[cuda12]'")
    assert not done.named("cuMemAlloc")


def test_another_failure_to_load_is_told_as_it_is(stub: Stub) -> None:
    line = device_line(stub.ds4("--devices", fail=f"cuLibraryLoadData:1:{200}"))
    assert "no kernel can run on it: " in line and "INVALID_IMAGE" in line and "install" not in line


def test_a_device_that_gives_no_context_is_told_and_the_next_one_listed(stub: Stub) -> None:
    done = stub.ds4("--devices", devices=2, fail="cuDevicePrimaryCtxRetain:1:2")
    first, second = done.out.splitlines()[2:]
    assert "OUT_OF_MEMORY" in first and second.endswith(": usable")


@pytest.mark.parametrize("call", ["cuDeviceGetCount:1", "cuDeviceGetCount:2", "cuDeviceGetUuid:1", "cuInit:1"])
def test_a_driver_that_cannot_say_what_it_has_is_one_line(stub: Stub, call: str) -> None:
    line = device_line(stub.ds4("--devices", fail=f"{call}:{MISMATCH}"))
    assert line.startswith("cuda: no CUDA device: ") and "SYSTEM_DRIVER_MISMATCH" in line


def test_commands_use_the_first_device_or_none(stub: Stub, story: Path) -> None:
    """Another one that is usable does not help device 0, which is what commands open."""
    done = stub.ds4("--cuda", "-m", story, "-p", "sea", "-n", 1, devices=2, fail="cuDevicePrimaryCtxRetain:1:2")
    assert "OUT_OF_MEMORY" in refusal(done)


def test_a_device_of_an_old_architecture_is_refused(stub: Stub, story: Path) -> None:
    wanted = "compute capability 7.5 is below 8.0"
    done = stub.ds4("--devices", capability="7.5")
    assert device_line(done).endswith(f": {wanted}") and not done.named("cuLibraryLoadData")
    done = stub.ds4("--cuda", "-m", story, "-p", "sea", "-n", 1, capability="7.5")
    assert refusal(done) == f"no usable CUDA device: Stub of a GPU: {wanted}"


def test_a_device_with_no_memory_free_is_one_line(stub: Stub, story: Path) -> None:
    done = stub.ds4("--cuda", "-m", story, "-p", "sea", "-n", 1, free=0)
    assert refusal(done) == "the GPU has no 256 bytes left: 0.00 of 16.00 GiB are free"


@pytest.mark.skipif(find_library("cuda") is not None, reason="this machine has NVIDIA's driver")
def test_a_machine_without_the_library_is_one_line(stub: Stub, story: Path) -> None:
    line = device_line(stub.ds4("--devices", library=False))
    assert line == "cuda: no CUDA device: CUDA driver library cannot be found"
    done = stub.ds4("--cuda", "-m", story, "-p", "sea", "-n", 1, library=False)
    assert refusal(done) == "no CUDA device: CUDA driver library cannot be found"


def test_a_driver_without_a_device_is_one_line(stub: Stub) -> None:
    line = device_line(stub.ds4("--devices", devices=0))
    assert line == "cuda: no CUDA device: Call to cuInit results in CUDA_ERROR_NO_DEVICE"
