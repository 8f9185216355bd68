"""Pre-tokenizers: the worked examples 1-9 of text.md, and how the two relate."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert split_unicode(text) == ds4(text) == ASCII_EXAMPLES[text]


@pytest.mark.parametrize("text", DS4_ONLY)
def test_ds4_takes_non_ascii_for_letters(text):
    assert ds4(text) == DS4_ONLY[text]


@pytest.mark.parametrize("text", UNICODE_ONLY)
def test_unicode_form(text):
    assert split_unicode(text) == UNICODE_ONLY[text]


@given(st.text(alphabet=string.printable))
def test_same_on_ascii(text):
    assert split_unicode(text) == ds4(text)


def test_control_characters_are_the_one_ascii_difference():
    assert split_unicode("\0\0!") == ["\0\0", "!"]
    assert ds4("\0\0!") == ["\0", "\0", "!"]
    assert split_unicode("\0\0a") == ds4("\0\0a") == ["\0", "\0a"]
    assert split_unicode(" \t\0") == [" ", "\t", "\0"]
    assert ds4(" \t\0") == [" \t", "\0"]


@given(st.text())
def test_nothing_is_lost(text):
    assert "".join(split_unicode(text)) == text


@given(st.binary())
def test_ds4_takes_any_bytes(data):
    assert b"".join(split_ds4(data)) == data
    assert all(split_ds4(data))
