"""The parts of the check of a GPU, without one: arithmetic, predictions, bars, and what is said to be missing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    cuda_code,
    cuda_price,
    gpu_basics,
    gpu_kernels,
    gpu_models,
    gpu_ops,
    gpu_products,
    gpu_races,
    gpu_speed,
)
from benchmarks.gpu_part import Check, perform
from ds4ref.engine import Engine
from tests.kernels.cuda.test_decode import idle
from tests.marking import sampled

ROOT = Path(__file__).resolve().parents[2]

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


class Told(Check):
    """A check that keeps what it is told."""

    def __init__(self, rehearsal: bool = False, **facts: Any) -> None:
        self.messages: list[dict[str, Any]] = []
        super().__init__(self.messages.append, rehearsal, {"device": "none", "capability": [9, 0], **facts})

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {message["row"]["item"]: message["row"] for message in self.messages if "row" in message}


@pytest.fixture
def check() -> Told:
    return Told()


@pytest.mark.parametrize(
    ("value", "better", "met"),
    [(1.0, "higher", True), (0.4, "higher", False), (0.4, "lower", True), (math.nan, "lower", False)],
)
def test_a_bar_that_is_missed_is_said(check: Told, value: float, better: str, met: bool) -> None:
    check.add("share", value, "", 0.5, better)
    assert check.rows["share"]["met"] is met and json.dumps(check.messages, allow_nan=False)


def test_a_rehearsal_has_no_speed() -> None:
    check = Told(rehearsal=True)
    check.add("speed", 5.0, "ms", 1.0, timed=True)
    check.add("difference", 0.25, "", 1.0, "lower")
    speed, difference = check.rows.values()
    assert (speed["value"], speed["met"]) == (None, None) and "rehearsal" in speed["note"]
    assert (difference["value"], difference["met"]) == (0.25, True)


def test_what_went_wrong_is_told_with_its_place(check: Told) -> None:
    def fails(given: Check) -> None:
        raise ValueError("no\nway")

    perform(fails, check)
    detail, ended = check.messages
    assert ended == {"ended": "failed: ValueError: no way"} and "in fails" in "".join(detail["detail"]["traceback"])


def test_slices_are_carried_to_all_layers() -> None:
    """Four layers 2 ms, six 2.4 ms: 39 more at 0.2 ms each, 0.15 ms for the head."""
    carried = gpu_speed.Carried(2e-3, 2.4e-3, 0.15e-3)
    assert carried.seconds == pytest.approx(2e-3 + 39 * 0.2e-3 + 0.15e-3)
    assert carried.arithmetic() == "2.000 + 19.5 x (2.400 - 2.000) + 0.150 = 9.95 ms"
    more = gpu_speed.Carried(2e-3, 2.4e-3, 0.15e-3, more=1e-3)
    assert more.seconds == pytest.approx(carried.seconds + 1e-3) and " + 1.000 = " in more.arithmetic()


@pytest.mark.parametrize(
    ("name", "capability", "architecture", "bandwidth", "multiprocessors"),
    [
        ("NVIDIA A100-SXM4-80GB", (8, 0), "sm_80", 2039, 108), (H100, (9, 0), "sm_90", 3350, 132),
        (H200, (9, 0), "sm_90", 4800, 132), ("NVIDIA GeForce RTX 5090", (12, 0), "sm_120", 1792, 170),
    ],
)  # fmt: skip
def test_devices_by_name(
    name: str, capability: tuple[int, int], architecture: str, bandwidth: float, multiprocessors: int
) -> None:
    device = cuda_price.device_named(name, capability)
    assert device is not None and device.arch == architecture
    assert (device.reported, device.bandwidth, device.multiprocessors) == (name, bandwidth, multiprocessors)
    assert cuda_price.device_named(name, [7, 5]) is None


@pytest.mark.parametrize("name", ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "none", ""])
def test_no_device_is_taken_for_another(name: str) -> None:
    assert cuda_price.device_named(name, (9, 0)) is None and gpu_speed.predicted_token(name, (9, 0)) is None


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A table of compiled code with one product, whose instructions take an H100 twice as long as its bytes."""
    device = cuda_price.DEVICES["H100"]
    cycles = device.multiprocessors * device.clock * 1e9
    seconds = 1e6 / (device.bandwidth * 1e9)
    known = {
        "kernel": "k", "case": "q2/ds4", "launches": 2, "bytes": 1e6, "weights": ["Q8_0", 1, 1024, 4096],
        "instructions": 2 * seconds * cycles * cuda_price.ISSUE, "units": {}, "longest": 1,
        "grid": [132], "block": [128], "blocks_held": 1,
    }  # fmt: skip
    path = tmp_path / "code.json"
    path.write_text(json.dumps({"kernels": {"sm_90": [known]}}))
    monkeypatch.setattr(cuda_code, "TABLE", path)


