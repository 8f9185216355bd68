"""Answers of other programs, from logs that these made (tests/data/README.md; traces of ds4: by its format)."""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from pathlib import Path

import msgspec
import pytest

from ds4ref.errors import DataError
from ds4ref.eval import cli, library
from ds4ref.eval import log as logs
from ds4ref.eval.judge import sources
from ds4ref.eval.judge.judged import judge
from ds4ref.eval.judge.match import Matcher, Refused
from ds4ref.eval.judge.sources import Answer
from ds4ref.eval.packs import Header, Pack
from ds4ref.eval.prompt import user_text

from .scripted import choice, integer

DATA = Path(__file__).parents[1] / "data" / "judged"
SAMPLES = (DATA / "samples_judged.jsonl").read_text().splitlines()
PACK = library.load(str(DATA / "pack.jsonl"))
OUTCOMES = {
    "science-00000000": "right", "broad-00000001": "missing", "maths-00000002": "right",
    "security-00000003": "ambiguous", "science-00000004": "wrong", "broad-00000005": "ambiguous",
    "maths-00000006": "right", "words-00000007": "right",
}  # fmt: skip
"""Of the answers in the first epoch."""
LETTER, STRICT = "exact_match,last-letter", "exact_match,strict-match"


@pytest.fixture
def inspected(tmp_path) -> Path:
    """inspect_ai's log of two epochs."""
    path = tmp_path / "inspect.json"
    path.write_bytes(gzip.decompress((DATA / "inspect.json.gz").read_bytes()))
    return path


def changed(path: Path, change) -> Path:
    """The same log after ``change(document)``."""
    log = json.loads(path.read_bytes())
    change(log)
    path.write_text(json.dumps(log))
    return path


def judged(path: Path, pack: Pack = PACK):
    return judge([path], sources.read(path), pack)


def outcomes(found, epoch: int = 1) -> dict[str, str]:
    return {s.id: s.grade.outcome for s in found.log.samples if s.epoch == epoch and s.grade}


def call(capsys, *argv):
    code = cli.main([str(arg) for arg in argv])
    out = capsys.readouterr()
    return code, out.out, out.err


# --- inspect_ai


def test_answers_of_inspect(inspected):
    """Its own score: includes() takes any C in an answer for C, twice 7 of 8 and 6 of 8."""
    found = judged(inspected)
    assert found.source.program == "inspect_ai 0.3.285" and found.source.field == "output.choices[0].message.content"
    assert outcomes(found) == OUTCOMES and found.refused == () and found.log.header.epochs == 2
    second = outcomes(found, 2)
    assert (second["science-00000000"], second["maths-00000002"]) == ("ambiguous", "missing"), "cut off; empty"
    thought = next(s for s in found.log.samples if s.id == "maths-00000006")
    assert (thought.reasoning, thought.output) == ("16 + 9 + 4 + 1, or 17?", "Answer: 30")
    assert (thought.tokens, thought.prompt_tokens, thought.model, thought.finish) == (12, 40, "script", "stop")
    (contrast,) = found.contrasts()
    assert (contrast.a.estimate, contrast.b.estimate) == (0.8125, 0.375)
    assert {(s.id[:5], s.epoch) for s in found.differing()} == {
        ("broad", 1), ("secur", 1), ("broad", 2), ("secur", 2), ("scien", 2)
    }  # fmt: skip


def test_several_scorers_and_attachments_of_inspect(inspected):
    before = judged(inspected).log.samples
    values = {"includes": "C", "model_graded": "P", "words": " Yes ", "several": {"a": 1, "b": 0.25},
              "text": "n/a", "large": 7, "none": None, "bool": True}  # fmt: skip

    def change(log):
        for sample in log["samples"]:
            sample["scores"] = {name: {"value": value} for name, value in values.items()}
            sample["attachments"]["k"] = sample["output"]["choices"][0]["message"]["content"]
            sample["output"]["choices"][0]["message"]["content"] = "attachment://k"

    found = judged(changed(inspected, change))
    assert found.log.samples == before
    assert {c.name: c.a.estimate for c in found.contrasts()} == {
        "includes": 1.0, "model_graded": 0.5, "several/a": 1.0, "several/b": 0.25, "words": 1.0, "bool": 1.0
    }  # fmt: skip


def test_an_archive_is_the_same_as_the_document(inspected, tmp_path):
    log, path = json.loads(inspected.read_bytes()), tmp_path / "x.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({k: v for k, v in log.items() if k != "samples"}))
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    assert judged(path).log.samples == judged(inspected).log.samples
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_journal/start.json", "{}")
    with pytest.raises(DataError, match="header.json"):
        sources.read(path)
    try:  # Zstandard needs Python 3.14
        found = judged(DATA / "inspect.eval")
    except DataError as error:
        assert "inspect log convert --to json" in str(error) and not hasattr(zipfile, "ZIP_ZSTANDARD")
    else:
        assert outcomes(found) == {k: OUTCOMES[k] for k in ("science-00000000", "broad-00000001")}


