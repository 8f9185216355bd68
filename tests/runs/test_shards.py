"""Shards of a run: which units are whose, what the environment says, and which folders are merged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from ds4ref.errors import DataError
from ds4ref.eval import cli as eval_cli
from ds4ref.eval import log as logs
from ds4ref.runs import shards
from ds4ref.runs.shards import Shard
from ds4ref.speed_bench import cli as bench_cli
from ds4ref.test_vectors import cli as vectors_cli
from ds4ref.test_vectors.cases import read_cases

SLURM = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "3",
         "SLURM_ARRAY_TASK_STEP": "2"}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "env", "shard"),
    [
        ("3/8", {}, Shard(3, 8)),
        ("auto", SLURM, Shard(3, 3)),
        ("auto", {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "4"}, Shard(1, 4)),
        ("auto/8", {"JOB_COMPLETION_INDEX": "7"}, Shard(8, 8)),
    ],
)
def test_which_shard(text, env, shard) -> None:
    assert shards.parse(text, env) == shard


@pytest.mark.parametrize(
    ("text", "env"),
    [
        *((text, {}) for text in ("0/3", "4/3", "3", "a/b", "1/3/4", "auto", "")),
        ("auto", {"JOB_COMPLETION_INDEX": "1"}),
        ("auto/2", {"JOB_COMPLETION_INDEX": "2"}),
        ("auto", SLURM | {"SLURM_ARRAY_TASK_STEP": "0"}),
    ],
)  # fmt: skip
def test_no_shard(text, env) -> None:
    with pytest.raises(ArgumentTypeError):
        shards.parse(text, env)


@pytest.mark.parametrize("count", [1, 3, 7, 20])
def test_every_unit_belongs_to_one_shard(count) -> None:
    units = list(range(11))
    assert sorted(unit for i in range(count) for unit in Shard(i + 1, count).mine(units)) == units


def made(out: Path, number: int, count: int = 2, plan="x", units=("a", "b", "c"), done=True, tool="t") -> Path:
    with shards.work(out, Shard(number, count), tool, {"model": plan}, units) as folder:
        if done:
            folder.finish()
    return folder.path


def test_only_whole_runs_are_merged(tmp_path) -> None:
    made(tmp_path, 1)
    with pytest.raises(DataError, match="missing of 2: 2; run"):
        shards.read(tmp_path, "t")
    made(tmp_path, 2, done=False)
    with pytest.raises(DataError, match=r"2 \(unfinished\)"):
        shards.read(tmp_path, "t")
    with pytest.raises(DataError, match="other model"):
        made(tmp_path, 2, plan="y")
    with pytest.raises(DataError, match="other units"):
        made(tmp_path, 2, units=("a", "b"))
    with shards.work(tmp_path, Shard(2, 2), "t", {"model": "x"}, ("a", "b", "c")) as folder:
        with pytest.raises(DataError, match="another process"), \
             shards.work(tmp_path, Shard(2, 2), "t", {"model": "x"}, ("a", "b", "c")):  # fmt: skip
            pass
        folder.finish()
    assert [each.mine for each in shards.read(tmp_path, "t")] == [["a", "c"], ["b"]]
    with pytest.raises(DataError, match="not of u"):
        shards.read(tmp_path, "u")
    foreign = made(tmp_path / "other", 3, count=3)
    foreign.rename(tmp_path / foreign.name)
    with pytest.raises(DataError, match="other of"):
        shards.read(tmp_path, "t")
    (tmp_path / foreign.name / "shard.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        shards.read(tmp_path, "t")


# ------------------------------------------------------------------------------------------------------ the tools


def prompts(folder: Path) -> str:
    file = folder / "prompts.jsonl"
    lines = [json.dumps({"id": f"p{i}", "prompt": f"Name {i} rivers."}) for i in range(5)]
    file.write_text("\n".join(lines))
    return str(file)


def evaluated(log: Path) -> list[tuple]:
    return [(s.key, s.digest, s.status, s.output, s.reasoning, s.grade, s.tokens) for s in logs.read(log).samples]


def captured(folder: Path) -> list[tuple]:
    return [(item.case.id, item.prompt, [r.steps for r in item.case.repetitions]) for item in read_cases(str(folder))]


def checked(file: Path) -> list[tuple]:
    whole = json.loads(file.read_text())
    rows = [(r["id"], r["verdict"], [s["verdict"] for s in r["steps"]]) for r in whole["results"]]
    return [*rows, (whole["passed"], whole["failed"], whole["verdicts"], whole["cases"])]


def measured(csv: Path) -> list[tuple]:
    samples = json.loads(csv.with_suffix(".json").read_text())["samples"]
    return [(row["rep"], row["ctx_tokens"], row["prefill_tokens"], row["gen_tokens"]) for row in samples]


def run_of(tool: str, folder: Path) -> tuple:
    """(main, arguments of the run, where a whole run writes, where a shard does, arguments of merge, results)."""
    one, out, whole = folder / "one", folder / "out", folder / "whole"
    if tool == "eval":
        argv = ["--limit", "5", "--nothink", "-n", "24", "--no-store", "--plain", "--temp", "1"]
        return (eval_cli.main, argv, ["-o", f"{one}.jsonl"], ["-o", str(out)],
                ["merge", str(out), "-o", f"{whole}.jsonl"],
                lambda name: evaluated(folder / f"{name}.jsonl"))  # fmt: skip
    if tool == "capture":
        argv = ["--prompts", prompts(folder), "-n", "12", "--repeat", "2"]
        return (lambda args: vectors_cli.main([*args[:1], *args[1:]] if args[0] == "merge" else ["capture", *args]),
                argv, [str(one)], [str(out)], ["merge", str(out), "-o", str(whole)],
                lambda name: captured(folder / name))  # fmt: skip
    if tool == "check":
        vectors = str(folder / "vectors")
        if not Path(vectors).exists():
            vectors_cli.main(["capture", vectors, "--prompts", prompts(folder), "-n", "4", "--repeat", "2"])
        return (lambda args: vectors_cli.main(args if args[0] == "merge" else ["check", *args]), [vectors],
                ["-o", f"{one}.json"], ["-o", str(out)], ["merge", str(out), "-o", f"{whole}.json"],
                lambda name: checked(folder / f"{name}.json"))  # fmt: skip
    argv = ["--ctx-start", "8", "--ctx-max", "16", "--step-incr", "8", "-n", "2", "-r", "4", "--no-warmup"]
    return (bench_cli.main, argv, ["--csv", f"{one}.csv", "--no-store"], ["--shard-folder", str(out)],
            ["merge", str(out), "--csv", f"{whole}.csv"], lambda name: measured(folder / f"{name}.csv"))  # fmt: skip


@pytest.mark.parametrize("tool", ["eval", "capture", "check", "bench"])
def test_merged_shards_equal_one_run(tool, tmp_path, capsys) -> None:
    """The shards run in any order, and one of them twice."""
    main, argv, one, out, merge, results = run_of(tool, tmp_path)
    assert main([*argv, *one]) in (0, 1)
    for number in (3, 1, 2):
        assert main([*argv, *out, "--shard", f"{number}/3"]) in (0, 1)
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert main([*argv, *out, "--shard", "3/3"]) in (0, 1)
    assert {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()} == before
    assert main(merge) == 0
    assert results("whole") == results("one") and len(results("one")) >= 5
    # another run does not fit into these folders
    more = {"eval": ["--seed", "5"], "check": ["--floor", "3"]}.get(tool, ["-n", "3"])
    assert main([*argv, *more, *out, "--shard", "1/3"]) in (1, 2)
    err = capsys.readouterr().err
    assert "another run" in err or "other settings" in err


PROGRAM = """import sys
sys.path.insert(0, {root!r})
from tests.runs.test_shards import run_of
from pathlib import Path
tool, folder, *more = sys.argv[1:]
main, argv, one, out, merge, results = run_of(tool, Path(folder))
sys.exit(main([*argv, *out, *more]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("tool", ["eval", "capture", "bench"])
def test_shards_that_were_killed_and_repeated_equal_one_run(tool, tmp_path) -> None:
    main, argv, one, _, merge, results = run_of(tool, tmp_path)
    assert main([*argv, *one]) in (0, 1)
    program = [sys.executable, "-c", PROGRAM.format(root=str(Path(__file__).parents[2])), tool, str(tmp_path)]
    progress = {"eval": "run.jsonl", "capture": "vectors/cases/*.json", "bench": "rows.jsonl"}[tool]
    killed = 0
    for number in (1, 2, 3):
        command = [*program, "--shard", f"{number}/3"]
        folder = tmp_path / "out" / f"shard-{number}-of-3"
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not any(file.stat().st_size for file in folder.glob(progress)):
            time.sleep(0.005)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        assert subprocess.run(command, capture_output=True).returncode in (0, 1)
    assert killed and main(merge) == 0
    assert results("whole") == results("one")
