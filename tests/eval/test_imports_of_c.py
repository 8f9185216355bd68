"""Tables of C: what the test wrote comes back to the byte, a compiler agrees, and what is no table is told apart."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.errors import DataError
from eval.imports import ds4
from eval.imports.clexer import CError, literal, read
from eval.imports.records import Skip
from eval.packs import Question

from .ctext import FIELDS, HEAD, MAIN, literals, table

HARD = [
    "say \"no\"\n\tand C:\\temp\\x41 ??= ??/ 'a' \\u0041",
    "$\\frac{\\alpha}{\\beta}$ 100% {a, b}; /* no comment */ // nor this",
    "naïve Ωμέγα 漢字 \U0001f600 \xa0\u2028end",
    "\a\b\f\v\r\n\t\x1b\x7f\x01" + "7" + "\x02" + "abc",
    "1. int f(char *p) {\n2.   p[4] = 0;\n3. }\n",
    " spaces at both ends ",
    "#define X 1\n#if 0",
    "a" * 400,
]


def values(rng: random.Random, count: int) -> list[dict[str, str | list[str]]]:
    """Records of all kinds, with hard texts."""
    made: list[dict[str, str | list[str]]] = []
    for i in range(count):
        source = ["GPQA Diamond", "SuperGPQA", "AIME2025", "COMPSEC"][i % 4]
        choices = []
        if i % 4 < 2:
            choices = [f"{k}: {rng.choice(HARD)}" for k in range(rng.choice([2, 4, 9, 10]))]
        answer = "ABCDEFGHIJ"[rng.randrange(len(choices))] if choices else ["70", "0", "907"][i % 3]
        answer = ["3", "12-15", "4,7-9"][i % 3] if source == "COMPSEC" else answer
        question = f"{i} {rng.choice(HARD)}{rng.choice(HARD)}"
        made.append({"source": source, "id": f"rec-{i:03d}", "domain": rng.choice(["Physics", "日本"]), "title": "t, {",
                     "question": question, "choice": choices, "answer": answer})  # fmt: skip
    return made


def imported(tmp_path, text: str | bytes) -> list[Question | Skip]:
    path = tmp_path / "ds4_eval.c"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [found.item for found in ds4.questions(path)]


def one(tmp_path, element: str, head: str = HEAD.replace("#elif 1", "#endif")) -> Question | Skip:
    (found,) = imported(tmp_path, f"{head}const eval_case cases[] = {{\n{element}\n}};")
    return found


def strings(text: bytes) -> bytes:
    return b"".join(literal(token) for token in read(text).tokens)


# ------------------------------------------------------------------------------------------------------- to the byte


@pytest.mark.parametrize("seed", range(12))
def test_a_table_is_read_to_the_byte(tmp_path, seed):
    rng = random.Random(seed)
    wanted = values(rng, 24)
    found = imported(tmp_path, table(wanted, rng))
    assert [q for q in found if isinstance(q, Skip)] == []
    for question, value in zip(found, wanted, strict=True):
        assert isinstance(question, Question)
        assert question.question == value["question"] and list(question.choices) == value["choice"]
        assert (question.source, question.id) == (value["source"], value["id"])
        assert (question.domain, question.answer) == (value["domain"], value["answer"])
        kind = {"GPQA Diamond": "choice", "SuperGPQA": "choice", "AIME2025": "integer", "COMPSEC": "lines"}
        assert question.kind == kind[str(value["source"])]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here to agree with")
def test_a_compiler_reads_the_same(tmp_path):
    rng = random.Random(2026)
    wanted = values(rng, 160)
    text = table(wanted, rng)
    (tmp_path / "both.c").write_bytes((text + MAIN).encode())
    subprocess.run(["cc", "-w", "-std=gnu11", "-o", tmp_path / "both", tmp_path / "both.c"], check=True)
    printed = subprocess.run([tmp_path / "both"], capture_output=True, text=True).stdout.splitlines()
    compiled = []
    for line in printed:
        cells = [bytes.fromhex(cell[1:]).decode() if cell != "-" else None for cell in line.split()]
        compiled.append((cells[0], cells[1], cells[2], cells[4], [c for c in cells[6:] if c is not None], cells[5]))
    found = imported(tmp_path, text)
    assert len(found) == len(wanted) == len(compiled)
    for question, there in zip(found, compiled, strict=True):
        assert isinstance(question, Question)
        here = (question.source, question.id, question.domain, question.question, list(question.choices))
        assert (*here, question.answer) == there


@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_a_text_written_in_any_way_is_that_text(data, rng):
    assert strings(literals(data, rng).encode("utf-8", "surrogateescape")) == data


@given(st.text(max_size=100), st.randoms(use_true_random=False))
def test_so_is_one_of_any_characters(text, rng):
    data = text.encode("utf-8", "replace")
    assert strings(literals(data, rng).encode()) == data


@given(st.binary(max_size=300))
def test_any_bytes_are_tokens_or_a_line_that_says_why_not(data):
    try:
        source = read(data)
    except CError as error:
        assert 1 <= error.line <= data.count(b"\n") + 1
    else:
        assert all(1 <= token.line <= data.count(b"\n") + 1 for token in source.tokens)


SOUP = [*'{}()[],.=;"#\\\n', "cases", "NULL", '"a"', ".answer", ".question", "1", "struct", "#if X\n", "#else\n",
        "#endif\n", "const eval_case cases[] = {", "};"]  # fmt: skip


@given(st.lists(st.sampled_from(SOUP), max_size=60))
def test_no_soup_of_tokens_breaks_the_reader(tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "soup.c"
    path.write_text("struct eval_case { char *question, *answer; char *choice[10]; };" + " ".join(parts))
    try:
        assert all(isinstance(found.item, (Question, Skip)) for found in ds4.questions(path))
    except DataError as error:
        assert str(error).startswith(str(path))


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        (r'"\101\x42\103"', b"ABC"),
        (r'"\0017\08\7"', b"\x017\x008\x07"),
        (r'"\x41" "B"', b"AB"),
        (r'"\u00e9\U0001F600"', "é\U0001f600".encode()),
        (r'"\?\?=" "\e\q"', b"??=\x1bq"),
        ('"a\\\nb" "c\\  \nd"', b"abcd"),
        ('"\\\\\n"', None),
        ('"\\\\\\\nn"', b"\\n"),
        ('u8"é"', "é".encode()),
        ('L"wide"', None),
        (r'"\x100"', None),
        (r'"\400"', None),
        (r'"\xg"', None),
        (r'"\u12"', None),
        (r'"\ud800"', None),
        (r'"\U00110000"', None),
        ('"open', None),
        ('"a\nb"', None),
        ("/* open", None),
        ('"a" /* " */ "b" // "c"\n"d"', b"abd"),
        ('"a" /\\\n* " */ "b" /\\\n/ "c"', b"ab"),
        ("'\\''", b"'"),
    ],
)
def test_literals(written, read_as):
    if read_as is None:
        with pytest.raises(CError):
            strings(written.encode())
    else:
        assert strings(written.encode()) == read_as


# ------------------------------------------------------------------------------------------------------ what is read

GOOD = '.source = "AIME2025", .id = "x", .question = "How many?", '


def test_the_order_of_the_fields_is_the_files_own(tmp_path):
    head = "struct eval_case { char answer[32]; char question[999], source[20]; };"
    found = one(tmp_path, '{ "070", "How " "many?", "AIME2025" }', head.replace("};", "};\nstruct "))
    assert isinstance(found, Question) and (found.answer, found.question) == ("70", "How many?")


def test_a_struct_from_a_header_is_taken_to_have_ds4s_fields(tmp_path):
    found = one(tmp_path, '{ "COMPSEC", "c1", "PHP", "t", "1. f();", {0}, "1" }', '#include "eval.h"\n')
    assert isinstance(found, Question) and (found.kind, found.answer) == ("lines", "1")


def test_a_table_in_a_function_of_a_struct_without_a_name(tmp_path):
    text = f"""void f(void) {{ static const struct {{ const char *source, *id, *question, *answer; }} all[2]
        __attribute__((unused)) = {{ [1] = {{ {GOOD} .answer = "2" }}, [0] = {{ {GOOD} .answer = "1" }} }}; }}"""
    assert [q.answer for q in imported(tmp_path, text) if isinstance(q, Question)] == ["1", "2"]


def test_several_tables_are_read_one_after_the_other(tmp_path):
    rng = random.Random(5)
    first, then = values(rng, 4), values(rng, 6)
    text, other = table(first, rng), table(then, rng)
    found = imported(tmp_path, text + "#if 1\n" + other[other.index("static const eval_case cases[] = {\n") :])
    assert [q.question for q in found if isinstance(q, Question)] == [value["question"] for value in first + then]


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        ('"070"', "70"),
        ('" 204 "', "204"),
        ('"$204$"', "204"),
        ('(("7"))', "7"),
        ('(const char *)"7"', "7"),
        ('{"7"}', "7"),
    ],
)
def test_integer_answers(tmp_path, answer, key):
    found = one(tmp_path, f"{{ {GOOD} .answer = {answer} }}")
    assert isinstance(found, Question) and (found.kind, found.answer) == ("integer", key)


def test_conditions_of_the_file_are_followed(tmp_path):
    element = '{ .source = "s", .question = "q", .answer = "%d" },'
    text = f"""#define ON
        struct eval_case {{ char *source, *question, *answer; }};
        struct eval_case cases[] = {{
        #ifdef ON
          {element % 1}
        #else
          {element % 2}
        #endif
        #if !defined(ON) || 0 // not decided: two conditions
          {element % 3}
        #elif 0
          {element % 4}
        #endif
        #ifndef ON
          {element % 5}
        #elif defined(ON)
          {element % 6}
        #else
          {element % 7}
        #endif
        }};"""
    found = imported(tmp_path, text)
    assert [q.answer if isinstance(q, Question) else q.reason[:7] for q in found] == ["1", "depends", "6"]


def test_a_guard_around_the_whole_file_is_no_doubt(tmp_path):
    body = f'{HEAD}#define Y "7"\neval_case cases[] = {{ {{ {GOOD} .answer = Y }} }};\n#endif\n'
    (found,) = imported(tmp_path, f"#ifndef GUARD\n#define GUARD\n{body}#endif\n")
    assert isinstance(found, Question) and found.answer == "7"


# --------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ("{ %s .answer = f(7) }", "answer is not a text"),
        ("{ %s .answer = UNKNOWN }", "answer is not a text"),
        ("{ %s .answer = TWICE }", "answer is not a text"),
        ("{ %s .answer = CALL(7) }", "answer is not a text"),
        ("{ %s .answer = 70 }", "answer is not a text"),
        ("{ %s .answer = }", "a designator without a value"),
        ("{ %s .reply = \"7\" }", "a designator that names no field"),
        ("{ %s , .answer = \"7\" }", "a value is missing between two commas"),
        ("{ %s .answer = L\"7\" }", "a wide string"),
        ("{ %s .answer = \"7\\xfff\" }", "the escape \\xfff is more than a byte"),
        ("{ %s .answer = \"\\xff\" }", "answer is not UTF-8"),
        ("{ %s .answer = \"7\\0007\" }", "answer goes on after a zero byte, where C takes it to end"),
        ("{ %s .answer = \"7/2\" }", "the answer is no integer"),
        ("{ %s .answer = NULL }", "no answer"),
        ("{ %s .answer = \"7\", .domain = LAUGH }", "macros that grow without end"),
        ("{ %s .choice = {\"a\", \"b\"}, .answer = \"C\" }", "the answer is no letter of the choices"),
        ("{ %s .choice = {\"a\", \"a \"}, .answer = \"A\" }", "two choices are equal"),
        ("{ %s .choice = {\"a\", \"\"}, .answer = \"A\" }", "an empty choice"),
        ("{ %s .choice = {\"a\", NULL, \"b\"}, .answer = \"A\" }", "a choice is missing before others"),
        ("{ %s .choice = {\"a\"}, .answer = \"A\" }", "not 2 to 10 choices"),
        ("{ %s .choice = \"a\", \"b\", .choice[10] = \"c\", .answer = \"A\" }", "choice has more than 10 texts"),
        ("{ %s .choice = {%s}, .answer = \"A\" }", "choice has more than 10 texts"),
        ("{ %s .choice = {[2] = {\"a\", \"b\"}}, .answer = \"A\" }", "choice is not a text"),
        ("{ .source = \"COMPSEC\", .question = \"q\", .answer = \"3 to 4\" }", "the answer names no lines"),
        ("{ .source = \"AIME\", .question = \" \", .answer = \"3\" }", "no question"),
        ("QUESTION(1)", "not written out in braces"),
        ("\"a\"", "not written out in braces"),
        ("{ \"a\",\"b\",\"c\",\"d\",\"e\",{0},\"1\",2,3 }", "more values than fields"),
        ("[0 ... 3] = { 0 }", "a designator that is no plain number"),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_says_why_and_the_others_are_read(tmp_path, element, reason):
    laugh = "\n".join(f"#define M{i} M{i + 1} M{i + 1}" for i in range(40)) + "\n#define M40\n#define LAUGH M0\n"
    head = '#define TWICE "1"\n#define TWICE "2"\n#define CALL(x) #x\n' + laugh + HEAD.replace("#elif 1", "#endif")
    element = element.replace("%s", GOOD, 1).replace("%s", ", ".join(f'"{i}"' for i in range(11)))
    good = f'{{ {GOOD} .answer = "7" }}'
    text = f"{head}const eval_case cases[] = {{\n{good},\n\n{element},\n{good} }};"
    path = tmp_path / "ds4_eval.c"
    path.write_text(text)
    first, wrong, last = ds4.questions(path)
    assert isinstance(first.item, Question) and isinstance(last.item, Question)
    assert isinstance(wrong.item, Skip) and wrong.item.reason == reason
    assert wrong.line == text[: text.rindex(element)].count("\n") + 1


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", ": empty"),
        (b"int main(void) { return 0; }", ": no table of questions: an array of structs with the fields source, id,"),
        (b'const char *cases[] = { "a", "b" };', ": no table of questions"),
        (b'const eval_case cases[] = { { "a", "b" }', ": no table of questions"),
        (b"\n\n/* open", ":3: a comment that is not closed"),
        (b'\n"open\n"', ":2: a string or character that is not closed on its line"),
        (b"int x;\n\0", ":2: a zero byte: this is no C source"),
        ("ab".encode("utf-16"), ":1: a zero byte"),
    ],
)
def test_a_file_without_a_table_is_one_line(tmp_path, text, error):
    with pytest.raises(DataError) as caught:
        imported(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'ds4_eval.c'}{error}")


def test_directives_may_hold_what_is_no_token(tmp_path):
    lines = "#pragma it's / \"open\n#if 0\n#error don't 1/2\n#endif\n#define HALF 1/2 // \"\n#define APOS '\n"
    found = one(tmp_path, f'{{ {GOOD} .answer = "7" }}', lines + HEAD.replace("#elif 1", "#endif"))
    assert isinstance(found, Question)


def test_comments_in_another_encoding_do_no_harm(tmp_path):
    text = HEAD.replace("#elif 1", "#endif") + f'eval_case cases[] = {{ {{ {GOOD} .answer = "7" /* \udce9 */ }} }};'
    (found,) = imported(tmp_path, text.encode("utf-8", "surrogateescape"))
    assert isinstance(found, Question)


def test_fields_are_those_that_the_table_has():
    assert tuple(field.name for field in ds4.FIELDS) == FIELDS
