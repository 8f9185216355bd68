"""Jobs of many commands: which units a file means, and that they run, resume and fail one by one."""

import json
import os
import threading
import time

import pytest

import ds4ref.speed_bench.cli
import ds4ref.test_vectors.cli
from ds4ref.console.many import Tool, read_job, run_unit
from ds4ref.errors import DataError
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


def test_mistakes(capsys, tmp_path):
    assert ds4ref.speed_bench.cli.main(["many"]) == 2 and "give one JOB.toml" in capsys.readouterr().err
    assert ds4ref.speed_bench.cli.main(["many", str(tmp_path / "absent.toml")]) == 1
    job = tmp_path / "job.toml"
    job.write_text("")
    assert ds4ref.speed_bench.cli.main(["many", str(job), "--scheduler", "foo://here:1"]) == 2
    assert "foo://here:1 is no address of a Dask scheduler" in capsys.readouterr().err
