"""Two logs of the same questions: paired right, judged by the shared statistics, said in one line, fit for a gate."""

import json

import pytest
from scipy import stats as scipy_stats

from ds4ref.eval import cli
from ds4ref.eval.compare import compare_logs, document, text
from ds4ref.eval.packs import Header, Pack
from ds4ref.eval.plan import Settings
from ds4ref.runs.stats import graded_interval

from . import logs as made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


def call(capsys, *argv):
    code = cli.main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def pair(folder, a, b, **more):
    """Two logs by their letters; ``more`` for B."""
    return made.write(folder / "a.jsonl", a), made.write(folder / "b.jsonl", b, **more)


WORSE = ["r" * 60 + "w" * 33], ["w" * 16 + "r" * 44 + "r" * 2 + "w" * 31]


def test_a_loss_is_found_and_its_questions_are_named(folder):
    logs = pair(folder, *WORSE)
    found = compare_logs(*logs)
    i = found.pairs.whole.difference
    assert i == graded_interval([1] * 60 + [0] * 33, [0] * 16 + [1] * 46 + [0] * 31)
    assert found.verdict == "worse" and found.says()[0].startswith("B is worse by 15 points (")
    assert [c.id for c in found.pairs.lost] == [made.question(i).id for i in range(16)]
    assert [c.id for c in found.pairs.gained] == [made.question(i).id for i in (60, 61)]
    assert found.pairs.whole.p == pytest.approx(scipy_stats.binomtest(2, 18).pvalue)
    assert [c.name for c in found.pairs.sources] == list(made.SOURCES) and found.differs == () and found.notes == ()
    shown = text(found, *logs, 200)
    assert "right in both: 44, only in A: 16, only in B: 2, in neither: 31" in shown
    lost = shown.split("right -> wrong (16)")[1].split("wrong -> right (2)")[0]
    for k in range(16):
        (line,) = (line for line in lost.splitlines() if made.question(k).id in line)
        q = made.question(k)
        assert line.split()[1:3] == [q.answer] * 2 and line.split()[3] != q.answer


def test_the_document_says_the_same(folder):
    found = compare_logs(*pair(folder, *WORSE))
    plain = json.loads(json.dumps(document(found)))
    i = found.pairs.whole.points
    assert (plain["verdict"], plain["says"]) == ("worse", found.says()[0])
    assert plain["whole"]["points"] == i.estimate and plain["whole"]["ci"] == [i.low, i.high]
    assert plain["whole"]["a"] == 60 / 93 and plain["whole"]["n"] == 93
    assert plain["whole"]["detectable"] == i.detectable
    assert [c["id"] for c in plain["lost"]] == [c.id for c in found.pairs.lost]
    assert sum(source["n"] for source in plain["per_source"]) == 93
    assert plain["questions"] == {"both": 93, "only_a": 0, "only_b": 0, "ungraded": 0}
    assert plain["tokens"] == {"a": 210, "b": 210, "change_percent": 0.0, "ci95": None}


def test_epochs_are_averaged_before_they_are_compared(folder):
    a = [made.drawn(i, 60, 0.7) for i in range(4)]
    b = [made.drawn(i, 60, 0.6) for i in range(10, 13)]
    logs = pair(folder, a, b)
    found = compare_logs(*logs)
    means = [[sum(epoch[k] == "r" for epoch in side) / len(side) for k in range(60)] for side in (a, b)]
    assert found.pairs.whole.difference == graded_interval(*means)
    assert found.pairs.whole.difference.n == 60 and found.pairs.samples == (240, 180)
    shown = text(found, *logs, 120)
    assert "less often right in B (" in shown and " of 4" in shown and " of 3" in shown
    assert ("epochs", "4", "3") in found.differs


def test_settings_and_engines_that_differ_are_said(folder):
    other = Settings(think="none", tokens=500, temperature=0.7)
    a, b = pair(folder, ["r" * 30], ["r" * 30], settings=other,
                target={"name": "model q2", "digest": "sha256:" + "cd" * 32, "threads": 2})  # fmt: skip
    found = compare_logs(a, b)
    differs = {name: (one, other) for name, one, other in found.differs}
    assert differs["think"] == ("high", "none") and differs["tokens"] == ("16000", "500")
    assert differs["temperature"] == ("0.0", "0.7") and differs["model"] == ("model q4", "model q2")
    assert differs["engine's digest"] == ("sha256:abababababab", "sha256:cdcdcdcdcdcd")
    assert "canary" not in text(found, a, b, 80) and "pack" not in differs


