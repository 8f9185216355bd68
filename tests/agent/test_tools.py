"""The tools as a model meets them: results, limits, guards, and a helpful line for every failure."""

from __future__ import annotations

import json
import os

import pytest

from ds4ref.agent import search as search_module
from ds4ref.agent import tools as module
from ds4ref.agent import workspace as workspace_module
from ds4ref.agent.arguments import Arguments
from ds4ref.agent.edit import BOM
from ds4ref.agent.permit import GROUPS, TOOLS, Permit, Question
from ds4ref.agent.search import Query, search
from ds4ref.agent.shell import Shell
from ds4ref.agent.tools import Toolbox
from ds4ref.agent.workspace import ToolError
from ds4ref.cancellation import Cancellation
from ds4ref.text.dsml import ToolCall
from ds4ref.text.schemas import read_schemas
from tests.agent.conftest import Tools

MOVED = "was not shown recently or moved after an edit; read this range again before editing"


# --- read


def test_read_numbers_lines(tools, folder) -> None:
    (folder / "a").write_bytes(BOM + b"one\r\n\r\n  three\tx")
    done = tools("read", path="a")
    assert done.text == "a: lines 1-3 of 3\n1 one\n2 \n3   three\tx" and not done.failed
    assert tools("read", path="a", raw=True).text == "one\n\n  three\tx"
    assert tools("read", path="a", start_line=2, max_lines=1).text == (
        "a: lines 2-2 of 3; continue_offset=3; read with start_line=3 shows the next lines\n2 "
    )
    assert tools("read", path="a", raw="true", max_lines="1").text == (
        "one\n[a: lines 1-1 of 3; continue_offset=2; read with start_line=2 shows the next lines]"
    )


def test_reading_is_bounded_in_lines_and_in_bytes(tools, folder) -> None:
    (folder / "lines").write_text("x\n" * 1200)
    (folder / "wide").write_text(("y" * 1999 + "\n") * 100)
    (folder / "huge").write_text("z" * 3_000_000 + "\nend\n")
    assert tools("read", path="lines").note == "lines: lines 1-500 of 1200"
    assert tools("read", path="lines", whole=True).note == "lines: lines 1-1200 of 1200"
    wide = tools("read", path="wide", whole=True)
    assert wide.text.startswith("wide: lines 1-32 of 100; continue_offset=33;") and len(wide.text) < 66_000
    assert tools("read", path="wide", start_line=33).text.startswith("wide: lines 33-64 of 100")
    huge = tools("read", path="huge")
    assert huge.text.split("\n")[1] == "1 " + "z" * 2000 + "... (2998000 more characters)"
    assert "line 1 of huge was not shown" in tools("edit", path="huge", line=1, new="x").text, "it was not seen whole"
    assert not tools("edit", path="huge", line=2, new="END").failed


@pytest.mark.parametrize("arguments, why", [
    ({"path": "missing"}, "missing: No such file or directory"),
    ({"path": "dir"}, "dir is a folder; list shows what is in it"),
    ({"path": "binary"}, "binary is a binary file (NUL at byte 2 of 4)"),
    ({"path": "text", "start_line": 3}, "text has 2 lines: there is no line 3"),
    ({"path": "../secret.txt"}, "../secret.txt is outside the workspace {root}; use paths inside it"),
    ({"path": "/etc/passwd"}, "/etc/passwd is outside the workspace {root}; use paths inside it"),
    ({"path": ""}, '"" is not a path'),
    ({"file_path": "text"}, "read requires path (unknown here: file_path)"),
    ({}, "read requires path"),
])  # fmt: skip
def test_what_cannot_be_read(tools, folder, arguments, why) -> None:
    (folder / "dir").mkdir()
    (folder / "binary").write_bytes(b"ab\0c")
    (folder / "text").write_text("a\nb\n")
    done = tools("read", **arguments)
    assert done.failed and done.text == "Tool error: " + why.format(root=os.path.realpath(folder))
    assert done.note == done.text.removeprefix("Tool error: ")


def test_numbers_and_flags_are_read_leniently(tools, folder) -> None:
    (folder / "a").write_text("x\n" * 10)
    for start, wanted in (("2", "2-10"), (2.9, "2-10"), ("x", "1-10"), (-5, "1-10"), (None, "1-10"), ("1e0", "1-10"),
                          ("nan", "1-10"), (True, "1-10"), ([3], "1-10")):  # fmt: skip
        assert tools("read", path="a", start_line=start).note == f"a: lines {wanted} of 10", start
    assert tools("read", path="a", max_lines=1e300).note == "a: lines 1-10 of 10"
    assert "there is no line" in tools.raw("read", '{"path":"a","start_line":1' + "0" * 5000 + "}").text
    for flag, raw in (("true", True), ("TRUE", True), (True, True), ("yes", False), (0, False), (None, False)):
        assert tools("read", path="a", raw=flag).text.startswith("x") is raw, flag


