"""The check of a GPU, without one: what is kept when parts hang, crash, fail or are stopped; rehearsals."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_check, gpu_children
from benchmarks.gpu_check import Record, Stage
from benchmarks.gpu_children import Child, Message

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="parts are watched and killed as Linux allows")
STUBS = "tests.benchmarks.gpu_stubs:"
PATIENCE = 60.0
"""Seconds after which something that should happen at once does not."""


def command(*argv: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", *map(str, argv)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3000, check=False,
    )  # fmt: skip


def script(out: Path, stages: list[Stage], device: str, *argv: str, after: str = "") -> list[str]:
    """The command with other parts."""
    code = (
        "import sys; from benchmarks import gpu_check as g\n"
        f"stages = [g.Stage(*stage) for stage in {[tuple(stage) for stage in stages]!r}]\n"
        f"code = g.main({['-o', str(out), *argv]!r}, stages, {STUBS + device!r})\n{after}\nsys.exit(code)"
    )
    return [sys.executable, "-c", code]


def kept(out: Path) -> dict[str, Any]:
    """The file as it is now."""
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def items(found: dict[str, Any]) -> dict[str, list[str]]:
    """What rows there are, by part."""
    by_part: dict[str, list[str]] = {}
    for row in found["rows"]:
        by_part.setdefault(row["part"], []).append(row["item"])
    return by_part


def until(there: Callable[[], Any]) -> Any:
    """Wait for something that should come; return it."""
    end = time.monotonic() + PATIENCE
    while not (found := there()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def is_gone(number: str) -> bool:
    """Whether a process has ended; one that nobody has asked about stays in the table."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where stubs write numbers of processes; what is left of them in the end is killed here."""
    path = tmp_path / "processes"
    path.touch()
    monkeypatch.setenv("DS4_STUB_PROCESSES", str(path))
    yield path
    for number in path.read_text().split():
        if not is_gone(number):
            os.kill(int(number), signal.SIGKILL)


class Watched(Record):
    """For parts that hang the time is up once their first row is there, however slow this machine is."""

    def take(self, child: Child, message: Message) -> None:
        super().take(child, message)
        if "row" in message and child.work in (STUBS + "hangs", STUBS + "hangs_with_others"):
            child.seconds = 0.0


HOW = {
    "good": (["before", "after"], "done"),
    "hangs": (["before"], "killed: not through after 0 s"),
    "hangs_with_others": (["before"], "killed: not through after 0 s"),
    "hangs_at_its_end": (["before", "after"], "done"),
    "leaves_others": (["before"], "done"),
    "crashes": (["before"], "died: SIGSEGV"),
    "exits": (["before"], "died: exit code 7 before its end"),
    "raises": (["before"], "failed: RuntimeError: out of luck"),
    "absent": ([], "failed: AttributeError: module 'tests.benchmarks.gpu_stubs' has no attribute 'absent'"),
    "chatters": (["before", "after"], "done"),
    "babbles": (["before", "after"], "failed: wrote 'no JSON' where a message was due"),
    "is_wrong": (["before", "after", "difference"], "done"),
    "breaks_off": (
        ["before"], "died: exit code 0 before its end: wrote '{\"row\": {\"item\": \"half' where a message was due"
    ),
    "runs_late": (["before"], "cut short: skipped: 0 of "),
}  # fmt: skip
"""Rows and state of every stub."""


