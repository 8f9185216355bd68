"""Jobs of sweeps: which units a file means, and that they run, resume and fail one by one."""

import json

import pytest

from ds4ref.errors import DataError
from ds4ref.runs.store import Store
from speed_bench import cli
from speed_bench.many import read_job, run_unit

JOB = """
name = "quants"
args = ["--ctx-start", "16", "--ctx-max", "32", "--step-incr", "16", "-n", "2", "-r", "1", "--no-roofline"]
[matrix]
numerics = ["ds4", "exact"]
threads = [1]
"""


def test_a_matrix_is_every_combination(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('args = ["-r", "2"]\n[matrix]\nmodel = ["a", "b"]\nthreads = [1, 2]\n')
    name, units = read_job(str(path))
    assert name == "job" and len(units) == 4
    assert units["model=a threads=2 -r 2"] == [
        "-r",
        "2",
        "--model",
        "a",
        "--threads",
        "2",
        "--label",
        "model=a threads=2",
    ]
    path.write_text("")
    assert read_job(str(path)) == ("job", {"job": ["--label", "job"]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nam = 1", "unknown entry 'nam'"),
        ("name = 1", "name must be a text"),
        ('args = "-r 2"', "args must be a list"),
        ("[matrix]\nmodel = []", "matrix.model must be a list"),
        ("[matrix]\nmodel = [[1]]", "matrix.model must be a list"),
        ("[matrix]\nstore = ['x']", "store is set for each unit"),
        ("args = ['--csv', 'x']", "csv is set for each unit"),
        ("x", "not TOML"),
    ],
)
def test_jobs_that_cannot_be(tmp_path, text, message):
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_job(str(path))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_job_runs_fails_in_part_and_resumes(tmp_path, nano_path, private_store, capsys):
    job, missing = tmp_path / "job.toml", tmp_path / "missing.gguf"
    job.write_text(JOB.replace("threads = [1]", f"model = [{json.dumps(nano_path)}, {json.dumps(str(missing))}]")
                   .replace('"exact"', "").replace(", ]", "]"))  # fmt: skip
    assert cli.main(["many", str(job)]) == 1
    captured = capsys.readouterr()
    assert "quants: 1 done, 0 done before, 1 failed" in captured.out
    assert "missing.gguf: cannot open the model" in captured.err
    missing.symlink_to(nano_path)
    assert cli.main(["many", str(job)]) == 0
    assert "quants: 1 done, 1 done before, 0 failed" in capsys.readouterr().out
    with Store.open(private_store) as store:
        runs = store.runs(kind="bench")
        assert len(runs) == 2 and all(run.label.startswith("numerics=ds4 model=") for run in runs)
        assert [row["ctx_tokens"] for row in store.rows(runs[0].id)] == [16, 32]


def test_mistakes(capsys, tmp_path):
    assert cli.main(["many"]) == 2 and "many needs one JOB.toml" in capsys.readouterr().err
    assert cli.main(["many", str(tmp_path / "absent.toml")]) == 1
    job = tmp_path / "job.toml"
    job.write_text("")
    assert cli.main(["many", str(job), "--scheduler", "here"]) == 2
    assert "unknown scheduler 'here'" in capsys.readouterr().err


def test_a_list_inside_a_unit_is_refused(nano_path):
    argv = ["-m", nano_path, "--frontiers", "8", "-n", "1", "-t", "1,2", "--backend", "reference", "--no-roofline"]
    with pytest.raises(DataError, match=r"put the list into \[matrix\]"):
        run_unit(argv)
