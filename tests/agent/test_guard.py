"""The guard behind edits as a whole: whatever model, user and other programs do in whatever order, an edit by lines
hits exactly the lines that the model saw, and no change of somebody else is lost."""

from __future__ import annotations

import io
import os
import re
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4ref.agent.permit import TOOLS, Permit
from ds4ref.agent.shell import Shell
from ds4ref.agent.tools import Toolbox
from ds4ref.agent.workspace import Workspace
from tests.agent.conftest import Tools

LINE = st.sampled_from(["a", "b", "}", ""])
"""Few, so that lines that moved look like others."""
TEXT = st.tuples(st.lists(LINE, max_size=7).map("\n".join), st.sampled_from(["\n", ""])).map("".join)
NUMBER = st.integers(1, 8)
STEP = st.one_of(
    st.tuples(st.just("read"), NUMBER, NUMBER),
    st.tuples(st.just("search"), LINE.filter(bool)),
    st.tuples(st.just("lines"), NUMBER, st.integers(0, 2), TEXT),
    st.tuples(st.just("anchor"), st.lists(LINE, min_size=1, max_size=3).map("\n".join).filter(bool), TEXT),
    st.tuples(st.just("all"), TEXT),
    st.tuples(st.just("write"), TEXT),
    st.tuples(st.just("other"), TEXT),
    st.tuples(st.just("answer")),
)


@pytest.fixture(scope="module", autouse=True)
def _no_sync():
    """Hundreds of examples need not survive a power failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


def split(text: str) -> list[str]:
    return list(io.StringIO(text, newline="\n"))


class Story:
    """One file, what is in it, and what a reader of all results believes to be in it."""

    def __init__(self, folder: str, text: str):
        self.path = os.path.join(folder, "f")
        self.tools = Tools(Toolbox(Workspace(folder), Permit(TOOLS), Shell(folder, {})))
        self.believed: dict[int, str] = {}
        self.unread: list[str] = []
        self.put(text)

    @property
    def text(self) -> str:
        with open(self.path, newline="") as file:
            return file.read()

    def put(self, text: str) -> None:
        with open(self.path, "w", newline="") as file:
            file.write(text)

    def step(self, kind: str, *args) -> None:
        before = self.text
        lines = split(before)
        if kind == "answer":  # the model reads the results, and begins another answer
            self.tools.box.memory.settle()
            for shown in self.unread:
                self.believed |= {int(n): line for n, line in re.findall(r"^ *(\d+) (.*)$", shown, re.M)}
            self.unread = []
        elif kind == "read":
            self.unread.append(self.tools.together("read", path="f", start_line=args[0], max_lines=args[1]).text)
        elif kind == "search":
            self.unread.append(self.tools.together("search", path="f", query=args[0]).text.partition("\n\n")[2])
        elif kind == "other":
            self.put(args[0])
        elif kind == "lines":
            first, last, new = args[0], args[0] + args[1], args[2]
            done = self.tools.together("edit", path="f", start_line=first, end_line=last, new=new)
            kept = new and not new.endswith("\n") and last <= len(lines) and lines[last - 1].endswith("\n")
            if not done.failed:
                for n in range(first, last + 1):
                    assert self.believed.get(n) == lines[n - 1].removesuffix("\n"), f"line {n} is not what was seen"
            self.edited(done, before, "".join([*lines[: first - 1], new + "\n" * bool(kept), *lines[last:]]))
        elif kind == "anchor":
            done = self.tools.together("edit", path="f", old=args[0], new=args[1])
            self.edited(done, before, before.replace(args[0], args[1]))
        else:
            call = {"all": ("edit", {"range": "all", "new": args[0]}), "write": ("write", {"content": args[0]})}[kind]
            done = self.tools.together(call[0], path="f", **call[1])
            self.edited(done, before, args[0])
            if not done.failed:
                self.believed = {n: line.removesuffix("\n") for n, line in enumerate(split(args[0]), 1)}

    def edited(self, done, before: str, after: str) -> None:
        """Check that the file has the old text or the edited one."""
        assert self.text == (before if done.failed else after), done.text
        self.unread.append("" if done.failed else done.text.partition("Current file around edit")[2])


@pytest.mark.thorough
@settings(max_examples=200)
@given(TEXT, st.lists(STEP, max_size=14))
def test_an_edit_hits_what_was_seen(text, steps) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = Story(folder, text)
        for step in steps:
            story.step(*step)


def test_the_story_does_edit(tmp_path) -> None:
    """A reader that believes what it is shown gets its edits through, also several in one answer."""
    story = Story(str(tmp_path), "a\nb\n}\na\n")
    for step in [("read", 1, 9), ("answer",), ("lines", 4, 0, "x"), ("lines", 1, 1, "y\nz\n"), ("answer",),
                 ("lines", 4, 0, "end")]:  # fmt: skip
        story.step(*step)
    assert story.text == "y\nz\n}\nend\n"
