"""The tools as a model meets them: results, limits, guards, and a helpful line for every failure."""

from __future__ import annotations

import os

import pytest

from ds4ref.agent import search as search_module
from ds4ref.agent.permit import GROUPS, TOOLS, Permit, group_of
from ds4ref.agent.shell import Shell
from ds4ref.agent.tools import Toolbox
from ds4ref.cancellation import Cancellation
from ds4ref.text.dsml import ToolCall
from tests.agent.conftest import Tools

CHANGED = "Tool error: a has changed since it was read; read it again before editing"


# --- read


def test_read_numbers_lines(tools, folder) -> None:
    (folder / "a").write_bytes(b"one\r\n\r\n  three\tx")
    done = tools("read", path="a")
    assert done.text == "a: lines 1-3 of 3\n1 one\n2 \n3   three\tx" and not done.failed
    assert tools("read", path="a", start_line=2, max_lines=1).text == (
        "a: lines 2-2 of 3; continue_offset=3; read with start_line=3 shows the next lines\n2 "
    )
    (folder / "a").write_text(("x" * 3000 + "\n") * 40)
    done = tools("read", path="a")
    assert done.note == "a: lines 1-32 of 40", "64 KiB"
    assert done.text.endswith(f"32 {'x' * 2000}... (3000 characters)")
    (folder / "a").write_text("x" * 2000)
    assert tools("read", path="a").text.endswith("\n1 " + "x" * 2000)


@pytest.mark.parametrize("arguments, why", [
    ({"path": "missing"}, "missing: No such file or directory"),
    ({"path": "dir"}, "dir is a folder; list shows what is in it"),
    ({"path": "binary"}, "binary is a binary file (NUL at byte 2 of 4)"),
    ({"path": "text", "start_line": 3}, "text has 2 lines: there is no line 3"),
    ({"path": "../secret.txt"}, "../secret.txt is outside the workspace {root}; use paths inside it"),
    ({"path": ""}, '"" is not a path'),
    ({"path": "a\nb"}, '"a\\nb": No such file or directory'),
])  # fmt: skip
def test_what_cannot_be_read(tools, folder, arguments, why) -> None:
    (folder / "dir").mkdir()
    (folder / "binary").write_bytes(b"ab\0c")
    (folder / "text").write_text("a\nb\n")
    done = tools("read", **arguments)
    assert done.failed and done.text == "Tool error: " + why.format(root=os.path.realpath(folder))
    assert done.note == done.text.removeprefix("Tool error: ")


def test_arguments_are_read_leniently_and_checked(tools, folder) -> None:
    (folder / "a").write_text("x\n" * 10)
    for start, lines in (("2", "2-10"), (2.0, "2-10"), (None, "1-10"), (10, "10-10")):
        assert tools("read", path="a", start_line=start, surplus=1).note == f"a: lines {lines} of 10", start
    for flag, found in (("true", 0), (True, 0), (False, 10), (None, 0), ("False", 10)):
        assert tools("search", query="X", case_sensitive=flag).text.count("x") == found, flag
    assert not tools.raw("list", "").failed, "no arguments are none"
    names = "(parameters: path, start_line, max_lines)"
    for arguments, why in (
        ({"file_path": "a"}, "Object missing required field `path`"),
        ({"path": "a", "start_line": 0}, "Expected `int` >= 1 - at `$.start_line`"),
        ({"path": "a", "max_lines": "x"}, "Expected `int`, got `str` - at `$.max_lines`"),
        ({"path": ["a"]}, "Expected `str`, got `array` - at `$.path`"),
    ):
        assert tools("read", **arguments).text == f"Tool error: read: {why} {names}"


@pytest.mark.parametrize("text", ['{"path":', "[1]", '"a"', "{} {}", "null", "{'path': 'a'}", "{" * 400, '{"a" 1}',
                                  '{"a":' * 5000, '{"a":"\ud800"}', '{"a":1' + "0" * 5000 + "}"])  # fmt: skip
def test_arguments_that_are_no_object(tools, text) -> None:
    done = tools.raw("read", text)
    assert done.failed and done.text.startswith("Tool error: the arguments of read are no JSON object: ")
    assert "\n" not in done.text and tools.box.title(ToolCall("read", text)) == "read"


# --- list and search


