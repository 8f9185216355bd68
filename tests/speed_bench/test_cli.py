"""The command: flags, files, messages, exit codes. The engine is a fake on a clock of its own."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from ds4ref.errors import SessionError
from ds4ref.runs.columns import HEADER
from ds4ref.runs.store import Store
from ds4ref.speed_bench import cli

from ..reports.published import as_ds4
from .fake import FakeSession

ROOT = Path(__file__).resolve().parents[2]
URL = ["--target", "http://x/v1"]
SMALL = ["--ctx-start", "8", "--ctx-max", "24", "--step-incr", "8", "-n", "2"]


def test_csv_on_stdout_and_nothing_else(engines, capsys):
    assert cli.main([*SMALL, "-r", "1"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == HEADER
    assert [line.split(",")[:6] for line in lines[1:]] == [
        ["8", "8", "4.00", "2", "1.60", "1080"],
        ["16", "8", "4.00", "2", "1.60", "1160"],
        ["24", "8", "4.00", "2", "1.60", "1240"],
    ]
    assert "the embedded model" in err and "context buffers" in err
    assert "(ctx=27, backend=cpu, prefill_chunk=27, raw_kv_rows=27, compressed_kv_rows=8)" in err


def test_files_and_a_table(engines, capsys, tmp_path):
    argv = [*SMALL, "--csv", "r.csv", "--plot", "r.svg", "--plot", "r.png", "-t", "3"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "r.csv").read_text().count("\n") == 4
    assert (tmp_path / "r.svg").stat().st_size > 5000 and (tmp_path / "r.png").stat().st_size > 5000
    for text in ("context", "prefill", "decode", "ds4ref nano", "3 thread(s)", "r.csv", "r.svg"):
        assert text in out
    assert "{" not in out, "machine output only when asked"
    assert {path.name for path in tmp_path.iterdir()} == {"r.csv", "r.json", "r.svg", "r.png"}, (
        "no partial file is left"
    )


def test_one_line_of_json_alone_on_stdout(engines, capsys, tmp_path):
    assert cli.main([*SMALL, "--csv", "r.csv", "-t", "3", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)
    facts = json.loads((tmp_path / "r.json").read_text())
    assert len(last["targets"][0]["rows"]) == 3 and last["files"] == {"csv": ["r.csv"], "facts": ["r.json"]}
    assert facts["status"] == "complete" and last["targets"][0]["run"] > 0 and "verdict" not in last
    for result in (last, facts):
        assert result["threads"] == 3 and result["backend"] == "cpu" and result["numerics"] == "qat"
        assert result["command"][:2] == ["ds4-bench", "--ctx-start"]
        assert len(result["prompt_sha256"]) == len(result["model"]["sha256"]) == 64
        assert result["machine"]["cores"] >= 1 and result["versions"]["numpy"]


def test_warm_up_has_a_session_of_its_own(engines):
    cli.main([*SMALL, "-r", "1"])
    cli.main([*SMALL, "-r", "1", "--no-warmup"])
    assert [len(engine.sessions) for engine in engines] == [2, 1]
    assert engines[0].sessions[0].ctx == 27


def test_options_reach_the_engine(engines, nano_path):
    argv = [*SMALL, "-m", nano_path, "--backend", "reference", "-t", "2", "--ctx-alloc", "99"]
    argv += ["--numerics", "qat", "--target", "local?strict&numerics=ds4"]
    assert cli.main(argv) == 0
    assert engines[0].path == nano_path and engines[0].sessions[0].ctx == 99
    wanted = {"backend": "reference", "numerics": "ds4", "threads": 2, "strict": True}
    assert engines[0].options.items() >= wanted.items()
    assert cli.main([*SMALL, "-r", "1", "-m", "absent.gguf", "--target", f"local:{nano_path}"]) == 0
    assert engines[1].path == nano_path, "the specification wins"


def test_prompt_file_and_chat_prompt_file(engines, tmp_path, nano_path):
    (tmp_path / "p.txt").write_text("The old lantern stood in the harbour. " * 20)
    assert cli.main([*SMALL, "--prompt-file", "p.txt"]) == 0
    assert cli.main([*SMALL, "--chat-prompt-file", "p.txt", "-sys", ""]) == 0
    raw, chat = (engine.sessions[1].tokens for engine in engines)
    assert 0 not in raw, "raw text has no begin-of-sentence token"
    assert chat[0] == 0 and chat[2 : 2 + 10] == raw[:10]


def test_a_short_prompt_fails_before_the_engine_starts(engines, capsys, tmp_path):
    (tmp_path / "p.txt").write_text("Too short.")
    assert cli.main([*SMALL, "--prompt-file", "p.txt"]) == 1
    out, err = capsys.readouterr()
    assert engines == [] and out == ""
    assert "ds4-bench: prompt has 7 tokens, need at least --ctx-max=24\n" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ctx-start", "9", "--ctx-max", "8"], "--ctx-start 9 is beyond --ctx-max 8"),
        (["--ctx-max", "3000", "-n", "10", "--ctx-alloc", "3010"], "--ctx-alloc must be greater than"),
        (["--gen-tokens", "0"], "invalid value for --gen-tokens: 0"),
        (["--step-mul", "0.5"], "invalid value for --step-mul: 0.5"),
        (["--ctx-maxx", "3"], "did you mean --ctx-max"),
        (["--prompt-file", "a", "--chat-prompt-file", "b"], "choose one of --prompt-file and --chat-prompt-file"),
        (["--prompt-file", "absent.txt"], "cannot read prompt absent.txt: No such file"),
        (["--plot", "x.svg"], "--plot needs --csv"),
        (["--csv", "r.csv", "--plot", "x.jpg"], "must end in .svg"),
        (["--backend", "metal"], "choose from cpu, reference"),
        (["--metal"], "no Metal backend"),
        (["--quality"], "--numerics"),
        (["plot"], "at least one CSV"),
        (["--store", "x", "--no-store"], "choose one of --store and --no-store"),
        (["-n", "1,2"], "a list for -n needs tests"),
        (["-p", "0"], "no test is left"),
        (["-p", "8", "-n", "4", "-d", "16", "--ctx-alloc", "26"], "--ctx-alloc must be greater than"),
        (["-p", "8,8"], "the same test is named twice"),
        (["-p", "8", "--frontiers", "8"], "choose one of --depths and tests"),
        (["-p", "8", "--csv", "x.csv", "--plot", "x.svg"], "not tests"),
        (["--requests", "5"], "for endpoints"),
        ([*URL, "--request-rate", "2"], "--request-rate needs --requests"),
        ([*URL, "--requests", "5", "--request-rate", "0"], "a number from"),
        ([*URL, "--requests", "5", "--mix", "5"], "PROMPT:ANSWER"),
        ([*URL, "--requests", "5", "--goodput", "ttf:5"], "ttft, tpot, e2e"),
        ([*URL, "--requests", "5", "-n", "5"], "no -n"),
        ([*URL, "--requests", "5", "--request-rate", "1", "--concurrency", "2"], "choose one"),
        (["--target", "ftp://x"], "unknown target"),
        (["--target", "local", *URL], "cannot be mixed"),
        ([*URL, "-p", "512"], "for the local engine"),
        ([*URL, "-m", "x.gguf"], "--model is for the local engine"),
        (["--target", "command:./ds4-bench", "--depths", "8"], "a binary takes --ctx-start"),
        (["--target", "local?layers=0-2@a"], "--layers needs --cluster"),
        (["--target", "local?speed=1"], "unknown option: --speed"),
        (["--concurrency", "1,2"], "for endpoints"),
    ],
)
def test_usage_errors(engines, capsys, argv, message):
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and engines == []
    assert err.startswith("ds4-bench: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--csv", "absent/r.csv"], "cannot write absent/r.csv: no folder"),
        (["--csv", "r.csv", "--plot", "absent/r.svg"], "cannot write absent/r.svg"),
        (["-m", "absent.gguf"], "absent.gguf: cannot open the model: No such file"),
    ],
)
def test_failures_before_any_work(engines, capsys, tmp_path, argv, message):
    assert cli.main([*SMALL, *argv]) == 1
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and engines == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def badgers(monkeypatch):
    """Decode behind so many tokens fails the n-th time it is asked for, or a signal comes."""
    real = FakeSession.append

    def at(depth, turn=1, interrupt=None):
        met = []

        def append(self, token):
            if self.pos == depth:
                met.append(token)
                if len(met) == turn and interrupt:
                    os.kill(os.getpid(), interrupt)
                    time.sleep(0.01)
                elif len(met) == turn:
                    raise SessionError("the cache is full of badgers")
            return real(self, token)

        monkeypatch.setattr(FakeSession, "append", append)

    return at


def depths(path):
    return [line.split(",")[0] for line in path.read_text().splitlines()[1:]]


def test_a_failure_in_the_walk_keeps_the_rows_before_it(engines, capsys, tmp_path, badgers):
    badgers(16)
    assert cli.main([*SMALL, "--no-warmup", "-r", "1", "--csv", "r.csv"]) == 1
    err = capsys.readouterr().err
    assert "decode at depth 16 failed: the cache is full of badgers" in err
    assert "failed; 1 of 3 rows were measured and saved in r.partial.csv, as run" in err
    assert not (tmp_path / "r.csv").exists() and depths(tmp_path / "r.partial.csv") == ["8"]
    assert json.loads((tmp_path / "r.partial.json").read_text())["status"] == "failed"
    badgers(16)
    assert cli.main([*SMALL, "--no-warmup", "-r", "1", "--no-store"]) == 1
    assert "failed; 1 of 3 rows were measured but not saved" in capsys.readouterr().err


@pytest.mark.parametrize("reps, rows", [("1", ["8"]), ("3", ["8", "16", "24"])])
def test_a_stopped_walk_leaves_a_good_csv_as_it_was(engines, capsys, tmp_path, badgers, reps, rows):
    assert cli.main([*SMALL, "-r", "2", "--csv", "r.csv"]) == 0
    before = {name: (tmp_path / name).read_bytes() for name in ("r.csv", "r.json")}
    badgers(16, 1 if reps == "1" else 2, interrupt=signal.SIGINT)
    assert cli.main([*SMALL, "--no-warmup", "-r", reps, "--csv", "r.csv"]) == 130
    assert before == {name: (tmp_path / name).read_bytes() for name in before}
    assert depths(tmp_path / "r.partial.csv") == rows, "medians so far"
    partial = json.loads((tmp_path / "r.partial.json").read_text())
    assert partial["status"] == "stopped" and len(partial["samples"]) == (1 if reps == "1" else 4)
    assert "r.partial.csv" in capsys.readouterr().err


def test_stopped_medians_reach_standard_output(engines, capsys, badgers):
    badgers(24, 2, interrupt=signal.SIGINT)
    assert cli.main([*SMALL, "--no-warmup", "-r", "3"]) == 130
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    at = rows[0].index("reps")
    assert [(row[0], row[at]) for row in rows[1:]] == [("8", "2"), ("16", "2"), ("24", "1")]


def test_a_stopped_walk_goes_on(engines, capsys, tmp_path, badgers, private_store):
    argv = [*SMALL, "--no-warmup", "-r", "2", "--csv", "r.csv"]
    badgers(16, 2, interrupt=signal.SIGINT)
    assert cli.main(argv) == 130
    said = capsys.readouterr().err
    with Store.open(private_store) as store:
        run = store.find("r")
        assert run.status == "stopped" and f"ds4-bench --resume {run.id} continues" in said
    assert cli.main(["--resume", str(run.id)]) == 0
    (session,) = engines[1].sessions
    assert [entry[1:] for entry in session.log if entry[0] == "sync"] == [(0, 8), (8, 16), (16, 24)]
    evals = [entry for entry in session.log if entry[0] == "append"]
    assert len(evals) == 4, "the depth that was measured is only walked through"
    with Store.open(private_store) as store:
        found = store.run(run.id)
        assert found.status == "complete" and found.created == run.created and len(store.runs(kind="bench")) == 1
        rows = store.rows(run.id)
        assert [(row["rep"], row["ctx_tokens"]) for row in rows] == [(r, d) for r in (0, 1) for d in (8, 16, 24)]
    assert depths(tmp_path / "r.csv") == ["8", "16", "24"] and not list(tmp_path.glob("r.partial*"))
    assert cli.main(["--resume", str(run.id)]) == 1
    assert "is complete: nothing to resume" in capsys.readouterr().err


def test_two_targets_go_on_together(engines, badgers, private_store):
    badgers(16, 2, interrupt=signal.SIGINT)
    assert (
        cli.main([*SMALL, "--no-warmup", "-r", "2", "--target", "local?threads=1", "--target", "local?threads=2"])
        == 130
    )
    assert cli.main(["--resume", "latest"]) == 0
    with Store.open(private_store) as store:
        runs = store.runs(kind="bench")
        assert len(runs) == 2 and {run.status for run in runs} == {"complete"}
        cells = [[(row["rep"], row["ctx_tokens"]) for row in store.rows(run.id)] for run in runs]
    assert cells[0] == cells[1] == [(r, d) for r in (0, 1) for d in (8, 16, 24)]


@pytest.mark.parametrize("full", [["r.partial.csv"], ["r.csv"], ["r.json"], ["r.svg"]])
def test_a_full_disk_loses_no_row_and_the_run_goes_on(full, engines, capsys, tmp_path, monkeypatch, private_store):
    """Whether it fills up in the walk or when its results are written."""
    from contextlib import contextmanager

    from ds4ref.console import common
    from ds4ref.files import atomic_write

    room = []

    @contextmanager
    def write(path):
        if not room and Path(path).name in full:
            raise OSError(28, "No space left on device")
        with atomic_write(path) as out:
            yield out

    monkeypatch.setattr(common, "atomic_write", write)
    argv = [*SMALL, "--no-warmup", "-r", "1", "--csv", "r.csv", "--plot", "r.svg"]
    assert cli.main(argv) == 1
    err = capsys.readouterr().err.splitlines()
    with Store.open(private_store) as store:
        run = store.find("r")
        assert run.status == "failed" and len(store.rows(run.id)) == (1 if full == ["r.partial.csv"] else 3)
    assert err[-1] == f"ds4-bench: cannot write {full[0]}: No space left on device"
    assert err[-2].startswith(f"ds4-bench: failed; {run.rows} of 3 rows were measured and saved ")
    assert err[-2].endswith(f"as run {run.id}; ds4-bench --resume {run.id} continues")
    assert ("r.partial.csv" in err[-2]) == (full != ["r.partial.csv"])
    room.append("made")
    assert cli.main(["--resume", str(run.id)]) == 0
    assert depths(tmp_path / "r.csv") == ["8", "16", "24"] and (tmp_path / "r.svg").exists()
    with Store.open(private_store) as store:
        assert store.run(run.id).status == "complete" and len(store.rows(run.id)) == 3


def test_a_full_standard_output_loses_no_row(engines, capsys, private_store, monkeypatch):
    import io

    class Full(io.StringIO):
        def flush(self):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    for argv in ([*SMALL, "--no-warmup", "-r", "1"], [*SMALL, "--no-warmup", "-r", "1", "--json"]):
        assert cli.main(argv) == 1
        err = capsys.readouterr().err.splitlines()
        with Store.open(private_store) as store:
            run = store.find("latest")
        assert err[-1] == "ds4-bench: input/output: No space left on device"
        assert err[-2].endswith(f"as run {run.id}; ds4-bench --resume {run.id} continues")


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_keeps_the_rows_before_it(number, code, engines, capsys, tmp_path, badgers):
    badgers(16, interrupt=number)
    before = signal.signal(number, signal.SIG_DFL)  # a suite under nohup ignores SIGHUP
    try:
        with pytest.raises(SystemExit) as stop:
            cli.main([*SMALL, "--no-warmup", "-r", "1", "--csv", "r.csv"])
    finally:
        signal.signal(number, before)
    assert stop.value.code == code
    assert "stopped; 1 of 3 rows were measured and saved in r.partial.csv, as run" in capsys.readouterr().err
    assert depths(tmp_path / "r.partial.csv") == ["8"]


def test_more_threads_than_there_can_be(engines, capsys):
    assert cli.main([*SMALL, "-r", "1", "-t", "100000", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "ds4-bench: 32 threads is the maximum; requested 100000\n" in err
    assert json.loads(out)["threads"] == 32 and engines[0].options["threads"] == 32


def test_what_cannot_go_on(engines, capsys, tmp_path, badgers):
    assert cli.main(["--resume", "latest"]) == 1 and "nothing to resume" in capsys.readouterr().err
    (tmp_path / "p.txt").write_text("The old lantern stood in the harbour. " * 20)
    badgers(16, interrupt=signal.SIGINT)
    assert cli.main([*SMALL, "--no-warmup", "--prompt-file", "p.txt"]) == 130
    (tmp_path / "p.txt").write_text("The new lantern stood in the harbour. " * 20)
    assert cli.main(["--resume", "latest"]) == 1
    assert "cannot be resumed: it was measured with another text" in capsys.readouterr().err


def test_a_context_beyond_memory_is_refused_before_its_text_is_written(engines, capsys, monkeypatch):
    from ds4ref.speed_bench import prompt

    monkeypatch.setattr("ds4ref.speed_bench.sources.memory_bytes", lambda: 8 << 30)
    monkeypatch.setattr(prompt, "prose_tokens", lambda *args: pytest.fail("minutes of silence"))
    assert cli.main(["--ctx-max", "99999999"]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith("ds4-bench: a context of 100,000,128 tokens needs ") and "8.0 GiB of memory" in err[-1]


def test_repetitions_that_fit_the_budget(engines, capsys, private_store):
    """A walk takes 9.75 s on this clock."""
    for budget, reps in (("300", 5), ("30", 3), ("5", 1)):
        assert cli.main([*SMALL, "--budget", budget]) == 0
        err = capsys.readouterr().err
        assert ("repetition(s): one takes 10 s" in err) == (reps < 5)
        with Store.open(private_store) as store:
            run = store.find("latest")
            assert run.fact("walk", "reps") == reps and len(store.rows(run.id)) == 3 * reps


def test_one_row_makes_no_curve(engines, capsys):
    assert cli.main(["--ctx-start", "8", "--ctx-max", "8", "-n", "1", "--csv", "r.csv", "--plot", "r.svg"]) == 0
    assert "nothing plotted" in capsys.readouterr().err
    assert not Path("r.svg").exists()


def test_plot_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("m2_ultra.csv").write_text(as_ds4())
    assert cli.main(["plot", "m2_ultra.csv"]) == 0
    assert capsys.readouterr().out == "m2_ultra_ts.svg\n"
    assert cli.main(["plot", "m2_ultra.csv", "-o", "a.png", "-o", "b.svg", "--title", "T < 3"]) == 0
    assert "T &lt; 3" in Path("b.svg").read_text()
    assert cli.main(["plot", "absent.csv"]) == 1
    assert "absent.csv: No such file" in capsys.readouterr().err


DS4S_FLAGS = """--prompt-file --chat-prompt-file -sys --system -m --model --cpu --backend -t --threads --warm-weights
    --ctx-start --ctx-max --ctx-alloc --step-mul --step-incr --gen-tokens --tokens -n --csv""".split()


def test_ds4s_flags_are_known(capsys):
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out  # argparse of 3.13 writes "-m, --model FILE"
    assert not [flag for flag in DS4S_FLAGS if not re.search(rf"{flag}[ ,]", text)]
