"""Scores and costs counted by hand; reports of logs, everything about one question, old answers graded again."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ds4ref.eval import log as logs
from ds4ref.eval import plain, runner
from ds4ref.eval.log import Grade, Log, Sample
from ds4ref.eval.packs import Header, Pack, Question
from ds4ref.eval.report import report
from ds4ref.eval.scores import pass_at, score_text, summarize, summary
from ds4ref.eval.view import detail
from ds4ref.runs.stats import share_interval

from . import logs as made

# --- scores


def test_pass_at_k() -> None:
    """One question, five answers: wrong, wrong, right, right, right."""
    log = made.build("x", ["w", "w", "r", "r", "r"])
    assert summary(log)["pass_at"] == {"1": pytest.approx(0.6), "2": pytest.approx(0.9), "4": 1.0, "5": 1.0}
    assert pass_at(made.build("x", ["rr", "w "]).samples, 2) is None, "nor of the questions that have enough"
    assert pass_at(log.samples, 6) is None and summary(made.build("x", ["r"]))["pass_at"] == {}


def test_a_question_counts_once_however_often_it_was_asked() -> None:
    """Shares of 1, 1/3 and 0; failed and stopped answers are in no score; the order of the samples does not matter."""
    log = made.build("x", ["rrw", "rww", "fss", "smf"])
    summed = summary(log)
    interval = share_interval([1.0, 1 / 3, 0.0])
    assert (summed["score"], summed["ci95"], summed["n"]) == (interval.estimate, [interval.low, interval.high], 3)
    assert [summed[name] for name in ("samples", "right", "wrong", "missing", "failed", "stopped")] == [
        7,
        3,
        3,
        1,
        2,
        3,
    ]
    assert {name: (score["score"], score["samples"]) for name, score in summed["per_source"].items()} == {
        "maths": (1.0, 2), "science": (pytest.approx(1 / 3), 3), "security": (0.0, 2),
    }  # fmt: skip
    assert summarize(log.questions, log.samples[::-1]) == summed
    asked = {q.id: msgspec.structs.replace(q, difficulty=d) for q, d in zip(log.header.questions, "ab", strict=False)}
    by_difficulty = summarize({**log.questions, **asked}, log.samples)["per_difficulty"]
    assert [(name, score["right"]) for name, score in by_difficulty.items()] == [("a", 2), ("b", 1), ("hard", 0)]


def test_costs_are_means_of_what_is_known() -> None:
    """Tokens of 210, 220 and an uncounted one; the rate is that of decoding, without the time to the first token."""
    log = made.build("x", ["r", "w", "r"])
    log.samples[2] = msgspec.structs.replace(log.samples[2], tokens=None, seconds=20.5, reasoning_tokens=None)
    log.samples[1] = msgspec.structs.replace(log.samples[1], close="hard")
    log.samples[0] = msgspec.structs.replace(log.samples[0], finish="length")
    summed = summary(log)
    names = [name for name in summed if "tokens" in name or name in ("seconds_per_sample", "exhausted")]
    assert {name: summed[name] for name in names} == {
        "tokens_per_sample": 215, "median_tokens": 215, "tokens_per_right_answer": 430, "exhausted": 2,
        "reasoning_tokens_per_sample": 150, "seconds_per_sample": pytest.approx(41.5 / 3),
        "tokens_per_second": pytest.approx((209 + 219) / 20),
    }  # fmt: skip


# --- the report


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"epoch": 2}, "q1 epoch 2: right      given 204, expected 204 (812 tokens, 31.2 s)"),
        ({"tokens": None}, "q1: right      given 204, expected 204 (31.2 s)"),
        ({"tokens": 0, "seconds": 0.0}, "q1: right      given 204, expected 204 (0 tokens, 0.0 s)"),
        ({"grade": Grade("missing", " ")}, "q1: no answer  given -, expected 204 (812 tokens, 31.2 s)"),
        ({"grade": Grade("wrong", "a  b\n" * 9)},
         "q1: wrong      given a b a b a b a b a b a b , expected 204 (812 tokens, 31.2 s)"),
        ({"close": "hard"}, "q1: right      given 204, expected 204 (812 tokens, 31.2 s, thinking closed)"),
        ({"close": "open"}, "q1: right      given 204, expected 204 (812 tokens, 31.2 s, still thinking)"),
        ({"grade": None, "status": "stopped"}, "q1: stopped (812 tokens, 31.2 s)"),
        ({"grade": None, "status": "failed", "error": "no answer in time"},
         "q1: failed: no answer in time (812 tokens, 31.2 s)"),
    ],
)  # fmt: skip
def test_the_line_of_a_sample_with_plain(changed, said):
    sample = Sample("q1", 1, "", "done", "204", "", grade=Grade("right", "204"), tokens=812, seconds=31.2)
    assert plain.line(msgspec.structs.replace(sample, **changed), 12, 93) == f"[12/93] {said}"


def lines_of(text: str, column: str = "#") -> dict[str, list[str]]:
    """The table's lines by their first cell."""
    found, on = {}, False
    for line in text.splitlines():
        on = (on or line.split()[:1] == [column]) and bool(line.strip())
        if on:
            found[line.split()[0]] = line.split()
    return found