@pytest.mark.parametrize("text", ['{"path":', "[1]", '"a"', "{} {}", "null", "{'path': 'a'}", "{" * 400, '{"a" 1}'])
def test_arguments_that_are_no_object(tools, text) -> None:
    done = tools.raw("read", text)
    assert done.failed and done.text.startswith("Tool error: the arguments of read are no JSON object: ")
    assert "\n" not in done.text


def test_arguments_as_models_write_them(folder, tools) -> None:
    args = Arguments(ToolCall("t", ' {"a": 1, "b": null, "a": 2, "s": "x\\ud800", "o": {"k": [1, 2]}} '), ("a", "s"))
    assert args.text("a") == "1" and not args.has("b") and args.text("b", "d") == "d"
    assert args.text("s") == "x\ufffd" and args.text("o") == '{"k": [1, 2]}'
    assert args.surplus == " (unknown here: o)"
    assert not tools.raw("list", "").failed, "no arguments are none"


# --- list


def test_list(tools, folder) -> None:
    assert tools("list").text == ".: empty"
    (folder / "b").write_text("12345")
    (folder / "a").mkdir()
    os.symlink("b", folder / "link")
    os.mkfifo(folder / "pipe")
    (folder / "new\nline").write_text("")
    lines = tools("list").text.split("\n")
    size = (folder / "a").stat().st_size
    assert lines == [".:", f"d {size} a/", "- 5 b", "l 1 link", '- 0 "new\\nline"', "? 0 pipe"]
    assert tools("list", path="a").text == "a: empty" and tools("list", path="a/..").text.startswith(".:\n")
    assert tools("list", path="b").text == "Tool error: b: Not a directory"
    assert tools("list", path="..").failed and tools("list", path="x").failed
    assert tools("read", path="new\nline").text == '"new\\nline": empty'


def test_long_lists_are_cut(tools, folder) -> None:
    for n in range(302):
        (folder / f"{n:04}").touch()
    text = tools("list").text
    assert text.count("\n") == 301 and text.endswith("\n- 0 0299\n... more entries omitted (2) ...")


# --- search


@pytest.fixture
def tree(folder):
    (folder / "a.py").write_text("def Alpha():\n    pass\n\nalpha = 1\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.py").write_bytes(b"x\r\nalpha(1)\r\ny\r\n")
    (folder / "sub" / "c.txt").write_text("alpha beta\n")
    (folder / "sub" / "bin").write_bytes(b"alpha\0")
    (folder / ".git").mkdir()
    (folder / ".git" / "x").write_text("alpha\n")
    os.symlink("a.py", folder / "link.py")
    os.symlink("../outside", folder / "out")
    return folder


@pytest.mark.parametrize("arguments, wanted", [
    ({"query": "alpha"}, ["3 match(es) shown", "", "a.py", "  4 alpha = 1", "sub/b.py", "  2 alpha(1)", "sub/c.txt",
                          "  1 alpha beta"]),
    ({"query": "ALPHA", "case_sensitive": False, "glob": "*.py"},
     ["3 match(es) shown", "", "a.py", "  1 def Alpha():", "  4 alpha = 1", "sub/b.py", "  2 alpha(1)"]),
    ({"query": r"^alpha\b.*\d$", "mode": "regex"}, ["1 match(es) shown", "", "a.py", "  4 alpha = 1"]),
    ({"query": "alpha(", "path": "sub"}, ["1 match(es) shown", "", "sub/b.py", "  2 alpha(1)"]),
    ({"query": "alpha", "path": "sub/b.py", "context": 1},
     ["1 match(es) shown", "", "sub/b.py", "  1 x", "  2 alpha(1)", "  3 y"]),
    ({"query": "lpha", "path": "a.py", "context": 1},
     ["2 match(es) shown", "", "a.py", "  1 def Alpha():", "  2     pass", "  3 ", "  4 alpha = 1"]),
    ({"query": "a", "path": "a.py", "context": 0, "max_results": 2},
     ["2 match(es) shown (there may be more: narrow the search, or raise max_results)", "", "a.py",
      "  1 def Alpha():", "  2     pass"]),
    ({"query": "alpha", "glob": "sub/*.txt"}, ["1 match(es) shown", "", "sub/c.txt", "  1 alpha beta"]),
    ({"query": "alpha", "glob": "**/*.py"},
     ["2 match(es) shown", "", "a.py", "  4 alpha = 1", "sub/b.py", "  2 alpha(1)"]),
    ({"query": "secret"}, ["No matches"]),
])  # fmt: skip
def test_search(tools, tree, arguments, wanted) -> None:
    assert tools("search", **arguments).text.split("\n") == wanted


