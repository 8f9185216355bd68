"""The release page: states, verdicts, what is kept when a section fails, hangs or is interrupted."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from ds4ref.errors import UsageError
from ds4ref.reports import qa
from ds4ref.reports.cli import main
from ds4ref.reports.qa import Checklist, Section, never

STEP = """
import os, sys, time
print(*sys.argv[1:])
if sys.argv[1] == "sleep":
    open(sys.argv[2], "w").write(str(os.getpid()))
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


def ran(name, *codes, **more):
    return Section(name, f"about {name}", tuple(("fakestep", str(code), "{model}") for code in codes), **more)


@pytest.fixture
def checklist(tmp_path, monkeypatch):
    """sections -> a checklist of them, whose commands are scripts that exit as told."""
    (tmp_path / "fakestep.py").write_text(STEP)
    (tmp_path / "m.gguf").write_text("a model")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda *sections, seconds=50.0: Checklist(str(tmp_path / "qa"), str(tmp_path / "m.gguf"), seconds, sections)


def written(checklist: Checklist) -> dict:
    return json.loads((checklist.out / "qa.json").read_text())


def test_sections_pass_fail_and_stay_out(checklist, tmp_path):
    made = checklist(
        ran("good", 0, 0), ran("bad", 0, 3, 0), ran("elsewhere", 0, applies=never("no such device")),
        ran("bare", 0, needs=("checkout", "no_such_package_at_all")), ran("unwanted", 0),
    )  # fmt: skip
    assert made.run(skip=["unwanted"]) == "fail"
    facts = written(made)
    states = {section["name"]: (section["state"], section["why"]) for section in facts["sections"]}
    assert states == {
        "good": ("passed", ""),
        "bad": ("failed", "fakestep exited with 3"),
        "elsewhere": ("does not apply", "no such device"),
        "bare": ("not run", "not here: no_such_package_at_all"),
        "unwanted": ("not run", "left out by --only or --skip"),
    }
    model = str(tmp_path / "m.gguf")
    assert facts["model"] == model and facts["verdict"] == "fail" and facts["headline"] == "fail: failed: bad"
    assert len(facts["sections"][1]["commands"]) == 2, "what follows a failure is not run"
    assert (made.out / "bad.txt").read_text() == f"$ fakestep 0 {model}\n0 {model}\n$ fakestep 3 {model}\n3 {model}\n"
    page = (made.out / "qa.md").read_text()
    assert "**fail: failed: bad**" in page
    took = next(o.seconds for o in made.outcomes if o.name == "bad")
    row = f"| [bad](bad.txt) | about bad | failed: fakestep exited with 3 | {qa.duration(took)} | 3 {model} |"
    assert row in page

    assert "| elsewhere | about elsewhere | does not apply: no such device |  |  |" in page
    assert not (made.out / "unwanted.txt").exists()


@pytest.mark.parametrize(
    ("only", "verdict", "headline"),
    [
        ([], "pass", "pass: does not apply: c"),
        (["a"], "incomplete", "incomplete: not run: b"),
    ],
)
def test_what_does_not_apply_leaves_a_pass_and_what_did_not_run_does_not(checklist, only, verdict, headline):
    made = checklist(ran("a", 0), ran("b", 0), ran("c", 0, applies=never("no")))
    assert made.run(only) == verdict
    assert made.headline() == headline == written(made)["headline"]


@pytest.mark.thorough
def test_a_section_that_hangs_is_stopped_and_the_next_one_runs(checklist, tmp_path, monkeypatch):
    hang = Section("hang", "sleeps", (("fakestep", "sleep", str(tmp_path / "pid")),))
    made = checklist(hang, ran("next", 0), seconds=20.0)
    monkeypatch.setattr(made, "seconds", 3.0)
    began = time.monotonic()
    assert made.run() == "fail" and time.monotonic() - began < 50
    assert [o.state for o in made.outcomes] == ["failed", "passed"]
    assert made.outcomes[0].why == "fakestep was stopped after 3 s"
    if (tmp_path / "pid").exists():  # else a busy machine stopped it before it could say
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_ctrl_c_keeps_what_ran(checklist, tmp_path, monkeypatch, capsys):
    pid = tmp_path / "pid"

    def interrupt():
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    hang = Section("hang", "sleeps", (("fakestep", "sleep", str(pid)),))
    made = checklist(ran("first", 0), hang, ran("last", 0))
    monkeypatch.setattr(qa, "Checklist", lambda *args: made)
    threading.Thread(target=interrupt, daemon=True).start()
    assert qa.run_checklist("", None, 0, [], []) == 130
    assert capsys.readouterr().out.splitlines() == ["incomplete: not run: hang, last", str(made.out / "qa.md")]
    assert [(o["state"], o["why"]) for o in written(made)["sections"]] == [
        ("passed", ""), ("not run", "interrupted"), ("not run", "not reached"),
    ]  # fmt: skip
    assert (made.out / "hang.txt").read_text().startswith("$ fakestep sleep")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_what_cannot_begin_is_refused(checklist, tmp_path, capsys):
    made = checklist(ran("a", 0))
    with pytest.raises(UsageError, match="unknown section 'b': choose from a"):
        made.run(skip=["b"])
    assert not made.out.exists()
    made.out.mkdir()
    (made.out / "old").touch()
    with pytest.raises(UsageError, match="is not empty: results of two runs would mix"):
        made.run()
    assert main(["qa", "-o", str(tmp_path / "new"), "-m", "nowhere.gguf"]) == 2
    assert "no model file nowhere.gguf" in capsys.readouterr().err
    assert main(["qa", "something"]) == 2


def test_the_sections_are_listed(capsys):
    assert main(["qa", "--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [section.name for section in qa.SECTIONS]
    assert {"build", "tests", "vectors", "eval", "bench", "server", "disk-cache", "cuda", "distributed"} <= {*names}
    for section in qa.SECTIONS:
        for program, *_ in section.steps:
            assert program in qa.MODULES or program in section.needs, f"{section.name} runs what nobody looked for"


@pytest.mark.thorough
def test_bench_and_vectors_of_the_embedded_model(tmp_path: Path, capsys):
    out = tmp_path / "qa"
    assert main(["qa", "--only", "bench,vectors", "-o", str(out)]) == qa.EXIT_INCOMPLETE
    facts = json.loads((out / "qa.json").read_text())
    states = {section["name"]: section["state"] for section in facts["sections"]}
    assert [name for name, state in states.items() if state == "passed"] == ["vectors", "bench"]
    assert "failed" not in states.values() and facts["verdict"] == "incomplete"
    assert (out / "bench.csv").read_text().count("\n") == 3 and "8/8" in (out / "vectors.txt").read_text()