def test_list(tools, folder) -> None:
    assert tools("list").text == ".: empty"
    (folder / "b").write_text("12345")
    (folder / "a").mkdir()
    os.symlink("b", folder / "link")
    os.mkfifo(folder / "pipe")
    (folder / "new\nline").write_text("")
    size = (folder / "a").stat().st_size
    lines = [".:", f"d {size} a/", "- 5 b", "l 1 link", '- 0 "new\\nline"', "? 0 pipe"]
    assert tools("list").text.split("\n") == lines
    assert tools("list", path="a").text == "a: empty" and tools("list", path="a/..").text.startswith(".:\n")
    assert tools("list", path="b").text == "Tool error: b: Not a directory"
    assert tools("list", path="..").failed and tools("list", path="x").failed


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
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize("arguments, wanted", [
    ({"query": "alpha"}, "3 match(es) shown||a.py|  4 alpha = 1|sub/b.py|  2 alpha(1)|sub/c.txt|  1 alpha beta"),
    ({"query": "ALPHA", "case_sensitive": False, "glob": "*.py"},
     "3 match(es) shown||a.py|  1 def Alpha():|  4 alpha = 1|sub/b.py|  2 alpha(1)"),
    ({"query": r"^alpha\b.*\d$", "mode": "regex"}, "1 match(es) shown||a.py|  4 alpha = 1"),
    ({"query": "alpha(", "path": "sub"}, "1 match(es) shown||sub/b.py|  2 alpha(1)"),
    ({"query": "a", "path": "a.py", "max_results": 2},
     "2 match(es) shown (there may be more: narrow the search, or raise max_results)||a.py|"
     "  1 def Alpha():|  2     pass"),
    ({"query": "a", "path": "a.py", "max_results": 3},
     "3 match(es) shown||a.py|  1 def Alpha():|  2     pass|  4 alpha = 1"),
    ({"query": "alpha", "glob": "sub/*.txt"}, "1 match(es) shown||sub/c.txt|  1 alpha beta"),
    ({"query": "alpha", "glob": "sub/*.txt", "path": "sub"}, "1 match(es) shown||sub/c.txt|  1 alpha beta"),
    ({"query": "alpha", "glob": "**/*.py"}, "2 match(es) shown||a.py|  4 alpha = 1|sub/b.py|  2 alpha(1)"),
    ({"query": "secret"}, "No matches"),
])  # fmt: skip
def test_search(tools, tree, arguments, wanted) -> None:
    assert tools("search", **arguments).text == wanted.replace("|", "\n")


@pytest.mark.parametrize("arguments, why", [
    ({"query": "(", "mode": "regex"}, "invalid regex: "),
    ({"query": "(" * 5000 + ")" * 5000, "mode": "regex"}, "invalid regex: "),
    ({"query": ""}, "Expected `str` of length >= 1"), ({"query": "a", "mode": "glob"}, "Invalid enum value 'glob'"),
    ({"query": "a", "max_results": 501}, "`int` <= 500"),
    ({"query": "a", "path": "../outside"}, "outside the workspace"), ({"query": "a", "path": "out"}, "outside the"),
    ({"query": "a", "path": "missing"}, "missing: No such file"), ({"query": "a", "path": "pipe"}, "a regular file"),
    ({"query": "a", "path": "sub/bin"}, "is a binary file"), ({"pattern": "a"}, "missing required field `query`"),
])  # fmt: skip
def test_what_cannot_be_searched(tools, tree, arguments, why) -> None:
    done = tools("search", **arguments)
    assert done.failed and why in done.text and "\n" not in done.text


def test_a_search_ends_when_it_takes_too_long(tools, tree, monkeypatch) -> None:
    monkeypatch.setattr(search_module, "MAX_SECONDS", 0.0)
    for glob in ("", "*.nosuch"):
        assert tools("search", query="alpha", glob=glob).text == "No matches (stopped after 0 s)"
    monkeypatch.setattr(search_module, "MAX_SECONDS", 0.1)
    (tree / "b").write_text("a" * 5000 + "!\n")
    pattern = r"(?:a|a|aa)+(?:a|a|aa)+(?:a|aa)+$"
    assert tools("search", query=pattern, mode="regex").text == "No matches (stopped after 0 s)"
    clock = iter([0.0, 0.05, 0.06, 0.2])  # the time is up in the middle of a file
    with monkeypatch.context() as patch:
        patch.setattr(search_module.time, "monotonic", lambda: next(clock))
        assert tools("search", query="alpha", path="a.py").text == "No matches (stopped after 0 s)"
    cancel = Cancellation()
    cancel.press()
    assert tools.box.run(ToolCall("search", '{"query":"alpha"}'), cancel).text == "No matches (interrupted)"


# --- edit


def test_an_edit(tools, folder) -> None:
    (folder / "a").write_text("one\ntwo\nthree\n")
    assert tools("edit", path="a", old="two", new="TWO").text == "Edited a\n@@ -2,1 +2,1 @@\n-two\n+TWO"
    assert not tools("edit", path="./a", old="TWO\nthree\n", new="").failed and (folder / "a").read_text() == "one\n"


@pytest.mark.parametrize("arguments, why", [
    ({"old": "x", "new": "y"}, "old text not found"),
    ({"old": "o", "new": "y"}, "old text is not unique (it starts in lines 1 and 2); give more of the text"),
    ({"path": "again", "old": "x\nx\n", "new": "y"}, "old text is not unique (it starts in lines 1 and 2)"),
    ({"old": "one"}, "edit: Object missing required field `new`"),
    ({"old": "", "new": "x"}, "Expected `str` of length >= 1 - at `$.old`"),
    ({"old": "one", "new": "one"}, "this edit changes nothing"),
    ({"path": "latin", "old": "a", "new": "b"}, "latin is not UTF-8 text; use bash to change it"),
    ({"path": "missing", "old": "a", "new": "b"}, "missing: No such file or directory"),
])  # fmt: skip
def test_edits_that_are_refused(tools, folder, arguments, why) -> None:
    (folder / "a").write_text("one\ntwo\nthree\n")
    (folder / "latin").write_bytes(b"a\xe4")
    (folder / "again").write_text("x\nx\nx\n")
    done = tools("edit", **{"path": "a", **arguments})
    assert done.failed and why in done.text and "\n" not in done.text
    assert (folder / "a").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("now", ["ONE\ntwo\nthree\n", "one\ntwo\nthree", "one\r\ntwo\nthree\n"])