def test_different_packs_are_compared_by_what_they_share(folder):
    old = made.pack(40)
    questions = [made.question(i) for i in range(10, 50)]
    new = Pack(Header("made", 2), tuple(questions))
    a = made.write(folder / "a.jsonl", ["r" * 40], of=old)
    b = made.write(folder / "b.jsonl", ["w" * 5 + "r" * 35], of=new)
    found = compare_logs(a, b)
    assert found.pairs.shared == 30 and found.pairs.alone == (10, 10)
    assert [c.id for c in found.pairs.lost] == [q.id for q in questions[:5]]
    assert "different packs: 30 questions in both" in found.notes
    assert "20 question(s) left out: not put to both (10 only to A, 10 only to B)" in text(found, a, b, 200)
    assert ("pack", "made 1", "made 2") in found.differs


def test_no_question_in_common_is_a_mistake(folder, capsys):
    made.write(folder / "a.jsonl", ["rr"])
    other = Pack(Header("other", 1), (made.question(77),))
    made.write(folder / "b.jsonl", ["r"], of=other)
    code, out, err = call(capsys, "compare", folder / "a.jsonl", folder / "b.jsonl", "--fail")
    assert (code, out) == (2, "") and "no question in common (made and other)" in err


@pytest.mark.parametrize(
    ("a", "b", "plain", "gate"),
    [
        (*WORSE, 0, 1),
        (WORSE[1], WORSE[0], 0, 0),
        (["r" * 60 + "w" * 30], ["w" * 2 + "r" * 58 + "w" * 30], 0, 0),
        (["ff"], ["rr"], 4, 4),
        (["rr"], ["ww"], 0, 0),
    ],
)
def test_exit_codes(folder, capsys, a, b, plain, gate):
    pair(folder, a, b)
    paths = folder / "a.jsonl", folder / "b.jsonl"
    assert call(capsys, "compare", *paths)[0] == plain
    code, out, err = call(capsys, "compare", *paths, "--fail", "--json")
    assert (code, err) == (gate, "") and out.count("\n") == 1
    assert (json.loads(out)["verdict"] == "incomparable") == (gate == 4)


def test_latest_is_the_newest_log_in_the_data_folder(folder, capsys):
    made.write(folder / "a.jsonl", ["rr"])
    code, _, err = call(capsys, "compare", folder / "a.jsonl", "latest")
    assert code == 1 and "no log in" in err
    (folder / "data" / "evals").mkdir(parents=True)
    made.write(folder / "data" / "evals" / "x.jsonl", ["rw"])
    code, out, _ = call(capsys, "compare", folder / "a.jsonl", "latest")
    assert code == 0 and "x.jsonl" in out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([], 2, "needs two logs, 0 given"),
        (["a"], 2, "needs two logs, 1 given"),
        (["a", "b", "c"], 2, "needs two logs, 3 given"),
        (["none.jsonl", "none.jsonl"], 1, "none.jsonl: No such file"),
        (["a", "b", "--speed"], 2, "--speed"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, argv, code, message):
    found, out, err = call(capsys, "compare", *argv)
    assert (found, out) == (code, "") and message in err and err.count("\n") == 1


def test_the_floor_of_resampling_is_a_bound():
    """With 60 questions, all better by a half, no redrawing of signs comes near: p is smaller than one in so many."""
    same, better = ["w" * 60] * 2, ["r" * 60, "w" * 60]
    a, b = made.build("a", same), made.build("b", better)
    found = compare_logs(a, b)
    assert found.pairs.whole.p == pytest.approx(0.0004)
    assert "< 0.0004" in text(found, a, b, 160) and document(found)["whole"]["p"] == found.pairs.whole.p
    assert document(found)["whole"]["p_is_bound"] is True
    a, b = made.build("a", ["w" * 60]), made.build("b", ["r" * 60])
    exact = compare_logs(a, b)
    assert "1.7e-18" in text(exact, a, b, 160) and "< 0.0004" not in text(exact, a, b, 160), "McNemar's is exact"
    assert "p_is_bound" not in document(exact)["whole"]