# --- lm-evaluation-harness


@pytest.mark.parametrize("order", ["as written", "reversed", "by document", "shuffled"])
def test_answers_of_lm_eval_with_a_score_for_each_filter_whatever_the_order_of_lines(tmp_path, order):
    """What was said is graded; 3 and 4 of 8, as its own table has them (bleu has no score of a document)."""
    lines = {"as written": SAMPLES, "reversed": SAMPLES[::-1], "shuffled": random.Random(41).sample(SAMPLES, 16),
             "by document": sorted(SAMPLES, key=lambda x: json.loads(x)["doc_id"])}[order]  # fmt: skip
    path = tmp_path / "samples_x.jsonl"
    path.write_text("\n".join(lines))
    found = judged(path)
    assert {c.name: (c.a.estimate, c.b.estimate, c.a.n) for c in found.contrasts()} == {
        LETTER: (0.375, 0.5, 8), STRICT: (0.5, 0.5, 8)
    }  # fmt: skip
    assert outcomes(found) == OUTCOMES and len(found.differing()) == 5 and "cut-off" in found.source.notes[0]
    assert all(s.finish == "" and s.tokens is None for s in found.log.samples)


def test_repeats_are_epochs_odd_scores_are_left_out_and_contradictions_are_told(tmp_path):
    line, path = json.loads(SAMPLES[0]), tmp_path / "samples_x.jsonl"
    path.write_text(json.dumps({**line, "resps": [["Answer: C", "Answer: A"]]}))
    found = judged(path)
    assert [(s.epoch, s.grade.outcome) for s in found.log.samples] == [(1, "right"), (2, "wrong")]
    assert "documents with several answers are not compared" in found.source.notes[1] and not found.contrasts()
    more = {"metrics": ["exact_match", "acc", "f1", "ppl", "words", "gone"], "acc": True, "f1": 0.5, "ppl": 7.0,
            "words": {"a": 1}, "exact_match": float("nan")}  # fmt: skip
    path.write_text(json.dumps({**line, **more}) + "\n" + json.dumps({**line, "filter": None, "exact_match": 1.0}))
    assert list(judged(path).theirs.values()) == [{"acc,last-letter": 1.0, "f1,last-letter": 0.5, "exact_match": 1.0}]
    path.write_text(json.dumps(line) + "\n" + json.dumps({**line, "exact_match": 0.0}))
    assert judged(path).source.notes[-1] == "1 scores occur twice with different values and were skipped"
    for resps in ([[[-1.5, False]]], [["a"], ["b"]], "C", None):
        path.write_text(json.dumps({**line, "resps": resps}) + "\n")
        with pytest.raises(DataError, match="not a generated answer"):
            judged(path)


# --- ds4


def trace(*cases: tuple[str, str, str], think: str = "none", limit: int = 900) -> bytes:
    """A trace as ds4 writes it: (index in the pack, status, output) of each case."""
    out = [f"# ds4-eval trace\nstarted_unix: 1767225600\nmodel: m.gguf\nmax_tokens: {limit}\nquestions: 8\n\n".encode()]
    for at, status, said in cases:
        q = PACK.questions[int(at)]
        out.append(
            f"===== CASE {int(at) + 1}/8 {q.source}/{q.id} =====\ntimestamp_unix: 1767225601\nsource: {q.source}\n"
            f"id: {q.id}\ndomain: {q.domain}\nstatus: {status}\npicked: ?\nexpected: {q.answer}\nprompt_tokens: 30\n"
            f"generated_tokens: 12\nelapsed_sec: 1.500\nthink_mode_effective: {think}\nthink_close: none\n"
            "choices:\n  A. one\n".encode()
        )
        for name, text in (("SYSTEM_PROMPT", "s"), ("QUESTION_PROMPT", user_text(q)), ("MODEL_OUTPUT", said)):
            data = text.encode()
            out.append(f"{name}_BEGIN bytes={len(data)}\n".encode() + data)
            out.append((b"" if text.endswith("\n") else b"\n") + f"{name}_END\n".encode())
        out.append(b"\n")
    return b"".join(out) + b"===== SUMMARY =====\npassed: 1\nfailed: 1\ntotal: 2\n"


