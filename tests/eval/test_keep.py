"""Runs of ds4-eval in the run store: the same facts and rows, whether they come from ds4-eval or from its log."""

import json

import pytest

from ds4ref.errors import DataError
from ds4ref.eval import log as logs
from ds4ref.eval.keep import keep, rows_of
from ds4ref.eval.scores import summary
from ds4ref.runs import evals, scored
from ds4ref.runs.store import Store
from ds4ref.runs.store.rows import question_digest

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


def test_a_log_can_be_read_without_ds4_eval(store, tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["rwamfs", "rr r r"])
    late = [made.sample(log.header.questions[1], "right"), made.sample(log.header.questions[0], "wrong", 3)]
    with open(log.path, "ab") as file:
        file.write(b"\n".join(map(logs.msgspec.json.encode, late)) + b'\n\n{"note": "x"}\n{"id": "torn')
    log = logs.read(log.path)
    facts, rows = evals.read_log(log.path)
    assert rows == rows_of(log) and len(rows) == 11 and facts["epochs"] == 3, "more than the header says"
    places = [(row["epoch"], row["id"][-3:]) for row in rows]
    assert places == sorted(places), "in the order of the pack, not in which they were made"
    kept = store.run(keep(store, log)).facts
    assert {name: value for name, value in kept.items() if name != "summary"} == json.loads(json.dumps(facts))
    assert evals.SCHEMA == logs.SCHEMA
    q = log.header.questions[1]
    assert q.digest == question_digest(q.kind, q.question, q.choices, q.answer)


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
    assert evals.status_of(*evals.read_log(log.path)) == status


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", ":1: not a log of ds4-eval"),
        (lambda data: b"[]\n", ":1: not a log of ds4-eval"),
        (lambda data: b'{"schema": "ds4-eval-log-v9"}\n', "not a log of ds4-eval, or of another version"),
        (lambda data: b'{"schema": "ds4-eval-log-v1"}\n', ":1: not the header"),
        (lambda data: data + b"{\n", ":3: a damaged line"),
        (lambda data: data + b'{"id": "maths-000"}\n', ":3: not a sample"),
        (lambda data: data + b'{"id": "x"}\n', ":3: not a sample"),
    ],
)
def test_what_is_no_log_or_damaged_is_refused(tmp_path, change, message):
    path = tmp_path / "run.jsonl"
    made.write(path, ["r"])
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError) as error:
        evals.read_log(path)
    assert message in str(error.value)
