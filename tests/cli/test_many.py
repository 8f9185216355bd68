"""Jobs of many commands: which units a file means, and that they run, resume and fail one by one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import ds4ref.speed_bench.cli
import ds4ref.test_vectors.cli
from ds4ref.console.many import Folders, Tool, read_job, run_unit
from ds4ref.errors import DataError, UsageError
from ds4ref.runs.store import Store

BENCH = Tool("ds4-bench", "ds4ref.speed_bench.cli", ("csv", "plot"))
SWEEP = ["--ctx-start", "16", "--ctx-max", "32", "--step-incr", "16", "-n", "2", "-r", "1", "--no-roofline"]
ECHO = """
import json, os, pathlib, sys, time
out, code = pathlib.Path(sys.argv[1]), int(sys.argv[2])
(out / "deep").mkdir()
(out / "deep" / "file").write_text("written")
assert sys.stdin.read() == ""
print("for people")
print(json.dumps({"passed": code == 0}) if code < 2 else "")
print("it is broken", file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def store_path(private_data):
    return private_data / "runs.sqlite"


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """A module that units can run."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "echoes.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}{os.pathsep}{os.environ.get('PYTHONPATH', os.getcwd())}")
    return lambda *argv: {"module": "echoes", "prog": "echoes", "argv": list(argv)}


def test_a_matrix_is_every_combination(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('args = ["-r", "2"]\n[matrix]\nmodel = ["a", "b"]\nthreads = [1, 2]\n')
    name, units = read_job(str(path), BENCH)
    assert name == "job" and len(units) == 4
    assert units["model=a threads=2 -r 2"] == ("model=a threads=2", ["-r", "2", "--model", "a", "--threads", "2"])
    path.write_text("")
    assert read_job(str(path), BENCH) == ("job", {"job": ("job", [])})
    path.write_text('args = ["--csv", "{out}/a.csv", "--plot={out}/a.svg"]')
    assert read_job(str(path), BENCH)[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nam = 1", "unknown entry 'nam'"),
        ("name = 1", "name must be a string"),
        ('args = "-r 2"', "args must be a list"),
        ("[matrix]\nmodel = []", "matrix.model must be a list"),
        ("[matrix]\nmodel = [[1]]", "matrix.model must be a list"),
        ("[matrix]\nstore = ['x']", "store is set per unit"),
        ("args = ['--label', 'x']", "label is set per unit"),
        ("args = ['--csv', 'x']", "every unit would write the same --csv"),
        ("args = ['--csv=x', '{out}']", "every unit would write the same --csv"),
        ("[matrix]\nplot = ['a', 'b']", "every unit would write the same --plot"),
        ("x", "not TOML"),
    ],
)
def test_jobs_that_cannot_be(tmp_path, text, message):
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_job(str(path), BENCH)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_unit_brings_back_files_and_its_verdict(echo):
    found = run_unit(echo("{out}", "0"))
    assert found == {"passed": True, "found": {"passed": True}, "runs": [], "files": {"deep/file": b"written"}}
    found = run_unit(echo("{out}", "1"))
    assert found["passed"] is False and found["files"]
    for code in ("2", "3"):
        with pytest.raises(DataError, match="^it is broken$"):
            run_unit(echo("{out}", code))


@pytest.mark.thorough
def test_a_unit_leaves_runs_but_nothing_in_the_store_of_its_machine(nano_path, store_path):
    argv = ["-m", nano_path, "--frontiers", "8", "-n", "1", "-r", "1", "-t", "1,2", "--backend", "reference"]
    argv += ["--no-roofline"]
    found = run_unit({"module": "ds4ref.speed_bench.cli", "prog": "ds4-bench", "argv": argv})
    assert [run["label"] for run in found["runs"]] == ["threads=1", "threads=2"]
    assert all(run["kind"] == "bench" and len(run["rows"]) == 1 for run in found["runs"])
    with Store.open(store_path) as store:
        assert not store.runs()
        # A digest takes minutes for a real model: the machine remembers it for the next unit.
        assert [path for path, *_ in store.digests()] == [os.path.realpath(nano_path)]


def test_peaks_and_digests_are_lent_to_units_and_brought_back(tmp_path, store_path, echo, monkeypatch):
    known = ("/a", 1, 2, "d")
    with Store.open(store_path) as store:
        store.remember([known])
        store.add("peaks", {"threads": 1}, [{"read_gbs": 1.0}], label="old")
    (tmp_path / "modules" / "echoes.py").write_text(
        "from ds4ref.runs.store import Store\n"
        "with Store.open() as store:\n"
        f"    assert store.digests() == [{known!r}] and [r.label for r in store.runs(kind='peaks')] == ['old']\n"
        "    store.remember([('/b', 3, 4, 'e')])\n"
        "    store.add('peaks', {'threads': 2}, [{'read_gbs': 2.0}], label='new')\n"
        "    for label in ('first', 'second'):\n"
        "        store.add('bench', {'x': label}, [{'y': label}], label=label)\n"
    )
    assert run_unit(echo())["runs"] == [
        {"kind": "bench", "facts": {"x": label}, "rows": [{"y": label}], "label": label}
        for label in ("first", "second")
    ]
    with Store.open(store_path) as store:
        assert sorted(store.digests()) == [known, ("/b", 3, 4, "e")]
        assert [run.label for run in store.runs()] == ["new", "old"]


def test_a_unit_ends_with_its_worker(tmp_path, echo):
    """A killed worker must not leave its measurement behind."""
    (tmp_path / "modules" / "echoes.py").write_text(
        "import pathlib, sys, time\n"
        "from ds4ref.console.common import run\n"
        "def body(argv):\n"
        "    path = pathlib.Path(argv[0])\n"
        "    path.write_text('begun')\n"
        "    try:\n        time.sleep(120)\n    finally:\n        path.write_text('ended')\n"
        "run('echoes', body)\n"
    )
    note = tmp_path / "note"
    code = f"from ds4ref.console.many import run_unit; run_unit({echo(str(note))!r})"
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    while not note.exists() or not note.read_text():
        time.sleep(0.02)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    late = time.monotonic() + 60
    while note.read_text() != "ended" and time.monotonic() < late:
        time.sleep(0.02)
    assert note.read_text() == "ended"


def test_folders_of_units(tmp_path, store_path):
    with Store.open(store_path) as store:
        labels = {"one": "target=http://a:1/v1", "two": "target=http://b:1/v1"}
        home = Folders(tmp_path / "files", labels, store, "job")
        result = home.receive("one", {"runs": [{"label": "check"}], "files": {"x/y": b"1"}, "passed": True})
        assert result == {"runs": [{"label": labels["one"]}], "passed": True,
                          "folder": str(tmp_path / "files" / "target=http_a_1_v1")}  # fmt: skip
        assert (tmp_path / "files" / "target=http_a_1_v1" / "x" / "y").read_bytes() == b"1"
        several = home.receive("two", {"runs": [{"label": "A"}, {"label": "B"}]})
        assert [run["label"] for run in several["runs"]] == [f"{labels['two']}: A", f"{labels['two']}: B"]
        assert [path.name for path in (tmp_path / "files").iterdir()] == ["target=http_a_1_v1"]
        with pytest.raises(UsageError, match="exists, but its unit is unfinished"):
            Folders(tmp_path / "files", labels, store, "job")
        same = Folders(tmp_path / "other", {"one": "a b", "two": "a:b"}, store, "job")
        assert len(set(same.names.values())) == 2


@pytest.mark.thorough
def test_a_job_runs_fails_in_part_and_resumes(tmp_path, nano_path, store_path, capsys):
    pytest.importorskip("distributed", reason="extra 'fanout' is not installed")
    job, missing = tmp_path / "job.toml", tmp_path / "missing.gguf"
    job.write_text(f"name = 'quants'\nargs = {json.dumps(SWEEP)}\n[matrix]\n"
                   f"model = [{json.dumps(nano_path)}, {json.dumps(str(missing))}]")  # fmt: skip
    assert ds4ref.speed_bench.cli.main(["many", str(job)]) == 1
    captured = capsys.readouterr()
    assert "quants: 1 done, 0 done before, 1 failed" in captured.out
    assert "missing.gguf: cannot open the model" in captured.err and "dashboard: http://" in captured.err
    missing.symlink_to(nano_path)
    assert ds4ref.speed_bench.cli.main(["many", str(job), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["done"]) == len(found["before"]) == 1 and not found["failed"] and not found["left"]
    with Store.open(store_path) as store:
        runs = store.runs(kind="bench")
        assert sorted(run.label for run in runs) == sorted([f"model={nano_path}", f"model={missing}"])
        assert [row["ctx_tokens"] for row in store.rows(runs[0].id)] == [16, 32]


@pytest.mark.slow
def test_eight_sweeps_on_three_workers_of_which_one_is_killed(tmp_path, nano_path, store_path, capsys):
    """Every unit is in the store once, none is lost, and the measurement of the dead worker ended with it."""
    pytest.importorskip("distributed", reason="extra 'fanout' is not installed")
    import psutil  # distributed needs it

    job, killed = tmp_path / "job.toml", []
    job.write_text(f"name = 'eight'\nargs = {json.dumps([*SWEEP, '-m', nano_path])}\n"
                   "[matrix]\nnumerics = ['ds4', 'exact']\nreps = [1, 2, 3, 4]")  # fmt: skip

    def kill():
        while not killed:
            for process in psutil.Process().children(recursive=True):
                try:
                    if "ds4ref.console.unit" in process.cmdline():
                        process.parent().kill()
                        killed.append(process)
                        return
                except (psutil.Error, AttributeError):
                    continue
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    assert ds4ref.speed_bench.cli.main(["many", str(job), "--workers", "3", "--json"]) == 0
    killer.join()
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert len(found["done"]) == 8 and not found["failed"] and not found["left"] and not found["before"]
    with Store.open(store_path) as store:
        expected = sorted(f"numerics={mode} reps={reps}" for mode in ("ds4", "exact") for reps in (1, 2, 3, 4))
        assert sorted(run.label for run in store.runs(kind="bench")) == expected
        assert {run.status for run in store.runs()} == {"complete"}
    assert "dashboard: http://127.0.0.1:" in captured.err
    assert not killed[0].is_running() or killed[0].status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_vectors_are_captured_and_checked_by_the_same_lines(tmp_path, nano_path, store_path, capsys, monkeypatch):
    pytest.importorskip("distributed", reason="extra 'fanout' is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_text('{"id": "one", "prompt": "Say hello."}\n')
    (tmp_path / "capture.toml").write_text(
        f'args = ["capture", "{{out}}", "--prompts", "{tmp_path}/prompts.jsonl", "-n", "2", "--repeat", "1"]\n'
        f'[matrix]\ntarget = ["local:{nano_path}"]\nnumerics = ["ds4", "exact"]\n'
    )
    assert ds4ref.test_vectors.cli.main(["many", "capture.toml", "--workers", "2"]) == 0
    folders = sorted(path.parent for path in (tmp_path / "capture").glob("*/manifest.json"))
    assert len(folders) == 2
    capsys.readouterr()
    (tmp_path / "check.toml").write_text(
        f'args = ["check", "{folders[0]}", "--out", "{{out}}/steps.json"]\n'
        f'[matrix]\ntarget = ["local:{nano_path}"]\nnumerics = ["exact", "qat"]\n'
    )
    assert ds4ref.test_vectors.cli.main(["many", "check.toml", "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert len(found["done"]) == 2 and all(result["found"]["cases"] == 1 for result in found["results"].values())
    assert len(list((tmp_path / "check").glob("*/steps.json"))) == 2
    with Store.open(store_path) as store:
        assert [run.kind for run in store.runs()] == ["vectors", "vectors"]


@pytest.mark.slow
def test_ctrl_c_waits_for_what_runs_and_the_next_run_resumes(tmp_path, nano_path, store_path, capfd):
    pytest.importorskip("distributed", reason="extra 'fanout' is not installed")
    job = tmp_path / "job.toml"
    job.write_text(f"args = {json.dumps([*SWEEP, '-m', nano_path])}\n[matrix]\nreps = [1, 2, 3]")

    def stop():
        while "dashboard" not in "".join(said):
            said.append(capfd.readouterr().err)
            time.sleep(0.05)
        with Store.open(store_path) as store:
            while not store.runs() and time.monotonic() < late:
                time.sleep(0.05)
            seen.extend(store.runs())
        os.kill(os.getpid(), signal.SIGINT)

    def store_runs():
        with Store.open(store_path) as store:
            return [run.label for run in store.runs()]

    said, seen, late = [], [], time.monotonic() + 120
    thread = threading.Thread(target=stop)
    thread.start()
    code = ds4ref.speed_bench.cli.main(["many", str(job)])
    thread.join()
    assert seen and code == 130
    kept = len(store_runs())
    assert 1 <= kept < 3 and "the same command does what is missing" in capfd.readouterr().err
    assert ds4ref.speed_bench.cli.main(["many", str(job)]) == 0
    assert sorted(store_runs()) == ["reps=1", "reps=2", "reps=3"]


def test_mistakes(capsys, tmp_path):
    assert ds4ref.speed_bench.cli.main(["many"]) == 2 and "give one JOB.toml" in capsys.readouterr().err
    assert ds4ref.speed_bench.cli.main(["many", str(tmp_path / "absent.toml")]) == 1
    job = tmp_path / "job.toml"
    job.write_text("")
    assert ds4ref.speed_bench.cli.main(["many", str(job), "--scheduler", "foo://here:1"]) == 2
    assert "foo://here:1 is no address of a Dask scheduler" in capsys.readouterr().err
