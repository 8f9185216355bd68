"""Questions that the user has: a question and an answer a line, other benchmarks' files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ds4ref.errors import DataError
from ds4ref.eval import library, packs
from ds4ref.eval import log as logs
from ds4ref.eval.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ask-your-own-questions.md"
Q = '"question": "Why?"'
WRONG = "Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3"


def load(tmp_path, text: str | bytes):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return library.load(str(path))


def test_the_page_s_example_is_asked_graded_and_resumed(tmp_path, nano_path):
    (block,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path, log = tmp_path / "questions.jsonl", tmp_path / "run.jsonl"
    path.write_text(block)
    run = ["-m", nano_path, "--pack", str(path), "-n", "2", "--nothink", "--no-store", "--plain", "-o", str(log)]
    assert main([*run, "--limit", "2"]) == 0
    assert main(["--resume", str(log), "--pack", str(path), "--limit", "3", "--plain", "--no-store"]) == 0
    found = logs.read(log)
    assert [(q.kind, q.answer, q.source) for q in found.header.questions] == [
        ("text", "Paris", "questions"), ("integer", "8", "questions"), ("choice", "B", "questions")
    ]  # fmt: skip
    assert len(found.samples) == 3 and all(s.status == "done" for s in found.samples)
    assert found.samples[0].prompt.endswith("write nothing after it:\nAnswer: <your answer>")


@pytest.mark.parametrize(
    ("line", "kind", "answer"),
    [
        (f'{{{Q}, "answer": 42}}', "integer", "42"),
        (f'{{{Q}, "answer": "-42"}}', "integer", "-42"),
        (f'{{{Q}, "answer": 42.0}}', "integer", "42"),
        (f'{{{Q}, "answer": "007"}}', "integer", "7"),
        (f'{{{Q}, "answer": 3.50}}', "text", "3.5"),
        (f'{{{Q}, "answer": {10**18}}}', "text", str(10**18)),
        (f'{{{Q}, "answer": " Zürich "}}', "text", "Zürich"),
        (f'{{{Q}, "answer": "東京", "note": {{"any": 1}}}}', "text", "東京"),
        (f'{{{Q}, "answer": "x", "choices": []}}', "text", "x"),
        (f'{{{Q}, "answer": "b", "choices": ["one", "two"]}}', "choice", "B"),
        (f'{{{Q}, "answer": "two", "choices": ["one", "two"]}}', "choice", "B"),
        (f'{{{Q}, "answer": "(A)", "options": ["one", "two"]}}', "choice", "A"),
        (f'{{{Q}, "answer": 2, "choices": [3, 2, 1.5]}}', "choice", "B"),
        (f'{{{Q}, "answer": "A", "choices": ["A", "B"]}}', "choice", "A"),
        ('{"Problem": "Why?", "ANSWER": "070", "year": 2025}', "integer", "70"),  # AIME
        (f'{{{Q}, "options": ["one", "two"], "answer": "two", "answer_letter": "B", "uuid": "x"}}', "choice", "B"),
        ("question,options,answer\nWhy?,\"['one', 'it''s']\",one\n", "choice", "A"),  # SuperGPQA as CSV
        (f"Question,Correct Answer,{WRONG}\nWhy?,a,b,c,d\n", "choice", "B"),  # GPQA
    ],
)
def test_what_a_line_may_say(tmp_path, line, kind, answer):
    (question,) = load(tmp_path, line).questions
    assert (question.kind, question.answer, question.question) == (kind, answer, "Why?")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"question": "a", "answer": "x"}\n\n{"question": "b"}\n', ':3: no "answer" (the fields here: question)'),
        ('{"q": "a", "answer": "x"}', ':1: no "question" (the fields here: answer, q): "question" and "answer" are'),
        (f'{{{Q}, "answer": null}}', ':1: no "answer"'),
        (f'{{{Q}, "answer": ""}}', ':1: no "answer"'),
        ('{"question": " ", "answer": "x"}', ":1: question is blank"),
        ('{"question": 5, "answer": "x"}', ":1: question is not text: 5"),
        (f'{{{Q}, "answer": ["x"]}}', ':1: "answer" must be a text or a number, not ["x"]'),
        (f'{{{Q}, "answer": true}}', ':1: "answer" must be a text or a number, not true'),
        (f'{{{Q}, "answer": NaN}}', ':1: "answer" is no number'),
        (f'{{{Q}, "answer": "?!"}}', ":1: a text to be answered is one line with a letter or a digit"),
        (f'{{{Q}, "answer": "a\\nb"}}', ":1: a text to be answered is one line with a letter or a digit"),
        (f'{{{Q}, "answer": "D", "choices": ["one", "two"]}}', ':1: the answer "D" is neither the letter nor the text'),
        (f'{{{Q}, "answer": "A", "choices": ["B", "A"]}}', ':1: the answer "A" is the letter of one choice and the te'),
        (f'{{{Q}, "answer": "A", "choices": ["one"]}}', ":1: 2 to 10 choices are needed, not 1"),
        (f'{{{Q}, "answer": "A", "choices": ["one", "one "]}}', ":1: two choices are equal"),
        (f'{{{Q}, "answer": "A", "choices": "one, two"}}', ":1: the choices are not a list of texts: one, two"),
        (f'{{{Q}, "answer": "A", "choises": ["a", "b"]}}', ':1: unknown field "choises" (did you mean "choices"?)'),
        (f'{{{Q}, "answer": "1", "kind": "lines"}}', ':1: a line with "kind" belongs in a pack, whose first line is'),
        (f'{{{Q}, "answer": "\\ud800x"}}', ":1: half a surrogate pair"),
        (f'{{{Q}, "answer": "x", "id": 7}}\n{{{Q}, "answer": "y", "id": "7"}}', ":2: the same question or id 7 as in "),
        (f'{{{Q}, "answer": "x"}}\n{{{Q}, "answer": ', ":2: not JSON"),
        (f'{{{Q}, "answer": "x"}}\n[1]', ":2: not a JSON object"),
        ("\n \n", ": empty"),
        (b"\xff\xfe{", ": not UTF-8: byte 0xff"),
        ("[]", ": no question"),
        ('[{"question": "a", "answer": "b"}, 7]', ": entry 2: not a JSON object"),
        ("[{]", ": not JSON"),
        ("question,result\na,b\n", ':2: no "answer" (the fields here: question, result)'),
        ('question,answer\n"a\nb",c\na\n', ":4: not 2 cells, as the header has"),
        ('question,answer\n"a,b\n', ":1: not CSV"),
        ('{"pack": 5}', ":1: "),
    ],
)
def test_the_first_wrong_line_is_named_with_what_it_lacks(tmp_path, lines, said):
    with pytest.raises(DataError) as refused:
        load(tmp_path, lines)
    assert str(refused.value).startswith(f"{tmp_path / 'mine.jsonl'}{said}"), str(refused.value)


def test_a_byte_order_mark_a_list_and_csv_are_the_same_questions(tmp_path):
    entries = [
        {"question": "Was, ist?", "answer": "Käse"},
        {"question": "One?", "answer": "two", "choices": ["two", "3"]},
    ]
    lines = "\n\n".join(json.dumps(entry) for entry in entries)
    plain = load(tmp_path, lines)
    csv = 'question,answer,choices\r\n"Was, ist?",Käse,\r\n \r\nOne?,two,"[""two"", ""3""]"\r\n'
    for text in ("\ufeff" + lines + "\n", lines.replace("\n", "\r\n"), json.dumps(entries, indent=2), csv):
        assert load(tmp_path, text).questions == plain.questions, text
    assert [q.id for q in plain.questions] == [packs.stamped(q) for q in plain.questions]
    assert load(tmp_path, "\n".join(lines.split("\n\n")[::-1])).questions == plain.questions[::-1], "ids stay"


def test_a_pack_is_still_a_pack_behind_blank_lines(tmp_path):
    packs.write(library.load("nano"), tmp_path / "p.jsonl")
    assert load(tmp_path, b"\n" + (tmp_path / "p.jsonl").read_bytes()) == library.load("nano")