@pytest.mark.parametrize("arguments, why", [
    ({"query": "(", "mode": "regex"}, "invalid regex: "),
    ({"query": "(" * 5000 + ")" * 5000, "mode": "regex"}, "invalid regex: "),
    ({"query": ""}, "query is looked for line by line"),
    ({"query": "a\nb"}, "query is looked for line by line"),
    ({"query": "a", "mode": "glob"}, "mode is literal or regex, not 'glob'"),
    ({"query": "a", "path": "../outside"}, "outside the workspace"),
    ({"query": "a", "path": "out"}, "outside the workspace"),
    ({"query": "a", "path": "missing"}, "missing: No such file"),
    ({"query": "a", "path": "sub/bin"}, "is a binary file"),
    ({"pattern": "a"}, "search requires query (unknown here: pattern)"),
])  # fmt: skip
def test_what_cannot_be_searched(tools, tree, arguments, why) -> None:
    done = tools("search", **arguments)
    assert done.failed and why in done.text and "\n" not in done.text


def test_a_gap_between_matches_is_marked(tools, folder) -> None:
    (folder / "a").write_text("".join(f"{n}\n" for n in range(20)))
    text = tools("search", query="^(3|11|12)$", mode="regex", context=1).text
    assert text.split("\n")[2:] == ["a", "  3 2", "  4 3", "  5 4", "  ...", "  11 10", "  12 11", "  13 12", "  14 13"]


def test_what_a_search_shows_may_be_edited(tools, tree) -> None:
    tools("search", query="alpha", path="a.py", context=1)
    assert MOVED in tools("edit", path="a.py", line=1, new="x").text
    assert not tools("edit", path="a.py", line=3, new="# x").failed


def test_of_a_long_line_the_match_is_shown(tools, folder) -> None:
    (folder / "a").write_text("x" * 10_000 + "needle" + "y" * 10_000 + "\n")
    text = tools("search", query="needle").text
    assert "xneedley" in text and len(text) < 600 and "(a line of 20006 characters)" in text
    assert "line edit requires a recent read/search of a" in tools("edit", path="a", line=1, new="").text


def test_search_results_are_bounded(tools, folder, monkeypatch) -> None:
    for name in "abc":
        (folder / name).write_text(("needle" + "x" * 390 + "\n") * 300)
    text = tools("search", query="needle", max_results=500).text
    assert len(text) < 70_000 and "... more lines of this file are left out ..." in text
    assert text.startswith("300 match(es) shown (there may be more: narrow the search")


def test_a_search_ends_when_it_takes_too_long(workspace, tree) -> None:
    """By a clock of the test's own."""
    ticks = iter(range(0, 10_000, 20))
    with workspace.place(".") as place:
        text, found = search(workspace, place, Query("alpha"), Cancellation(), clock=lambda: float(next(ticks)))
    assert text.startswith("1 match(es) shown (stopped after 30 s)") or text == "No matches (stopped after 30 s)"
    assert len(found) < 3


def test_a_pattern_that_explodes_is_stopped(workspace, folder, monkeypatch) -> None:
    monkeypatch.setattr(search_module, "MAX_SECONDS", 0.05)
    (folder / "a").write_text("a" * 5000 + "!\n")
    with workspace.place(".") as place:
        query = Query(r"(?:a|a|aa)+(?:a|a|aa)+(?:a|aa)+$", regex=True)
        text, _ = search(workspace, place, query, Cancellation(), clock=lambda: 0.0)
    assert text == "No matches (stopped after 0 s: this pattern takes too long)"


def test_a_search_ends_when_it_is_cancelled(workspace, tree) -> None:
    cancel = Cancellation()
    cancel.press()
    with workspace.place(".") as place:
        assert search(workspace, place, Query("alpha"), cancel) == ("No matches (interrupted)", [])


# --- edit


