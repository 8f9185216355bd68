"""The report of a log and everything about one question: numbers that are right, lines that fit, no escapes."""

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ds4ref.eval import cli, plain
from ds4ref.eval import log as logs
from ds4ref.eval.log import Grade, Log, Sample
from ds4ref.eval.packs import Header, Pack, Question
from ds4ref.eval.report import report, report_text
from ds4ref.eval.scores import summary
from ds4ref.eval.view import detail

from . import logs as made


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "q1: right      given 204, expected 204 (812 tokens, 31.2 s)"),
        ({"epoch": 2}, "q1 epoch 2: right      given 204, expected 204 (812 tokens, 31.2 s)"),
        ({"tokens": None}, "q1: right      given 204, expected 204 (31.2 s)"),
        ({"tokens": 0, "seconds": 0.0}, "q1: right      given 204, expected 204 (0 tokens, 0.0 s)"),
        ({"grade": Grade("missing", " ")}, "q1: no answer  given -, expected 204 (812 tokens, 31.2 s)"),
        ({"grade": Grade("wrong", "a  b\n" * 9)},
         "q1: wrong      given a b a b a b a b a b a b , expected 204 (812 tokens, 31.2 s)"),
        ({"close": "natural"}, "q1: right      given 204, expected 204 (812 tokens, 31.2 s)"),
        ({"close": "hard"}, "q1: right      given 204, expected 204 (812 tokens, 31.2 s, thinking closed)"),
        ({"close": "open"}, "q1: right      given 204, expected 204 (812 tokens, 31.2 s, still thinking)"),
        ({"grade": None, "status": "stopped"}, "q1: stopped (812 tokens, 31.2 s)"),
        ({"grade": None, "status": "failed", "error": "no answer in time"},
         "q1: failed: no answer in time (812 tokens, 31.2 s)"),
    ],
)  # fmt: skip
def test_the_line_of_a_sample(changed, said):
    sample = Sample("q1", 1, "", "done", "204", "", grade=Grade("right", "204"), tokens=812, seconds=31.2)
    assert plain.line(msgspec.structs.replace(sample, **changed), 12, 93) == f"[12/93] {said}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DS4_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


def call(capsys, *argv):
    code = cli.main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def lines_of(text: str, column: str = "#") -> dict[str, list[str]]:
    """The table's lines by their first cell."""
    found, on = {}, False
    for line in text.splitlines():
        on = (on or line.split()[:1] == [column]) and bool(line.strip())
        if on:
            found[line.split()[0]] = line.split()
    return found


# --- the report


def test_a_line_a_sample_by_number(folder):
    log = made.write(folder / "run.jsonl", ["rwamfs"])
    table = lines_of(report(log, 200))
    assert table["#"] == ["#", "outcome", "prompt", "tokens", "s", "given", "expected", "question", "title"]
    assert table["1"] == ["1", "right", "50", "210", "10.5", "100", "100", "maths-000", "What", "is", "number", "0?"]
    assert table["2"][1:6] == ["wrong", "50", "210", "10.5", "A"] and table["3"][1] == "ambiguous"
    assert table["4"][1:3] == ["no", "answer"] and table["4"][6] == "-"
    assert table["5"][1] == "failed" and table["6"][1] == "stopped" and len(table) == 7


def test_order_is_that_of_the_pack_however_samples_were_made(folder):
    log = made.write(folder / "run.jsonl", ["rrr", "www"])
    samples = sorted(log.samples, key=lambda sample: sample.expected)
    text = report_text(log.questions, samples, 100)
    numbers = [line.split()[:3] for line in text.splitlines()[1:7]]
    assert numbers == [["1", "1", "right"], ["1", "2", "wrong"], ["2", "1", "right"], ["2", "2", "wrong"],
                       ["3", "1", "right"], ["3", "2", "wrong"]]  # fmt: skip


def test_what_it_adds_up_to(folder):
    log = made.write(folder / "run.jsonl", ["rrrrrrwwwamf" + "r" * 12])
    text, found = report(log, 120), summary(log)
    assert f"score: {found.whole.said()}: 18 right, 3 wrong, 1 ambiguous, 1 no answer" in text
    for score in found.sources:
        line = lines_of(text, "score")[score.name]
        assert line[1] == f"{100 * score.share:.1f}" and line[2] == f"{100 * score.interval.low:.1f}"
        guess = [] if score.guess is None else [f"{100 * score.guess:.1f}"]
        assert line[5:] == [*guess, str(score.interval.n), *(str(score.outcomes.get(w, 0)) for w in ("right", "wrong", "ambiguous", "missing"))]  # fmt: skip  # noqa: E501
    assert "failed: 1 sample, not in the score" in text and "asked:" not in text and "pass@" not in text
    assert (
        "per answer: 210 tokens, 210 median, 150 of them reasoning, 10.5 s, 20.9 tokens/s; total: 4,830 tokens" in text
    )
    assert (
        "; 268 tokens per right answer" in " ".join(text.split())
        and "longer answers" not in text
        and "\nhard" not in text
    )


