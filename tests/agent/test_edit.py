"""Edits of texts: what plain replacement gives, or a refusal; line endings stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.agent.edit import Change, Text, by_anchor, by_lines
from ds4ref.agent.workspace import ToolError

PLAIN = st.text("ab \n\u00e9\u2028\x0b", max_size=30)
"""Few letters, so that much occurs twice; and characters that other people count as line breaks."""


def count(text: str, old: str) -> int:
    return sum(text.startswith(old, at) for at in range(len(text)))


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def edited(text: str, edit, *args) -> str | None:
    """Return a file's text after an edit, None if it is refused."""
    parsed = Text.parse(text.encode())
    try:
        return parsed.encode(edit(parsed, *args)).decode()
    except ToolError:
        return None


@given(PLAIN, PLAIN.filter(bool), PLAIN)
def test_an_anchor_is_replaced_as_python_does_or_refused(text, old, new) -> None:
    assert edited(text, by_anchor, old, new) == (text.replace(old, new) if count(text, old) == 1 else None)


@given(PLAIN, PLAIN.filter(bool), PLAIN, st.booleans(), st.booleans())
def test_in_a_crlf_file_line_breaks_are_the_files(text, old, new, dos_old, dos_new) -> None:
    """However the model writes them."""
    text += "\n"
    wanted = crlf(text.replace(old, new)) if count(text, old) == 1 else None
    assert edited(crlf(text), by_anchor, crlf(old) if dos_old else old, crlf(new) if dos_new else new) == wanted


@pytest.mark.parametrize("text, old, lines", [("ababa\nx\n", "aba", "1 and 1"), ("a\nb\na\n", "a", "1 and 3"),
                                              ("x\n" * 9, "\nx", "1 and 2")])  # fmt: skip
def test_an_anchor_that_is_there_twice_says_where(text, old, lines) -> None:
    with pytest.raises(ToolError) as error:
        by_anchor(Text.parse(text.encode()), old, "new")
    assert str(error.value) == (
        f"old text is not unique; read the target lines and retry with line/range plus new (it starts in lines {lines})"
    )


@given(PLAIN, st.integers(-1, 9), st.integers(-1, 9), PLAIN, st.booleans())
def test_lines_are_replaced_as_a_list_would_be(text, first, last, new, dos) -> None:
    lines = Text.parse(text.encode()).lines
    wanted = None
    if 1 <= first <= last <= len(lines):
        put = new + "\n" if new and not new.endswith("\n") and lines[last - 1].endswith("\n") else new
        wanted = "".join([*lines[: first - 1], put, *lines[last:]])
    if dos and "\n" in text:  # a text without line breaks has none to go by
        text, wanted = crlf(text), None if wanted is None else crlf(wanted)
    assert edited(text, by_lines, first, last, new) == wanted


def test_a_diff_is_small_and_tells_of_missing_newlines() -> None:
    def diff(old: str, new: str, *limits: int) -> str:
        return Change.between(old.splitlines(True), new.splitlines(True)).diff(*limits)

    assert diff("1\n2\n3\n", "1\nx\ny\n3\n") == "@@ -2,1 +2,2 @@\n-2\n+x\n+y"
    assert diff("1\n", "1\n2\n") == "@@ -1,0 +2,1 @@\n+2" and diff("1\n2\n", "2\n") == "@@ -1,1 +0,0 @@\n-1"
    assert diff("a", "a\n") == "@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a"
    assert diff("", "a\n" * 30, 20, 5) == "@@ -0,0 +1,30 @@" + "\n+a" * 20 + "\n... 10 more + lines ..."
    assert diff("", "abcdefg\n", 20, 5) == "@@ -0,0 +1,1 @@\n+abcde" and diff("", "a\n" * 30).count("\n+") == 30