def test_an_edit_by_an_anchor(tools, folder) -> None:
    (folder / "a").write_text("".join(f"line {n}\n" for n in range(1, 21)))
    done = tools("edit", path="a", old="line 10\nline 11", new="ten\neleven\nand")
    assert done.text.split("\n") == [
        "Edited a using old/new replacement", "Touched old lines 10-11",
        "Line shift: +1 for all lines behind old line 11; read them again before editing them by number",
        "@@ -10,2 +10,3 @@", "-line 10", "-line 11", "+ten", "+eleven", "+and",
        "Current file around edit: a lines 5-20 of 21",
        *(f"{n} line {n}" for n in range(5, 10)), "10 ten", "11 eleven", "12 and",
        *(f"{n} line {n - 1}" for n in range(13, 21)),
    ]  # fmt: skip
    assert (folder / "a").read_text().split("\n")[8:13] == ["line 9", "ten", "eleven", "and", "line 12"]
    assert done.note == "Edited a using old/new replacement" and done.detail.startswith("@@ -10,2 +10,3 @@\n")


def test_without_new_text_an_anchor_is_deleted(tools, folder) -> None:
    (folder / "a").write_text("a\nb\nc\n")
    assert "Touched old lines 2-2" in tools("edit", path="a", old="b\n").text
    assert (folder / "a").read_text() == "a\nc\n"
    assert "Touched old lines none, put behind line 1" in tools("edit", path="a", old="a\n", new="a\nb\n").text
    assert tools("edit", path="a", old="a\nb\nc\n").text.endswith("a is empty now")
    assert (folder / "a").read_bytes() == b""


def test_an_edit_by_lines(tools, folder) -> None:
    (folder / "a").write_text("one\ntwo\nthree\n")
    tools("read", path="a")
    done = tools("edit", path="a", line=2, new="TWO")
    assert done.text == (
        "Edited a lines 2-2\n@@ -2,1 +2,1 @@\n-two\n+TWO\n"
        "Current file around edit: a lines 1-3 of 3\n1 one\n2 TWO\n3 three"
    )
    assert not tools("edit", path="a", range="2:3", new="x\n").failed
    assert (folder / "a").read_text() == "one\nx\n"
    assert not tools("edit", path="a", range=" 1 - 1 ", new="").failed
    assert not tools("edit", path="a", start_line="1", new="y").failed
    assert (folder / "a").read_text() == "y\n"


def test_old_comes_before_lines(tools, folder) -> None:
    (folder / "a").write_text("one\ntwo\n")
    assert not tools("edit", path="a", old="one", new="1", line=2, range="all").failed
    assert (folder / "a").read_text() == "1\ntwo\n"


def test_a_long_edit_shows_its_ends(tools, folder) -> None:
    (folder / "a").write_text("".join(f"old {n}\n" for n in range(100)))
    text = tools("edit", path="a", old="old 50\n", new="".join(f"new {n}\n" for n in range(60))).text
    assert "\n... 24 edited lines omitted ...\n" in text and "\n+new 19\n... 40 more + lines ..." in text
    around = text.partition("Current file around edit: a lines 46-118 of 159\n")[2].split("\n")
    assert len(around) == 5 + 18 + 1 + 18 + 8
    assert [around[at] for at in (5, 22, 24, -1)] == ["51 new 0", "68 new 17", "93 new 42", "118 old 58"]
    assert "line 70 of a was not shown" in tools("edit", path="a", line=70, new="x").text
    assert not tools("edit", path="a", line=68, new="x").failed


@pytest.mark.parametrize("arguments, why", [
    ({"old": "x", "new": "y"}, "old text not found"),
    ({"old": "", "new": "y"}, "old is empty"),
    ({"old": "o", "new": "y"}, "old text is not unique; read the target lines and retry with line/range plus new"),
    ({"line": 1}, 'line/range edit requires explicit new text; use new="" only when deleting'),
    ({"range": "all"}, 'line/range edit requires explicit new text; use new="" only when deleting'),
    ({"line": 4, "new": "x"}, "edit line range is outside the file, which has 3 lines"),
    ({"line": "x", "new": "x"}, "invalid range; use START:END, for example 10:20"),
    ({"range": "2", "new": "x"}, "invalid range; use START:END, for example 10:20"),
    ({"range": "3:2", "new": "x"}, "invalid range; use START:END, for example 10:20"),
    ({"start_line": 3, "end_line": 2, "new": "x"}, "invalid range; use START:END, for example 10:20"),
    ({"new": "x"}, "edit requires old, or line, start_line or range, besides new"),
    ({"old_string": "one", "new_string": "1"}, "only when deleting (unknown here: old_string, new_string)"),
    ({"line": 1, "new": "one"}, "this edit changes nothing"),
    ({"line": 1, "new": "a\0b"}, "new text with a NUL would make it a binary file"),
    ({"old": "one", "new": "a\0b"}, "new text with a NUL would make it a binary file"),
])  # fmt: skip
def test_edits_that_are_refused(tools, folder, arguments, why) -> None:
    (folder / "a").write_text("one\ntwo\nthree\n")
    tools("read", path="a")
    done = tools("edit", path="a", **arguments)
    assert done.failed and why in done.text and "\n" not in done.text
    assert (folder / "a").read_text() == "one\ntwo\nthree\n"


