"""The command: flags, files, messages, exit codes. The engine is a fake on a clock of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ds4ref.engine import Engine
from ds4ref.errors import SessionError
from speed_bench import cli
from speed_bench import sweep as sweep_module
from speed_bench.columns import HEADER

from .fake import Clock, FakeEngine
from .test_results import as_ds4

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--ctx-start", "8", "--ctx-max", "24", "--step-incr", "8", "-n", "2"]


@pytest.fixture
def engines(monkeypatch, tmp_path):
    """Every engine opened; working folder and clock are private."""
    clock, opened = Clock(), []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_module.time, "perf_counter", clock)

    def open_fake(path, **options):
        opened.append(FakeEngine(path, clock, **options))
        return opened[-1]

    monkeypatch.setattr(Engine, "open", open_fake)
    return opened


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
    assert (
        "the embedded model" in err
        and "context buffers" in err
        and "(ctx=27, backend=cpu, prefill_chunk=27, raw_kv_rows=27" in err
    )


def test_files_table_and_one_line_of_json(engines, capsys, tmp_path):
    assert cli.main([*SMALL, "--csv", "r.csv", "--plot", "r.svg", "--plot", "r.png", "-t", "3"]) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "r.csv").read_text().count("\n") == 4
    assert (tmp_path / "r.svg").stat().st_size > 5000 and (tmp_path / "r.png").stat().st_size > 5000
    for text in ("context", "prefill t/s", "decode t/s", "ds4ref nano", "3 thread(s)", "r.csv", "r.svg"):
        assert text in out
    last = json.loads(out.splitlines()[-1])
    facts = json.loads((tmp_path / "r.json").read_text())
    assert last["rows"] == 3 and last["files"]["csv"] == "r.csv"
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
    argv = [*SMALL, "-m", nano_path, "--backend", "reference", "--numerics", "ds4", "-t", "2", "--ctx-alloc", "99"]
    assert cli.main(argv) == 0
    assert engines[0].path == nano_path and engines[0].sessions[0].ctx == 99
    wanted = {"backend": "reference", "numerics": "ds4", "threads": 2, "strict": False}
    assert engines[0].options.items() >= wanted.items()


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
    assert "ds4-bench: prompt has 8 tokens, need at least --ctx-max=24\n" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ctx-start", "9", "--ctx-max", "8"], "--ctx-start 9 is beyond --ctx-max 8"),
        (["--ctx-max", "3000", "-n", "10", "--ctx-alloc", "3010"], "--ctx-alloc must be greater than"),
        (["--ctx-start", "0"], "invalid value for --ctx-start: 0"),
        (["--gen-tokens", "0"], "invalid value for --gen-tokens: 0"),
        (["--step-mul", "0.5"], "invalid value for --step-mul: 0.5"),
        (["--step-mul", "nan"], "invalid value for --step-mul: nan"),
        (["--step-incr", "1e3"], "invalid value for --step-incr: 1e3"),
        (["--csv"], "missing value for --csv"),
        (["--frobnicate"], "unknown option: --frobnicate"),
        (["--ctx-maxx", "3"], "did you mean --ctx-max"),
        (["--prompt-file", "a", "--chat-prompt-file", "b"], "choose one of --prompt-file and --chat-prompt-file"),
        (["--prompt-file", "absent.txt"], "cannot read prompt absent.txt: No such file"),
        (["--plot", "x.svg"], "--plot needs --csv"),
        (["--csv", "r.csv", "--plot", "x.jpg"], "must end in .svg"),
        (["--backend", "metal"], "choose from cpu, reference"),
        (["--metal"], "no Metal backend"),
        (["--quality"], "--numerics"),
        (["plot"], "at least one CSV"),
        (["plot", "--width", "5"], "invalid value for --width"),
        (["--arm", "threads=1"], "--arm must be given twice"),
        (["--arm", "threads=x", "--arm", "threads=2"], "invalid --arm threads=x: threads: an integer"),
        (["--arm", "speed=1", "--arm", "threads=2"], "invalid --arm speed=1: NAME=VALUE[,...] with model"),
        (["--arm", "threads=1,threads=2", "--arm", "threads=2"], "invalid --arm"),
        (["--arm", "threads=1", "--arm", "threads=2", "--no-store"], "--arm needs a place"),
        (["--store", "x", "--no-store"], "choose one of --store and --no-store"),
        (["-r", "0"], "invalid value for -r: 0"),
        (["-o", "xml"], "choose from csv, md"),
        (["plots"], "unexpected argument: plots"),
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


def test_a_failure_in_the_walk_keeps_the_rows_before_it(engines, capsys, tmp_path, monkeypatch):
    from .fake import FakeSession

    real = FakeSession.eval

    def eval(self, token):
        if self.pos > 16:
            raise SessionError("the cache is full of badgers")
        return real(self, token)

    monkeypatch.setattr(FakeSession, "eval", eval)
    assert cli.main([*SMALL, "--no-warmup", "--csv", "r.csv"]) == 1
    assert "decode at frontier 16 failed: the cache is full of badgers" in capsys.readouterr().err
    assert [line.split(",")[0] for line in (tmp_path / "r.csv").read_text().splitlines()] == ["ctx_tokens", "8"]


def test_ctrl_c_keeps_the_rows_before_it(engines, capsys, tmp_path, monkeypatch):
    from .fake import FakeSession

    real = FakeSession.eval

    def eval(self, token):
        if self.pos == 16:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return real(self, token)

    monkeypatch.setattr(FakeSession, "eval", eval)
    assert cli.main([*SMALL, "--no-warmup", "--csv", "r.csv"]) == 130
    assert "1 of 3 rows were measured and kept" in capsys.readouterr().err
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 2


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


def test_help_starts_without_heavy_imports():
    code = (
        "import sys; from speed_bench.cli import main; code = main(['--help']);"
        "heavy = {'numba', 'pandas', 'matplotlib', 'numpy', 'rich'} & set(sys.modules); print(code, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("0 set()\n"), done.stdout[-300:] + done.stderr


DS4S_FLAGS = """--prompt-file --chat-prompt-file -sys --system -m --model --cpu --backend -t --threads --warm-weights
    --ctx-start --ctx-max --ctx-alloc --step-mul --step-incr --gen-tokens --tokens -n --csv""".split()


@pytest.mark.parametrize("flag", DS4S_FLAGS)
def test_ds4s_flags_are_known(capsys, flag):
    assert cli.main(["--help"]) == 0
    assert f"{flag} " in capsys.readouterr().out