def test_budgets_epochs_and_the_other_grader(folder):
    asked = made.pack(4)
    header = logs.header_of(asked, made.Settings(), 4, made.TARGET, made.FACTS)
    right = {0: "rrrr", 1: "rwww", 2: "wwww"}
    with logs.Writer.create(folder / "run.jsonl", header) as log:
        for i, letters in right.items():
            for epoch, letter in enumerate(letters, 1):
                more = {"finish": "length", "close": "open"} if i == 2 else {}
                if i == 0 and epoch == 1:
                    more = {"ds4": Grade("wrong", "1"), "close": "hard"}
                log.add(made.sample(asked.questions[i], made.LETTERS[letter], epoch, **more))
    text = report(logs.read(folder / "run.jsonl"), 200)
    assert "asked: 3 of the 4 questions of the pack" in text
    assert "budget: 5 of 12 answers (42%) hit the token or reasoning limit" in text
    assert "right at least once: pass@1 41.7 %, pass@2 50.0 %, pass@4 66.7 %" in text
    assert "right by majority: of 4 33.3 %" in text
    assert "ds4's grader disagrees on 1 of 12 answers" in text
    table = [line.split() for line in text.splitlines()]
    assert ["1", "1", "right", "closed"] in [line[:4] for line in table]
    assert ["3", "4", "wrong", "cut", "off"] in [line[:5] for line in table]


def test_nothing_asked_is_said(folder):
    log = made.write(folder / "run.jsonl", ["  "])
    assert "score: no answer graded" in report(log, 80) and report_text({}, [], 80) == "score: no answer graded"


@pytest.mark.parametrize("width", [80, 40])
def test_numbers_survive_narrow_terminals(folder, width):
    log = made.write(folder / "run.jsonl", ["rwamfs" * 15] * 2)
    text = report(log, width)
    for line in text.splitlines():
        assert cell_len(line) <= width, line
    table = text.split("\n\n")[0]
    assert len([line for line in table.splitlines() if re.match(r"\s*\d+ ", line)]) == 180
    head = text.splitlines()[0].split()
    assert {"#", "outcome", "given", "expected", "question"} <= set(head)
    if width == 80:
        assert all(f"{sample.id} " in text for sample in log.samples), "ids whole"


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


# --- the command


def test_the_command_shows_the_report(folder, capsys):
    log = made.write(folder / "run.jsonl", ["rwamfs"])
    code, out, err = call(capsys, "view", folder / "run.jsonl")
    assert (code, err) == (0, "") and out == report(log, 160) + "\n"


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--outcome", "wrong"], {2, 8}),
        (["--outcome", "wrong,AMBIGUOUS, missing"], {2, 3, 4, 8, 9, 10}),
        (["--outcome", "failed,stopped"], {5, 6, 11, 12}),
        (["--outcome", "exhausted"], set()),
        (["--only", "maths"], {1, 4, 7, 10}),
        (["--only", "maths", "--outcome", "right"], {1, 7}),
    ],
)
def test_some_of_the_samples(folder, capsys, options, numbers):
    made.write(folder / "run.jsonl", ["rwamfs" * 2])
    code, out, _ = call(capsys, "view", folder / "run.jsonl", *options)
    assert code == 0 and {int(n) for n in lines_of(out) if n.isdigit()} == numbers
    if "--only" in options:
        assert "score: 50.0 %" in out and "asked: 4 of the 12" in out, "the score is that of what is shown"
    else:
        assert "score: 25.0 %" in out, "an outcome is no selection to be scored"


def test_one_question_in_full(folder, capsys):
    made.write(folder / "run.jsonl", ["rwamfs", "rrrrrr"])
    q = made.question(1)
    outs = [call(capsys, "view", folder / "run.jsonl", name)[1] for name in ("2", q.id, "science-001", "science-001"[:-1])[:3]]  # fmt: skip  # noqa: E501
    assert len(set(outs)) == 1
    for part in (q.id, "What is number 1?", "Let me see science-001.", "So it is.\nAnswer: A", "Answer: B",
                 "epoch 1: wrong (given A, expected B; the last line)", "epoch 2: right (given B, expected B",
                 "ds4's grader: wrong, given A", "--- why it is B\nbecause of 1", "--- system",
                 "50 prompt tokens, 210 generated, 150 of them reasoning, 10.5 s; first token after 0.50 s, ",
                 " finish stop, thinking natural"):  # fmt: skip
        assert part in outs[0], part
    assert outs[0].count("--- prompt") == 1, "the same for both epochs"
    only = call(capsys, "view", folder / "run.jsonl", "2", "--outcome", "right")[1]
    assert "epoch 2" in only and "epoch 1" not in only


