"""What commands and a decoded token ask of the CUDA driver, and what they say where it refuses.

Child processes find a stand-in where the NVIDIA driver's library would be (``stub/``: C, compiled here). numba-cuda,
NVIDIA's Python packages and their compiler are the real ones: kernels are compiled for the device that the stand-in
plays and loaded, launches are checked (limits, copies inside arrays, streams and events known, captures joined), and
nothing is computed. ``stub/stub.h`` says what can be played.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.weights import llama2c

pytestmark = pytest.mark.cuda

ROOT = Path(__file__).resolve().parents[3]
STORY = llama2c.Config(dim=16, hidden=16, layers=1, heads=2, shared=1, vocab=300, context=48)


@dataclass
class Call:
    """A call of the driver: its name without the number of its version, its result, details."""

    name: str
    code: int
    details: str


@dataclass
class Done:
    """A process that ended: exit code, output, and what it asked of the driver."""

    code: int
    out: str
    err: str
    calls: list[Call]

    def named(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.name == name]

    def refused(self) -> list[Call]:
        """Calls that failed, but for functions that the stand-in lacks and nothing needs."""
        return [call for call in self.calls if call.code and call.name != "cuGetProcAddress"]


class Stub:
    """Runs Python in processes that see the stand-in. Settings are those of ``stub.h`` in lower case, without
    ``STUB_CUDA_``."""

    def __init__(self, folder: Path):
        self.folder, self._made = folder, 0

    def python(self, *argv: Any, library: bool = True, **settings: Any) -> Done:
        """Run ``python ARGV``; without ``library`` no driver is found at all."""
        self._made += 1
        log = self.folder / f"calls{self._made}"
        environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        environment |= {"STUB_CUDA_LOG": str(log)}
        environment |= {f"STUB_CUDA_{key.upper()}": str(value) for key, value in settings.items()}
        if library:
            paths = [str(self.folder), environment.get("LD_LIBRARY_PATH", "")]
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        done = subprocess.run(
            [sys.executable, *map(str, argv)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500,
            check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr, calls_in(log))

    def ds4(self, *argv: Any, library: bool = True, **settings: Any) -> Done:
        return self.python("-m", "ds4ref.cli.ds4", *argv, library=library, **settings)


def calls_in(log: Path) -> list[Call]:
    """Read what the stand-in wrote down."""
    parts = [line.split(" ", 2) for line in log.read_text().splitlines()] if log.exists() else []
    return [Call(part[0], int(part[1]), part[2] if len(part) > 2 else "") for part in parts]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    if not sys.platform.startswith("linux") or not shutil.which("cc"):
        pytest.skip("the stand-in for the driver needs Linux and a C compiler (cc)")
    folder = tmp_path_factory.mktemp("driver")
    sources = sorted((Path(__file__).parent / "stub").glob("*.c"))
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]
    subprocess.run([*command, "-o", folder / "libcuda.so.1", *sources, "-ldl", "-lpthread"], timeout=120, check=True)
    return Stub(folder)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of llama2.c with one layer: few kernels, quickly compiled."""
    tokens, weights = llama2c.vocabulary(STORY), llama2c.draw(STORY)
    return llama2c.write(tmp_path_factory.mktemp("story"), llama2c.legacy(STORY, weights), tokens)


# --- a token


def test_a_token_is_one_graph_and_one_wait(stub: Stub, nano_path: str) -> None:
    """The embedded model: a prompt, a first token, which is recorded, and three more of the same kind."""
    script = f"""
        import ctypes
        mark = ctypes.CDLL("libcuda.so.1").stub_mark
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
    """
    done = stub.python("-c", textwrap.dedent(script))
    assert done.code == 0 and done.refused() == [] and len(done.named("cuLaunchKernel")) > 200, done.err[-3000:]
    tokens: list[list[str]] = [[]]
    for call in done.calls:
        if call.name == "mark":
            tokens.append([])
        elif not call.name.startswith("cuCtx"):
            tokens[-1].append(call.name)
    assert tokens[1:-1] == [["cuGraphLaunch", "cuStreamSynchronize"]] * 4
    for end in done.named("cuStreamEndCapture"):
        branches, nodes = map(int, re.findall("[0-9]+", end.details))
        assert branches == 1 and nodes > 100
    counted = Counter(call.name for call in done.calls)
    assert counted["cuStreamEndCapture"] == counted["cuGraphInstantiate"] == counted["cuGraphDestroy"] > 1
    assert counted["cuGraphExecDestroy"] == counted["cuGraphInstantiate"]


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


