"""Edits of texts: what plain replacement gives, or a refusal; endings, byte order marks and foreign bytes stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4ref.agent.edit import BOM, Document, by_anchor, by_lines, fitted, shown_line, split, whole
from ds4ref.agent.workspace import ToolError

PLAIN = st.text("ab \n\u00e9\u2028\x0b", max_size=30)
"""Few letters, so that much occurs twice; and characters that other people count as line breaks."""
WILD = st.text(st.sampled_from("a\nb\r\ufeff\ufffd\x00\udcff\udc80"), max_size=20)


def doc(text: str, bom: bool = False) -> Document:
    return Document(tuple(split(text)), bom)


def text_of(text: Document) -> str:
    return "".join(text.lines)


def count(text: str, old: str) -> int:
    return sum(text.startswith(old, at) for at in range(len(text))) if old else 0


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def edited(text: Document, edit, *args) -> str | None:
    """The text after an edit, None if it is refused."""
    try:
        return text_of(edit(text, *args).apply(text))
    except ToolError:
        return None


# --- lines


@given(st.binary(max_size=60) | st.binary(max_size=10).map(lambda data: BOM + data) | WILD.map(
    lambda text: text.encode("utf-8", "surrogateescape")))  # fmt: skip
def test_a_document_gives_the_bytes_back(data) -> None:
    text = Document.parse(data)
    assert text.encode() == data
    assert text.bom == data.startswith(BOM)
    body = data[3:] if text.bom else data
    assert len(text.lines) == body.count(b"\n") + (not body.endswith(b"\n") and body != b"")
    assert all(line.count("\n") == line.endswith("\n") and line for line in text.lines)


def test_endings() -> None:
    text = doc("a\r\nb\nc")
    assert [text.ending(i) for i in range(3)] == ["\r\n", "\n", "\n"] and text.has_crlf
    assert doc("").ending(0) == doc("a").ending(0) == "\n" and doc("x\r\ny").ending(1) == "\r\n"
    assert fitted("a\nb\r\nc\r\r\n", "\r\n") == "a\r\nb\r\nc\r\r\n" and fitted("a\r\nb\n", "\n") == "a\r\nb\n"


# --- by an anchor


@given(PLAIN, PLAIN, PLAIN)
def test_an_anchor_is_replaced_as_python_does_or_refused(text, old, new) -> None:
    wanted = text.replace(old, new) if count(text, old) == 1 else None
    assert edited(doc(text), by_anchor, old, new) == (None if wanted == text else wanted)


@given(PLAIN, st.data())
def test_a_text_that_is_there_once_is_replaced(text, data) -> None:
    """The same from the other side: anchors that are taken from the text."""
    start = data.draw(st.integers(0, len(text)))
    old, new = text[start : data.draw(st.integers(start, len(text)))], data.draw(PLAIN)
    once, same = count(text, old) == 1, old == new
    assert edited(doc(text), by_anchor, old, new) == (text.replace(old, new) if once and not same else None)


@given(PLAIN, PLAIN, PLAIN, st.booleans(), st.booleans())
def test_in_a_crlf_file_line_breaks_are_the_files(text, old, new, dos_old, dos_new) -> None:
    """However the model writes them."""
    if "\n" not in text:
        text += "\n"
    wanted = crlf(text.replace(old, new)) if count(text, old) == 1 else None
    given_old, given_new = crlf(old) if dos_old else old, crlf(new) if dos_new else new
    found = edited(doc(crlf(text)), by_anchor, given_old, given_new)
    assert found == (None if wanted == crlf(text) else wanted)


@given(st.lists(st.tuples(st.text("ab", max_size=2), st.sampled_from(["\n", "\r\n"])), max_size=6), PLAIN, PLAIN)
def test_in_a_mixed_file_other_lines_keep_their_endings(parts, old, new) -> None:
    text = doc("".join(line + end for line, end in parts))
    view = text_of(text).replace("\r\n", "\n")
    found = edited(text, by_anchor, old, new)
    if not text.has_crlf:
        return
    if count(view, old) != 1:
        assert found is None
        return
    if found is None:
        assert view.replace(old, new) == view or old == new
        return
    assert found.replace("\r\n", "\n") == view.replace(old, new)
    head, _, tail = view.partition(old)
    before, behind = head.count("\n"), tail.partition("\n")[2].count("\n")
    made = tuple(split(found))
    assert made[:before] == text.lines[:before]
    assert made[len(made) - behind :] == text.lines[len(text.lines) - behind :]
    assert tail.partition("\n")[1] == "" or made[-1 - behind].endswith(
        "\r\n" if text.lines[-1 - behind].endswith("\r\n") else "\n"
    )


@pytest.mark.parametrize(
    "text, old, lines",
    [
        ("ababa\nx\n", "aba", "1"),
        ("a\nb\na\n", "a", "1, 3"),
        ("aaa", "aa", "1"),
        ("x\n" * 9, "x", "1, 2, 3, 4, 5, ..."),
    ],
)
def test_an_anchor_that_is_there_twice_says_where(text, old, lines) -> None:
    with pytest.raises(ToolError) as error:
        by_anchor(doc(text), old, "new")
    assert str(error.value) == (
        f"old text is not unique; read the target lines and retry with line/range plus new (it starts at lines {lines})"
    )


def test_an_anchor_that_is_not_there_says_what_is_like_it() -> None:
    text = doc("if x:\n\treturn  y\n\n")
    with pytest.raises(ToolError, match="^old text not found; something like its first line is in line 2: read there"):
        by_anchor(text, "    return y\n    # so", "z")
    for old in ("nothing", "\n\n\n\n", "\u00e9"):
        with pytest.raises(ToolError, match="^old text not found$"):
            by_anchor(text, old, "z")
    with pytest.raises(ToolError, match="old is empty"):
        by_anchor(doc(""), "", "z")
    with pytest.raises(ToolError, match="^old text not found$"):
        by_anchor(doc(""), "a", "z")


# --- by lines


@given(PLAIN, st.integers(-1, 9), st.integers(-1, 9), PLAIN, st.booleans(), st.booleans())
def test_lines_are_replaced_as_a_list_would_be(text, first, last, new, dos, dos_new) -> None:
    lines = split(text)
    wanted = None
    if 1 <= first <= last <= len(lines):
        put = new + "\n" if new and not new.endswith("\n") and lines[last - 1].endswith("\n") else new
        wanted = "".join(lines[: first - 1]) + put + "".join(lines[last:])
        wanted = None if wanted == text else wanted
    dos = dos and "\n" in text  # a text without line breaks has none to go by
    if dos:
        text, wanted, new = crlf(text), None if wanted is None else crlf(wanted), crlf(new) if dos_new else new
    assert edited(doc(text), by_lines, first, last, new) == wanted


@pytest.mark.parametrize("text, first, last, new, wanted", [
    ("a\nb\nc\n", 2, 2, "x", "a\nx\nc\n"), ("a\nb\nc\n", 2, 2, "x\n", "a\nx\nc\n"), ("a\nb\nc\n", 2, 3, "", "a\n"),
    ("a\nb", 2, 2, "x", "a\nx"), ("a\nb", 2, 2, "x\n", "a\nx\n"), ("a\nb", 1, 1, "x", "x\nb"),
    ("a\nb", 2, 2, "", "a\n"), ("a\nb\n", 1, 2, "x", "x\n"), ("a\r\nb\r\n", 1, 1, "x\ny", "x\r\ny\r\nb\r\n"),
    ("a\r\nb", 2, 2, "x\ny", "a\r\nx\r\ny"),
    ("a\n\n\nb\n", 2, 3, "\n", "a\n\nb\n"), ("a", 1, 1, "", ""), ("a\r\r\n", 1, 1, "b", "b\r\n"),
])  # fmt: skip
def test_line_edits_by_hand(text, first, last, new, wanted) -> None:
    assert edited(doc(text), by_lines, first, last, new) == wanted


def test_lines_that_are_not_there() -> None:
    with pytest.raises(ToolError, match="^edit line range is outside the file, which has 1 line$"):
        by_lines(doc("a"), 1, 2, "x")
    with pytest.raises(ToolError, match="^edit line range is outside the file, which has 0 lines$"):
        by_lines(doc(""), 1, 1, "x")
    for first, last in ((0, 1), (2, 1), (-1, -1)):
        with pytest.raises(ToolError, match="^invalid range; use START:END, for example 10:20$"):
            by_lines(doc("a\nb\n"), first, last, "x")


# --- everything


@given(PLAIN, PLAIN, st.booleans())
def test_a_whole_file_keeps_its_endings_and_mark(text, new, bom) -> None:
    dos = doc(crlf(text), bom)
    wanted = crlf(new) if "\n" in text else new
    assert edited(dos, whole, new) == (None if wanted == crlf(text) else wanted)
    assert edited(dos, whole, crlf(new)) == (None if crlf(new) == crlf(text) else crlf(new))
    assert edited(doc(text, bom), whole, new) == (None if new == text else new)


def test_a_file_of_mixed_endings_is_replaced_as_it_is_given() -> None:
    assert edited(doc("a\r\nb\n"), whole, "c\nd\n") == "c\nd\n"
    assert edited(doc("a\r\nb"), whole, "c\nd") == "c\r\nd"


# --- marks, bytes


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    text = Document.parse(BOM + b"a\r\nb\r\n")
    assert text.lines[0] == "a\r\n"
    assert by_anchor(text, "a\nb", "c").apply(text).encode() == BOM + b"c\r\n"
    assert by_lines(text, 1, 1, "x").apply(text).encode() == BOM + b"x\r\nb\r\n"
    assert whole(text, "\ufeffx\n").apply(text).encode() == BOM + b"x\r\n", "not twice"
    assert Document.parse(b"a" + BOM).lines == ("a\ufeff",)


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_bytes_that_are_no_text_stay_around_an_edit(before, behind) -> None:
    data = before + b"\nMARK\n" + behind
    text = Document.parse(data)
    if b"MARK" in before + behind:
        return
    assert by_anchor(text, "MARK", "\u00e9").apply(text).encode() == data.replace(b"MARK", "\u00e9".encode())


def test_what_was_only_seen_as_replaced_is_not_written_over_the_bytes() -> None:
    text = Document.parse(b"caf\xe9 a\nplain\n")
    for edit, args in ((by_lines, (1, 1, "caf\ufffd b")), (by_lines, (1, 2, "x\ncaf\ufffd b")),
                       (whole, ("caf\ufffd b",)), (by_anchor, ("a\nplain", "\ufffd"))):  # fmt: skip
        with pytest.raises(ToolError, match="line 1 has bytes that are no UTF-8"):
            edit(text, *args)
    assert by_lines(text, 2, 2, "\ufffd").apply(text).encode() == b"caf\xe9 a\n\xef\xbf\xbd\n"
    assert by_lines(text, 1, 1, "cafe").apply(text).encode() == b"cafe\nplain\n"
    with pytest.raises(ToolError, match="old text not found"):
        by_anchor(text, "caf\ufffd", "x")


def test_huge_lines() -> None:
    line = "x" * (4 << 20)
    text = doc(f"{line}MARK{line}\n{line}\n")
    change = by_anchor(text, "MARK", "mark")
    assert text_of(change.apply(text)) == f"{line}mark{line}\n{line}\n"
    assert len(change.diff()) < 1000 and "more characters" in change.diff()
    assert by_lines(text, 2, 2, "y").apply(text).lines[1] == "y\n"


# --- the change itself


@given(
    st.lists(st.sampled_from(["a\n", "b\n", "c\n"]), max_size=8).map("".join),
    st.integers(1, 8),
    st.integers(1, 8),
    PLAIN,
)
def test_a_change_is_as_small_as_lines_allow(text, first, last, new) -> None:
    before = doc(text)
    try:
        change = by_lines(before, first, last, new)
    except ToolError:
        return
    assert before.lines[change.start : change.start + len(change.removed)] == change.removed
    assert change.removed or change.added
    for end in (0, -1):
        assert not (change.removed and change.added) or change.removed[end] != change.added[end]
    assert len(change.apply(before).lines) - len(before.lines) == change.shift


def test_a_diff_is_small_and_tells_of_missing_newlines() -> None:
    text = doc("".join(f"{n}\n" for n in range(1, 100)) + "end")
    assert by_lines(text, 3, 4, "x\ny\nz").diff() == "@@ -3,2 +3,3 @@\n-3\n-4\n+x\n+y\n+z"
    assert by_lines(text, 3, 3, "3\nx").diff() == "@@ -3,0 +4,1 @@\n+x"
    assert by_lines(text, 1, 1, "").diff() == "@@ -1,1 +0,0 @@\n-1"
    ends = "\n(the newline at the end of the file is "
    assert by_lines(text, 100, 100, "end\n").diff() == f"@@ -100,1 +100,1 @@\n-end\n+end{ends}new)"
    assert by_anchor(doc("a\n"), "a\n", "b").diff() == f"@@ -1,1 +1,1 @@\n-a\n+b{ends}gone)"
    assert by_lines(text, 99, 100, "x\nend\n").diff().endswith(f"+end{ends}new)")
    long = by_lines(text, 1, 50, "x\n" * 30).diff()
    assert (
        long.count("\n-") == 20 and "\n... 30 more - lines ...\n" in long and long.endswith("\n... 10 more + lines ...")
    )
    assert by_lines(text, 1, 50, "x\n" * 30).diff(None).count("\n") == 80
    assert shown_line("\tcaf\udce9\r\n") == "\tcaf\ufffd"


def test_what_changes_nothing_is_said() -> None:
    for edit, args in ((by_lines, (1, 1, "a")), (by_anchor, ("a", "a")), (whole, ("a\n",))):
        with pytest.raises(ToolError, match="this edit changes nothing"):
            edit(doc("a\n"), *args)
