"""Single tests and lists, in llama-bench's words."""

import argparse
import json

import pytest

from ds4ref.console.options import choices, integers
from ds4ref.engine import Engine
from ds4ref.errors import UsageError
from ds4ref.reports.build import assemble, series
from ds4ref.runs.compare import compare
from ds4ref.runs.results import read_rows
from ds4ref.runs.store import Measured, Store
from ds4ref.speed_bench import cli
from ds4ref.speed_bench import sweep as sweep_module
from ds4ref.speed_bench.probes import Probe, grid, parse_probes
from ds4ref.speed_bench.results import read_points
from ds4ref.speed_bench.sweep import run_probes

from .fake import EVAL_S, PICK_S, PREFILL_S, Clock, FakeEngine, FakeSession

TOKENS = list(range(2, 42))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(sweep_module.time, "perf_counter", clock)
    return clock


@pytest.fixture
def engines(monkeypatch, tmp_path, clock):
    opened = []
    monkeypatch.chdir(tmp_path)

    def open_fake(path, **options):
        opened.append(FakeEngine(path, clock, **options))
        return opened[-1]

    monkeypatch.setattr(Engine, "open", open_fake)
    monkeypatch.setattr("ds4ref.backends.load_backend", lambda name, count: None)
    return opened


@pytest.mark.parametrize("text, found", [
    ("pp512", [Probe(512, 0, 0)]),
    ("tg128 @ d8192", [Probe(0, 128, 8192)]),
    ("pp2048@d8192,tg1", [Probe(2048, 0, 8192), Probe(0, 1, 0)]),
])  # fmt: skip
def test_names(text, found):
    assert parse_probes(text) == found
    assert parse_probes(", ".join(probe.name for probe in found)) == found


@pytest.mark.parametrize("text", ["", "pp", "pp0", "tg128 @ 8192", "pp512 d3", "xx5", "pp999999999@d999999999999"])
def test_no_names(text):
    with pytest.raises(UsageError, match="invalid --test"):
        parse_probes(text)


def test_a_grid_is_in_llama_benchs_order():
    assert [probe.name for probe in grid([512, 0], [128], [0, 8192])] == [
        "pp512", "tg128", "pp512 @ d8192", "tg128 @ d8192"
    ]  # fmt: skip


@pytest.mark.parametrize("text, found", [
    ("3", [3]), ("1,2,4", [1, 2, 4]), ("1-4", [1, 2, 3, 4]), ("0-8+4", [0, 4, 8]), ("1-9*2", [1, 2, 4, 8]),
    ("7,1-5+3", [7, 1, 4]),
])  # fmt: skip
def test_lists_and_ranges(text, found):
    assert integers(0)(text) == found


@pytest.mark.parametrize("text", ["", "1,", "4-1", "1-4*1", "0-8*2", "1-4+0", "a-b", "-1", "1-99999999"])
def test_no_lists(text):
    with pytest.raises(argparse.ArgumentTypeError):
        integers(0)(text)
    with pytest.raises(argparse.ArgumentTypeError):
        choices("cpu", "reference")("cpu,gpu")


def test_only_the_test_is_timed(clock):
    sessions = []

    def fresh():
        sessions.append(FakeSession(clock, 60))
        return sessions[-1]

    probes = parse_probes("pp10, pp10 @ d20, tg4, tg4 @ d20")
    rows = list(run_probes(fresh, TOKENS, probes, 1))
    assert [row.test for row in rows] == [probe.name for probe in probes]
    assert [(row.ctx_tokens, row.prefill_tokens, row.gen_tokens) for row in rows] == [
        (10, 10, 0), (30, 10, 0), (1, 0, 4), (20, 0, 4)
    ]  # fmt: skip
    assert [row.prefill_s for row in rows] == [10 * PREFILL_S, 10 * PREFILL_S, 0, 0]
    assert all(row.steps_s == (EVAL_S + PICK_S,) * 4 for row in rows[2:])
    assert len(sessions) == 4, "each on a session of its own"


def test_the_command_prints_llama_benchs_table(engines, capsys):
    assert cli.main(["-p", "8,16", "-n", "4", "-d", "0,16", "-r", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[3] for line in lines[2:]] == [
        "pp8", "pp16", "tg4", "pp8 @ d16", "pp16 @ d16", "tg4 @ d16"
    ]  # fmt: skip
    assert "4.00 ± 0.00" in lines[2] and "1.60 ± 0.00" in lines[4]


@pytest.mark.thorough
def test_tests_that_end_at_one_depth_stay_apart(engines, capsys, private_store):
    argv = ["--test", "pp16, pp8 @ d8, tg4 @ d16, tg2 @ d16", "--csv", "t.csv", "-r", "2"]
    assert cli.main(argv) == 0 and cli.main(argv) == 0
    rows = read_rows("t.csv")
    assert {row["test"] for row in rows} == {"pp16", "pp8 @ d8", "tg4 @ d16", "tg2 @ d16"}
    assert {row["ctx_tokens"] for row in rows} == {16}
    with pytest.raises(Exception, match="several rows at one depth"):
        read_points("t.csv")
    with Store.open(private_store) as store:
        runs = [Measured(run, store.rows(run.id)) for run in store.runs(kind="bench")]
    assert [part.name for part in series(runs[0])] == ["t, pp16", "t, pp8", "t, tg4", "t, tg2"]
    found = compare(runs[0], runs[1])
    assert found.verdict == "same" and len(found.depths) == 4 and not any("left out" in note for note in found.notes)
    assert all(line.count("tokens/s") == 1 for line in assemble(runs[:1]).headline)


def test_lists_are_lanes_in_turn(engines, capsys, private_store):
    assert cli.main(["-p", "8", "-t", "1-2", "--numerics", "ds4,exact"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[2] for line in lines] == ["1", "2", "1", "2"]
    assert [(e.options["threads"], e.options["numerics"]) for e in engines] == [
        (1, "ds4"), (2, "ds4"), (1, "exact"), (2, "exact")
    ]  # fmt: skip
    with Store.open(private_store) as store:
        assert [run.fact("arms", "options") for run in reversed(store.runs(kind="bench"))] == [
            "numerics=ds4,threads=1", "numerics=ds4,threads=2", "numerics=exact,threads=1", "numerics=exact,threads=2"
        ]  # fmt: skip


def test_files_of_lanes(engines, tmp_path):
    argv = ["--frontiers", "24,8-16+8", "-n", "2", "-t", "1,2", "--csv", "l.csv", "--no-store"]
    assert cli.main(argv) == 0
    assert [row["ctx_tokens"] for row in read_rows("l-threads-2.csv")] == [8, 16, 24]
    assert json.loads((tmp_path / "l-threads-1.json").read_text())["threads"] == 1


@pytest.mark.parametrize("argv, says", [
    (["-n", "1,2"], "a list for -n needs tests"),
    (["--test", "pp8", "-n", "4"], "-n goes with -p or -d"),
    (["-p", "0"], "no test is left"),
    (["-p", "8", "--test", "pp8"], "the same test is named twice"),
    (["-p", "8", "--frontiers", "8"], "choose one of --depths and tests"),
    (["-p", "8", "--csv", "x.csv", "--plot", "x.svg"], "not tests"),
    (["-t", "1,2", "--arm", "threads=1", "--arm", "threads=2"], "choose one of --arm and a list of --threads"),
])  # fmt: skip
def test_what_does_not_go_together(argv, says, capsys):
    assert cli.main(argv) == 2
    assert says in capsys.readouterr().err
