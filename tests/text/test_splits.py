"""Pre-tokenizers (docs/explanation/text.md 2): worked examples, and how the two relate."""

import functools
import string

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from ds4ref.text import splits
from ds4ref.text.splits import split_ds4, split_unicode

ASCII_EXAMPLES = {
    "Hello world": ["Hello", " world"],
    "    int x = 1;\n": ["   ", " int", " x", " =", " ", "1", ";\n"],
    "foo();\n\nbar": ["foo", "();\n\n", "bar"],
    ") \n(": [")", " \n", "("],
    "12345678": ["123", "456", "78"],
    "  123": ["  ", "123"],
    "1.5e10": ["1", ".", "5", "e", "10"],
    "don't stop": ["don", "'t", " stop"],
    "--flag": ["--", "flag"],
    "_foo_bar": ["_foo", "_bar"],
    "a\n\n  b": ["a", "\n\n", " ", " b"],
    "a\t\tb": ["a", "\t", "\tb"],
    "tail   ": ["tail", "   "],
    "#include <stdio.h>\n": ["#include", " <", "stdio", ".h", ">\n"],
    '="x"': ['="', "x", '"'],
    "   $$\n\n  z": ["  ", " $$\n\n", " ", " z"],
    "  \n  \n  z": ["  \n  \n", " ", " z"],
    " $a": [" $", "a"],
    "中文123ABC": ["中文", "123", "ABC"],
    "中é": ["中", "é"],
}
DS4_ONLY = {"abc中文": ["abc中文"], " 中文": [" 中文"], "hi😀": ["hi😀"], "a…b": ["a…b"]}
UNICODE_ONLY = {
    "abc中文": ["abc", "中文"],
    " 中文": [" ", "中文"],
    "hi😀": ["hi", "😀"],
    "a…b": ["a", "…", "b"],
    "٣٤٥٦": ["٣٤٥", "٦"],  # digits of any script
    "a\u00a0b": ["a", "\u00a0b"],  # a no-break space is a space
    "  ５x": ["  ", "５", "x"],
    "नमस्ते": ["नमस्ते"],  # marks belong to their letters
    "かな漢字。": ["かな漢字", "。"],
}


def ds4(text: str) -> list[str]:
    return [piece.decode() for piece in split_ds4(text.encode())]


@pytest.mark.parametrize("text", ASCII_EXAMPLES)
def test_worked_examples(text):
    assert [*split_unicode(text)] == ds4(text) == ASCII_EXAMPLES[text]


@pytest.mark.parametrize("text", DS4_ONLY)
def test_ds4_takes_non_ascii_for_letters(text):
    assert ds4(text) == DS4_ONLY[text]


@pytest.mark.parametrize("text", UNICODE_ONLY)
def test_unicode_form(text):
    assert [*split_unicode(text)] == UNICODE_ONLY[text]


# The characters at the edges of every class, and one or two from inside.
EDGES = (
    "\u4dff\u4e00\u4fff\u5000\u8fff\u9000\u9f7f\u9f80\u9fa5\u9fa6"
    "\u303f\u3040\u3041\u307f\u309b\u309f\u30a0\u30fb\u30ff\u3100\u3105"
)
KINDS = (
    "aZéжא한ˇʰªǅ"  # letters: cased, without case, modifiers
    "\u0301\u0903\u20dd"  # marks of three kinds
    "09٣²Ⅷ"  # numbers of three kinds
    "!/:@[`{~'-#+$<^|…«»‿—。€×→´😀©"  # punctuation and symbols of all kinds, ASCII and not
    " \t\n\v\f\r\x85\xa0\u2003\u2028\u3000"  # white space
    "\0\x1f\x7f\u200b\ue000\ufdd0"  # what is none of all that
)


@functools.cache
def three_passes() -> pre_tokenizers.PreTokenizer:
    """The public definition, run by the library it was written for (docs/explanation/text.md 2)."""
    passes = (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
    return pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(one), "isolated") for one in passes])


def check_unicode(text: str) -> None:
    assert [*split_unicode(text)] == [piece for piece, _ in three_passes().pre_tokenize_str(text)]


@settings(max_examples=500)
@given(st.text(alphabet=EDGES + KINDS + "a \n!1中", max_size=12))
def test_unicode_form_is_the_public_one(text):
    check_unicode(text)


