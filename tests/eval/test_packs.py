"""Packs: what is read, what is refused, and what makes a question another question."""

import msgspec
import pytest

from ds4ref.errors import DataError, UsageError
from ds4ref.eval import library
from ds4ref.eval.packs import Header, Pack, Question, line_set, problem, read, stamped, write

PLAIN = {"choices": (), "distractors": ()}
TOOLED = {**PLAIN, "kind": "call", "answer": '{"name":"t","arguments":{}}', "tools": ("{}",)}


def question(**changed) -> Question:
    plain = Question(
        "q-1", "s", "d", "hard", "choice", "Which?", ("one", "two", "three"), "B", distractors=("x", "", "y")
    )
    return msgspec.structs.replace(plain, **changed)


def test_a_pack_is_read_as_it_was_written(tmp_path):
    pack = Pack(Header("p", 3, "canary", "MIT", "about", {"tokens": 5}), (question(), question(id="q-2", answer="C")))
    write(pack, tmp_path / "p.jsonl")
    assert read(tmp_path / "p.jsonl") == library.load(str(tmp_path / "p.jsonl")) == pack


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"answer": "D"}, "must be one of the letters ABC"),
        ({"answer": "AB"}, "must be one of the letters"),
        ({"choices": ("one",)}, "2 to 10 choices"),
        ({"choices": tuple("abcdefghijk")}, "2 to 10 choices"),
        ({"choices": ("one", "one", "two")}, "different"),
        ({"choices": ("one", " ", "two")}, "not empty"),
        ({"distractors": ("x",)}, "as many as choices"),
        ({"id": "a b"}, "an id is"),
        ({"question": " "}, "must not be empty"),
        ({"kind": "integer"}, "has no choices"),
        ({**PLAIN, "kind": "integer", "answer": "007"}, "is not an integer"),
        ({**PLAIN, "kind": "lines", "answer": "0,4"}, "names no lines"),
        ({**PLAIN, "kind": "exact", "answer": " x"}, "must not be empty or have spaces"),
        ({**TOOLED, "answer": "{}"}, "an answer with name and arguments"),
        ({**TOOLED, "tools": ()}, "tools are needed"),
        ({**TOOLED, "tools": ("[]",)}, "tools are JSON objects"),
        ({**TOOLED, "called": "x"}, "a call has a name"),
        ({**TOOLED, "kind": "integer", "answer": "5"}, "kind integer has no tools"),
        ({"think": "much"}, "unknown thinking mode"),
        ({"guess": 1.0}, "guess is a probability"),
    ],
)
def test_unusable_questions_are_named(tmp_path, changed, said):
    bad = question(**changed)
    assert said in problem(bad)
    write(Pack(Header("p", 1), (question(id="good"), bad)), tmp_path / "p.jsonl")
    with pytest.raises(DataError, match=r"p.jsonl:3: question .*" + said):
        read(tmp_path / "p.jsonl")


@pytest.mark.parametrize("kind, answer", [("integer", "-12"), ("lines", "0"), ("lines", "3, 9-10"), ("text", "a b")])
def test_usable_answers(kind, answer):
    assert problem(question(kind=kind, answer=answer, **PLAIN)) is None


def test_lines():
    assert line_set("4-6") == line_set("6-4") == {4, 5, 6} and line_set("3,9-10") == {3, 9, 10}
    assert line_set("0") == {0} and line_set("") is line_set("a") is line_set("0-2") is None


HEAD = b'{"pack":"p","version":1}\n'


@pytest.mark.parametrize(
    "content, said",
    [
        (HEAD, "no question"),
        (b'{"pack":"p"}\n', "1: Object missing required field"),
        (HEAD + b'{"id":1}\n', "2: "),
        (HEAD + b"not json\n", "2: "),
        (HEAD + b"[" * 100_000 + b"\n", "2: "),
        (HEAD + b" " * (4 << 20) + b"{}\n", "2: longer than"),
    ],
)
def test_damaged_files_are_one_line(tmp_path, content, said):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        library.load(str(path))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_an_id_twice_and_an_unknown_pack(tmp_path):
    write(Pack(Header("p", 1), (question(), question(answer="A"))), tmp_path / "p.jsonl")
    with pytest.raises(DataError, match="is there twice"):
        read(tmp_path / "p.jsonl")
    with pytest.raises(UsageError, match="choose from .*nano"):
        library.load("nonsense")


def test_what_is_asked_and_what_is_right_make_the_id():
    same = question(
        explanation="other", domain="other", difficulty="other", distractors=("", "", ""), references=("a",)
    )
    assert stamped(same) == stamped(question())
    others = [question(question="What?"), question(answer="A"), question(choices=("one", "two", "four"))]
    assert len({stamped(q) for q in [*others, question()]}) == 4