@pytest.mark.parametrize(("capability", "most"), [("8.9", 99), ("9.0", 227)])
def test_a_product_gets_the_shared_memory_it_asked_for(stub: Stub, capability: str, most: int) -> None:
    done = stub.python("-c", textwrap.dedent(PRODUCT.format(change="")), capability=capability)
    assert done.out == "(1, 64)\n" and done.refused() == [], done.err
    (asked,) = done.named("cuKernelSetAttribute")
    shared = [int(call.details.rpartition(" ")[2]) for call in done.named("cuLaunchKernel")]
    large = [n for n in shared if n > 48 << 10]
    assert large == [int(asked.details.rpartition(" ")[2])] and large[0] <= most << 10


def test_a_product_that_does_not_ask_is_refused(stub: Stub) -> None:
    """Which is also the proof that the stand-in looks."""
    done = stub.python("-c", textwrap.dedent(PRODUCT.format(change="matvec.allow_shared = lambda *asked: None")))
    assert done.code == 1 and done.err.splitlines()[-1].startswith("RuntimeError: the GPU failed: ")
    assert "INVALID_VALUE" in done.err.splitlines()[-1]


def test_what_gpu_check_measures_is_launched_and_captured(stub: Stub) -> None:
    """Nothing is copied from the host inside of a graph that is timed."""
    script = """
        from benchmarks.gpu_check import Check
        from benchmarks.gpu_products import measure
        told = []
        measure(Check(told.append, True))
        print(len(told))
    """
    done = stub.python("-c", textwrap.dedent(script))
    assert done.code == 0 and int(done.out) > 15 and done.refused() == [], done.err


def test_a_second_process_compiles_nothing(stub: Stub, story: Path, tmp_path: Path) -> None:
    """But the one kernel that asks whether the compiler works; code that the driver refuses is made anew."""
    script = f"""
        import os
        os.environ["DS4_CACHE_DIR"] = {str(tmp_path)!r}
        from ds4ref.kernels.cuda.driver import cubins, loading
        from ds4ref.engine import Engine
        made = []
        machine_code = loading.machine_code
        loading.machine_code = lambda kernel, kinds: (made.append(kernel), machine_code(kernel, kinds))[1]
        {{before}}
        Engine.open({str(story)!r}, backend="cuda").session(8).append(1)
        print(len(made))
    """

    def answer(before: str = "") -> int:
        done = stub.python("-c", textwrap.dedent(script.format(before=before)))
        assert done.code == 0, done.err[-2000:]
        return int(done.out)

    assert answer() > 5 and answer() == 1
    spoiled = sorted(tmp_path.glob("cubins/*/sm_90/*"))[0].stem
    assert answer(f'cubins.keep("{spoiled}", "sm_90", b"no code", "x")') == 2 and answer() == 1


# --- a GPU that fails: ``ds4`` says so in one line and exits with 1

ILLEGAL_ADDRESS, LAUNCH_FAILED, OUT_OF_MEMORY = 700, 719, 2
CALLS = {
    "cuCtxPushCurrent": (1,), "cuStreamCreate": (1,), "cuMemAlloc": (1, 20), "cuMemHostAlloc": (1,),
    "cuMemGetInfo": (1,), "cuMemFree": (1, 12), "cuMemcpyHtoDAsync": (1, 20), "cuMemcpyDtoHAsync": (1,),
    "cuLaunchKernel": (1, 30), "cuStreamSynchronize": (1, 4), "cuStreamBeginCapture": (1,), "cuStreamEndCapture": (1,),
    "cuGraphInstantiate": (1,), "cuGraphDestroy": (1,), "cuGraphLaunch": (1, 2),
    "cuGraphExecDestroy": (1,), "cuStreamDestroy": (1,),
}  # fmt: skip
"""Which of the calls of each name fail, with an error after which all fail."""
FAULTS = [f"{name}:{number}:{ILLEGAL_ADDRESS}" for name, numbers in CALLS.items() for number in numbers]
FULL = f"cuMemAlloc:20:{OUT_OF_MEMORY},cuMemAlloc:21:{OUT_OF_MEMORY}"
FAULTS += [f"cuGraphLaunch:2:{LAUNCH_FAILED}", FULL]
BRIEFLY_FULL = f"cuMemAlloc:20:{OUT_OF_MEMORY}"
AT_LAST = ("cuMemFree", "cuGraphExecDestroy", "cuStreamDestroy", "cuGraphDestroy")
"""Calls that give something back: the command may have its answer before, and ends as if nothing had been."""
ARGUMENTS = ["-p", "the sea", "-n", 2, "--temp", 0]