def test_a_line_a_sample_by_number_whatever_the_order(folder):
    log = made.write(folder / "run.jsonl", ["rwamfs"])
    table = lines_of(report(log, 200, log.samples[::-1]))
    assert table["#"] == ["#", "outcome", "prompt", "tokens", "s", "given", "expected", "question", "title"]
    assert table["1"] == ["1", "right", "50", "210", "10.5", "100", "100", "maths-000", "What", "is", "number", "0?"]
    assert table["2"][1:6] == ["wrong", "50", "210", "10.5", "A"] and table["3"][1] == "ambiguous"
    assert table["4"][1:3] == ["no", "answer"] and table["4"][6] == "-"
    assert [*table] == ["#", *"123456"] and (table["5"][1], table["6"][1]) == ("failed", "stopped")


def test_what_it_adds_up_to(folder):
    log = made.write(folder / "run.jsonl", ["rrrrrrwwwamf" + "r" * 12])
    text, found = report(log, 120), summary(log)
    assert f"score: {score_text(found)}: 18 right, 3 wrong, 1 ambiguous, 1 no answer" in text
    for name, score in found["per_source"].items():
        line = lines_of(text, "score")[name]
        assert line[1:3] == [f"{100 * share:.1f}" for share in (score["score"], score["ci95"][0])]
        assert line[-5:-3] == [str(score["n"]), str(score["right"])]
    assert "failed: 1 sample, not in the score" in text and "asked:" not in text and "pass@" not in text
    assert "per answer: 210 tokens, 210 median, 150 of them reasoning, 10.5 s, 20.9 tokens/s; total: 4,830 tok" in text
    assert "; 268 tokens per right answer" in " ".join(text.split()) and "\nhard" not in text


def test_budgets_epochs_and_nothing_asked(folder):
    asked = made.pack(4)
    header = logs.header_of(asked, made.Settings(), 4, made.TARGET, made.FACTS)
    with logs.Writer.create(folder / "run.jsonl", header) as log:
        for i, letters in enumerate(("rrrr", "rwww", "wwww")):
            for epoch, letter in enumerate(letters, 1):
                more = {"finish": "length", "close": "open"} if i == 2 else {"close": "hard"} if i + epoch == 1 else {}
                log.add(made.sample(asked.questions[i], made.LETTERS[letter], epoch, **more))
    text = report(logs.read(folder / "run.jsonl"), 200)
    assert "asked: 3 of the 4 questions of the pack" in text
    assert "budget: 5 of 12 answers (42%) hit the token or reasoning limit" in text
    assert "right at least once: pass@1 41.7 %, pass@2 50.0 %, pass@4 66.7 %" in text
    table = [line.split() for line in text.splitlines()]
    assert ["1", "1", "right", "closed"] in [line[:4] for line in table]
    assert ["3", "4", "wrong", "cut", "off"] in [line[:5] for line in table]
    nothing = report(Log("x", log.header, []), 80)
    assert nothing == "score: no answer graded\n\nasked: 0 of the 4 questions of the pack"


NASTY = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(lambda text: bool(text.strip()))


