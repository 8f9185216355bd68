"""Two logs of the same questions: paired right, said in one line, fit for a gate; the statistics are in tests/runs."""

import json

import pytest

from ds4ref.eval.compare import compare_logs, document, text
from ds4ref.eval.packs import Header, Pack
from ds4ref.eval.plan import Settings
from ds4ref.runs.stats import graded_interval

from . import logs as made


def pair(folder, a, b, **more):
    """Two logs by their letters; ``more`` for B."""
    return made.write(folder / "a.jsonl", a), made.write(folder / "b.jsonl", b, **more)


WORSE = ["r" * 60 + "w" * 33], ["w" * 16 + "r" * 44 + "r" * 2 + "w" * 31]


def test_a_loss_is_found_and_its_questions_are_named(folder):
    logs = pair(folder, *WORSE)
    found = compare_logs(*logs)
    assert found.pairs.whole.difference == graded_interval([1] * 60 + [0] * 33, [0] * 16 + [1] * 46 + [0] * 31)
    assert found.verdict == "worse" and found.says()[0].startswith("B is worse by 15 points (")
    assert [c.name for c in found.pairs.sources] == list(made.SOURCES) and found.differs == () and found.notes == ()
    shown = text(found, *logs, 200)
    assert "right in both: 44, only in A: 16, only in B: 2, in neither: 31" in shown
    lost, gained = shown.split("right -> wrong (16)")[1].split("wrong -> right (2)")
    assert made.question(60).id in gained
    for q in map(made.question, range(16)):
        (line,) = (line.split() for line in lost.splitlines() if q.id in line)
        assert line[1:3] == [q.answer] * 2 and line[3] != q.answer
    plain = json.loads(json.dumps(document(found)))
    assert (plain["verdict"], plain["says"], plain["whole"]["n"]) == ("worse", found.says()[0], 93)
    assert [c["id"] for c in plain["lost"]] == [made.question(i).id for i in range(16)]
    assert plain["questions"] == {"both": 93, "only_a": 0, "only_b": 0, "ungraded": 0}


def test_epochs_settings_and_engines_that_differ_are_said(folder):
    other = Settings(think="none", tokens=500)
    logs = pair(folder, [made.drawn(i, 60, 0.7) for i in range(4)], [made.drawn(i, 60, 0.6) for i in range(10, 13)],
                settings=other, target={"name": "model q2", "digest": "sha256:" + "cd" * 32})  # fmt: skip
    found = compare_logs(*logs)
    assert found.pairs.whole.difference.n == 60 and found.pairs.samples == (240, 180)
    shown = text(found, *logs, 120)
    assert "less often right in B (" in shown and " of 4" in shown and " of 3" in shown
    differs = {name: (one, other) for name, one, other in found.differs}
    assert differs == {
        "think": ("high", "none"), "tokens": ("16000", "500"), "model": ("model q4", "model q2"),
        "epochs": ("4", "3"), "engine's digest": ("sha256:abababababab", "sha256:cdcdcdcdcdcd"),
    }  # fmt: skip


def test_different_packs_are_compared_by_what_they_share(folder):
    questions = [made.question(i) for i in range(10, 50)]
    a = made.write(folder / "a.jsonl", ["r" * 40])
    b = made.write(folder / "b.jsonl", ["w" * 5 + "r" * 35], of=Pack(Header("made", 2), tuple(questions)))
    found = compare_logs(a, b)
    assert found.pairs.shared == 30 and [c.id for c in found.pairs.lost] == [q.id for q in questions[:5]]
    assert "20 question(s) left out: not put to both (10 only to A, 10 only to B)" in text(found, a, b, 200)
    assert ("pack", "made 1", "made 2") in found.differs


@pytest.mark.parametrize(
    ("a", "b", "plain", "gate"),
    [
        (*WORSE, 0, 1),
        (WORSE[1], WORSE[0], 0, 0),
        (["ff"], ["rr"], 4, 4),
        (["rr"], ["ww"], 0, 0),
    ],
)
def test_exit_codes(folder, call, a, b, plain, gate):
    pair(folder, a, b)
    assert call("compare", "a.jsonl", "b.jsonl")[0] == plain
    code, out, err = call("compare", "a.jsonl", "b.jsonl", "--fail", "--json")
    assert (code, err) == (gate, "") and out.count("\n") == 1
    assert (json.loads(out)["verdict"] == "incomparable") == (gate == 4)


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["a.jsonl"], 2, "needs two logs, 1 given"),
        (["none.jsonl", "none.jsonl"], 1, "none.jsonl: No such file"),
        (["a.jsonl", "other.jsonl", "--fail"], 2, "no question in common (made and other)"),
        (["a.jsonl", "latest"], 1, "no log in"),
    ],
)
def test_mistakes_are_one_line(folder, call, argv, code, message):
    made.write(folder / "a.jsonl", ["rr"])
    made.write(folder / "other.jsonl", ["r"], of=Pack(Header("other", 1), (made.question(77),)))
    found, out, err = call("compare", *argv)
    assert (found, out) == (code, "") and message in err and err.count("\n") == 1


def test_latest_is_the_newest_log_in_the_data_folder(folder, private_data, call):
    made.write(folder / "a.jsonl", ["rr"])
    (private_data / "evals").mkdir()
    made.write(private_data / "evals" / "x.jsonl", ["rw"])
    code, out, _ = call("compare", "a.jsonl", "latest")
    assert code == 0 and "x.jsonl" in out