def test_a_file_that_changed_is_not_edited(tools, folder, now) -> None:
    (folder / "a").write_text("one\ntwo\nthree\n")
    tools("read", path="a")
    (folder / "a").write_bytes(now.encode())
    assert tools("edit", path="a", old="two", new="x").text == CHANGED
    assert tools("write", path="a", content="x").text == CHANGED and (folder / "a").read_bytes() == now.encode()
    tools("read", path="a")
    assert not tools("edit", path="a", old="two", new="x").failed
    assert not tools("write", path="a", content="y").failed, "its own changes it knows"


# --- write and bash


def test_bash(tools, folder) -> None:
    done = tools("bash", command="pwd; echo err >&2; cat; exit 3")
    head, _, rest = done.text.partition("\n")
    assert head.startswith("bash status=done elapsed_sec=") and head.endswith(" timed_out=0 exit_status=3")
    assert rest == f"<output>\n{os.path.realpath(folder)}\nerr\n</output>" and done.failed
    assert tools("bash", command="printf x").text.endswith("exit_status=0\n<output>\nx\n</output>")
    assert tools("bash", command="true").text.endswith("\n<output>\n</output>")
    assert tools("bash", command="true", description="surplus").note == "exit status 0"
    assert "`str` of length >= 1" in tools("bash", command="").text and tools("bash", command="a\0").failed
    assert "`int` <= 3600" in tools("bash", command="true", timeout_sec=3601).text
    ended = tools("bash", command="echo a; sleep 1000", timeout_sec=1)
    assert "timed_out=1 exit_status=143\nstopped: it took longer than timeout_sec=1\n<output>\na\n" in ended.text
    os.rmdir(folder)
    assert tools("bash", command="true").text == "Tool error: bash: No such file or directory"


# --- permission

CALLS = {"read": {"path": "a"}, "list": {}, "search": {"query": "one"}, "edit": {"path": "a", "old": "one", "new": "x"},
         "write": {"path": "a", "content": "x"}, "bash": {"command": "echo x > a"}}  # fmt: skip


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_is_done_without_permission(workspace, folder, tool) -> None:
    (folder / "a").write_text("one\n")
    tools = Tools(Toolbox(workspace, Permit(set(TOOLS) - {tool}), Shell(workspace.root, os.environ)))
    for arguments in (CALLS[tool], {"path": "../x"}, {}):  # nothing is looked at: a refusal tells something, too
        assert tools(tool, **arguments).text == (
            f"Tool error: permission denied: {tool} was not allowed beforehand, and nobody is there to be asked. "
            "Do not try it again: go on without it, or tell the user what you would do; "
            f"--allow {group_of(tool)} allows it"
        )
    assert (folder / "a").read_text() == "one\n" and os.listdir(folder) == ["a"]


def test_questions_show_everything_and_always_is_for_the_group(workspace, folder) -> None:
    asked, answers = [], iter("nyaynyy")
    permit = Permit(ask=lambda *question: asked.append(question) or next(answers))
    tools = Tools(Toolbox(workspace, permit, Shell(workspace.root, os.environ)))
    (folder / "a").write_text("one\n")
    assert "permission denied: the user said no to this edit call" in tools("edit", **CALLS["edit"]).text
    for tool in ("edit", "write", "bash"):
        tools(tool, **CALLS[tool] | ({"content": "1\n2\n"} if tool == "write" else {}))
    assert tools("write", path="new", content="x").failed is False, "always"
    assert asked == [("edit", "edit a", "@@ -1,1 +1,1 @@\n-one\n+x")] * 2 + [
        ("write", "write a", "@@ -1,1 +1,2 @@\n-x\n+1\n+2"), ("bash", "run", "echo x > a"),
    ]  # fmt: skip
    assert "said no to this read call" in tools("read", path="a").text and asked[4] == ("read", "read a", "")
    assert permit.allowed == set(GROUPS["edit"]) and (folder / "a").read_text() == "x\n"


def test_a_change_while_the_user_thinks_is_noticed(workspace, folder) -> None:
    tools = Tools(
        Toolbox(workspace, Permit(ask=lambda *_: (folder / "a").write_text("theirs\n") and "y"), Shell("", {}))
    )
    for tool in ("edit", "write"):
        (folder / "a").write_text("one\n")
        assert tools(tool, **CALLS[tool]).text == (
            "Tool error: a changed while it was edited; read it again before editing"
        )
        assert (folder / "a").read_text() == "theirs\n"