def test_answers_of_a_trace_of_ds4(tmp_path):
    path = tmp_path / "trace.txt"
    hostile = "MODEL_OUTPUT_END\n===== CASE 5/8 x =====\nid: nobody\nAnswer: 9\n"
    path.write_bytes(trace(("2", "FAILED", hostile), ("3", "SKIPPED", ""), ("4", "ERROR", ""), ("0", "PASSED", "C"),
                           ("0", "FAILED", "Answer: all but C")))  # fmt: skip
    found = judged(path)
    assert [(s.id, s.status, s.grade and s.grade.outcome) for s in found.log.samples] == [
        ("maths-00000002", "done", "right"), ("science-00000004", "failed", None),
        ("science-00000000", "done", "ambiguous"),
    ]  # fmt: skip
    first = found.log.samples[0]
    assert (first.tokens, first.prompt_tokens, first.seconds, first.model) == (12, 30, 1.5, "m.gguf")
    assert first.started == "2026-01-01T00:00:01Z" and [s.id for s in found.differing()] == ["maths-00000002"]
    for said, think, limit, outcome, close in (
        ("I think</think>Answer: C", "high", 900, "right", "natural"),
        ("Answer: C is what I would say", "high", 900, "missing", "open"),  # what is still being thought is no answer
        ("Answer: C", "none", 12, "ambiguous", ""),  # the limit may have cut it off
    ):
        path.write_bytes(trace(("0", "PASSED", said), think=think, limit=limit))
        (sample,) = judged(path).log.samples
        assert (sample.grade.outcome, sample.close) == (outcome, close)


def test_a_trace_that_is_cut_anywhere(tmp_path):
    """Whole questions count, the last one is told to be missing; no cut makes another answer."""
    whole, path = trace(("0", "PASSED", "Answer: C"), ("2", "PASSED", "Answer: 9")), tmp_path / "trace.txt"
    second = whole.index(b"===== CASE 3/8")
    end = whole.rindex(b"MODEL_OUTPUT_END") + len(b"MODEL_OUTPUT_END")
    for at in range(second, len(whole), 7):
        path.write_bytes(whole[:at])
        found = judged(path)
        assert [s.grade.outcome for s in found.log.samples] == ["right"] * (2 if at > end else 1), at
        assert found.source.notes or at > end, at
    path.write_bytes(whole.replace(b"bytes=9", b"bytes=8"))
    with pytest.raises(DataError, match="has another length than it states"):
        judged(path)


# --- strictness


def refusal(answer: Answer, *questions) -> str:
    with pytest.raises(Refused) as caught:
        Matcher(questions).find(answer)
    return str(caught.value)


def test_what_is_refused_and_why():
    q, other = choice(1), integer(7)
    lines = "\n".join(f"{letter}) {text}" for letter, text in zip("ABCD", q.choices, strict=True))

    def answer(asked=q.question, prompt=f"{q.question}\n{lines}", **more):
        return Answer("x", more.pop("id", "?"), 1, (asked,), prompt, **more)

    assert Matcher([q, other]).find(answer()) == (q, ())
    assert refusal(answer("Which choice of 2?"), q) == "the question is not in the pack"
    assert refusal(answer("Which choice of 2?", id=q.id), q) == "the pack's question with this id has another text"
    assert "does not contain the question" in refusal(answer(prompt=lines), q)
    for wrong in (lines.replace("A)", "1)"), lines[:-5], lines.replace("two", "five"), "\n".join(q.choices), ""):
        assert "does not show the pack's choices" in refusal(answer(prompt=f"{q.question}\n{wrong}"), q), wrong
    tooled = msgspec.structs.replace(other, kind="exact", tools=("{}",))
    assert "asked with tools" in refusal(answer(other.question, other.question), tooled)
    assert refusal(answer(refused="because"), q) == "because"
    twin = msgspec.structs.replace(q, id="twin", answer="A")
    assert "2 questions of the pack have this text" in refusal(answer(), q, twin)
    assert Matcher([q, twin]).find(answer(id="twin")) == (twin, ())


def test_letters_mean_what_the_prompt_shows(inspected):
    """Whatever the order of the record's choices; examples before the question do not count."""
    q = choice(1, "C")
    text = "\n".join(f"({letter}) {q.choices[i]}" for letter, i in zip("ABCD", (2, 0, 3, 1), strict=True))
    sent = f"Which is it?\nA. this\nB. that\nC. both\nD. none\n\n{q.question}\n{text}\nAnswer:"
    assert Matcher([q]).find(Answer("x", "?", 1, (q.question,), sent)) == (q, (2, 0, 3, 1))

    def change(log):
        for sample in log["samples"]:
            if sample["id"] == "science-00000000":
                text = sample["messages"][0]["content"]
                text = text.replace("A) at the top", "A) it is the same everywhere", 1)
                sample["messages"][0]["content"] = text.replace("C) it is the same everywhere", "C) at the top", 1)

    sample = next(s for s in judged(changed(inspected, change)).log.samples if s.id == "science-00000000")
    assert (sample.grade.outcome, sample.grade.given, sample.expected) == ("wrong", "C", "A")