def test_long_lines_are_broken_between_words(folder):
    code = "    for (int i = 0; i < n; i++) { total += values[i] * weights[i]; checks[i] = total; }"
    log = made.write(folder / "run.jsonl", ["r"], prompt=f"Explain this:\n{code}\nshort", output="word " * 40 + "end")
    text = detail(log, log.header.questions[0], log.samples, 40)
    assert all(len(line) <= 40 for line in text.splitlines())
    of_code = text.split("Explain this:\n")[1].split("\nshort\n")[0].splitlines()
    assert len(of_code) == 3 and all(line.startswith("    ") and line[4] != " " for line in of_code)
    assert " ".join(text.split()) == " ".join(detail(log, log.header.questions[0], log.samples).split())


def test_shuffled_choices_are_explained(folder, capsys):
    asked = made.pack(2)
    q = msgspec.structs.replace(asked.questions[1], distractors=("forgot the sign", "", "halved", "doubled"))
    asked = Pack(asked.header, (asked.questions[0], q))
    header = logs.header_of(asked, made.Settings(shuffle=True), 2, made.TARGET, made.FACTS)
    with logs.Writer.create(folder / "run.jsonl", header) as log:
        log.add(made.sample(q, "right", 1, order=(1, 0, 3, 2), prompt="prompt one"))
        log.add(made.sample(q, "wrong", 2, order=(0, 1, 2, 3), prompt="prompt two"))
    out = call(capsys, "view", folder / "run.jsonl", q.id)[1]
    assert "choices were shuffled: A is B, B is A, C is D, D is C of the pack" in out
    assert out.index("epoch 1") < out.index("prompt one") < out.index("epoch 2") < out.index("prompt two")
    assert "(letters here are those of the pack)\nbecause of 1\nA: forgot the sign\nC: halved" in out


def test_texts_cannot_command_the_terminal(folder, capsys):
    log = made.write(
        folder / "run.jsonl", ["r"], output="\x1b[2Jgone\u202e\x07\nAnswer: \x1b[31m100", reasoning="\x9b1m"
    )
    for argv in ([], ["1"]):
        out = call(capsys, "view", log.path, *argv)[1]
        assert not set(out) & {"\x1b", "\x07", "\x9b", "\u202e"}
    assert "\\x1b[2Jgone\\u202e\\x07\nAnswer:" in out


def test_json_is_one_document(folder, capsys):
    log = made.write(folder / "run.jsonl", ["rwamfs"])
    code, out, err = call(capsys, "view", log.path, "--json")
    found = json.loads(out)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert found["summary"] == json.loads(json.dumps(summary(log).to_json())) and len(found["samples"]) == 6
    assert not any("output" in sample for sample in found["samples"])
    one = json.loads(call(capsys, "view", log.path, "1", "--json")[1])
    (sample,) = one["samples"]
    assert sample["output"] == "So it is.\nAnswer: 100" and sample["grade"]["outcome"] == "right"
    few = json.loads(call(capsys, "view", log.path, "--json", "--outcome", "failed")[1])
    assert [sample["id"] for sample in few["samples"]] == ["science-004"] and few["summary"]["samples"] == 4


def test_a_torn_log_is_shown_and_said(folder, capsys):
    log = made.write(folder / "run.jsonl", ["rw"])
    with open(log.path, "a") as file:
        file.write('{"id": "torn')
    code, out, err = call(capsys, "view", log.path)
    assert code == 0 and "maths-000" in out and "the last line is incomplete" in err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([], 2, "a log and at most one question, 0 names given"),
        (["run.jsonl", "1", "2"], 2, "3 names given"),
        (["absent.jsonl"], 1, "absent.jsonl: No such file"),
        (["run.jsonl", "0"], 2, "no question '0': a number from 1 to 6, or an id"),
        (["run.jsonl", "7"], 2, "no question '7'"),
        (["run.jsonl", "maths"], 2, "'maths' begins 2 ids: maths-000, maths-003"),
        (["run.jsonl", "math-003"], 2, "(did you mean maths-003?)"),
        (["run.jsonl", "--outcome", "wrong,bad"], 2, "unknown outcome 'bad': choose from right, wrong"),
        (["run.jsonl", "--only", "nothing"], 2, "no question has 'nothing'"),
    ],
)
def test_mistakes_are_one_line(folder, capsys, monkeypatch, argv, code, message):
    monkeypatch.chdir(folder)
    made.write(folder / "run.jsonl", ["rwamfs"])
    found, out, err = call(capsys, "view", *argv)
    assert (found, out) == (code, "") and message in err and err.count("\n") == 1
