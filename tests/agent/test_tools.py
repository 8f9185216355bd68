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
from ds4ref.agent.permit import GROUPS, TOOLS, Permit
from ds4ref.agent.search import Query, search
from ds4ref.agent.shell import Shell
from ds4ref.agent.tools import Toolbox
from ds4ref.agent.workspace import ToolError
from ds4ref.cancellation import Cancellation
from ds4ref.text.dsml import ToolCall
from ds4ref.text.schemas import read_schemas
from tests.agent.conftest import Tools

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