def test_a_product_beside_its_prediction(table: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Bound by instructions, the faster memory of an H200 changes nothing."""
    figure = gpu_products.Figure("linear", "Q8_0", "a8", 1024, 4096, 1_000_000, 2.0)
    h100, h200 = (cuda_price.device_named(name, (9, 0)) for name in (H100, H200))
    assert gpu_products.predicted(figure, h100) == pytest.approx(3350 / 2)
    assert gpu_products.predicted(figure, h200) == pytest.approx(3350 / 2)
    assert gpu_products.predicted(figure, None) is None
    assert gpu_products.predicted(figure, cuda_price.DEVICES["A100"]) is None
    assert gpu_products.predicted(figure._replace(rows=1025), h100) is None
    assert gpu_products.predicted(figure._replace(act="float"), h100) is None
    assert gpu_products.predicted(figure._replace(name="expert_linear"), h100) is None
    monkeypatch.setattr(cuda_code, "TABLE", tmp_path / "absent.json")
    assert gpu_products.predicted(figure, h100) is None and gpu_speed.predicted_token(H100, (9, 0)) is None


def test_a_token_beside_its_prediction(table: None) -> None:
    """What moves the bytes is the card's own memory, what executes is equal."""
    h100, h200 = (gpu_speed.predicted_token(name, (9, 0)) for name in (H100, H200))
    moving = 1e6 / 3350e9
    assert h100 is not None and h100["predicted"] == pytest.approx(2 * (2 * moving + cuda_price.LAUNCH))
    assert h200 is not None and h200["predicted"] == pytest.approx(h100["predicted"]) and h200["device"] == "H200"
    assert h100["bound"] == pytest.approx(2 * moving) and h200["bound"] == pytest.approx(2 * 1e6 / 4800e9)


def test_rows_of_all_layers_show_their_arithmetic(check: Told) -> None:
    """With the clock of nobody: seconds as given."""
    gpu_speed.carry(check, {4: {2048: 2e-3}, 6: {2048: 2.4e-3}}, {4: 0.1, 6: 0.12}, 2e12, 1e-4, 2048)
    decode = check.rows["43 layers, decode at 2048"]
    assert decode["value"] == pytest.approx(1 / (2e-3 + 19.5 * 0.4e-3 + 1e-4))
    assert " x (2.400 - 2.000)" in decode["note"]
    assert 0 < check.rows["43 layers, decode at 2048 / bound"]["value"] < 1
    prefill = check.rows["43 layers, prefill of 2048"]
    assert prefill["value"] < 2048 / (0.1 + 19.5 * 0.02), "what 248 more experts take to read comes on top"
    predicted = check.rows["43 layers, decode, predicted"]
    assert (predicted["value"], predicted["note"]) == (None, "no prediction for this GPU")


def test_the_speed_part_runs_to_its_end(nano_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a driver that launches nothing, and figures of a copy and a head."""
    monkeypatch.setattr(gpu_speed, "heads", lambda check: (2e12, 1e-4))
    check = Told(rehearsal=True, device=H200)
    with idle():
        perform(gpu_speed.measure, check)
    assert "43 layers, prefill of 2" in check.rows and "the same at 64, one launch after the other" in check.rows
    assert check.messages[-1] == {"ended": "done"} and len(check.rows) == 11
    assert "on H200" in check.rows["43 layers, decode, predicted"]["note"]


ENTER, ATTEND = gpu_kernels.Kernel("hyper.enter", (2,), (1024,)), gpu_kernels.Kernel("attending.rows", (84,), (32, 4))


def test_kernels_beside_their_prices() -> None:
    """Sizes of one are left out; of formats that share a kernel's name and size the mean; None if one is not known."""
    counts = {"blocks_held": 1, "instructions": 1, "units": {}, "bytes": 0}
    rows: list[dict[str, Any]] = [
        {"kernel": "hyper.enter", "grid": [2], "block": [1024], "longest": 1755, **counts},
        {"kernel": "attending.rows Q8_0", "grid": [84, 1], "block": [32, 4], "longest": 3510, **counts},
        {"kernel": "attending.rows F16", "grid": [84], "block": [32, 4], "longest": 7020, **counts},
        {"kernel": "attending.rows F16", "grid": [85], "block": [32, 4], "longest": 9, **counts},
    ]
    h100 = cuda_price.DEVICES["H100"]
    launch = cuda_price.LAUNCH
    found = gpu_kernels.predicted([ENTER], rows, h100)
    assert found == pytest.approx((launch + 1e-6, launch + 1e-6 * cuda_price.CYCLES))
    found = gpu_kernels.predicted([ENTER, ATTEND], rows, h100)
    assert found == pytest.approx((2 * launch + 4e-6, 2 * launch + 4e-6 * cuda_price.CYCLES))
    assert gpu_kernels.predicted([ENTER, ATTEND._replace(grid=(86,))], rows, h100) is None


def test_the_kernels_part_runs_to_its_end() -> None:
    """With a driver that launches nothing."""
    check = Told(rehearsal=True, device=H200)
    with idle():
        perform(gpu_kernels.measure, check)
    assert check.messages[-1] == {"ended": "done"} and "4 layers, all launches by themselves" in check.rows


@pytest.mark.parametrize("length", [1, 2, 7])
def test_lanes_are_chains_of_their_own(length: int) -> None:
    """Every launch goes into the lane of the one it waits for, and lanes wait for nothing else."""

    class Lanes:
        def stream_of(self, branch: int) -> str:
            return f"lane {branch}"

    went: list[str] = []
    calls, order = gpu_basics.lanes(went.append, Lanes(), length)
    for call in calls:
        call()
    assert went == [f"lane {n % 3}" for n in range(3 * length)] and order.length == length
    assert all(not turn.waits for turn in order.turns)


SAME = [("exact", "exact", True), ("qat", "qat", True), ("ds4", "ds4", True)]
OTHERS = [("exact", "qat", False), ("qat", "ds4", False), ("ds4", "exact", False)]


@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "theirs", "right"), sampled(SAME + OTHERS, 5))
def test_bars_between_backends_hold_for_what_only_adds_in_another_order(
    mode: str, theirs: str, right: bool, check: Told, nano_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference backend stands for the GPU: it is as right as the CPU, and here also with other roundings."""
    real = Engine.open

    def opened(path: str, backend: str, numerics: str) -> Engine:
        cuda = backend == "cuda"
        return real(path, backend="reference" if cuda else backend, numerics=theirs if cuda else numerics)

    monkeypatch.setattr(gpu_models, "MODES", (mode,))
    monkeypatch.setattr(gpu_models.Engine, "open", opened)
    gpu_models.beside_the_cpu(check, "model", nano_path, gpu_models.Length(60, 20))
    judged = [row for row in check.rows.values() if row["bar"] is not None]
    assert judged and all(row["met"] for row in judged) == right


def ran(*last: str, code: int = 1) -> Callable[..., subprocess.CompletedProcess[str]]:
    """In place of ``subprocess.run``: pytest with such last lines, one for each file."""
    lines = iter(last)
    return lambda command, **how: subprocess.CompletedProcess(command, code, f"FAILED x.py::t\n{next(lines)}\n", "")


def test_tests_are_counted_file_by_file(check: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose tests crash has none that passed, and the others have theirs."""
    last = (
        "=== 5 failed, 3 passed, 11 deselected in 3.01s ===",
        "Segmentation fault",
        "7 passed in 1s",
        "1 error in 1s",
        "40 passed in 9s",
        "20 passed in 2s",
    )
    monkeypatch.setattr(subprocess, "run", ran(*last))
    gpu_ops.measure(check)
    met = {row["item"]: (row["value"], row["met"]) for row in check.rows.values() if "tests that" in row["item"]}
    assert met == {
        "test_ops: tests that passed": (3, True), "test_ops: tests that failed": (5, False),
        "test_top: tests that passed": (0, False), "test_top: tests that failed": (0, True),
        "cuda/test_products: tests that passed": (7, True), "cuda/test_products: tests that failed": (0, True),
        "cuda/test_recording: tests that passed": (0, False), "cuda/test_recording: tests that failed": (1, False),
        "cuda/test_folding: tests that passed": (40, True), "cuda/test_folding: tests that failed": (0, True),
        "cuda/test_experts: tests that passed": (20, True), "cuda/test_experts: tests that failed": (0, True),
    }  # fmt: skip
    assert check.rows["test_top: tests that passed"]["note"] == "Segmentation fault"
    assert {"detail": "FAILED x.py::t"} in check.messages


@pytest.mark.parametrize("lacking", ["pytest", "hypothesis", "xdist"])
def test_packages_that_are_missing_are_named(lacking: str, check: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    answer = ran(*["7 passed in 1s"] * len(gpu_ops.FILES), code=0)

    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return answer(command)

    monkeypatch.setattr(gpu_ops, "find_spec", lambda name: None if name == lacking else object())
    monkeypatch.setattr(gpu_ops, "usable_cores", lambda: 4)
    monkeypatch.setattr(subprocess, "run", run)
    gpu_ops.measure(check)
    assert any(lacking in row["note"] and row["value"] is None for row in check.rows.values())
    assert len(commands) == (len(gpu_ops.FILES) if lacking == "xdist" else 0) and not any(
        "-n" in command for command in commands
    )
    assert all("addopts=" in command for command in commands), "which name an option of pytest-timeout"


def test_models_need_no_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None\nfrom tests import golden\nprint(golden.judged.__name__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "judged\n", done.stderr


def sanitizer(folder: Path, script: str) -> None:
    """A compute-sanitizer that is a script of the shell."""
    folder.mkdir()
    path = folder / "compute-sanitizer"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


TOKEN = f"echo '{gpu_races.SAID}17'"


@pytest.mark.parametrize(
    ("script", "hazards"),
    [
        (f"{TOKEN}; echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'", 0),
        (f"{TOKEN}; echo '========= RACECHECK SUMMARY: 12 hazards displayed (2 errors, 10 warnings)' >&2", 12),
        ("echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'", None),
        (f"{TOKEN}; exit 0", None),
        ("echo '========= Error: Device not supported'; exit 1", None),
    ],
)
def test_races_are_counted(
    script: str, hazards: int | None, check: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing found is only believed of a sanitizer that ended after the token was there."""
    wanted = f"--tool racecheck {sys.executable} -m benchmarks.gpu_races"
    sanitizer(tmp_path / "bin", f'[ "$*" = "{wanted}" ] || exit 9\n{script}')
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    perform(gpu_races.measure, check)
    ended = check.messages[-1]["ended"]
    if hazards is None:
        assert ended.startswith("failed: RuntimeError: compute-sanitizer did not get through: ") and not check.rows
    else:
        row = check.rows["hazards of one token"]
        assert (row["value"], row["met"], ended) == (hazards, hazards == 0, "done")


def test_no_sanitizer_is_said(check: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    gpu_races.measure(check)
    assert check.rows["hazards of one token"]["note"].startswith("no compute-sanitizer")


def test_the_token_that_races_are_looked_for_in(trained_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the CPU in the GPU's place, beside the reference."""
    real, asked = Engine.open, {}

    def opened(path: str, **how: Any) -> Engine:
        asked.update(how)
        return real(path, backend="cpu", numerics="ds4")

    monkeypatch.setattr(Engine, "open", opened)
    chosen = gpu_races.first_choice()
    assert asked == {"backend": "cuda", "numerics": "ds4"}
    with real(trained_path, backend="reference", numerics="ds4") as engine:
        assert chosen == int(engine.session(4).extend([5])[-1].argmax())
