"""Packs: what is read, what is refused, and what makes a question another question."""

import msgspec
import pytest

from ds4ref.errors import DataError, UsageError
from ds4ref.eval import packs
from ds4ref.eval.packs import Header, Pack, Question, line_set, near_duplicates, problem, read, stamped, write


def question(**changed) -> Question:
    plain = Question(
        "q-1", "s", "d", "hard", "choice", "Which?", ("one", "two", "three"), "B", distractors=("x", "", "y")
    )
    return msgspec.structs.replace(plain, **changed)


def test_a_pack_is_read_as_it_was_written(tmp_path):
    pack = Pack(Header("p", 3, "canary", "MIT", "about", {"tokens": 5}), (question(), question(id="q-2", answer="C")))
    write(pack, tmp_path / "p.jsonl")
    assert read(tmp_path / "p.jsonl") == pack
    assert packs.load(str(tmp_path / "p.jsonl")) == pack


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"answer": "D"}, "must be one of the letters ABC"),
        ({"answer": ""}, "must be one of the letters"),
        ({"answer": "AB"}, "must be one of the letters"),
        ({"choices": ("one",)}, "2 to 10 choices"),
        ({"choices": tuple("abcdefghijk")}, "2 to 10 choices"),
        ({"choices": ("one", "one", "two")}, "different"),
        ({"choices": ("one", " ", "two")}, "not empty"),
        ({"distractors": ("x",)}, "as many as choices"),
        ({"id": "a b"}, "an id is"),
        ({"question": " "}, "must not be empty"),
        ({"kind": "integer"}, "has no choices"),
        ({"kind": "integer", "choices": (), "distractors": (), "answer": "007"}, "is not an integer"),
        ({"kind": "integer", "choices": (), "distractors": (), "answer": "1.5"}, "is not an integer"),
        ({"kind": "lines", "choices": (), "distractors": (), "answer": "4-"}, "names no lines"),
        ({"kind": "lines", "choices": (), "distractors": (), "answer": "0,4"}, "names no lines"),
    ],
)
def test_unusable_questions_are_named(tmp_path, changed, said):
    bad = question(**changed)
    assert said in problem(bad)
    write(Pack(Header("p", 1), (question(id="good"), bad)), tmp_path / "p.jsonl")
    with pytest.raises(DataError, match=r"p.jsonl:3: question .*" + said):
        read(tmp_path / "p.jsonl")


@pytest.mark.parametrize("kind, answer", [("integer", "0"), ("integer", "-12"), ("lines", "0"), ("lines", "3, 9-10")])
def test_usable_answers(kind, answer):
    assert problem(question(kind=kind, answer=answer, choices=(), distractors=())) is None


def test_lines():
    assert line_set("4-6") == line_set("6-4") == {4, 5, 6}
    assert line_set("3,9-10") == {3, 9, 10}
    assert line_set("0") == {0}
    assert line_set("") is None and line_set("a") is None and line_set("0-2") is None


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b'{"pack":"p","version":1}\n', "no question"),
        (b'{"pack":"p"}\n', "1: Object missing required field"),
        (b'{"pack":"p","version":1}\n{"id":1}\n', "2: "),
        (b'{"pack":"p","version":1}\nnot json\n', "2: "),
        (b'{"pack":"p","version":1}\n' + b"[" * 100_000 + b"\n", "2: "),
        (b'\xff\xfe{"pack"', "1: "),
    ],
)
def test_damaged_files_are_one_line(tmp_path, content, said):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "LONGEST_LINE", 1000)
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"pack":"p","version":1}\n' + b" " * 2000)
    with pytest.raises(DataError, match=":2: longer than"):
        read(path)


def test_an_id_twice(tmp_path):
    write(Pack(Header("p", 1), (question(), question(answer="A"))), tmp_path / "p.jsonl")
    with pytest.raises(DataError, match="is there twice"):
        read(tmp_path / "p.jsonl")


def test_an_unknown_pack_is_told_what_there_is(tmp_path):
    with pytest.raises(UsageError, match="choose from .*nano"):
        packs.load("nonsense")


def test_what_is_asked_and_what_is_right_make_the_id():
    same = question(explanation="other", domain="other", difficulty="other", distractors=("", "", ""))
    assert stamped(same) == stamped(question())
    others = [question(question="What?"), question(answer="A"), question(choices=("one", "two", "four"))]
    assert len({stamped(q) for q in [*others, question()]}) == 4


def test_near_duplicates_are_found_although_the_numbers_differ():
    one = question(id="a", question="A train of 12 cars leaves the town at noon and needs 3 hours to the next one.")
    two = question(id="b", question="A train of 15 cars leaves the town at noon and needs 4 hours to the next one.")
    three = question(id="c", question="In a box are seven red and nine blue balls; four are drawn without looking.")
    assert [pair[:2] for pair in near_duplicates([one, two, three])] == [("a", "b")]