def naive_ds4(data: bytes) -> list[bytes]:
    """The table of docs/explanation/text.md 2, rule by rule."""
    punctuation, letters = string.punctuation.encode(), string.ascii_letters.encode()
    space, digits, ends = b" \t\n\v\f\r", string.digits.encode(), b"\r\n"

    def at(i: int) -> bytes:
        return data[i : i + 1] or b"\0"

    def length(i: int) -> int:
        lead = data[i]
        size = 2 if 0xC0 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF8 else 1
        return size if i + size <= len(data) else 1

    def letter_like(i: int) -> bool:
        return at(i) in letters or at(i) >= b"\x80"

    def cjk(i: int) -> bool:
        code = data[i : i + 3].decode("utf-8", "replace")
        return len(code) == 1 and ("\u4e00" <= code <= "\u9fa5" or "\u3040" <= code <= "\u30ff")

    def run(i: int, kind, step=lambda i: 1) -> int:
        while i < len(data) and kind(i):
            i += step(i)
        return i

    def end(p: int) -> int:
        if at(p) in digits and p < len(data):
            return min(p + 3, run(p, lambda i: at(i) in digits))
        if cjk(p):
            return run(p, cjk, lambda i: 3)
        if at(p) in punctuation and at(p + 1) in letters:
            return run(p + 1, lambda i: at(i) in letters)
        if letter_like(p):
            return run(p, letter_like, length)
        if at(p) not in ends + punctuation and letter_like(p + 1):
            return run(p + 1, letter_like, length)
        if at(p) in punctuation or at(p) == b" " and at(p + 1) in punctuation:
            return run(run(p + 1, lambda i: at(i) in punctuation), lambda i: at(i) in ends)
        if at(p) in space:
            q = run(p, lambda i: at(i) in space)
            last = max(data.rfind(b"\r", p, q), data.rfind(b"\n", p, q))
            if last >= 0:
                return last + 1
            return q - 1 if q - p >= 2 and (letter_like(q) or at(q) in punctuation) else q
        return p + length(p)

    found, p = [], 0
    while p < len(data):
        q = end(p)
        found.append(data[p:q])
        p = q
    return found


PIECES = [char.encode() for char in EDGES + KINDS]
BYTES = [*PIECES, *(bytes([byte]) for byte in range(256))]


@settings(max_examples=200)
@given(st.lists(st.sampled_from([*BYTES, b"a", b" ", b"1", b"!", b"\n", "中".encode()]), max_size=12).map(b"".join))
def test_ds4_form_is_the_table(data):
    assert [*split_ds4(data)] == naive_ds4(data)


def test_control_characters_are_the_one_ascii_difference():
    assert [*split_unicode("\0\0!")] == ["\0\0", "!"]
    assert ds4("\0\0!") == ["\0", "\0", "!"]
    assert [*split_unicode("\0\0a")] == ds4("\0\0a") == ["\0", "\0a"]
    assert [*split_unicode(" \t\0")] == [" ", "\t", "\0"]
    assert ds4(" \t\0") == [" \t", "\0"]


RUNS = [
    "a", "é", "b1", "12345", " ", "   ", "\n", " \n ", "\r\n", "\t", "!", "!!\n", "中", "かな", "・", "\0", "\0\0",
    "\u00a0", "😀",
]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(RUNS), max_size=30).map("".join), st.integers(1, 12))
def test_where_strides_end_changes_nothing(text, stride):
    data = text.encode() + b"\xe4 \xf7a" * (len(text) % 3) + text.encode()
    whole = [*split_unicode(text)], [*split_ds4(data)]
    assert whole[0] == splits._unicode_pattern().findall(text) and whole[1] == splits._ds4_pattern().findall(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "STRIDE", stride)
        assert ([*split_unicode(text)], [*split_ds4(data)]) == whole


@pytest.mark.parametrize(("text", "longest"), [("words and 12 \n" * 20_000, 1 << 18), ("\n" * (1 << 19), 1 << 19)])
def test_a_long_text_is_split_a_stride_at_a_time(monkeypatch, text, longest):
    """While a pattern is searched no other thread runs: only a run of white space is taken as a whole."""
    searched = []

    real = splits._unicode_pattern()

    class Pattern:
        def findall(self, text, at, end):
            searched.append(end - at)
            return real.findall(text, at, end)

    monkeypatch.setattr(splits, "_unicode_pattern", Pattern)
    assert "".join(split_unicode(text)) == text and max(searched) == longest