def test_files_that_cannot_be_edited(tools, folder, tmp_path) -> None:
    (folder / "bin").write_bytes(b"\0\n")
    (folder / "ro").write_text("x\n")
    os.chmod(folder / "ro", 0o444)
    os.symlink("../secret.txt", folder / "link")
    for path, why in (("bin", "binary file"), ("ro", "read-only"), ("link", "outside"), ("missing", "No such file"),
                      ("../secret.txt", "outside"), (".", "is a folder")):  # fmt: skip
        for arguments in ({"old": "x"}, {"line": 1, "new": "y"}):
            done = tools("edit", path=path, **arguments)
            assert done.failed and why in done.text, path
    assert (tmp_path / "secret.txt").read_text() == "secret\n"


def test_an_empty_file_has_no_lines(tools, folder) -> None:
    (folder / "a").write_text("")
    assert tools("read", path="a").text == "a: empty"
    assert "outside the file, which has 0 lines" in tools("edit", path="a", line=1, new="x").text
    assert "old text not found" in tools("edit", path="a", old="x", new="y").text
    assert tools("edit", path="a", range="all", new="x\n").text.startswith("Edited a range=all\n@@ -0,0 +1,1 @@\n+x\n")
    assert (folder / "a").read_text() == "x\n"


def test_range_all_makes_files_and_keeps_endings(tools, folder) -> None:
    assert not tools("edit", path="new", range="all", new="a\nb\n").failed
    assert (folder / "new").read_bytes() == b"a\nb\n"
    (folder / "dos").write_bytes(BOM + b"a\r\nb\r\n")
    assert not tools("edit", path="dos", range="all", new="c\nd\ne\n").failed
    assert (folder / "dos").read_bytes() == BOM + b"c\r\nd\r\ne\r\n"
    assert not tools("edit", path="dos", line=2, new="D").failed, "what it wrote itself it knows"
    assert (folder / "dos").read_bytes() == BOM + b"c\r\nD\r\ne\r\n"


def test_modes_stay(tools, folder) -> None:
    (folder / "a").write_text("x\n")
    os.chmod(folder / "a", 0o750)
    assert not tools("edit", path="a", old="x", new="y").failed
    assert not tools("write", path="a", content="z").failed
    assert (folder / "a").stat().st_mode & 0o7777 == 0o750


# --- the guards


def test_lines_must_have_been_read(tools, folder) -> None:
    (folder / "a").write_text("one\ntwo\nthree\n")
    unread = "Tool error: line edit requires a recent read/search of a; read the range before editing"
    assert tools("edit", path="a", line=2, new="x").text == unread
    tools("list")
    tools("read", path="a", raw=True)
    assert tools("edit", path="a", line=2, new="x").text == unread, "raw reading does not count"
    tools("read", path="a", start_line=2, max_lines=1)
    assert tools("edit", path="a", range="1:2", new="x").text == f"Tool error: line 1 of a {MOVED}"
    assert not tools("edit", path="./a", line=2, new="x").failed, "the same file"


@pytest.mark.parametrize("now, why", [
    ("ONE\ntwo\nthree\n", "file changed around line 1 of a; read this range again before editing"),
    ("zero\none\ntwo\nthree\n", "file changed around line 1 of a; read this range again before editing"),
    ("one\ntwo\nTHREE\n", "a has changed since it was read; read it again before editing"),
    ("one\ntwo\nthree", "a has changed since it was read; read it again before editing"),
    ("one\r\ntwo\nthree\n", "file changed around line 1 of a; read this range again before editing"),
])  # fmt: skip
def test_a_file_that_changed_is_not_edited(tools, folder, now, why) -> None:
    (folder / "a").write_text("one\ntwo\nthree\n")
    tools("read", path="a")
    (folder / "a").write_bytes(now.encode())
    assert tools("edit", path="a", range="1:2", new="x").text == f"Tool error: {why}"
    changed = "Tool error: a has changed since it was read; read it again before editing"
    assert tools("edit", path="a", old="two", new="x").text == changed
    assert tools("edit", path="a", range="all", new="x").text == changed
    assert tools("write", path="a", content="x").text == changed
    assert (folder / "a").read_bytes() == now.encode()
    tools("read", path="a")
    assert not tools("edit", path="a", old="two", new="x").failed