def test_no_stranger_gets_into_the_score(inspected, tmp_path, capsys):
    def change(log):
        log["samples"][0]["input"] = "Who?"
        log["samples"][1]["output"]["choices"][0]["message"]["tool_calls"] = [{"id": "1"}]
        log["samples"][3]["error"] = {"message": "no connection"}
        log["samples"][5]["output"]["choices"] = []
        log["samples"].append({**log["samples"][2], "id": "again"})

    code, out, err = call(capsys, "judge", changed(inspected, change), "--pack", DATA / "pack.jsonl", "-o",
                          tmp_path / "log.jsonl")  # fmt: skip
    names = [s["id"] for s in json.loads(inspected.read_bytes())["samples"]]
    assert code == 1 and err.count("refused: ") == 3 and f"another answer to {names[2]} in epoch 1" in err
    assert f"refused: sample {names[0]}, epoch 1 ({names[0]}): the pack's question with this id has another text" in err
    assert f"({names[1]}): the answer is a tool call" in err and "failed: 2 samples, not in the score" in out
    log = logs.read(tmp_path / "log.jsonl")
    assert len(log.samples) == 14 and {s.error for s in log.samples} == {"", "no connection", "no answer in the log"}
    few = Pack(Header("few", 1), PACK.questions[2:4])
    assert {why for _, _, why in judged(DATA / "samples_judged.jsonl", few).refused} == {
        "the question is not in the pack"
    }


@pytest.mark.parametrize(("data", "said"), [
    (b"", "empty"), (b"{}\n", "of another program"), (b"\xff\xfe", "not a log of inspect_ai, samples of"),
    (b'{"version": 2, "eval": {', "damaged, cut off"), (b'{"version": 1, "eval": {}, "samples": []}', "version 1"),
    (b'{"version": 2, "eval": {}, "samples": []}', "no answers"),
    (b'{"version": 2, "eval": {}, "samples": [{"id": 1}]}', "'input'"), (b"PK\3\4 and no archive", "not a zip"),
    (b"# ds4-eval trace\nquestions: 3\n", "no answers"), (b'{"doc_id": 0', "damaged, cut off"),
])  # fmt: skip
def test_damaged_files_are_one_line(tmp_path, capsys, data, said):
    path = tmp_path / "x"
    path.write_bytes(data)
    code, out, err = call(capsys, "judge", path, "--pack", "nano")
    assert (code, out, err.count("\n")) == (1, "", 1) and said in err


# --- the command


def test_a_judged_log_is_regraded_compared_and_not_resumed(inspected, tmp_path, capsys):
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert call(capsys, "judge", inspected, "--pack", DATA / "pack.jsonl", "-o", a)[0] == 0
    code, out, _ = call(
        capsys, "judge", DATA / "samples_judged.jsonl", "--pack", DATA / "pack.jsonl", "-o", b, "--json"
    )
    said = json.loads(out)
    assert code == 0 and said["written"] == str(b) and said["summary"]["score"] == 0.5 and said["refused"] == []
    assert said["contrasts"][STRICT]["a"] == 0.5 and len(said["differing"]) == 5
    assert "0 of 16 answers are graded differently" in call(capsys, "regrade", a)[1]
    out = call(capsys, "compare", a, b)[1]
    assert "no verdict: 8 questions" in out and "lm-evaluation-harness" in out and "+12.5" in out
    code, _, err = call(capsys, "--resume", a, "--plain")
    assert code == 2 and "holds answers of inspect_ai 0.3.285" in err
    assert call(capsys, "judge", inspected, "--pack", DATA / "pack.jsonl", "-o", a)[0] == 2, "it exists"


def test_several_files_have_scores_of_their_own_and_usage(tmp_path, capsys, inspected):
    paths = [tmp_path / "gsm.jsonl", tmp_path / "words.jsonl"]
    for part, path in enumerate(paths):
        path.write_text("\n".join(SAMPLES[i] for i in range(16) if i % 8 // 4 == part))
    code, out, _ = call(capsys, "judge", *paths, "--pack", DATA / "pack.jsonl", "--json")
    found = json.loads(out)
    assert code == 0 and {name: (c["a"], c["n"]) for name, c in found["contrasts"].items()} == {
        f"gsm: {LETTER}": (0.5, 4), f"gsm: {STRICT}": (0.5, 4),
        f"words: {LETTER}": (0.25, 4), f"words: {STRICT}": (0.5, 4),
    }  # fmt: skip
    assert found["file"] == "gsm.jsonl, words.jsonl" and found["summary"]["n"] == 8
    assert call(capsys, "judge", inspected)[0] == call(capsys, "judge", "--pack", "nano")[0] == 2
    assert "No such file" in call(capsys, "judge", tmp_path / "none", "--pack", "nano")[2]