def test_every_fault_is_one_line_and_an_exit_code(stub: Stub, story: Path, tmp_path: Path) -> None:
    """Also of what Python destroys at its end; no process stays."""
    faults = ["none", BRIEFLY_FULL, *FAULTS]
    forked = stub.python("-m", "tests.kernels.cuda.forked", tmp_path, *faults, "--", "--cuda", "-m", story, *ARGUMENTS)
    assert forked.code == 0, forked.err[-3000:]
    ends = {}
    for number, fault in enumerate(faults):
        code, out, err = ((tmp_path / f"{number}.{kind}").read_text() for kind in ("code", "out", "err"))
        assert code != "hangs", f"{fault}: {err}"
        ends[fault] = Done(int(code), out, err, calls_in(tmp_path / f"{number}.calls"))
    good = ends["none"]
    assert good.code == 0 and good.refused() == [] and good.err.startswith("ds4: ") and good.err.count("\n") == 1
    assert all(len(good.named(name)) >= max(numbers) for name, numbers in CALLS.items())
    briefly = ends[BRIEFLY_FULL]  # memory that is there after the pool is emptied is enough
    assert (briefly.code, briefly.out) == (0, good.out) and len(briefly.refused()) == 1
    words = {ILLEGAL_ADDRESS: "ILLEGAL_ADDRESS", LAUNCH_FAILED: "LAUNCH_FAILED", OUT_OF_MEMORY: "are free"}
    for fault in FAULTS:
        done, (name, _, number) = ends[fault], fault.rpartition(",")[2].split(":")
        assert any(call.name == name and call.code == int(number) for call in done.calls), f"{fault} did not fail"
        told = [line for line in done.err.splitlines() if not line.startswith("ds4: prefill: ")]
        if name in AT_LAST and done.code == 0:
            assert told == [] and done.out == good.out, fault
            continue
        assert done.code == 1 and len(told) == 1 and told[0].startswith("ds4: "), (fault, done.err)
        assert words[int(number)] in told[0] and "internal error" not in told[0], fault


# --- devices

PTX, BINARY, MISMATCH = 222, 209, 803
UPDATE = "install a driver for CUDA 13.0 or newer"
ONE = "cuda: 0: Stub of a GPU, compute capability 9.0, 16.0 GiB: "
DEVICES: list[tuple[dict[str, Any], str]] = [
    ({"name": "Some GPU", "capability": "8.9", "memory": 24 << 30},
     "cuda: 0: Some GPU, compute capability 8.9, 24.0 GiB: usable"),
    ({"devices": 3}, "cuda: 2: .*: usable"),
    ({"driver": 12040, "fail": f"cuLibraryLoadData:1:{PTX}"}, f"{ONE}the driver .* 12.4, .* {UPDATE}, or pip .*12.'"),
    ({"driver": 12090, "fail": f"cuLibraryLoadData:1:{BINARY}"}, f"{ONE}the driver .* 12.9, .* {UPDATE}, or pip .*'"),
    ({"driver": 11080, "fail": f"cuLibraryLoadData:1:{MISMATCH}"}, f"{ONE}the driver is for CUDA 11.8, .* {UPDATE}"),
    ({"fail": "cuLibraryLoadData:1:200"}, f"{ONE}no kernel can run on it: .*INVALID_IMAGE.*"),
    ({"devices": 2, "fail": "cuDevicePrimaryCtxRetain:1:2"}, "cuda: 1: .*: usable"),
    ({"fail": f"cuDeviceGetCount:1:{MISMATCH}"}, "cuda: no CUDA device: .*SYSTEM_DRIVER_MISMATCH.*"),
    ({"fail": f"cuInit:1:{MISMATCH}"}, "cuda: no CUDA device: .*SYSTEM_DRIVER_MISMATCH.*"),
    ({"capability": "7.5"}, "cuda: 0: .*: compute capability 7.5 is below 8.0"),
    ({"devices": 0}, "cuda: no CUDA device: Call to cuInit results in CUDA_ERROR_NO_DEVICE"),
    ({"library": False}, "cuda: no CUDA device: CUDA driver library cannot be found"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "line"), DEVICES)
def test_what_devices_there_are(stub: Stub, settings: dict[str, Any], line: str) -> None:
    """The last line of ``ds4 --devices``."""
    done = stub.ds4("--devices", **settings)
    assert done.code == 0 and done.err == "" and re.fullmatch(line, done.out.splitlines()[-1]), done.out


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"driver": 12040, "fail": f"cuLibraryLoadData:1:{PTX}"}, "no usable CUDA device: .*for CUDA 12.4, kernels .*"),
        ({"devices": 2, "fail": "cuDevicePrimaryCtxRetain:1:2"}, ".*OUT_OF_MEMORY.*"),  # the second one does not help
        ({"capability": "7.5"}, "no usable CUDA device: Stub of a GPU: compute capability 7.5 is below 8.0"),
        ({"free": 0}, "the GPU has no 256 bytes left: 0.00 of 16.00 GiB are free"),
        ({"library": False}, "no CUDA device: CUDA driver library cannot be found"),
    ],
)
def test_a_command_without_a_device_says_so_in_one_line(
    stub: Stub, story: Path, settings: dict[str, Any], reason: str
) -> None:
    done = stub.ds4("--cuda", "-m", story, "-p", "sea", "-n", 1, **settings)
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch(f"ds4: backend cuda cannot run here: {reason}\n", done.err), done.err