def test_a_file_that_got_shorter(tools, folder) -> None:
    (folder / "a").write_text("one\ntwo\nthree\n")
    tools("read", path="a")
    (folder / "a").write_text("one\n")
    assert "outside the file, which has 1 line" in tools("edit", path="a", line=3, new="x").text


def test_equal_lines_are_not_taken_for_each_other(tools, folder) -> None:
    """A line with the same text stands where the one that was read stood."""
    (folder / "a").write_text("{\n}\n{\n}\n")
    tools("read", path="a")
    (folder / "a").write_text("{\n}\n{\n}\n{\n}\n")
    assert "has changed since it was read" in tools("edit", path="a", line=2, new="x").text


def test_a_file_that_was_read_again_may_be_edited_in_the_next_answer(tools, folder) -> None:
    (folder / "a").write_text("one\n")
    tools("read", path="a")
    (folder / "a").write_text("two\n")
    tools("read", path="a")
    assert "has changed" in tools.together("write", path="a", content="x").text
    assert "has changed" in tools.together("edit", path="a", old="two", new="x").text
    assert not tools("edit", path="a", old="two", new="three").failed
    assert not tools.together("edit", path="a", old="three", new="four").failed, "its own changes it knows"
    assert not tools.together("write", path="a", content="x").failed


def test_what_is_forgotten_must_be_read_again(tools, folder) -> None:
    (folder / "a").write_text("one\n")
    tools("read", path="a")
    tools.box.forget()
    assert "requires a recent read" in tools("edit", path="a", line=1, new="x").text


def test_an_anchor_needs_no_reading(tools, folder) -> None:
    (folder / "a").write_text("one\n")
    assert not tools("edit", path="a", old="one", new="two").failed


def test_a_change_forgets_what_was_read_before_it(tools, folder) -> None:
    """Lines of two versions are never mixed."""
    (folder / "a").write_text("".join(f"{n}\n" for n in range(1, 40)))
    tools("read", path="a", max_lines=5)
    (folder / "a").write_text("".join(f"{n}\n" for n in range(40)))
    tools("read", path="a", start_line=10, max_lines=5)
    assert tools("edit", path="a", line=3, new="x").text == f"Tool error: line 3 of a {MOVED}"
    assert not tools("edit", path="a", line=12, new="x").failed


def test_edits_that_move_lines_forget_those_behind(tools, folder) -> None:
    (folder / "a").write_text("".join(f"{n}\n" for n in range(1, 101)))
    tools("read", path="a")
    tools("edit", path="a", line=50, new="50\n50b")
    assert tools("edit", path="a", line=90, new="x").text == f"Tool error: line 90 of a {MOVED}"
    assert not tools("edit", path="a", line=59, new="x").failed, "it was shown with the edit"
    assert not tools("edit", path="a", line=10, new="x").failed, "it did not move"
    assert not tools("edit", path="a", line=52, new="y").failed
    tools("read", path="a", start_line=80, max_lines=20)
    assert not tools("edit", path="a", line=20, new="20b").failed
    assert not tools("edit", path="a", line=90, new="x").failed, "as many lines as before: nothing moved"


def test_calls_of_one_answer_do_not_build_on_results_not_seen(tools, folder) -> None:
    (folder / "a").write_text("".join(f"{n}\n" for n in range(1, 11)))
    tools("read", path="a")
    tools.box.settle()
    assert not tools.together("edit", path="a", range="3:4", new="x\ny").failed
    assert tools.together("edit", path="a", range="4:5", new="z").text == f"Tool error: line 4 of a {MOVED}", "overlap"
    assert not tools.together("edit", path="a", range="7:8", new="u\nv\nw").failed, "apart from it"
    assert tools.together("edit", path="a", line=9, new="q").text == f"Tool error: line 9 of a {MOVED}", "moved"
    assert not tools.together("edit", path="a", line=1, new="one").failed
    assert (folder / "a").read_text() == "one\n2\nx\ny\n5\n6\nu\nv\nw\n9\n10\n"
    assert not tools("edit", path="a", line=9, new="q").failed, "now it has been seen"
    tools.box.settle()
    (folder / "b").write_text("1\n2\n")
    tools.together("read", path="b")
    blind = tools.together("edit", path="b", line=1, new="x")
    assert blind.text == f"Tool error: line 1 of b {MOVED}", "written before anything was seen"
    assert not tools.together("write", path="b", content="a\nb\n").failed
    assert not tools.together("edit", path="b", line=1, new="x").failed, "but what it wrote itself it knows"


