"""Answers of other programs, from logs that these made (tests/data/README.md; traces of ds4: by its format)."""

from __future__ import annotations

import gzip
import json
import random
import zipfile
from pathlib import Path

import msgspec
import pytest

from ds4ref.errors import DataError, UsageError
from ds4ref.eval import cli, packs
from ds4ref.eval import log as logs
from ds4ref.eval.judge import sources
from ds4ref.eval.judge.answers import Answer
from ds4ref.eval.judge.export import document as exported
from ds4ref.eval.judge.judged import judge
from ds4ref.eval.judge.match import Matcher, Refused
from ds4ref.eval.packs import Header, Pack
from ds4ref.eval.prompt import user_text

from . import logs as made
from .scripted import choice, integer

DATA = Path(__file__).parents[1] / "data" / "judged"
PACK = packs.load(str(DATA / "pack.jsonl"))
OUTCOMES = {
    "science-00000000": "right", "broad-00000001": "missing", "maths-00000002": "right",
    "security-00000003": "ambiguous", "science-00000004": "wrong", "broad-00000005": "ambiguous",
    "maths-00000006": "right", "words-00000007": "right",
}  # fmt: skip
"""Of the answers that ``others.SAID`` has, in the first epoch."""


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


# --- each program


def test_answers_of_inspect(inspected):
    found = judged(inspected)
    assert found.source.program == "inspect_ai 0.3.285" and found.source.field == "output.choices[0].message.content"
    assert outcomes(found) == OUTCOMES and found.refused == ()
    second = outcomes(found, 2)
    assert (second["science-00000000"], second["maths-00000002"]) == ("ambiguous", "missing"), "cut off; empty"
    thought = next(s for s in found.log.samples if s.id == "maths-00000006")
    assert (thought.reasoning, thought.output) == ("16 + 9 + 4 + 1, or 17?", "Answer: 30")
    assert (thought.tokens, thought.prompt_tokens, thought.model, thought.finish) == (12, 40, "script", "stop")
    assert thought.started.startswith("2026-") and found.log.header.epochs == 2
    assert found.log.header.facts["judged"]["answer"] == found.source.field


def test_its_own_score_beside_ours(inspected):
    """includes() takes any C in an answer for C, twice 7 of 8 and 6 of 8."""
    found = judged(inspected)
    (contrast,) = found.contrasts()
    assert (contrast.a.estimate, contrast.b.estimate) == (0.8125, 0.375)
    assert {(s.id[:5], s.epoch) for s in found.differing()} == {
        ("broad", 1), ("secur", 1), ("broad", 2), ("secur", 2), ("scien", 2)
    }  # fmt: skip


def test_answers_of_lm_eval():
    """What was said is graded, not what its filter took out of it."""
    found = judged(DATA / "samples_judged.jsonl")
    assert outcomes(found) == OUTCOMES and found.source.field == "resps" and "cut-off" in found.source.notes[0]
    assert [s.id[:5] for s in found.differing()] == ["maths", "secur", "broad", "maths", "words"]
    assert all(s.finish == "" and s.tokens is None for s in found.log.samples)


def test_several_filters_are_one_answer_and_repeats_are_epochs(tmp_path):
    lines = (DATA / "samples_judged.jsonl").read_text().splitlines()
    other = {**json.loads(lines[0]), "filter": "strict", "filtered_resps": ["[invalid]"], "exact_match": 0.0}
    twice = {**json.loads(lines[2]), "resps": [["Answer: 9", "Answer: 8"]]}
    path = tmp_path / "samples_x.jsonl"
    path.write_text("\n".join([lines[0], json.dumps(other), json.dumps(twice)]) + "\n")
    found = judged(path)
    assert [(s.id, s.epoch, s.grade.outcome) for s in found.log.samples] == [
        ("science-00000000", 1, "right"), ("maths-00000002", 1, "right"), ("maths-00000002", 2, "wrong")
    ]  # fmt: skip
    assert found.refused == () and [list(scores) for scores in found.theirs.values()] == [
        ["exact_match,last-letter", "exact_match,strict"], [], []
    ]  # fmt: skip
    assert "scores of documents with several answers are not compared" in found.source.notes[1]


