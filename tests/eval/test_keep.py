"""Runs of ds4-eval in the run store: the same facts and rows, whether they come from ds4-eval or from its log."""

import json

import pytest

from ds4ref.eval import log as logs
from ds4ref.eval.keep import about, keep, rows_of
from ds4ref.eval.scores import summary
from ds4ref.runs import evals, scored
from ds4ref.runs.store import Store

from . import logs as made


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "runs.sqlite") as store:
        yield store


def test_a_run_has_a_row_for_each_sample(store, tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["rwamfs", "rrrrrr"])
    run = store.run(keep(store, log, "a label"))
    assert (run.kind, run.label, run.status, run.rows) == ("eval", "a label", "complete", 12)
    facts = {"digest": run.fact("pack", "digest"), "questions": run.fact("pack", "questions"),
             "tokens": run.fact("settings", "tokens"), "log": run.fact("log"), "model": run.fact("model", "name"),
             "sha256": run.fact("model", "sha256"), "numerics": run.fact("numerics"),
             "cpu": run.fact("machine", "cpu"), "created": run.created}  # fmt: skip
    assert facts == {
        "digest": log.header.pack["digest"], "questions": 6, "tokens": 16000, "log": str(tmp_path / "run.jsonl"),
        "model": "model q4", "sha256": "ab" * 32, "numerics": "ds4", "cpu": "a processor",
        "created": "2026-11-22T10:00:00Z",
    }  # fmt: skip
    assert run.fact("summary") == json.loads(json.dumps(summary(log)))
    first, _, _, _, failed, stopped = store.rows(run.id)[:6]
    assert first == {
        "id": "maths-000", "question": log.questions["maths-000"].digest[:32], "source": "maths",
        "domain": "maths/part 0", "epoch": 1, "status": "done", "outcome": "right", "given": "100", "expected": "100",
        "prompt_tokens": 50, "tokens": 210, "reasoning_tokens": 150, "ttft": 0.5, "seconds": 10.5,
        "finish": "stop", "close": "natural", "thought": True, "difficulty": "hard",
    }  # fmt: skip
    assert (failed["outcome"], failed["status"], stopped["status"]) == (None, "failed", "stopped")


def test_the_score_is_that_of_the_summary(store, tmp_path):
    log = made.write(tmp_path / "run.jsonl", [made.drawn(1, 40, 0.7), made.drawn(2, 40, 0.7)[:39] + "f"])
    rows = store.rows(keep(store, log))
    whole, groups = summary(log), scored.shares(scored.answered(rows).values(), lambda q: q.source)
    groups["all"] = scored.share(scored.answered(rows).values())
    assert {name: (s["score"], s["ci95"], s["n"]) for name, s in {**whole["per_source"], "all": whole}.items()} == {
        name: (i.estimate, [i.low, i.high], i.n) for name, i in groups.items()
    }


def test_rows_are_in_the_order_of_the_pack_and_epochs_are_those_there(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["rwamfs", "rr r r"])
    late = [made.sample(log.header.questions[1], "right"), made.sample(log.header.questions[0], "wrong", 3)]
    with open(log.path, "ab") as file:
        file.write(b"\n".join(map(logs.msgspec.json.encode, late)) + b'\n\n{"note": "x"}\n{"id": "torn')
    log = logs.read(log.path)
    places = [(row["epoch"], row["id"][-3:]) for row in rows_of(log)]
    assert places == sorted(places) and len(places) == 11 and about(log)["epochs"] == 3, "more than the header says"


def test_a_log_that_went_on_stays_one_run(store, tmp_path):
    path = tmp_path / "run.jsonl"
    log = made.write(path, ["rw s"])
    number = keep(store, log, "first", status="stopped", tags=["q4"])
    store.add("bench", {}, [])
    with logs.Writer.resume(path, log.header) as writer:
        for i in (2, 3):
            writer.add(made.sample(log.header.questions[i], "right"))
    assert keep(store, logs.read(path)) == number
    run = store.run(number)
    assert (run.status, run.label, run.tags, run.rows) == ("complete", "first", ("q4",), 4)
    assert run.fact("summary", "score") == 0.75
    other = made.write(tmp_path / "other.jsonl", ["rw s"], facts={"created": "2026-11-23T10:00:00Z"})
    assert keep(store, other) != number


@pytest.mark.parametrize(
    ("epochs", "selection", "status"),
    [
        (["rwf"], {}, "complete"), (["rw "], {}, "stopped"), (["rw "], {"limit": 2}, "complete"),
        (["rws"], {}, "stopped"), (["rwr", "rw "], {}, "stopped"), (["rwr", "rwr"], {"only": None}, "complete"),
        (["rw ", "r  "], {"only": "maths,science"}, "stopped"),
    ],
)  # fmt: skip
def test_whether_a_log_is_whole(tmp_path, epochs, selection, status):
    log = made.write(tmp_path / "run.jsonl", epochs, facts={"selection": selection})
    assert evals.status_of(about(log), rows_of(log)) == status
