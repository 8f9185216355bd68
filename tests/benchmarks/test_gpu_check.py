"""The check of a GPU, without one: what is kept when a part fails, is late or stopped; the arithmetic; a rehearsal."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cuda_code, gpu_check, gpu_models, gpu_products, gpu_speed
from benchmarks.gpu_check import Check
from benchmarks.timing import OutOfTime
from ds4ref.engine import Engine
from tests.kernels.cuda.test_decode import idle
from tests.marking import sampled

ROOT = Path(__file__).resolve().parents[2]


def command(*argv: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", *map(str, argv)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip


def test_without_a_device_one_line_says_so(tmp_path: Path) -> None:
    done = command("-o", tmp_path / "out" / "check.json")
    assert (done.returncode, done.stdout) == (1, "") and not (tmp_path / "out").exists()
    assert done.stderr.startswith("gpu_check: no CUDA device: ") and done.stderr.count("\n") == 1


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return Check(tmp_path / "check.json", rehearsal=False, facts={"device": "none"})


def kept(check: Check) -> dict[str, Any]:
    """The file as it is now."""
    assert check.out is not None
    found: dict[str, Any] = json.loads(check.out.read_text())
    return found


def test_every_figure_is_on_disk_when_it_is_there(check: Check) -> None:
    seen = []

    def work(given: Check) -> None:
        for number in range(3):
            given.add(f"figure {number}", number, "ms")
            seen.append(len(kept(given)["rows"]))

    assert gpu_check.run(check, ["one"], None, {"one": (work, 1.0)}) == 0
    assert seen == [1, 2, 3]
    assert kept(check)["parts"]["one"]["state"] == "done" and kept(check)["device"] == "none"


def test_one_part_that_fails_does_not_take_the_others_along(check: Check) -> None:
    def fails(given: Check) -> None:
        given.add("before", 1.0)
        raise RuntimeError("out\nof luck")

    def late(given: Check) -> None:
        raise OutOfTime("skipped")

    def works(given: Check) -> None:
        given.add("after", 2.0)

    parts = {"a": (fails, 1.0), "b": (late, 1.0), "c": (works, 1.0), "d": (works, 1.0)}
    assert gpu_check.run(check, ["a", "b", "c"], 60, parts) == 1
    found = kept(check)
    assert [row["item"] for row in found["rows"]] == ["before", "after"]
    assert found["parts"]["a"]["state"] == "failed: RuntimeError: out of luck"
    assert found["parts"]["b"]["state"] == "cut short: skipped"
    assert (found["parts"]["c"]["state"], found["parts"]["d"]["state"]) == ("done", "not asked for")


def test_ctrl_c_loses_nothing(check: Check) -> None:
    def stopped(given: Check) -> None:
        given.add("so far", 1.0)
        raise KeyboardInterrupt

    def never(given: Check) -> None:
        raise AssertionError("a part after Ctrl-C")

    assert gpu_check.run(check, ["a", "b"], None, {"a": (stopped, 1.0), "b": (never, 1.0)}) == 130
    found = kept(check)
    assert [row["item"] for row in found["rows"]] == ["so far"] and found["parts"] == {
        "a": {"state": "stopped", "seconds": found["parts"]["a"]["seconds"]}
    }


def test_a_part_that_leaves_time_leaves_it_to_the_others(check: Check) -> None:
    given = []

    def work(part: Check) -> None:
        given.append(part.budget.seconds)

    gpu_check.run(check, ["a", "b"], 100.0, {"a": (work, 1.0), "b": (work, 3.0)})
    assert given[0] == pytest.approx(25, abs=1) and given[1] == pytest.approx(100, abs=2)
    gpu_check.run(check, ["a"], 0.0, {"a": (work, 1.0)})
    assert len(given) == 2 and kept(check)["parts"]["a"]["state"].startswith("cut short")


@pytest.mark.parametrize(("value", "better", "code"), [(1.0, "higher", 0), (0.4, "higher", 1), (math.nan, "lower", 1)])
def test_a_bar_that_is_missed_is_said(check: Check, value: float, better: str, code: int) -> None:
    parts = {"a": (lambda given: given.add("share", value, "", 0.5, better), 1.0)}
    assert gpu_check.run(check, ["a"], None, parts) == code
    assert kept(check)["rows"][0]["met"] is (code == 0)


def test_a_rehearsal_has_no_speed(tmp_path: Path) -> None:
    check = Check(tmp_path / "check.json", rehearsal=True)
    check.add("speed", 5.0, "ms", 1.0, timed=True)
    check.add("difference", 0.25, "", 1.0, "lower")
    speed, difference = kept(check)["rows"]
    assert (speed["value"], speed["met"]) == (None, None) and "rehearsal" in speed["note"]
    assert (difference["value"], difference["met"]) == (0.25, True)


def test_slices_are_carried_to_all_layers() -> None:
    """Four layers 2 ms, six 2.4 ms: 39 more at 0.2 ms each, 0.15 ms for the head."""
    carried = gpu_speed.Carried(2e-3, 2.4e-3, 0.15e-3)
    assert carried.seconds == pytest.approx(2e-3 + 39 * 0.2e-3 + 0.15e-3)
    assert carried.arithmetic() == "2.000 + 19.5 x (2.400 - 2.000) + 0.150 = 9.95 ms"
    more = gpu_speed.Carried(2e-3, 2.4e-3, 0.15e-3, more=1e-3)
    assert more.seconds == pytest.approx(carried.seconds + 1e-3) and " + 1.000 = " in more.arithmetic()


def table(monkeypatch: pytest.MonkeyPatch, folder: Path, **row: Any) -> None:
    """A table of compiled code with one product, bound by instructions on an H100."""
    device = cuda_code.DEVICES["sm_90"]
    cycles = device.multiprocessors * device.clock * 1e9
    seconds = 1e6 / (device.bandwidth * 1e9)
    known = {
        "kernel": "k", "case": "q2/ds4", "launches": 2, "bytes": 1e6, "weights": ["Q8_0", 1, 1024, 4096],
        "instructions": 2 * seconds * cycles * cuda_code.ISSUE, "units": {}, **row,
    }  # fmt: skip
    path = folder / "code.json"
    path.write_text(json.dumps({"kernels": {"sm_90": [known]}}))
    monkeypatch.setattr(cuda_code, "TABLE", path)


def test_a_product_beside_its_prediction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table(monkeypatch, tmp_path)
    figure = gpu_products.Figure("linear", "Q8_0", "a8", 1024, 4096, 1_000_000, 2.0)
    assert gpu_products.predicted(figure, (9, 0)) == pytest.approx(cuda_code.DEVICES["sm_90"].bandwidth / 2)
    assert gpu_products.predicted(figure, (7, 5)) is None
    assert gpu_products.predicted(figure._replace(rows=1025), (9, 0)) is None
    assert gpu_products.predicted(figure._replace(act="float"), (9, 0)) is None
    assert gpu_products.predicted(figure._replace(name="expert_linear"), (9, 0)) is None
    monkeypatch.setattr(cuda_code, "TABLE", tmp_path / "absent.json")
    assert gpu_products.predicted(figure, (9, 0)) is None and gpu_speed.predicted_token((9, 0)) is None


def test_a_token_beside_its_prediction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table(monkeypatch, tmp_path)
    found = gpu_speed.predicted_token((9, 0))
    moving = 1e6 / (cuda_code.DEVICES["sm_90"].bandwidth * 1e9)
    assert found is not None and found["predicted"] == pytest.approx(2 * (2 * moving + cuda_code.LAUNCH))
    assert gpu_speed.predicted_token((6, 1)) is None


def test_rows_of_all_layers_show_their_arithmetic(check: Check) -> None:
    """With the clock of nobody: seconds as given."""
    gpu_speed.carry(check, {4: {2048: 2e-3}, 6: {2048: 2.4e-3}}, {4: 0.1, 6: 0.12}, 2e12, 1e-4, 2048)
    rows = {row["item"]: row for row in kept(check)["rows"]}
    decode = rows["43 layers, decode at 2048"]
    assert (
        decode["value"] == pytest.approx(1 / (2e-3 + 19.5 * 0.4e-3 + 1e-4)) and " x (2.400 - 2.000)" in decode["note"]
    )
    assert 0 < rows["43 layers, decode at 2048 / bound"]["value"] < 1
    prefill = rows["43 layers, prefill of 2048"]
    assert prefill["value"] < 2048 / (0.1 + 19.5 * 0.02), "what 248 more experts take to read comes on top"


def test_the_speed_part_runs_to_its_end(tmp_path: Path, nano_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a driver that launches nothing, and figures of a copy and a head."""
    monkeypatch.setattr(gpu_speed, "heads", lambda check: (2e12, 1e-4))
    check = Check(tmp_path / "check.json", rehearsal=True, facts={"capability": [9, 0]})
    with idle():
        assert gpu_check.run(check, ["speed"], None) == 0
    items = [row["item"] for row in kept(check)["rows"]]
    assert "43 layers, prefill of 2" in items and "the same at 64, one launch after the other" in items
    assert kept(check)["parts"]["speed"]["state"] == "done" and len(items) == 11


