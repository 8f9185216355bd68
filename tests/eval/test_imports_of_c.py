"""ds4's table in C: what is written as literals comes back to the byte, a compiler agrees; the rest is left out."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.errors import DataError
from ds4ref.eval.imports import ds4
from ds4ref.eval.imports.records import Skip
from ds4ref.eval.packs import Question

HEAD = """/* A table, after things that are none: "quotes", { braces and */
#define MANY 10 // it's "open
typedef struct { const char *source, *id, *domain, *title, *question, *choice[MANY], *answer; } eval_case;
static const char *letters[] = { "A", "B", };
static const int sizes[] = { 1, 0x2, 3 };
static int quote(int c) { return c == '"' ? '\\'' : c == '{' ? '\\\\' : '}'; }
"""
MAIN = r"""
#include <stdio.h>
static void put(const char *s) { if (s) { for (; *s; s++) printf("%02x", (unsigned char)*s); printf(" "); } }
int main(void) {
    for (size_t i = 0; i + 1 < sizeof cases / sizeof *cases; i++) {
        const eval_case *c = &cases[i];
        put(c->source); put(c->id); put(c->domain); put(c->question); put(c->answer);
        for (int k = 0; k < MANY; k++) put(c->choice[k]);
        printf("\n");
    }
    return quote(letters[0][0]) + sizes[0] == 0;
}
"""
HARD = [
    "say \"no\"\n\tand C:\\temp\\x41 ??= 'a'",
    "$\\frac{\\alpha}{\\beta}$ 100% {a, b}; /* no comment */ // nor this",
    "naïve Ωμέγα 漢字 \U0001f600 \xa0 end",
    "\a\b\f\v\r\x1b\x7f\x017abc",
    "1. int f(char *p) {\n2.   p[4] = 0;\n3. }\n",
    " spaces at both ends ",
    "#define X 1\n#if 0",
    "a" * 400,
]
GAPS = [" ", "\n", "", " /* and */ ", ' /* a "quote", a } // */', ' // to the end, " too\n']
NAMED = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 39: "'", 63: "?", 92: "\\"}


def literals(text: str, rng: random.Random) -> str:
    """``text`` as string literals side by side, each byte written in a way that ``rng`` draws."""
    out = '"'
    for byte in text.encode():
        ways = [f"\\{byte:03o}", f'\\x{byte:x}"{rng.choice(GAPS)}"']
        if byte in NAMED:
            ways = [f"\\{NAMED[byte]}"] * 3 + ways
        elif 32 <= byte < 127:
            ways = [chr(byte)] * 12 + ways
        out += rng.choice(ways) + rng.choice([""] * 30 + ["\\\n", f'"{rng.choice(GAPS)}"'])
    return out + '"'


def values(rng: random.Random, count: int) -> list[dict]:
    """Records of all kinds, with hard texts."""
    made = []
    for i in range(count):
        source = ["GPQA Diamond", "SuperGPQA", "AIME2025", "COMPSEC"][i % 4]
        choices = [f"{k}: {rng.choice(HARD)}" for k in range(rng.choice([2, 4, 9, 10]))] if i % 4 < 2 else []
        answer = "ABCDEFGHIJ"[rng.randrange(len(choices))] if choices else ["70", "5", "907"][i % 3]
        answer = ["3", "12-15", "4,7-9"][i % 3] if source == "COMPSEC" else answer
        made.append({"source": source, "id": f"rec-{i:03d}", "domain": rng.choice(["Physics", "日本"]), "title": "t, {",
                     "question": f"{i} {rng.choice(HARD)}", "choice": choices, "answer": answer})  # fmt: skip
    return made


def table(records: list[dict], rng: random.Random) -> str:
    """A file that compiles, with the records in both forms of initialisers."""
    rows = []
    for record in records:
        written = {name: literals(text, rng) for name, text in record.items() if name != "choice"}
        listed = ", ".join(literals(choice, rng) for choice in record["choice"])
        written["choice"] = f"{{ {listed}{rng.choice([',', ', NULL', ''])} }}" if listed else "{ NULL }"
        if rng.random() < 0.5:
            rows.append("{" + ", ".join(written[name] for name in ds4.FIELDS) + "}")
        else:
            names = [name for name in ds4.FIELDS if name != "choice" or listed]
            rows.append("{" + ", ".join(f".{name} = {written[name]}" for name in rng.sample(names, len(names))) + ", }")
    return f"#include <stddef.h>\n{HEAD}static const eval_case cases[] = {{\n{','.join(rows)},\n{{ NULL }}\n}};\n"


def imported(tmp_path, text: str | bytes) -> list[Question | Skip]:
    path = tmp_path / "ds4_eval.c"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [found.item for found in ds4.questions(path)]


@pytest.mark.parametrize("seed", range(3))
def test_a_table_is_read_to_the_byte(tmp_path, seed):
    rng = random.Random(seed)
    wanted = values(rng, 24)
    for question, value in zip(imported(tmp_path, table(wanted, rng)), wanted, strict=True):
        assert isinstance(question, Question), question
        assert question.question == value["question"] and list(question.choices) == value["choice"]
        assert (question.source, question.id) == (value["source"], value["id"])
        assert (question.domain, question.answer) == (value["domain"], value["answer"])
        kinds = {"GPQA Diamond": "choice", "SuperGPQA": "choice", "AIME2025": "integer", "COMPSEC": "lines"}
        assert question.kind == kinds[value["source"]]


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here to agree with")
def test_a_compiler_reads_the_same(tmp_path):
    rng = random.Random(2026)
    text = table(values(rng, 80), rng)
    (tmp_path / "both.c").write_text(text + MAIN)
    subprocess.run(["cc", "-w", "-std=gnu11", "-o", tmp_path / "both", tmp_path / "both.c"], check=True)
    printed = subprocess.run([tmp_path / "both"], capture_output=True, text=True).stdout.splitlines()
    for question, line in zip(imported(tmp_path, text), printed, strict=True):
        assert isinstance(question, Question)
        texts = [question.source, question.id, question.domain, question.question, question.answer, *question.choices]
        assert texts == [bytes.fromhex(word).decode() for word in line.split()]


GOOD = '.source = "AIME2025", .id = "x", .question = "How many?", '


@pytest.mark.parametrize(
    ("element", "answer"),
    [
        ('{ %s .answer = "070" }', "70"),
        ('{ %s .answer = "$204$" }', "204"),
        ("{ %s .answer = 70 }", "70"),
        ('{ %s .answer = "\\x37" "0" }', "70"),
        ('{ %s .answer = "7\\\n0" }', "70"),
        ('{ %s .answer = "\\7\\b" "7" }', "the answer is not an integer"),
        ('{ %s .weight = f(3), .answer = "7" }', "7"),
        ('{ %s .choice = {"a", "b"}, .answer = "B" }', "B"),
        ('{ %s .choice = NULL, .answer = "7" }', "7"),
        ('{ "COMPSEC", "c1", "PHP", "t", "1. f();", {0}, "1" }', "1"),
        ("{ %s .answer = f(7) }", "a value that is no literal"),
        ("{ %s .answer = SEVEN }", "a value that is no literal"),
        ('{ %s .answer = (char *)"7" }', "a value that is no literal"),
        ('{ %s .answer = L"7" }', "a value that is no literal"),
        ("{ %s .answer = 070 }", "a value that is no literal"),
        ("{ %s .answer = '7' }", "a value that is no literal"),
        ('{ %s .choice = {{"a"}, "b"}, .answer = "A" }', "a value that is no literal"),
        ('{ %s .choice = {"a", , "b"}, .answer = "A" }', "a value that is no literal"),
        ('{ %s .answer = "7\n }', "a value that is no literal"),
        ('{ %s\n#if X\n .answer = "7"\n#endif\n }', "a field without a name or a value"),
        ('\n#if X\n{ %s .answer = "7" }', "not written out in braces"),
        ('[3] = { %s .answer = "7" }', "not written out in braces"),
        ("QUESTION(1)", "not written out in braces"),
        ("{ %s .answer = }", "a field without a name or a value"),
        ('{ %s .choice[0] = "a", .answer = "7" }', "a field without a name or a value"),
        ('{ %s , .answer = "7" }', "a field without a name or a value"),
        ('{ %s "7" }', "a field without a name or a value"),
        ('{ "a", "b", "c", "d", "e", {0}, "1", 2 }', "not 7 values"),
        ('{ %s .answer = "7\\xfff" }', "an escape that is not read"),
        ('{ %s .answer = "7\\400" }', "an escape that is not read"),
        ('{ %s .answer = "\\u0037" }', "an escape that is not read"),
        ('{ %s .answer = "7\\0" }', "an escape that is not read"),
        ('{ %s .answer = "\\xff" }', "a text that is not UTF-8"),
        ('{ %s .answer = "7/2" }', "the answer is not an integer"),
        ("{ %s .answer = NULL }", "no answer"),
        ('{ %s .answer = {"7"} }', "answer is a list"),
        ('{ %s .choice = "ab", .answer = "A" }', "choice is one text, not a list"),
        ('{ %s .choice = {"a", "b"}, .answer = "C" }', "the answer is not the letter of a choice"),
        ('{ %s .choice = {"a", "a "}, .answer = "A" }', "two choices are equal"),
        ('{ %s .choice = {"a", NULL, "b"}, .answer = "A" }', "a choice is missing before others"),
        ('{ %s .choice = {"a", NULL}, .answer = "A" }', "not 2 to 10 choices"),
        ('{ .source = "COMPSEC", .question = "q", .answer = "3 to 4" }', "the answer names no lines"),
        ('{ .source = "AIME", .question = " ", .answer = "3" }', "no question"),
    ],
)
def test_an_element_is_read_or_says_why_not_and_the_others_are_read(tmp_path, element, answer):
    element, good = element.replace("%s", GOOD), f'{{ {GOOD} .answer = "7" }}'
    text = f"{HEAD}const eval_case cases[] = {{\n{good},\n\n{element},\n{good} }};"
    path = tmp_path / "ds4_eval.c"
    path.write_text(text)
    first, found, last = ds4.questions(path)
    assert isinstance(first.item, Question) and isinstance(last.item, Question)
    assert (found.item.answer if isinstance(found.item, Question) else found.item.reason) == answer
    assert found.line == text[: text.rindex(element.lstrip())].count("\n") + 1


def test_several_tables_and_those_in_functions(tmp_path):
    one = f"void f(void) {{ static const struct s all[2] = {{ {{ {GOOD} .answer = %s }}, {{ NULL }} }}; }}\n"
    assert [q.answer for q in imported(tmp_path, one % 1 + one % 2)] == ["1", "2"]


def test_comments_in_another_encoding_do_no_harm(tmp_path):
    text = f'{HEAD} eval_case cases[] = {{ {{ {GOOD} .answer = "7" /* \udce9 */ }} }}; /* open'
    assert [q.answer for q in imported(tmp_path, text.encode("utf-8", "surrogateescape"))] == ["7"]


@pytest.mark.parametrize("text", ["", "int main(void) { return 0; }", 'const char *cases[] = { "a", "b" };', "\0",
                                  'const eval_case cases[] = { { "a", "b" }', f'/* x = {{ {{ {GOOD} .answer = 7 }} }};'])  # fmt: skip  # noqa: E501
def test_a_file_without_a_table_is_one_line(tmp_path, text):
    with pytest.raises(DataError, match="no table of questions: an array of structs with the fields source, id,"):
        imported(tmp_path, text)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "ds4_eval.c"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # sparse: takes no disk
    with pytest.raises(DataError, match="larger than 16 MiB"):
        list(ds4.questions(path))
    text = f'const eval_case cases[] = {{ {{ {GOOD} .answer = "7" }} }};'
    monkeypatch.setattr(ds4, "LARGEST", len(text))
    assert len(imported(tmp_path, text)) == 1
    with pytest.raises(DataError, match="larger than"):
        imported(tmp_path, text + "\n")


SOUP = [*'{}()[],.=;"#\\\n', "cases", "NULL", '"a"', ".answer = ", ".question = ", "1", "/*", "*/", "'", "#if X\n",
        "const eval_case cases[] = {", "};"]  # fmt: skip


@given(st.lists(st.sampled_from(SOUP), max_size=60))
def test_no_soup_of_tokens_breaks_the_reader(tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "soup.c"
    path.write_text(" ".join(parts))
    try:
        assert all(isinstance(found.item, (Question, Skip)) for found in ds4.questions(path))
    except DataError as error:
        assert str(error).startswith(str(path))