def test_anchors_of_one_answer_may_overlap_or_not(tools, folder) -> None:
    (folder / "a").write_text("one two three\n")
    tools.box.settle()
    assert not tools.together("edit", path="a", old="one two", new="1 2").failed
    assert "old text not found" in tools.together("edit", path="a", old="two three", new="2 3").text
    assert not tools.together("edit", path="a", old="2 three", new="2 3").failed
    assert (folder / "a").read_text() == "1 2 3\n"


def test_a_change_while_the_user_thinks_is_noticed(workspace, folder) -> None:
    def ask(question: Question):
        (folder / "a").write_text("somebody's\n")
        from ds4ref.agent.permit import Answer

        return Answer.YES

    tools = Tools(Toolbox(workspace, Permit(ask=ask), Shell(workspace.root, {})))
    for name, arguments in (("edit", {"old": "one", "new": "x"}), ("write", {"content": "x"})):
        (folder / "a").write_text("one\n")
        done = tools(name, path="a", **arguments)
        assert done.text == "Tool error: a changed while it was edited; read it again before editing"
        assert (folder / "a").read_text() == "somebody's\n"
    os.unlink(folder / "a")
    assert "made by somebody else meanwhile" in tools("write", path="a", content="x").text


# --- write


def test_write(tools, folder) -> None:
    assert tools("write", path="a", content="caf\u00e9\n").text == "Wrote 6 bytes to a"
    assert (folder / "a").read_text() == "caf\u00e9\n"
    assert not tools("edit", path="a", line=1, new="x").failed
    assert tools("write", path="a", content="").text == "Wrote 0 bytes to a"
    assert tools("write", path="a", content={"k": [1]}).text == "Wrote 10 bytes to a", "as the model wrote it"
    assert (folder / "a").read_text() == '{"k": [1]}'
    assert (folder / "a").stat().st_mode & 0o111 == 0


@pytest.mark.parametrize("arguments, why", [
    ({"path": "dir/a", "content": "x"},
     "open for write failed: dir/a: No such file or directory; write makes no folders"),
    ({"path": "folder", "content": "x"}, "folder is a folder; list shows what is in it"),
    ({"path": ".", "content": "x"}, ". is a folder; list shows what is in it"),
    ({"path": "../new", "content": "x"}, "outside the workspace"),
    ({"path": ".git/hooks/pre-commit", "content": "x"}, ".git/hooks/pre-commit is git's own; use git to change it"),
    ({"path": "a"}, "write requires content"),
    ({"content": "a"}, "write requires path"),
    ({"path": "a", "content": "\0"}, "NUL"),
])  # fmt: skip
def test_what_cannot_be_written(tools, folder, arguments, why) -> None:
    (folder / "folder").mkdir()
    (folder / ".git" / "hooks").mkdir(parents=True)
    done = tools("write", **arguments)
    assert done.failed and why in done.text and "\n" not in done.text
    assert not (folder.parent / "new").exists() and not os.listdir(folder / ".git" / "hooks")


# --- bash


def test_bash(tools, folder) -> None:
    done = tools("bash", command="pwd; echo err >&2; cat; exit 3")
    head, _, rest = done.text.partition("\n")
    assert head.startswith("bash status=done elapsed_sec=") and head.endswith(" timed_out=0 exit_status=3")
    assert rest == f"<output>\n{os.path.realpath(folder)}\nerr\n</output>" and done.failed
    assert tools("bash", command="printf x").text.endswith("\n<output>\nx\n</output>")
    assert tools("bash", command="true").text.endswith("exit_status=0\n<output>\n</output>")
    assert tools("bash", command="true").note == "exit status 0"
    for command in ("", "  \n"):
        assert tools("bash", command=command).text == "Tool error: bash requires command"
    assert tools("bash", cmd="ls").text == "Tool error: bash requires command (unknown here: cmd)"
    assert tools("bash", command="echo \0").text == "Tool error: a command has no NUL"
    assert not tools("bash", command="ls", description="lists").failed, "surplus names do no harm"


def test_a_file_that_a_command_changed_must_be_read_again(tools, folder) -> None:
    (folder / "a").write_text("one\n")
    tools("read", path="a")
    tools("bash", command="echo two >> a")
    assert "has changed since it was read" in tools("edit", path="a", line=1, new="x").text