@pytest.mark.thorough
@pytest.mark.parametrize("turn", range(len(HOW)))
def test_what_goes_wrong_in_a_part_stays_in_it(
    turn: int, tmp_path: Path, processes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stub once in the place of every part, beside and between others that go wrong."""
    monkeypatch.setattr(gpu_children, "LEAVING", 0.3)
    names = gpu_check.names(gpu_check.STAGES)
    stubs = {name: list(HOW)[(turn + 2 * place) % len(HOW)] for place, name in enumerate(names)}
    stages = [Stage(s.share, {name: STUBS + stubs[name] for name in s.parts}) for s in gpu_check.STAGES]
    record = Watched(tmp_path / "check.json")
    gpu_check.run(record, stages, names, 6000, False)
    found = kept(record.out)
    for name, stub in stubs.items():
        rows, state = HOW[stub]
        assert items(found).get(name, []) == rows, (name, stub)
        assert found["parts"][name]["state"].startswith(state), (name, stub)
    for number in processes.read_text().split():
        until(partial(is_gone, number))


@pytest.mark.parametrize(
    ("stub", "code"),
    [("good", 0), ("runs_late", 0), ("chatters", 0), ("is_wrong", 1), ("raises", 1), ("crashes", 1), ("babbles", 1)],
)
def test_the_exit_code(stub: str, code: int, tmp_path: Path) -> None:
    stages = [Stage(1.0, {"a": STUBS + stub}), Stage(1.0, {"b": STUBS + "good"})]
    done = subprocess.run(script(tmp_path / "c.json", stages, "device"), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert items(kept(tmp_path / "c.json"))["b"] == ["before", "after"]
    assert f"written: {tmp_path}" in done.stdout and "after" in done.stdout
    state = kept(tmp_path / "c.json")["parts"]["a"]["state"]
    assert (f"a: {state}" in done.stdout) == (state != "done")


def test_a_deadline_ends_a_part_and_not_the_run(tmp_path: Path) -> None:
    """With a real one: of 100 s, 1.5 for a part that would take 600."""
    record = Record(tmp_path / "check.json")
    stages = [Stage(0.015, {"a": STUBS + "hangs"}), Stage(0.985, {"b": STUBS + "good"})]
    gpu_check.run(record, stages, ["a", "b"], 100, False)
    assert record.parts["a"]["state"].startswith("killed: not through after ") and not record.good()
    assert record.parts["a"]["seconds"] < 30 and items(kept(record.out))["b"] == ["before", "after"]


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_who_is_stopped_keeps_the_rows_and_leaves_nobody(
    number: signal.Signals, code: int, tmp_path: Path, processes: Path
) -> None:
    """SIGKILL of the parent alone, too: its parts are in groups of their own."""
    out = tmp_path / "check.json"
    stages = [
        Stage(1.0, {"a": STUBS + "good"}), Stage(1.0, {"b": STUBS + "hangs_with_others", "c": STUBS + "good"}),
        Stage(1.0, {"d": STUBS + "good"}),
    ]  # fmt: skip
    with subprocess.Popen(script(out, stages, "device"), cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        until(lambda: out.exists() and kept(out)["parts"].get("c", {}).get("state") == "done")
        numbers = until(processes.read_text).split()
        assert len(numbers) == 2 and not any(map(is_gone, numbers))
        parent.send_signal(number)
        printed = parent.communicate(timeout=PATIENCE)[0]
    assert parent.returncode == code
    for process in numbers:
        until(partial(is_gone, process))
    found = kept(out)
    assert items(found) == {"a": ["before", "after"], "b": ["before"], "c": ["before", "after"]}
    running = "running" if number == signal.SIGKILL else "stopped"
    assert {name: part["state"] for name, part in found["parts"].items()} == {
        "device": "done", "a": "done", "b": running, "c": "done", "d": "not started",
    }  # fmt: skip
    assert number == signal.SIGKILL or "b: stopped" in printed


def test_every_figure_is_on_disk_when_it_is_there(tmp_path: Path) -> None:
    seen = []

    class Read(Record):
        def take(self, child: Child, message: Message) -> None:
            super().take(child, message)
            seen.append((len(kept(self.out)["rows"]), kept(self.out)["parts"]["a"]["state"]))

    gpu_check.run(Read(tmp_path / "check.json"), [Stage(1.0, {"a": STUBS + "good"})], ["a"], PATIENCE, False)
    assert seen == [(1, "running"), (2, "running"), (2, "done")]


@pytest.mark.thorough
def test_a_header_comes_first(tmp_path: Path) -> None:
    """The file is there before the GPU is asked anything, and says what is to come before the first part begins."""
    out = tmp_path / "sub" / "check.json"
    stages = [Stage(1.0, {"a": STUBS + "states"}), Stage(1.0, {"b": STUBS + "good"}), Stage(1.0, {"c": STUBS + "good"})]
    environment = os.environ | {"DS4_STUB_FILE": str(out)}
    done = subprocess.run(script(out, stages, "header", "--only", "a", "b"), cwd=ROOT, env=environment)
    found = kept(out)
    assert done.returncode == 0 and found["header"] is True and found["then"] is None
    states = {"device": "done", "a": "running", "b": "not started", "c": "not asked for"}
    assert found["details"]["a"] == [{"device": "a stub", "states": states}]
    assert found["parts"]["b"]["state"] == "done" and found["parts"]["c"]["state"] == "not asked for"


def test_the_parent_loads_nothing_of_a_gpu(tmp_path: Path) -> None:
    after = "print('loaded', sorted({'numba', 'llvmlite', 'cuda', 'ds4ref.kernels.cuda', 'numpy'} & set(sys.modules)))"
    stages = [Stage(1.0, {"a": STUBS + "good"})]
    line = script(tmp_path / "check.json", stages, "device", after=after)
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded []\n")


def test_without_a_device_one_line_says_so(tmp_path: Path) -> None:
    done = command("-o", tmp_path / "out" / "check.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gpu_check: no CUDA device: ") and done.stderr.count("\n") == 1
    assert kept(tmp_path / "out" / "check.json")["refusal"].startswith("no CUDA device: ")


@pytest.mark.parametrize(
    ("device", "line"),
    [
        ("refused", "gpu_check: no CUDA device: none was made\n"),
        ("refused_late", "gpu_check: the GPU did not answer: failed: OSError: the driver fell over\n"),
        ("crashes", "gpu_check: the GPU did not answer: died: SIGSEGV\n"),
    ],
)
def test_no_part_is_tried_where_no_device_answers(device: str, line: str, tmp_path: Path) -> None:
    stages = [Stage(1.0, {"a": STUBS + "good"})]
    done = subprocess.run(script(tmp_path / "check.json", stages, device), cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, line) and "a" not in kept(tmp_path / "check.json")["parts"]


@pytest.mark.thorough
def test_a_device_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "ASKING", 1.5)
    monkeypatch.setattr(signal, "signal", lambda *handler: None)
    assert gpu_check.main(["-o", str(tmp_path / "check.json")], [], STUBS + "hangs") == 1
    assert kept(tmp_path / "check.json")["parts"]["device"]["state"] == "killed: not through after 2 s"


def test_a_part_that_leaves_time_leaves_it_to_the_others(tmp_path: Path) -> None:
    stages = [Stage(1.0, {"a": STUBS + "tells_its_time"}), Stage(3.0, {"b": STUBS + "tells_its_time"})]
    record = Record(tmp_path / "check.json")
    gpu_check.run(record, stages, ["a", "b"], 1000, False)
    first, second = (row["value"] / gpu_children.OWN_SHARE for row in record.rows)
    assert first == pytest.approx(250, abs=1) and 800 < second <= 1000
    gpu_check.run(record, stages, ["a"], 0.5, False)
    assert len(record.rows) == 2 and record.parts["a"]["state"] == "cut short: no time was left"


@pytest.mark.thorough
def test_parts_of_a_stage_run_at_the_same_time_on_cores_of_their_own(tmp_path: Path, processes: Path) -> None:
    record = Record(tmp_path / "check.json")
    gpu_check.run(record, [Stage(1.0, {"a": STUBS + "meets", "b": STUBS + "meets"})], ["a", "b"], PATIENCE, False)
    assert items(kept(record.out)) == {"a": ["met"], "b": ["met"]}
    own = os.sched_getaffinity(0)
    for count in (2, len(own) + 1):
        parts = {f"{count}.{number}": STUBS + "counts_cores" for number in range(count)}
        gpu_check.run(record, [Stage(1.0, parts)], list(parts), PATIENCE, False)
        shares = [set(record.details[name][0]) for name in parts]
        assert set().union(*shares) == own
        assert sum(map(len, shares)) == (len(own) if count <= len(own) else count * len(own))


def test_parts_find_this_tree_first_and_packages_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their own processes run in another folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((".", "", "packages")))
    record = Record(tmp_path / "check.json")
    gpu_check.run(record, [Stage(1.0, {"a": STUBS + "tells_its_path"})], ["a"], PATIENCE, False)
    assert record.details["a"] == [[str(ROOT), os.getcwd(), os.path.abspath("packages")]]


def test_a_value_that_json_lacks_comes_back(tmp_path: Path) -> None:
    record = Record(tmp_path / "check.json")
    gpu_check.run(record, [Stage(1.0, {"a": STUBS + "is_wrong"})], ["a"], PATIENCE, False)
    row = kept(record.out)["rows"][1]
    values = {name: value for name, value in row.items() if name != "part"}
    assert (row["value"], row["met"]) == ("nan", False) and math.isnan(gpu_children.as_row(values).value or 0)


def test_the_table_without_rich(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(tmp_path / "check.json")
    gpu_check.run(record, [Stage(1.0, {"a": STUBS + "good"})], ["a"], PATIENCE, False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    gpu_check.printed(record)
    assert "a\tafter\t0.5\t\t1.0\t\n" in capsys.readouterr().out


@pytest.mark.cuda
@pytest.mark.slow
def test_a_rehearsal(tmp_path: Path) -> None:
    """Every part on compiled kernels: all of it runs, nothing is timed, results are right."""
    out = tmp_path / "check.json"
    done = command("-o", out, "--seconds", 3000, "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    found = kept(out)
    assert found["rehearsal"] is True and {how["state"] for how in found["parts"].values()} == {"done"}
    rows = found["rows"]
    assert {row["part"] for row in rows} == set(gpu_check.names(gpu_check.STAGES))
    assert all(row["value"] is None for row in rows if row["unit"] in ("ms", "us", "GB/s", "T/s"))
    assert sum(row["met"] is True for row in rows) >= 6 and not any(row["met"] is False for row in rows)


@pytest.mark.cuda
def test_a_short_rehearsal_measures_nothing_and_says_so(tmp_path: Path) -> None:
    done = command("-o", tmp_path / "check.json", "--only", "basics", "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    found = kept(tmp_path / "check.json")
    assert found["parts"]["basics"]["state"] == "done" and found["parts"]["speed"]["state"] == "not asked for"
    assert len(items(found)["basics"]) == 8 and all(row["value"] is None for row in found["rows"])
    assert "a chain of" in done.stdout and "written: " in done.stdout
