"""Old answers under another grader: what changes is named, the log stays as it was, a new one is whole."""

import json

import pytest

from ds4ref.eval import cli, runner
from ds4ref.eval import log as logs
from ds4ref.eval.log import Grade
from ds4ref.eval.prompt import key

from . import logs as made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture(autouse=True)
def graders(monkeypatch):
    """Ours takes the last line, ds4's the first answer in it; both say why in other words than the log does."""

    def ours(question, text, *, order=(), reasoning="", finish=""):
        given = text.rpartition("Answer: ")[2]
        return Grade("right" if given == key(question, order) else "wrong", given, "by the last line")

    def theirs(question, text, *, order=()):
        given = text.partition("Answer: ")[2].partition("\n")[0]
        return Grade("right" if given == key(question, order) else "wrong", given, "by the first")

    monkeypatch.setattr(runner, "grade", ours)
    monkeypatch.setattr(runner, "ds4_grade", theirs)


def call(capsys, *argv):
    code = cli.main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_what_changed_and_what_it_does_to_the_score(folder, capsys):
    log = made.write(folder / "run.jsonl", ["rrwaarfs"])
    before = (folder / "run.jsonl").read_bytes()
    code, out, err = call(capsys, "regrade", log.path)
    assert (code, err) == (0, "") and (folder / "run.jsonl").read_bytes() == before
    assert "2 of 6 answers are graded differently: 2 ambiguous -> right" in out
    assert "before: 50.0 %" in out and "now:    83.3 %" in out and "n = 6" in out
    assert [line.split()[0] for line in out.splitlines()[1:3]] == [made.question(3).id, made.question(4).id]
    found = json.loads(call(capsys, "regrade", log.path, "--json")[1])
    assert found["before"]["score"] == 0.5 and found["after"]["score"] == pytest.approx(5 / 6)
    assert [(c["before"]["outcome"], c["after"]["outcome"]) for c in found["changed"]] == [("ambiguous", "right")] * 2
    assert found["written"] is None


def test_the_rules_of_ds4(folder, capsys):
    log = made.write(folder / "run.jsonl", ["rrwaar"])
    out = call(capsys, "regrade", log.path, "--grader", "ds4")[1]
    assert "2 of 6 answers are graded differently: 2 ambiguous -> wrong" in out and "now:    50.0 %" in out


def test_nothing_changed(folder, capsys):
    log = made.write(folder / "run.jsonl", ["rrw"])
    out = call(capsys, "regrade", log.path)[1]
    assert out.startswith("0 of 3 answers are graded differently\nbefore: 66.7 %")


def test_a_new_log_is_a_log(folder, capsys):
    log = made.write(folder / "run.jsonl", ["rafsw", "rrrrr"])
    new = folder / "new.jsonl"
    code, out, _ = call(capsys, "regrade", log.path, "-o", new)
    assert code == 0 and out.endswith(f"written to {new}\n")
    again = logs.read(new)
    assert [s.key for s in again.samples] == [s.key for s in log.samples]
    assert [s.status for s in again.samples[:5]] == ["done", "done", "failed", "stopped", "done"]
    assert again.samples[1].grade == Grade("right", "B", "by the last line")
    assert again.samples[1].ds4 == Grade("wrong", "A", "by the first")
    assert again.samples[2] == log.samples[2] and again.header.settings == log.header.settings
    assert again.header.facts["grader"] == "ours" and again.header.facts["created"] == made.FACTS["created"]
    theirs = folder / "theirs.jsonl"
    assert call(capsys, "regrade", log.path, "-o", theirs, "--grader", "ds4")[0] == 0
    found = json.loads(call(capsys, "compare", new, theirs, "--json")[1])
    assert found["differs"] == {"grader": ["ours", "ds4"]} and [c["id"] for c in found["lost"]] == ["science-001"]
    with logs.Writer.resume(new, logs.read(log.path).header) as writer:
        assert len(writer.samples) == 10, "a regraded log can go on"


def test_a_log_is_never_written_in_place(folder, capsys):
    log = made.write(folder / "run.jsonl", ["ra"])
    before = (folder / "run.jsonl").read_bytes()
    other = folder / "other.jsonl"
    other.write_text("mine")
    (folder / "link.jsonl").symlink_to(folder / "run.jsonl")
    for goal, message in (("run.jsonl", "is the log itself"), ("link.jsonl", "is the log itself"), ("other.jsonl", "exists")):  # fmt: skip  # noqa: E501
        code, out, err = call(capsys, "regrade", log.path, "-o", folder / goal)
        assert (code, out) == (2, "") and message in err
    assert (folder / "run.jsonl").read_bytes() == before and other.read_text() == "mine"
    code, _, err = call(capsys, "regrade", log.path, "-o", folder / "no" / "x.jsonl")
    assert code == 1 and "no folder" in err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([], 2, "needs one log, 0 given"),
        (["a", "b"], 2, "needs one log, 2 given"),
        (["absent.jsonl"], 1, "absent.jsonl: No such file"),
        (["a", "--grader", "theirs"], 2, "invalid value for --grader"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, argv, code, message):
    found, out, err = call(capsys, "regrade", *argv)
    assert (found, out) == (code, "") and message in err and err.count("\n") == 1
