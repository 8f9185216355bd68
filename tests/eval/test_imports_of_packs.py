"""Importing questions: CSV and JSON Lines come back to the byte, and what is not clear is left out and counted.

Tables of C: test_imports_of_c.py; the command, and damaged files: test_import_command.py."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter

import pytest

from ds4ref.eval import packs
from ds4ref.eval.imports import gpqa, lm_eval
from ds4ref.eval.imports.collect import collect
from ds4ref.eval.imports.records import Skip, identity, integer_of, letter_of

from .files import HARD, csv_text, json_text, questions, reasons, write

# ------------------------------------------------------------------------------------------------------------- GPQA

GPQA = ["Record ID", "Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3",
        "High-level domain", "Subdomain", "Explanation", "Canary String", "Unused, with a comma"]  # fmt: skip


def gpqa_rows(count: int = 40) -> list[list[str]]:
    rng = random.Random(1)
    return [
        [f"rec{i}", f"{i}: {rng.choice(HARD)}{rng.choice(HARD)}", *(f"{rng.choice(HARD)}{k}" for k in range(4)),
         ["Physics", "Chemistry"][i % 2], "Quantum", rng.choice(HARD), "canary 7", ""]
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_gpqa_is_read_to_the_byte(tmp_path, form):
    rows = gpqa_rows()
    entries = [dict(zip(GPQA, row, strict=True)) for row in rows]
    data = csv_text(GPQA, rows) if form == "csv" else json_text(entries)
    pack, (told,) = collect([write(tmp_path, f"gpqa_diamond.{form}", data)], None, "mine")
    assert told.shape == "gpqa" and not told.skipped and len(pack.questions) == len(rows)
    for question, row in zip(pack.questions, rows, strict=True):
        assert (question.id, question.question, question.explanation) == (row[0], row[1], row[8])
        assert question.choices[packs.LETTERS.index(question.answer)] == row[2]
        assert sorted(question.choices) == sorted(row[2:6])
        assert (question.source, question.domain, question.kind) == ("GPQA Diamond", row[6], "choice")
        assert question.licence == "CC BY 4.0"
    assert pack.header.canary == "canary 7"


def test_the_order_of_gpqas_choices_is_the_documented_one_and_hangs_on_the_texts_alone(tmp_path):
    rows = gpqa_rows()
    first = questions(write(tmp_path, "gpqa.csv", csv_text(GPQA, rows)))
    for question in first:
        keys = [
            hashlib.sha256(f"ds4-eval import gpqa 1\n{question.question}\n{choice}".encode()).hexdigest()
            for choice in question.choices
        ]
        assert keys == sorted(keys)
    turned = [[*row[:3], row[5], row[3], row[4], *row[6:]] for row in reversed(rows)]
    again = questions(write(tmp_path, "other.csv", csv_text(GPQA, turned)), "gpqa")
    assert {q.id: (q.choices, q.answer) for q in again} == {q.id: (q.choices, q.answer) for q in first}


def test_the_right_answer_is_at_every_letter_equally_often():
    letters = Counter(gpqa.ordered(f"question {i}", ["right", "a", "b", "c"]).index("right") for i in range(4000))
    assert all(abs(letters[k] - 1000) < 5 * math.sqrt(4000 * 3 / 16) for k in range(4))


def test_rows_of_gpqa_that_are_no_questions(tmp_path):
    good = gpqa_rows(1)[0]

    def but(place: int, text: str) -> list[str]:
        return [*good[:place], text, *good[place + 1 :]]

    rows = [good, but(1, ""), but(2, " "), but(3, ""), but(4, good[2] + "\n"), good[:-1], [*good, "more"]]
    assert reasons(write(tmp_path, "gpqa.csv", csv_text(GPQA, rows))) == {
        "no question": 1,
        "correct answer is blank": 1,
        "no incorrect answer 1": 1,
        "two choices are equal": 1,
        "the row has not as many cells as the header": 2,
    }


# -------------------------------------------------------------------------------------------------------- SuperGPQA


def super_entry(i: int, texts: list[str], right: int, **more) -> dict:
    return {"uuid": f"{i:032x}", "question": f"{i} {HARD[i % len(HARD)]}", "options": texts, "answer": texts[right],
            "answer_letter": "ABCDEFGHIJ"[right], "discipline": "Engineering", "field": "Optics", "subfield": "Lenses",
            "difficulty": "hard", "is_calculation": True, **more}  # fmt: skip


@pytest.mark.parametrize("form", ["jsonl", "csv as JSON", "csv as Python"])
def test_supergpqa_is_read_to_the_byte(tmp_path, form):
    rng = random.Random(2)
    entries = []
    for i in range(30):
        options = [f"{k}{rng.choice(HARD)}" for k in range(rng.choice([4, 8, 9, 10]))]
        entries.append(super_entry(i, options, rng.randrange(len(options))))
    data = json_text(entries)
    if form != "jsonl":
        shown = json.dumps if form.endswith("JSON") else repr
        data = csv_text(
            list(entries[0]), [[shown(v) if isinstance(v, list) else v for v in e.values()] for e in entries]
        )
    found = questions(write(tmp_path, "SuperGPQA-all.jsonl", data))
    for question, entry in zip(found, entries, strict=True):
        assert (question.id, question.question, list(question.choices)) == (
            entry["uuid"],
            entry["question"],
            entry["options"],
        )
        assert (question.answer, question.domain, question.difficulty) == (
            entry["answer_letter"],
            "Engineering",
            "hard",
        )
        assert (question.source, question.licence, question.kind) == ("SuperGPQA", "ODC-BY", "choice")


def test_records_of_supergpqa_that_are_no_questions(tmp_path):
    four = ["a", "b", "c", "d"]
    entries = [
        super_entry(0, four, 0),
        super_entry(1, four, 0, answer_letter="B"),
        super_entry(2, four, 0, answer="e"),
        super_entry(3, four, 0, answer_letter="E"),
        super_entry(4, [*"abcdefghijk"], 0),
        super_entry(5, ["a", "b", "a"], 1),
        super_entry(6, four, 0, options="['a', 'b'"),
        super_entry(7, four, 0, options=["a", 2]),
        super_entry(8, four, 0, question=math.nan),
        super_entry(9, four, 0, question=None),
        super_entry(10, four, 0, answer=None, answer_letter=None),
        super_entry(11, four, 3, answer=None),
        super_entry(12, four, 3, answer_letter=""),
        super_entry(13, four, 0, options=None),
        super_entry(14, four, 0, options="[" * 99_000),
        super_entry(15, four, 0, options="['\\d', 'b']"),
    ]
    path = write(tmp_path, "s.jsonl", json_text(entries))
    assert reasons(path) == {
        "the answer and its letter disagree": 1,
        "the answer is not among the options": 1,
        "the answer's letter is not among the options": 1,
        "not 2 to 10 choices": 1,
        "two choices are equal": 1,
        "the choices are not a list of texts": 5,
        "question is not text": 1,
        "no question": 1,
        "no answer": 1,
    }
    assert [q.answer for q in questions(path)] == ["A", "D", "D"]


# ------------------------------------------------------------------------------------------------------------- AIME


@pytest.mark.parametrize(
    ("written", "read_as"),
    [("070", "70"), (" 204 ", "204"), ("$204$", "204"), ("$$ 7 $$", "7"), ("\\boxed{117}", "117"), ("\\(5\\)", "5"),
     ("$\\boxed{1,024}$", "1024"), ("204.0", "204"), ("204.", "204"), (204, "204"), (204.0, "204"), ("-7", "-7"),
     ("−7", "-7"), ("+7", "7"), ("-0", "0"), ("000", "0"), ("1{,}024", "1024"), ("9" * 18, "9" * 18)],
)  # fmt: skip
def test_integers(written, read_as):
    assert integer_of(written) == read_as


@pytest.mark.parametrize(
    "written",
    ["", " ", None, "NaN", math.nan, math.inf, True, 0.5, "0.5", "1/2", "12 or 13", "1,02", "x", "204 apples", "$7",
     "٣", [7], {"a": 7}, "9" * 19, 10**18, "1e3", "0x10", "$" * 1000],
)  # fmt: skip
def test_no_integers(written):
    with pytest.raises(Skip):
        integer_of(written)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_aime_is_read_to_the_byte(tmp_path, form):
    rows = [[f"aime-{i}", f"{i} {HARD[i % len(HARD)]}", f"{i:03d}", HARD[i % len(HARD)]] for i in range(20)]
    header = ["ID", "Problem", "Answer", "Solution"]
    data = csv_text(header, rows) if form == "csv" else json_text(dict(zip(header, row, strict=True)) for row in rows)
    found = questions(write(tmp_path, f"aime_2025.{form}", data))
    for question, (own, problem, answer, solution) in zip(found, rows, strict=True):
        assert (question.id, question.question, question.explanation) == (own, problem, solution)
        assert (question.answer, question.kind, question.choices) == (str(int(answer)), "integer", ())
        assert (question.source, question.domain) == ("aime_2025", "mathematics")


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"id": 7}, "7"),
        ({"id": "2024-II-4"}, "2024-II-4"),
        ({"year": 2024, "problem_number": 4, "part": "II"}, "aime-2024-II-4"),
        ({"Year": 2024.0, "number": "4"}, "aime-2024-4"),
        ({"url": "https://example.org/a b", "id": "https://example.org/a b"}, "https:-example.org-a-b"),
    ],
)
def test_ids_of_problems(tmp_path, entry, name):
    (found,) = questions(write(tmp_path, "aime.jsonl", json_text([{"question": "q", "answer": 5} | entry])))
    assert found.id == name


def test_problems_without_an_id_get_one_of_their_own(tmp_path):
    entries = [{"problem": f"q{i}", "answer": i} for i in range(3)]
    one = questions(write(tmp_path, "a b.jsonl", json_text(entries)))
    assert [q.id for q in one] == [f"a-b-{q.digest[:8]}" for q in one]


# ------------------------------------------------------------------------------------------- lm-evaluation-harness


def sample(doc: dict, target, requests: list, doc_id: int = 0, nested: bool = True, **more) -> dict:
    """One line as ``--log_samples`` writes it; ``nested`` False as older versions did."""
    named = {f"gen_args_{i}": {f"arg_{k}": arg for k, arg in enumerate(args)} for i, args in enumerate(requests)}
    return {"doc_id": doc_id, "doc": doc, "target": target, "arguments": named if nested else requests,
            "resps": [["..."]], "filtered_resps": ["..."], "filter": "none", "metrics": ["acc"], "doc_hash": "0" * 64,
            "acc": 1.0, **more}  # fmt: skip


def scored(prompt: str, *continuations: str) -> list:
    return [[prompt, text] for text in continuations]


def asked(prompt: str) -> list:
    return [[prompt, {"until": ["\n\n"], "do_sample": False}]]


def lm(tmp_path, *entries, name: str = "samples_task_2026-01-31T09-30-00.000001.jsonl") -> list[packs.Question]:
    return questions(write(tmp_path, name, json_text(entries)))


MMLU = {"question": HARD[0] + HARD[1], "subject": "optics", "choices": ["1", "2", "3", "x"], "answer": 1}
ARC = {"id": "Mercury_1", "question": "Which?", "choices": {"text": ["red ", "blue", "dark"], "label": ["1", "2", "3"]}}
LETTERED = scored(f"About optics.\n{MMLU['question'].strip()}\nA. 1 ...\nAnswer:", " A", " B", " C", " D")


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(
    ("doc", "target", "requests", "choices", "answer"),
    [
        (MMLU, "1", LETTERED, MMLU["choices"], "B"),
        (MMLU, 2, LETTERED, MMLU["choices"], "C"),
        (MMLU, "D", LETTERED, MMLU["choices"], "D"),
        (MMLU | {"choices": ["p", "q", "r", "s"]}, "(C)", LETTERED, ["p", "q", "r", "s"], "C"),
        (MMLU | {"choices": ["p", "q", "r", "s"]}, "s", LETTERED, ["p", "q", "r", "s"], "D"),
        (ARC | {"answerKey": "3"}, "2", scored("Q: Which?", " red", " blue", " dark"), ["red ", "blue", "dark"], "C"),
        (ARC | {"answerKey": "2"}, "0", scored("Q: Which?", " blue", " red", " dark"), ["blue", "red ", "dark"], "A"),
        ({"question": "Which?", "options": ["p", "q", "r"]}, "B", asked("Which? A. p"), ["p", "q", "r"], "B"),
        ({"question": "Which?", "options": {"A": "p", "B": "q"}}, "B", asked("Which? A. p"), ["p", "q"], "B"),
        ({"question": "Which?", "choices": [{"text": "p", "label": "A"}, {"text": "q", "label": "B"}]}, "B",
         asked("Which?"), ["p", "q"], "B"),
        ({"query": "He goes", "gold": 1}, "1", scored("He goes", " up", " down"), ["up", "down"], "B"),
        ({"query": "He"}, "0", [*scored("He", " up", " down"), ["", " up"], ["", " down"]], ["up", "down"], "A"),
    ],
)  # fmt: skip
def test_multiple_choice_of_the_harness(tmp_path, doc, target, requests, choices, answer, nested):
    (found,) = lm(tmp_path, sample(doc, target, requests, 12, nested))
    assert (found.kind, list(found.choices), found.answer, found.id) == ("choice", choices, answer, "task-12")
    assert found.question == doc.get("question", doc.get("query")) and found.source == "task"


@pytest.mark.parametrize(
    ("target", "answer"),
    [("Half of it.\n#### 72", "72"), ("#### 1,234", "1234"), ("-50", "-50"), (" 204 ", "204"), (7, "7"), ("$9$", "9")],
)
def test_whole_numbers_of_the_harness(tmp_path, target, answer):
    doc = {"question": HARD[1], "answer": "...", "level": "3"}
    (found,) = lm(tmp_path, sample(doc, target, asked(f"Q: 1+1?\nA: 2\n\nQ: {HARD[1]}\nA:")))
    assert (found.kind, found.answer, found.question, found.choices) == ("integer", answer, HARD[1], ())
    assert (found.domain, found.difficulty) == ("task", "3")


@pytest.mark.parametrize(
    ("doc", "prompt", "question"),
    [
        (
            {"question": "Is it?", "passage": "The cat is."},
            "The cat is.\nQuestion: Is it?\nAnswer:",
            "The cat is.\n\nIs it?",
        ),
        ({"question": "Is it?", "context": "unused"}, "Question: Is it?\nAnswer:", "Is it?"),
        ({"question": "cause", "premise": "It fell"}, "It fell because", "It fell because"),
        ({"question": "It  is\nso?"}, "Q: It is so?", "It  is\nso?"),
        ({"problem": 'a "b"\nc'}, json.dumps([{"role": "user", "content": 'Solve: a "b"\nc'}]), 'a "b"\nc'),
        ({"Question": "the first?", "question": "the second?"}, "the first? the second?", "the first?"),
        (
            {"stem": "x"},
            json.dumps([{"role": "system", "content": "Be"}, {"role": "user", "content": "brief"}]),
            "Be\n\nbrief",
        ),
    ],
)
def test_the_question_is_what_document_and_prompt_agree_on(tmp_path, doc, prompt, question):
    (found,) = lm(tmp_path, sample(doc, "7", asked(prompt)))
    assert found.question == question
    (found,) = lm(tmp_path, sample(doc, "7", [[[prompt], {}]], nested=False))
    assert found.question == question


def test_a_document_graded_with_two_filters_is_one_question(tmp_path):
    entries = [sample({"question": f"q{i}"}, str(i), asked(f"q{i}"), i, filter=f) for f in "ab" for i in range(3)]
    path = write(tmp_path, "samples_gsm8k.jsonl", json_text(entries))
    assert [q.id for q in questions(path)] == ["gsm8k-0", "gsm8k-1", "gsm8k-2"]
    assert reasons(path) == {"duplicate question": 3}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (sample({"question": "q"}, "Paris", asked("q")), "the answer is not an integer"),
        (sample({"question": "q"}, "", asked("q")), "no answer"),
        (sample({"question": "q"}, ["7"], asked("q")), "several targets"),
        (sample({"question": "q"}, math.nan, asked("q")), "the answer is not an integer"),
        (sample({"question": "q"}, "2", []), "no choices, and a target that may be the position of one"),
        (sample({}, "2", []), "neither a question nor a prompt"),
        (sample({}, "2", asked("<|im_start|>user")), "no question, and a prompt with the markup of another model"),
        ({"doc": "x", "target": "2", "doc_id": 1}, "no document"),
        (sample(MMLU, "7", LETTERED), "the target is none of the choices"),
        (sample(MMLU | {"answer": "?"}, "1", LETTERED), "the target can be read in several ways"),
        (sample(MMLU | {"answer": 3}, "1", LETTERED), "the target can be read in several ways"),
        (sample(ARC, "2", scored("Which?", " red", " blue", " dark")), "the target can be read in several ways"),
        (sample(ARC | {"answerKey": "1"}, "2", scored("Which?", " red", " blue", " dark")),
         "the target and the key of the document disagree"),
        (sample({"question": "q"}, "1", scored("q", " A", " B")),
         "the choices are letters, their texts are in the prompt only"),
        (sample({}, "1", [["one", " same"], ["other", " same"]]), "the choices are prompts, not continuations"),
        (sample(MMLU, "1", scored("q", " A", " B")), "document and requests have different numbers of choices"),
        (sample(MMLU, "1", scored("q", "p", "q", "r", "s")), "document and requests have different choices"),
        (sample({"question": "q"}, "0", scored("q", *[str(i) * 2 for i in range(11)])), "not 2 to 10 choices"),
        (sample({"question": "q"}, "0", scored("q", " yes", " yes ")), "two choices are equal"),
        (sample({"question": "q", "options": "a) 1"}, "1", asked("q")), "choices in an unknown form"),
    ],
)  # fmt: skip
def test_samples_of_the_harness_that_are_not_clear_are_left_out(tmp_path, entry, reason):
    good = sample({"question": "fine"}, "7", asked("fine"), 99)
    assert reasons(write(tmp_path, "samples_t.jsonl", json_text([good, entry]))) == {reason: 1}


def test_tasks_by_the_names_of_their_files():
    assert lm_eval.task("samples_mmlu_world_religions_2026-01-31T09-30-00.123456") == "mmlu_world_religions"
    assert lm_eval.task("samples_gsm8k") == "gsm8k" and lm_eval.task("mine") == "mine"


# -------------------------------------------------------------------------------------------------- ids and licences


def test_of_two_questions_with_one_id_the_same_is_left_out_and_another_is_renamed(tmp_path):
    entries = [{"id": "a1", "problem": f"q{i}", "answer": 1} for i in (0, 1, 0, 1)]
    pack, (told,) = collect([write(tmp_path, "p.jsonl", json_text(entries))], None, "test")
    one, other = pack.questions
    assert (one.id, other.id) == ("a1", f"a1.{other.digest[:8]}") and told.renamed == [other.id]
    assert told.skipped["duplicate question"].count == 2


@pytest.mark.parametrize("own", ["x" * 300, "a/b c", "é-1", "12", "..."])
def test_ids_are_made_fit_for_a_pack_and_stay_apart(own):
    made, other = identity(own), identity(own + "1")
    assert made != other
    question = packs.Question(made, "s", "d", "", "integer", "q", (), "1")
    assert packs.problem(question) is None


def test_licences(tmp_path):
    entries = [{"problem": "a", "answer": 1, "license": "MIT"}, {"problem": "b", "answer": 1}]
    path = write(tmp_path, "p.jsonl", json_text(entries))
    pack, _ = collect([path], None, "test")
    assert [q.licence for q in pack.questions] == ["MIT", "not stated in the imported file"]
    assert pack.header.licence == "MIT; not stated in the imported file"
    pack, _ = collect([path], None, "test", "CC0")
    assert {q.licence for q in pack.questions} == {"CC0"} and pack.header.licence == "CC0"


def test_letters():
    assert [letter_of(text, "abc") for text in ("A", "c", "(B)", " C ", "D", "AB", "", "(A", "Ａ")] == [
        0, 2, 1, 2, None, None, None, None, None,
    ]  # fmt: skip