LETTER, STRICT = "exact_match,last-letter", "exact_match,strict-match"


@pytest.mark.parametrize("order", ["as written", "reversed", "by document", "shuffled"])
def test_a_score_for_each_filter_whatever_the_order_of_lines(tmp_path, order):
    """3 and 4 of 8, as lm-evaluation-harness's own table has them (bleu has no score of a document)."""
    lines = (DATA / "samples_judged.jsonl").read_text().splitlines()
    if order == "shuffled":
        random.Random(41).shuffle(lines)
    lines = {"reversed": lines[::-1], "by document": sorted(lines, key=lambda x: json.loads(x)["doc_id"])}.get(
        order, lines
    )
    path = tmp_path / "samples_x.jsonl"
    path.write_text("\n".join(lines))
    found = judged(path)
    assert {c.name: (c.a.estimate, c.b.estimate, c.a.n) for c in found.contrasts()} == {
        LETTER: (0.375, 0.5, 8), STRICT: (0.5, 0.5, 8)
    }  # fmt: skip
    assert outcomes(found) == OUTCOMES and len(found.differing()) == 5


def test_several_metrics_odd_values_and_scores_that_contradict_each_other(tmp_path):
    line = json.loads((DATA / "samples_judged.jsonl").read_text().splitlines()[0])
    path = tmp_path / "samples_x.jsonl"
    more = {"metrics": ["exact_match", "acc", "f1", "ppl", "words", "gone"], "acc": True, "f1": 0.5, "ppl": 7.0,
            "words": {"a": 1}, "exact_match": float("nan")}  # fmt: skip
    path.write_text(json.dumps({**line, **more}) + "\n" + json.dumps({**line, "filter": None, "exact_match": 1.0}))
    assert list(judged(path).theirs.values()) == [{"acc,last-letter": 1.0, "f1,last-letter": 0.5, "exact_match": 1.0}]
    path.write_text(json.dumps(line) + "\n" + json.dumps({**line, "exact_match": 0.0}))
    found = judged(path)
    assert (
        found.contrasts() == []
        and found.source.notes[-1] == "1 scores occur twice with different values and were skipped"
    )