@given(NASTY, NASTY, NASTY, st.integers(20, 200), st.integers(1, 3))
def test_answers_cannot_break_the_table(title, given_, why, width, epochs):
    q = Question("x-1", "s", "d", "hard", "integer", title, (), "1")
    header = logs.header_of(Pack(Header("p", 1), (q,)), made.Settings(), epochs, made.TARGET, made.FACTS)
    samples = [
        msgspec.structs.replace(made.sample(q, "wrong", epoch + 1), grade=Grade("wrong", given_, why))
        for epoch in range(epochs)
    ]  # fmt: skip
    text = report(Log("x", header, samples), width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert all(c.isprintable() or c == "\n" for c in text)
    table = text.split("\n\n")[0].splitlines()
    assert len(table) == epochs + 1 and all(line.split()[0] == "1" for line in table[1:])


# --- ds4-eval view


@pytest.mark.parametrize(
    ("options", "numbers", "score"),
    [
        ([], set(range(1, 13)), "25.0"),
        (["--outcome", "wrong,AMBIGUOUS, missing"], {2, 3, 4, 8, 9, 10}, "25.0"),  # no selection to be scored
        (["--outcome", "failed,stopped"], {5, 6, 11, 12}, "25.0"),
        (["--outcome", "exhausted"], set(), "25.0"),
        (["--only", "maths"], {1, 4, 7, 10}, "50.0"),
        (["--only", "maths", "--outcome", "right"], {1, 7}, "50.0"),
    ],
)
def test_some_of_the_samples(folder, call, options, numbers, score):
    log = made.write(folder / "run.jsonl", ["rwamfs" * 2])
    code, out, _ = call("view", log.path, *options)
    assert code == 0 and {int(n) for n in lines_of(out) if n.isdigit()} == numbers and f"score: {score} %" in out
    found = json.loads(call("view", log.path, *options, "--json")[1])
    assert len(found["samples"]) == len(numbers) and not any("output" in sample for sample in found["samples"])
    assert found["summary"]["score"] == float(score) / 100


def test_one_question_in_full(folder, call):
    log = made.write(folder / "run.jsonl", ["rwamfs", "rrrrrr"])
    q = made.question(1)
    outs = [call("view", log.path, name)[1] for name in ("2", q.id)]
    assert len(set(outs)) == 1
    for part in (q.id, "What is number 1?", "Let me see science-001.", "So it is.\nAnswer: A", "Answer: B",
                 "epoch 1: wrong (given A, expected B; the last line)", "epoch 2: right (given B, expected B",
                 "--- why it is B\nbecause of 1", "--- system", "D. choice 3 of 1",
                 "50 prompt tokens, 210 generated, 150 of them reasoning, 10.5 s; first token after 0.50 s, ",
                 " finish stop, thinking natural"):  # fmt: skip
        assert part in outs[0], part
    assert outs[0].count("--- prompt") == 1, "the same for both epochs"
    only = call("view", log.path, "2", "--outcome", "right")[1]
    assert "epoch 2" in only and "epoch 1" not in only
    (sample,) = json.loads(call("view", log.path, "2", "--outcome", "right", "--json")[1])["samples"]
    assert sample["output"] == "So it is.\nAnswer: B"


def test_long_lines_are_broken_between_words(folder):
    code = "    for (int i = 0; i < n; i++) { total += values[i] * weights[i]; checks[i] = total; }"
    log = made.write(folder / "run.jsonl", ["r"], output=f"Explain this:\n{code}\nshort\n" + "word " * 40 + "end")
    text = detail(log.header, log.header.questions[0], log.samples, 40)
    assert all(len(line) <= 40 for line in text.splitlines())
    of_code = text.split("Explain this:\n")[1].split("\nshort\n")[0].splitlines()
    assert len(of_code) == 3 and all(line.startswith("    ") and line[4] != " " for line in of_code)
    assert " ".join(text.split()) == " ".join(detail(log.header, log.header.questions[0], log.samples).split())


def test_texts_cannot_command_the_terminal_and_a_torn_log_is_told(folder, call):
    hostile = {"output": "\x1b[2Jgone\u202e\x07\nAnswer: \x1b[31m100", "reasoning": "\x9b1m"}
    log = made.write(folder / "run.jsonl", ["r"], **hostile)
    with open(log.path, "a") as file:
        file.write('{"id": "torn')
    for argv in ([], ["1"]):
        code, out, err = call("view", log.path, *argv)
        assert code == 0 and not set(out) & {"\x1b", "\x07", "\x9b", "\u202e"} and "the last line is incomplete" in err
    assert "\\x1b[2Jgone\\u202e\\x07\nAnswer:" in out


def test_old_answers_are_graded_again(folder, call, monkeypatch):
    """By a grader that takes the last line; the log stays as it is."""

    def grade(question, text, *, reasoning="", finish=""):
        given = text.rpartition("Answer: ")[2]
        return Grade("right" if given == question.answer else "wrong", given, "by the last line")

    log, before = made.write(folder / "run.jsonl", ["rrwaarfs"]), (folder / "run.jsonl").read_bytes()
    assert "score: 50.0 %" in call("view", log.path)[1]
    monkeypatch.setattr(runner, "grade", grade)
    code, out, err = call("view", log.path, "--regrade")
    assert (code, err) == (0, "ds4-eval view: 2 of 6 answers are graded differently\n") and "score: 83.3 %" in out
    assert (folder / "run.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["view"], 2, "a log and at most one question, 0 names given"),
        (["view", "absent.jsonl"], 1, "absent.jsonl: No such file"),
        (["view", "run.jsonl", "0"], 2, "no question '0': a number from 1 to 6, or an id"),
        (["view", "run.jsonl", "maths"], 2, "'maths' begins 2 ids: maths-000, maths-003"),
        (["view", "run.jsonl", "math-003"], 2, "(did you mean maths-003?)"),
        (["view", "run.jsonl", "--outcome", "wrong,bad"], 2, "unknown outcome 'bad': choose from right, wrong"),
        (["view", "run.jsonl", "--only", "nothing"], 2, "no question has 'nothing'"),
    ],
)
def test_mistakes_are_one_line(folder, call, monkeypatch, argv, code, message):
    monkeypatch.chdir(folder)
    made.write(folder / "run.jsonl", ["rwamfs"])
    found, out, err = call(*argv)
    assert (found, out) == (code, "") and message in err and err.count("\n") == 1
