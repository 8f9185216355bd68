"""Edits of texts: what plain replacement gives, or a refusal; line endings stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ds4ref.agent.edit import Change, Text, replaced
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
    assert edited(text, replaced, old, new) == (text.replace(old, new) if count(text, old) == 1 else None)


@given(PLAIN, PLAIN.filter(bool), PLAIN, st.booleans(), st.booleans())
def test_in_a_crlf_file_line_breaks_are_the_files(text, old, new, dos_old, dos_new) -> None:
    """However the model writes them."""
    text += "\n"
    wanted = crlf(text.replace(old, new)) if count(text, old) == 1 else None
    assert edited(crlf(text), replaced, crlf(old) if dos_old else old, crlf(new) if dos_new else new) == wanted


def test_a_diff_is_small_and_tells_of_missing_newlines() -> None:
    def diff(old: str, new: str, *limits: int) -> str:
        return Change.between(old.splitlines(True), new.splitlines(True)).diff(*limits)

    assert diff("1\n2\n3\n", "1\nx\ny\n3\n") == "@@ -2,1 +2,2 @@\n-2\n+x\n+y"
    assert diff("1\n", "1\n2\n") == "@@ -1,0 +2,1 @@\n+2" and diff("1\n2\n", "2\n") == "@@ -1,1 +0,0 @@\n-1"
    assert diff("a", "a\n") == "@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a"
    assert diff("", "a\n" * 30, 20, 5) == "@@ -0,0 +1,30 @@" + "\n+a" * 20 + "\n... 10 more + lines ..."
    assert diff("", "abcdefg\n", 20, 5) == "@@ -0,0 +1,1 @@\n+abcde" and diff("", "a\n" * 30).count("\n+") == 30