def test_a_command_that_cannot_be_started(tools, folder) -> None:
    os.rmdir(folder)
    done = tools("bash", command="true")
    assert done.failed and done.text.startswith("Tool error: ") and "No such file" in done.text


# --- all of them


def test_unknown_tools_are_told_the_known_ones(tools) -> None:
    done = tools("Read", path="a")
    assert done.text == "Tool error: unknown tool: Read; there are read, list, search, edit, write, bash"
    assert tools("x\n\x1b[2J\ud800").text.startswith('Tool error: unknown tool: "x\\n\\u001b[2J\\ud800"; there are')


def test_mistakes_of_ours_are_results(tools, folder, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("oh")

    monkeypatch.setattr(module, "listing", broken)
    assert tools("list").text == "Tool error: internal error in list: RuntimeError: oh"

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(module, "listing", full)
    assert tools("list").text == "Tool error: not enough memory"


def test_no_result_is_longer_than_the_limit(tools, folder, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_RESULT", 1000)
    (folder / "a").write_text("\u20ac" * 1000)
    text = tools("read", path="a").text
    assert len(text.encode()) < 1100 and text.endswith(" bytes ...]") and "\n[... cut: " in text


def test_schemas_are_what_the_text_layer_takes(tools) -> None:
    listed = [json.loads(schema) for schema in tools.box.schemas]
    assert tuple(tool["name"] for tool in listed) == ("read", "list", "search", "edit", "write", "bash")
    assert sorted(TOOLS) == sorted(tool["name"] for tool in listed), "each has a group"
    for tool in listed:
        assert tool["description"] and set(tool["parameters"]["required"]) <= set(tool["parameters"]["properties"])
        assert all(p["description"] and p["type"] for p in tool["parameters"]["properties"].values())
    wrapped = [{"type": "function", "function": tool} for tool in listed]
    assert [schema.name for schema in read_schemas(json.dumps(wrapped))] == [tool["name"] for tool in listed]


def test_titles(tools) -> None:
    for arguments, title in (('{"path":"a b"}', "read a b"), ('{"path":"a\\nb"}', 'read "a\\nb"'), ("nonsense", "read"),
                             ('{"query":"x y"}', "read x y"), ("{}", "read")):  # fmt: skip
        assert tools.box.title(ToolCall("read", arguments)) == title
    assert tools.box.title(ToolCall("bash", '{"command":"a\\nb"}')) == "bash a\nb"


@pytest.mark.parametrize("tool, arguments", [
    ("read", {"path": "a"}), ("list", {}), ("search", {"query": "one"}),
    ("edit", {"path": "a", "old": "one", "new": "x"}),
    ("edit", {"path": "new", "range": "all", "new": "x"}), ("write", {"path": "a", "content": "x"}),
    ("bash", {"command": "echo x > a"}),
])  # fmt: skip
def test_nothing_is_done_without_permission(workspace, folder, tool, arguments) -> None:
    (folder / "a").write_text("one\n")
    tools = Tools(Toolbox(workspace, Permit(set(TOOLS) - {tool}), Shell(workspace.root, os.environ)))
    done = tools(tool, **arguments)
    group = next(name for name, members in GROUPS.items() if tool in members)
    assert done.failed and done.text == (
        f"Tool error: permission denied: {tool} was not allowed beforehand, and nobody is there to be asked. Do not "
        f"try it again: go on without it, or tell the user what you would do; --allow {group} allows it"
    )
    assert (folder / "a").read_text() == "one\n" and os.listdir(folder) == ["a"]


def test_a_denied_edit_tells_nothing_of_the_file(workspace, folder) -> None:
    """Whether a text is in it, for instance."""
    (folder / "a").write_text("one\n")
    tools = Tools(Toolbox(workspace, Permit(), Shell(workspace.root, {})))
    answers = {
        tools("edit", path=path, old=old, new="x").text for path in ("a", "b", "..") for old in ("one", "two", "")
    }
    assert len(answers) == 1 and "permission denied" in answers.pop()


def test_files_over_the_limit_are_not_read(tools, folder, monkeypatch) -> None:
    monkeypatch.setattr(workspace_module, "MAX_FILE", 1 << 20)
    (folder / "a").write_bytes(b"x" * ((1 << 20) + 1))
    for name, arguments in (("read", {}), ("edit", {"old": "x"}), ("write", {"content": "x"})):
        assert tools(name, path="a", **arguments).text == "Tool error: a is larger than 1 MiB"
    assert tools("search", query="x").text == "No matches"
    with pytest.raises(ToolError), tools.box.workspace.place("a") as place:
        search(tools.box.workspace, place, Query("x"), Cancellation())