@pytest.mark.cuda
@pytest.mark.slow
def test_a_rehearsal(tmp_path: Path) -> None:
    """Every part on compiled kernels: all of it runs, nothing is timed, results are right."""
    out = tmp_path / "check.json"
    done = command("-o", out, "--seconds", 3000, "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["rehearsal"] is True and {how["state"] for how in found["parts"].values()} == {"done"}
    rows = found["rows"]
    assert {row["part"] for row in rows} == set(gpu_check.PARTS)
    assert all(row["value"] is None for row in rows if row["unit"] in ("ms", "GB/s", "T/s"))
    assert sum(row["met"] is True for row in rows) >= 6 and not any(row["met"] is False for row in rows)


@pytest.mark.cuda
def test_a_short_rehearsal_measures_nothing_and_says_so(tmp_path: Path) -> None:
    done = command("-o", tmp_path / "check.json", "--only", "ops", "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["parts"]["ops"]["state"] == "done" and found["parts"]["speed"]["state"] == "not asked for"
    passed, failed = found["rows"]
    assert passed["value"] >= 2 and failed["value"] == 0
    assert "tests that passed" in done.stdout and "written: " in done.stdout


SAME = [("exact", "exact", True), ("qat", "qat", True), ("ds4", "ds4", True)]
OTHERS = [("exact", "qat", False), ("qat", "ds4", False), ("ds4", "exact", False)]


@pytest.mark.parametrize(("mode", "theirs", "right"), sampled(SAME + OTHERS, 5))
def test_bars_between_backends_hold_for_what_only_adds_in_another_order(
    mode: str, theirs: str, right: bool, check: Check, nano_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference backend stands for the GPU: it is as right as the CPU, and here also with other roundings."""
    real = Engine.open

    def opened(path: str, backend: str, numerics: str) -> Engine:
        cuda = backend == "cuda"
        return real(path, backend="reference" if cuda else backend, numerics=theirs if cuda else numerics)

    monkeypatch.setattr(gpu_models, "MODES", (mode,))
    monkeypatch.setattr(gpu_models.Engine, "open", opened)
    gpu_models.beside_the_cpu(check, "model", nano_path, gpu_models.Length(60, 20))
    judged = [row for _, row in check.rows if row.bar is not None]
    assert judged and all(row.value <= row.bar for row in judged) == right
