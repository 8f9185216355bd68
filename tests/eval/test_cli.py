"""ds4-eval as a user runs it: logs, resuming, signals, exit codes, what goes to which stream.

On the random model, which answers nothing rightly.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from ds4ref.eval import log as logs
from ds4ref.eval.cli import main
from ds4ref.runs.store import Store
from tests.marking import sampled

RUN = [sys.executable, "-m", "ds4ref.eval.cli"]
COUNT = 40
"""Questions of pack nano about facts and lists."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def model(nano_path):
    """Options: the random model and questions that it cannot answer, in few tokens."""
    return ["-m", nano_path, "--pack", "nano", "--only", "facts,lists", "-n", "2"]


def test_a_run_is_logged_reported_and_kept(path, capsys, private_data, model):
    assert main([*model, "-o", str(path), "--limit", "3", "--plain", "--fail-below", "0"]) == 0
    out, err = capsys.readouterr()
    log = logs.read(path)
    assert len(log.samples) == 3 and not any(s.right for s in log.samples)
    assert log.header.pack["pack"] == "nano" and log.header.target["kind"] == "local"
    assert all(s.tokens == 2 and s.finish == "length" and s.prompt_tokens > 5 for s in log.samples)
    assert "[3/3]" in out and "score: 0.0 % (0.0 to 56.1, n = 3), guessing" in out and str(path) in out
    assert "3 samples of pack nano" in err
    with Store.open() as store:
        run = store.runs(kind="eval")[0]
        assert run.status == "complete" and len(store.rows(run.id)) == 3


def test_json_is_alone_on_stdout_and_a_low_score_fails(path, capsys, model):
    assert main([*model, "-o", str(path), "--limit", "2", "--json", "--no-store", "--fail-below", "100"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert out.count("\n") == 1 and "[2/2]" in err and "is below 100 %" in err
    assert (found["pack"], found["n"], found["asked"], found["score"], found["left"]) == ("nano", 2, 2, 0.0, 0)
    assert found["ci95"][1] > 0 and found["log"] == str(path)
    assert set(found["per_source"]) == {"lists/copy", "lists/reverse"}


def test_a_log_goes_on_and_repeats_nothing(path, capsys, model):
    assert main([*model, "-o", str(path), "--limit", "2", "--plain", "--no-store"]) == 0
    before = path.read_bytes()
    assert main(["--resume", str(path), "--plain", "--no-store"]) == 0 and path.read_bytes() == before
    assert "2 samples of pack nano, 2 of them done" in capsys.readouterr().err, "the limit of the log"
    for _ in range(2):
        assert main(["--resume", str(path), "--limit", "4", "--plain", "--no-store"]) == 0
    assert path.read_bytes().startswith(before) and len(logs.read(path).samples) == 4
    assert "4 of them done" in capsys.readouterr().err
    assert main(["--resume", str(path), "--epochs", "2", "--limit", "2", "--plain", "--no-store"]) == 0
    asked = [(s.epoch, s.id) for s in logs.read(path).samples]
    assert [epoch for epoch, _ in asked] == [1] * 4 + [2] * 2
    assert {name for _, name in asked[4:]} == {name for _, name in asked[:2]}
    before = path.read_bytes()
    for more, said in (
        (["--seed", "4"], "other settings: seed (0 there, 4 now)"), (["--numerics", "exact"], "target's numerics"),
        (["--think", "--tokens", "900"], "think (none there, high now)"),
        (["--pack", "ds4ref", "--only", "maths"], "pack (nano 2 there)"),
    ):  # fmt: skip
        assert main(["--resume", str(path), "--plain", "--no-store", *more]) == 2
        assert said in capsys.readouterr().err and path.read_bytes() == before
    assert main([*model, "-o", str(path), "--limit", "1", "--plain"]) == 2
    assert path.read_bytes() == before and "resume it with --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--pack", "nonsense"], "no pack nonsense: choose from ds4ref, long, nano"),
        (["--only", "nonsense"], "no question has 'nonsense'"),
        (["--questions", "195"], "there are 194 questions, not 195"),
        (["--retry-incomplete"], "--retry-incomplete is for --resume"),
        (["--resume", "latest"], "no log in"),
        (["-m", "x.gguf", "--target", "local"], "choose one of --model and --target"),
        (["--trace", "f"], "ds4-eval view"),
        (["--pack", "ds4ref", "--think", "-n", "100"], "the hard limit (512) must be below"),
        (["--epoch", "3"], "did you mean --epochs?"),
    ],
)
def test_usage_errors_are_one_line(capsys, argv, said):
    code = main([*argv, "--plain"])
    err = capsys.readouterr().err
    assert code in (1, 2) and said in err and err.count("\n") == 1


def test_the_list_of_questions(capsys):
    assert main(["--list", "--pack", "ds4ref", "--only", "security"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 18 and all("security" in line for line in lines[1:])


@pytest.mark.parametrize("number", sampled([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], 3))
def test_every_signal_still_gives_the_report(path, number, model):
    command = [*RUN, *model[:-2], "-o", str(path), "--plain", "--no-store"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE,
                               env={**os.environ, "PYTHONUNBUFFERED": "1"})  # fmt: skip
    assert process.stdout.readline().startswith(f"[1/{COUNT}]")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert "score: " in out and "--resume" in err
    assert 1 <= len(logs.read(path).done) < COUNT