def test_several_tasks_have_scores_of_their_own(tmp_path, capsys):
    lines = (DATA / "samples_judged.jsonl").read_text().splitlines()
    paths = [tmp_path / f"samples_{task}_2026-08-01T10-00-00.000001.jsonl" for task in ("gsm_8k", "words")]
    for part, path in enumerate(paths):
        path.write_text("\n".join(lines[i] for i in range(16) if i % 8 // 4 == part))
    code, out, _ = call(capsys, "judge", *paths, "--pack", DATA / "pack.jsonl", "--json")
    found = json.loads(out)
    assert code == 0 and {name: (c["a"], c["n"]) for name, c in found["contrasts"].items()} == {
        f"gsm_8k: {LETTER}": (0.5, 4), f"gsm_8k: {STRICT}": (0.5, 4),
        f"words: {LETTER}": (0.25, 4), f"words: {STRICT}": (0.5, 4),
    }  # fmt: skip
    assert found["file"] == ", ".join(path.name for path in paths) and found["summary"]["n"] == 8
    code, _, err = call(capsys, "judge", paths[0], paths[0], "--pack", DATA / "pack.jsonl")
    assert code == 1 and "another answer to science-00000000 in epoch 1" in err


def test_several_scorers_of_inspect(inspected):
    values = {"includes": "C", "match": "I", "model_graded": "P", "words": " Yes ", "several": {"a": 1, "b": 0.25},
              "text": "n/a", "large": 7, "none": None, "noanswer": "N", "bool": True}  # fmt: skip

    def change(log):
        for sample in log["samples"]:
            sample["scores"] = {name: {"value": value} for name, value in values.items()}
            if sample["epoch"] == 2:
                sample["scores"] = dict(reversed(sample["scores"].items()))

    found = judged(changed(inspected, change))
    assert {c.name: c.a.estimate for c in found.contrasts()} == {
        "includes": 1.0, "match": 0.0, "model_graded": 0.5, "several/a": 1.0, "several/b": 0.25, "words": 1.0,
        "noanswer": 0.0, "bool": 1.0,
    }  # fmt: skip


def test_log_likelihoods_are_no_words(tmp_path):
    line = json.loads((DATA / "samples_judged.jsonl").read_text().splitlines()[0])
    path = tmp_path / "samples_x.jsonl"
    for resps in ([[[-1.5, False]]], [["a"], ["b"]], "C", None):
        path.write_text(json.dumps({**line, "resps": resps}) + "\n")
        with pytest.raises(DataError, match="not a generated answer"):
            judged(path)


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
    path.write_bytes(trace(("0", "PASSED", "So.\nAnswer: C"), ("2", "FAILED", hostile), ("3", "SKIPPED", ""),
                           ("4", "ERROR", ""), ("0", "FAILED", "Answer: all but C")))  # fmt: skip
    found = judged(path)
    assert found.source.field == "MODEL_OUTPUT" and found.refused == ()
    assert [(s.id, s.status, s.grade and s.grade.outcome) for s in found.log.samples] == [
        ("maths-00000002", "done", "right"), ("science-00000004", "failed", None),
        ("science-00000000", "done", "ambiguous"),
    ]  # fmt: skip
    first = found.log.samples[0]
    assert (first.tokens, first.prompt_tokens, first.seconds, first.model) == (12, 30, 1.5, "m.gguf")
    assert first.started == "2026-01-01T00:00:01Z" and [s.id for s in found.differing()] == ["maths-00000002"]


@pytest.mark.parametrize(("said", "outcome", "close"), [
    ("I think</think>Answer: C", "right", "natural"), ("Answer: C is what I would say", "missing", "open"),
])  # fmt: skip
def test_thinking_in_a_trace(tmp_path, said, outcome, close):
    """What is still being thought is no answer."""
    path = tmp_path / "trace.txt"
    path.write_bytes(trace(("0", "PASSED", said), think="high"))
    (sample,) = judged(path).log.samples
    assert (sample.grade.outcome, sample.close, sample.finish) == (outcome, close, "stop")
    path.write_bytes(trace(("0", "PASSED", "Answer: C"), limit=12))
    assert judged(path).log.samples[0].grade.outcome == "ambiguous", "the limit may have cut it off"


def test_a_trace_that_is_cut_anywhere(tmp_path):
    """Whole questions count, the last one is told to be missing; no cut makes another answer."""
    whole, path = trace(("0", "PASSED", "Answer: C"), ("2", "PASSED", "Answer: 9")), tmp_path / "trace.txt"
    second = whole.index(b"===== CASE 3/8")
    end = whole.rindex(b"MODEL_OUTPUT_END") + len(b"MODEL_OUTPUT_END")
    for at in range(second, len(whole), 7):
        path.write_bytes(whole[:at])
        found = judged(path)
        assert len(found.log.samples) == (2 if at > end else 1), at
        assert all(s.grade.outcome == "right" for s in found.log.samples)
        assert bool(found.source.notes) == (second + 20 < at <= end) or at <= second + 60, at
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


def test_letters_mean_what_the_prompt_shows():
    """Whatever the order of the record's choices; examples before the question do not count."""
    q = choice(1, "C")
    shuffled = [q.choices[i] for i in (2, 0, 3, 1)]
    text = "\n".join(f"({letter}) {text}" for letter, text in zip("ABCD", shuffled, strict=True))
    example = "Which is it?\nA. this\nB. that\nC. both\nD. none\n\n"
    sent = f"{example}{q.question}\n{text}\nAnswer:"
    assert Matcher([q]).find(Answer("x", "?", 1, (q.question,), sent)) == (q, (2, 0, 3, 1))


def test_an_answer_is_graded_by_the_letters_that_were_shown(inspected):
    def change(log):
        for sample in log["samples"]:
            if sample["id"] == "science-00000000":
                text = sample["messages"][0]["content"]
                text = text.replace("A) at the top", "A) it is the same everywhere", 1)
                sample["messages"][0]["content"] = text.replace("C) it is the same everywhere", "C) at the top", 1)

    found = judged(changed(inspected, change))
    sample = found.log.samples[[s.id for s in found.log.samples].index("science-00000000")]
    assert (sample.grade.outcome, sample.grade.given, sample.expected) == ("wrong", "C", "A")
    assert sample.order == (2, 1, 0, 3) and exported(found.log)["samples"][4]["choices"][2] == "at the top"


def test_no_stranger_gets_into_the_score(inspected, tmp_path, capsys):
    def change(log):
        log["samples"][0]["input"] = "Who?"
        log["samples"][1]["output"]["choices"][0]["message"]["tool_calls"] = [{"id": "1"}]
        log["samples"][3]["error"] = {"message": "no connection"}
        log["samples"][5]["output"]["choices"] = []

    code, out, err = call(capsys, "judge", changed(inspected, change), "--pack", DATA / "pack.jsonl", "-o",
                          tmp_path / "log.jsonl")  # fmt: skip
    names = [s["id"] for s in json.loads(inspected.read_bytes())["samples"]]
    assert code == 1 and err.count("refused: ") == 2
    assert f"refused: sample {names[0]}, epoch 1 ({names[0]}): the pack's question with this id has another text" in err
    assert f"({names[1]}): the answer is a tool call" in err
    log = logs.read(tmp_path / "log.jsonl")
    assert len(log.samples) == 14 and sum(s.status == "failed" for s in log.samples) == 2
    assert "failed: 2 samples, not in the score" in out
    assert {s.error for s in log.samples} == {"", "no connection", "no answer in the log"}


def test_a_pack_without_one_of_the_questions(inspected, capsys):
    assert call(capsys, "judge", inspected, "--pack", "nano")[:2] == (1, "")
    few = Pack(Header("few", 1), PACK.questions[2:4])
    found = judged(inspected, few)
    assert len(found.log.samples) == 4 and len(found.refused) == 12
    assert {why for _, _, why in found.refused} == {"the question is not in the pack"}


def test_a_second_answer_is_not_chosen_from(inspected):
    path = changed(inspected, lambda log: log["samples"].append({**log["samples"][0], "id": "again"}))
    assert [why[:14] for _, _, why in judged(path).refused] == ["another answer"]


@pytest.mark.parametrize(("data", "said"), [
    (b"", "empty"), (b"{}\n", "not a log of inspect_ai"), (b"\xff\xfe", "not a log of inspect_ai, samples of"),
    (b'{"version": 2, "eval": {', "is not JSON, or is cut off"),
    (b'{"version": 1, "eval": {}, "samples": []}', "version 2"),
    (b'{"version": 2, "eval": {}, "samples": []}', "no answers"),
    (b'{"version": 2, "eval": {}, "samples": [{"id": 1}]}', "a damaged sample"),
    (b"PK\3\4 and no archive", "is not JSON, or is cut off"),
    (b"# ds4-eval trace\nquestions: 3\n", "no answers"),
    (b'{"doc_id": 0', "not JSON"),
])  # fmt: skip
def test_damaged_files_are_one_line(tmp_path, capsys, data, said):
    path = tmp_path / "x"
    path.write_bytes(data)
    code, out, err = call(capsys, "judge", path, "--pack", "nano")
    assert (code, out, err.count("\n")) == (1, "", 1) and said in err


def test_usage(tmp_path, capsys, inspected):
    assert call(capsys, "judge", inspected)[0] == call(capsys, "judge", "--pack", "nano")[0] == 2
    assert call(capsys, "export", inspected)[0] == call(capsys, "export", "-o", "x.json")[0] == 2
    assert "No such file" in call(capsys, "judge", tmp_path / "none", "--pack", "nano")[2]


# --- archives


def test_an_archive_is_the_same_as_the_document(inspected, tmp_path):
    log = json.loads(inspected.read_bytes())
    path = tmp_path / "x.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", json.dumps({k: v for k, v in log.items() if k != "samples"}))
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    assert judged(path).log.samples == judged(inspected).log.samples
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("_journal/start.json", "{}")
    with pytest.raises(DataError, match="the run did not finish"):
        sources.read(path)


def test_an_archive_of_theirs_is_read_or_named():
    """Zstandard needs Python 3.14, or zipfile-zstd."""
    try:
        found = judged(DATA / "inspect.eval")
    except DataError as error:
        assert "inspect log convert --to json" in str(error) and not hasattr(zipfile, "ZIP_ZSTANDARD")
    else:
        assert outcomes(found) == {k: OUTCOMES[k] for k in ("science-00000000", "broad-00000001")}


def test_attachments_are_put_back(inspected):
    def change(log):
        for sample in log["samples"]:
            sample["attachments"]["k"] = sample["output"]["choices"][0]["message"]["content"]
            sample["output"]["choices"][0]["message"]["content"] = "attachment://k"

    before = judged(inspected).log.samples
    assert judged(changed(inspected, change)).log.samples == before


# --- logs of ours


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


def test_an_exported_log_says_the_same(inspected, tmp_path, capsys):
    """Read back by our own reader of inspect_ai's logs; theirs reads it below."""
    a, out = tmp_path / "a.jsonl", tmp_path / "a.json"
    call(capsys, "judge", inspected, "--pack", DATA / "pack.jsonl", "-o", a)
    assert call(capsys, "export", a, "-o", out)[:2] == (0, f"16 samples written to {out}\n")
    again = judged(out)
    assert again.refused == () and outcomes(again, 1) == OUTCOMES and again.differing() == []
    before = {s.key: s for s in logs.read(a).samples}
    for sample in again.log.samples:
        for name in ("output", "reasoning", "order", "grade", "tokens", "finish", "started", "prompt"):
            assert getattr(sample, name) == getattr(before[sample.key], name), name
    assert call(capsys, "export", a, "-o", out)[0] == call(capsys, "export", a, "-o", tmp_path / "x.txt")[0] == 2


def test_export_of_every_outcome(tmp_path):
    log = made.write(tmp_path / "run.jsonl", ["rwamfs"])
    found = exported(log)
    assert [s["scores"] and s["scores"]["ds4ref"]["value"] for s in found["samples"]] == ["C", "I", "I", "I", {}, {}]
    assert [bool(s["error"]) for s in found["samples"]] == [False] * 4 + [True] * 2
    assert found["status"] == "cancelled" and found["results"]["completed_samples"] == 4
    figures = found["results"]["scores"][0]["metrics"]
    assert figures["accuracy"]["value"] == 0.25 and figures["questions"]["value"] == 4
    assert figures["ci95_low"]["value"] < 0.25 < figures["ci95_high"]["value"]
    assert exported(made.write(tmp_path / "none.jsonl", ["  "]))["samples"] == []


def test_inspect_reads_it_back(inspected, tmp_path, capsys):
    theirs = pytest.importorskip("inspect_ai.log")
    a, out = tmp_path / "a.jsonl", tmp_path / "a.json"
    call(capsys, "judge", inspected, "--pack", DATA / "pack.jsonl", "-o", a)
    call(capsys, "export", a, "-o", out)
    log = theirs.read_eval_log(str(out))
    assert (log.status, len(log.samples), log.eval.task) == ("success", 16, "judged")
    assert log.results.scores[0].metrics["accuracy"].value == 0.375
    for sample in log.samples:
        if sample.epoch == 1:
            assert sample.scores["ds4ref"].value == ("C" if OUTCOMES[sample.id] == "right" else "I")
            assert sample.scores["ds4ref"].metadata["outcome"] == OUTCOMES[sample.id]
    cut = next(s for s in log.samples if (s.id, s.epoch) == ("science-00000000", 2))
    assert cut.output.stop_reason == "max_tokens" and cut.output.usage.output_tokens == 12


def test_written_logs_are_whole(inspected, tmp_path):
    from ds4ref.eval.judge.judged import write

    found = judged(inspected)
    write(found, str(tmp_path / "x.jsonl"))
    assert logs.read(tmp_path / "x.jsonl").samples == found.log.samples
    with pytest.raises(UsageError, match="exists"):
        write(found, str(tmp_path / "x.jsonl"))
