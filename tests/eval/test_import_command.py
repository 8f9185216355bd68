"""``ds4-eval import``: what it prints and writes; files that are damaged or hostile are refused in one line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.errors import DataError, UsageError
from ds4ref.eval import packs
from ds4ref.eval.cli_import import NOTE, import_pack
from ds4ref.eval.imports import shapes, tables
from ds4ref.eval.imports.collect import collect
from ds4ref.eval.imports.records import Skip

from .files import AIME, csv_text, json_text, questions, reasons, write
from .test_imports_of_packs import GPQA, gpqa_rows

# ------------------------------------------------------------------------------------------------------ hostile files


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("a.csv", b"", ": empty"),
        ("a.jsonl", b"\n \n", ": empty"),
        ("a.csv", "problem,answer\nq,1\n".encode("utf-16"), ": UTF-16, not UTF-8: save it as UTF-8 first"),
        ("a.csv", "problem,answer\nq,1\n".encode("utf-16-le"), ":1: a zero byte: not UTF-8 text"),
        ("a.csv", b"problem,answer\nq,1\nna\xefve,2\n", ":3: not UTF-8: byte 0xef"),
        ("a.csv", b'problem,answer\nq,1\n"q,2\n', ":3: not CSV: unexpected end of data"),
        ("a.csv", b'problem,answer\n"q" x,2\n', ":2: not CSV: ',' expected after '\"'"),
        ("a.csv", b"problem,answer\nq,1\n" + b"x" * 200_000 + b",2\n", ":3: not CSV: field larger than field limit"),
        ("a.csv", b"problem,answer,Answer\nq,1,2\n", ":1: column answer is there twice"),
        ("a.csv", b'"problem,answer\nq,1\n', ":1: not CSV: unexpected end of data"),
        ("a.csv", b'\n"problem" x,answer\nq,1\n', ":2: not CSV: "),
        ("a.csv", b",,\n ,\n", ": empty"),
        ("a.csv", b"what,why\nq,1\n", ": no known format has these columns (what, why): name one with --source: ds4,"),
        ("a.jsonl", AIME + b"[1]\n", ":2: not a JSON object"),
        ("a.jsonl", AIME + b'{"problem": "q', ":2: not JSON: "),
        ("a.jsonl", AIME + b'{"a":' * 200_000, ":2: not JSON: nested too deeply"),
        ("a.jsonl", AIME + b'{"answer": ' + b"9" * 5000 + b"}", ":2: not JSON: "),
        ("a.jsonl", b"[" + AIME, ":1: a JSON array: JSON Lines are needed"),
        ("a.jsonl", b'{"x": 1}\n', ": no known format has these columns (x)"),
        (
            "a.jsonl",
            b'{"problem": "q", "answer": "one"}\n',
            ": no question: the answer is not an integer (1, line 1: one)",
        ),
        ("a.csv", b"problem,answer\n", ": no question: no record"),
        ("a.jsonl", b'{"problem": "' + b"x" * (17 << 20), ":1: longer than 16 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, name, data, error):
    path = write(tmp_path, name, data)
    with pytest.raises(DataError) as caught:
        collect([path], None, "test")
    assert str(caught.value).startswith(f"{path}{error}") and "\n" not in str(caught.value)


def test_a_line_of_gigabytes_is_not_read_to_its_end(tmp_path):
    path = write(tmp_path, "a.jsonl", AIME)
    with open(path, "r+b") as file:
        file.truncate(4 << 30)  # sparse: takes no disk
    with pytest.raises(DataError, match=":2: a zero byte"):
        collect([path], None, "test")


@pytest.mark.parametrize("shape", [shape.name for shape in shapes.SHAPES])
def test_a_csv_file_without_a_column_that_its_shape_needs(tmp_path, shape):
    path = write(tmp_path, "a.csv", b"what,why\n1,2\n")
    with pytest.raises(DataError, match=r"a\.csv:1: no column \w+.* among what, why"):
        collect([path], shape, "test")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    for name, data in (("a.csv", b"problem,answer\nq,1\n"), ("b.jsonl", AIME)):
        assert len(questions(write(tmp_path, name, b"\xef\xbb\xbf" + data))) == 1


def test_half_a_surrogate_pair_is_no_text(tmp_path):
    path = write(tmp_path, "a.jsonl", AIME + b'{"problem": "\\ud800", "answer": 2}\n')
    assert reasons(path) == {"half a surrogate pair: not valid Unicode": 1}


@given(st.binary(max_size=300), st.sampled_from([None, *shapes.NAMES]))
def test_any_bytes_are_a_pack_or_one_line(tmp_path_factory, data, shape):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"\A.*any.*\Z"):
        collect([path], shape, "test")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["A", "1", "q", "", "(B)", "[{", "#### 3"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "label", "A", "question", "choices", "arg_0", "arg_1"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
CELLS = ["question", "options", "answer", "answer_letter", "uuid", "id", "doc", "target", "arguments", "doc_id",
         "year", "number", "licence", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3))]  # fmt: skip


@pytest.mark.thorough
@given(st.lists(st.dictionaries(st.sampled_from(CELLS), JSON), max_size=3), st.sampled_from(shapes.SHAPES))
def test_records_of_any_values_are_questions_or_reasons(tmp_path_factory, entries, shape):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(AIME.replace(b"q", b"once") + b"".join(json.dumps(e).encode() + b"\n" for e in entries))
    for found in shapes.read(path, shape.name):
        assert isinstance(found.item, Skip) or found.item.question.strip()


def test_the_limit_of_a_line_leaves_room_for_a_line_of_a_pack():
    assert tables.LONGEST_LINE > packs.LONGEST_LINE


# ---------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_too_long_for_a_line_of_a_pack_is_left_out(here, monkeypatch):
    monkeypatch.setattr(packs, "LONGEST_LINE", 2000)
    entries = [{"problem": "x" * n, "answer": 1, "licence": f"licence {n}"} for n in range(1700, 2000)]
    write(here, "long.jsonl", json_text(entries))
    assert import_pack(["long.jsonl"]) == 0
    read = packs.read(here / "long.pack.jsonl")
    assert 100 < len(read.questions) < 300
    assert reasons(here / "long.jsonl") == {"longer than a line of a pack may be": 300 - len(read.questions)}


def test_the_command_writes_a_pack_that_is_read_again(here, capsys):
    write(here, "gpqa_diamond.csv", csv_text(GPQA, gpqa_rows(5)))
    write(here, "aime.jsonl", AIME + b'{"problem": "r", "answer": "?"}\n')
    assert import_pack(["gpqa_diamond.csv", "aime.jsonl"]) == 0
    said = capsys.readouterr()
    assert "GPQA Diamond" in said.out and said.out.endswith(NOTE + "\n")
    assert said.err == "ds4-eval import: aime.jsonl: 1 skipped: the answer is not an integer (line 2: ?)\n"
    pack = packs.read(here / "gpqa_diamond.pack.jsonl")
    assert (pack.header.pack, pack.header.version, len(pack.questions)) == ("gpqa_diamond", 1, 6)
    assert "gpqa_diamond.csv (GPQA, sha256:" in pack.header.about and "aime.jsonl (problems" in pack.header.about
    assert pack.header.licence == "CC BY 4.0; not stated in the imported file"
    assert all(question.licence for question in pack.questions)


def test_json_is_one_line_and_nothing_else(here, capsys):
    write(here, "a.jsonl", AIME + b'{"problem": "r", "answer": "?"}\n' * 5)
    assert import_pack(["a.jsonl", "--json", "-o", "out.jsonl", "--name", "mine", "--licence", "CC0"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["pack"], told["file"], told["questions"], told["skipped"]) == ("mine", "out.jsonl", 1, 5)
    assert told["files"][0]["skipped"] == [
        {"reason": "the answer is not an integer", "count": 5, "where": [f"line {i}: ?" for i in (2, 3, 4)]}
    ]
    assert told["files"][0]["questions"] == 1 and told["files"][0]["shape"] == "aime"
    assert told["sources"] == {"a": {"integer": 1}} and told["licence"] == "CC0" and told["note"] == NOTE
    assert told["digest"] == packs.read(Path("out.jsonl")).digest


def test_a_pack_that_is_there_is_kept(here, capsys):
    write(here, "a.jsonl", AIME)
    write(here, "a.pack.jsonl", b"precious")
    with pytest.raises(DataError, match="a.pack.jsonl exists"):
        import_pack(["a.jsonl"])
    assert (here / "a.pack.jsonl").read_bytes() == b"precious"
    assert import_pack(["a.jsonl", "--force"]) == 0
    assert len(packs.read(here / "a.pack.jsonl").questions) == 1


def test_nothing_is_written_where_nothing_is_found(here):
    write(here, "a.jsonl", b'{"problem": "q", "answer": "?"}\n')
    with pytest.raises(DataError, match="no question"):
        import_pack(["a.jsonl"])
    assert [path.name for path in here.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("argv", "kind", "error"),
    [
        ([], UsageError, "name a file"),
        (["a.jsonl", "-o", "./a.jsonl", "--force"], UsageError, "is one of the files to import"),
        (
            ["a.jsonl", "-o", str(Path(packs.__file__).parent / "questions" / "x.jsonl")],
            UsageError,
            "inside the program",
        ),
        (["a.jsonl", "-o", "nowhere/x.jsonl"], DataError, "no folder"),
        (["a.jsonl", "--source", "mmlu"], UsageError, "choose from ds4, aime, gpqa, lm-eval, supergpqa, auto"),
        (["a.jsonl", "--name", "ds4ref"], UsageError, "this is the name of a built-in pack"),
        (["a.jsonl", "--name", "a b"], UsageError, "letters, digits"),
        (["b.jsonl"], DataError, "b.jsonl: No such file"),
        (["."], DataError, "not a plain file"),
        (["a.jsonl", "--source", "ds4"], DataError, "no table of questions"),
        (["a.jsonl", "--source", "gpqa"], DataError, "no question: no correct answer|no question: no question"),
    ],
)
def test_wrong_usage_is_one_line(here, argv, kind, error):
    write(here, "a.jsonl", AIME)
    with pytest.raises(kind, match=error):
        import_pack(argv)


def test_git_does_not_see_imported_packs():
    root = Path(packs.__file__).parents[1]
    done = subprocess.run(["git", "check-ignore", "-q", "gpqa.pack.jsonl"], cwd=root, capture_output=True)
    if done.returncode == 128:
        pytest.skip("not a git checkout")
    assert done.returncode == 0
