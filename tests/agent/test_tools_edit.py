"""The agent's edit tool: by anchors and by lines, and the guards against lines that are not what the model saw."""

from __future__ import annotations

import os

import pytest

from ds4ref.agent.edit import BOM
from ds4ref.agent.permit import Permit, Question
from ds4ref.agent.shell import Shell
from ds4ref.agent.tools import Toolbox
from tests.agent.conftest import Tools

MOVED = "was not shown recently or moved after an edit; read this range again before editing"

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


def test_what_a_search_shows_may_be_edited(tools, folder) -> None:
    (folder / "a.py").write_text("def Alpha():\n    pass\n\nalpha = 1\n")
    tools("search", query="alpha", path="a.py", context=1)
    assert MOVED in tools("edit", path="a.py", line=1, new="x").text
    assert not tools("edit", path="a.py", line=3, new="# x").failed
