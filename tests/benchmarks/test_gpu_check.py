"""The check of a GPU, without one: what goes wrong in a part stays in it; arithmetic and bars of the parts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_check, gpu_ops, gpu_products, gpu_speed
from benchmarks.gpu_check import Check
from benchmarks.harness import Row
from tests.kernels.cuda.test_decode import idle

ROOT = Path(__file__).resolve().parents[2]
STUBS = "tests.benchmarks.gpu_stubs:"


class Told(Check):
    """A check that keeps what it is told."""

    def __init__(self, rehearsal: bool = False) -> None:
        self.messages: list[dict[str, Any]] = []
        super().__init__(self.messages.append, rehearsal)

    @property
    def rows(self) -> dict[str, Row]:
        return {message["row"]["item"]: Row(**message["row"]) for message in self.messages if "row" in message}


def is_gone(number: int) -> bool:
    """Whether a process has ended; one that nobody has asked about stays in the table."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def until(there: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (found := there()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def test_what_goes_wrong_in_a_part_stays_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table, the file, the exit code, and no process left behind."""
    hows = {
        "hangs": "killed: not through after ", "good": "done", "missed": "done", "crashes": "died: SIGSEGV",
        "exits": "died: exit code 7", "raises": "failed: RuntimeError: out of luck",
        "late": "cut short: skipped: 0 of ", "absent": "failed: AttributeError: ",
    }  # fmt: skip
    out = tmp_path / "sub" / "check.json"
    parts = {name: (1 if name == "hangs" else 10, STUBS + name) for name in hows}
    code = gpu_check.main(["-o", str(out), "--seconds", "1000"], parts, STUBS + "stub_device")
    found, printed = json.loads(out.read_text()), capsys.readouterr().out
    states = {name: part["state"] for name, part in found["parts"].items() if name != "device"}
    assert list(states) == list(hows) and all(states[name].startswith(how) for name, how in hows.items()), states
    met = {(row["part"], row["item"]): row["met"] for row in found["rows"]}
    (process,) = (int(row["value"]) for row in found["rows"] if row["item"] == "process")
    assert met == {
        ("good", "before"): None, ("good", "after"): True, ("missed", "difference"): False,
        ("crashes", "before"): None, ("hangs", "process"): None,
    }  # fmt: skip
    assert code == 1 and "raises: failed: RuntimeError: out of luck" in printed and f"written: {out}" in printed
    assert found["device"] == "a stub" and found["rehearsal"] is False
    until(lambda: is_gone(process))


@pytest.mark.parametrize(("stub", "code"), [("good", 0), ("late", 0), ("missed", 1), ("raises", 1)])
def test_the_exit_code(stub: str, code: int, tmp_path: Path) -> None:
    assert gpu_check.main(["-o", str(tmp_path / "c")], {"a": (1, STUBS + stub)}, STUBS + "stub_device") == code


@pytest.mark.parametrize("device", ["refused", "raises"])
def test_without_a_device_one_line_says_so(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["-o", str(tmp_path / "c")], {"a": (1, STUBS + "good")}, STUBS + device) == 1
    reason = {"refused": "no CUDA device: none was made", "raises": "the GPU did not answer: failed: RuntimeError: "}
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.splitlines()[-1].startswith(f"gpu_check: {reason[device]}")
    assert "a" not in json.loads((tmp_path / "c").read_text())["parts"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_who_is_stopped_keeps_the_rows_and_leaves_nobody(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "c"
    parts = {"a": (1, STUBS + "good"), "b": (1, STUBS + "hangs"), "c": (1, STUBS + "good")}
    script = (
        f"from benchmarks import gpu_check as g; exit(g.main(['-o', {str(out)!r}], {parts}, {STUBS!r}+'stub_device'))"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL) as parent:
        found = until(lambda: out.exists() and len((now := json.loads(out.read_text()))["rows"]) == 3 and now)
        parent.send_signal(number)
    until(lambda: is_gone(int(found["rows"][2]["value"])))
    found = json.loads(out.read_text())
    assert parent.returncode == (130 if number == signal.SIGINT else -9) and len(found["rows"]) == 3
    assert found["parts"]["b"]["state"] == ("stopped" if number == signal.SIGINT else "running")


def test_a_rehearsal_has_no_speed() -> None:
    check = Told(rehearsal=True)
    check.add("speed", 5.0, "ms", 1.0, timed=True)
    check.add("difference", 2.0, "", 1.0, "lower")
    assert check.rows["speed"].value is None and check.rows["speed"].met is None
    assert check.rows["difference"].met is False


def test_the_speed_part_runs_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a driver that launches nothing, and a figure of a copy."""
    monkeypatch.setattr(gpu_products.Bench, "copy", lambda bench: 2e3)
    check = Told(rehearsal=True)
    with idle():
        gpu_speed.measure(check)
    assert "prefill of 2" in check.rows and "decode at 64 / bound" in check.rows


@pytest.mark.parametrize(
    ("last", "passed", "failed"),
    [("=== 5 failed, 3 passed in 3s ===", 3, 5), ("Segmentation fault", 0, 0), ("1 error in 1s", 0, 1)],
)
def test_tests_are_counted_file_by_file(last: str, passed: int, failed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose tests crash has none that passed."""
    monkeypatch.setattr(
        subprocess, "run", lambda command, **how: subprocess.CompletedProcess(command, 1, f"FAILED x\n{last}\n", "")
    )
    check = Told()
    gpu_ops.measure(check)
    one, other = (
        check.rows[f"{gpu_ops.FILES[0]}: tests that passed"],
        check.rows[f"{gpu_ops.FILES[0]}: tests that failed"],
    )
    assert (one.value, one.met, other.value, other.met) == (passed, passed > 0, failed, failed == 0)


@pytest.mark.cuda
@pytest.mark.slow
def test_a_rehearsal(tmp_path: Path) -> None:
    """Every part on compiled kernels: all of it runs, nothing is timed, results are right."""
    assert gpu_check.main(["-o", str(tmp_path / "check.json"), "--seconds", "3000", "--rehearse"]) == 0
    found = json.loads((tmp_path / "check.json").read_text())
    assert {part["state"] for part in found["parts"].values()} == {"done"} and len(found["parts"]) == 5
    assert all(row["value"] is None for row in found["rows"] if row["unit"] in ("ms", "us", "GB/s", "T/s"))
    assert sum(row["met"] is True for row in found["rows"]) >= 6
