"""The guard behind edits as a whole: whatever model, user and other programs do in whatever order, an edit by lines
hits exactly the lines that the model saw, and no change of somebody else is lost."""

from __future__ import annotations

import os
import re
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4ref.agent.edit import split
from ds4ref.agent.permit import TOOLS, Permit
from ds4ref.agent.shell import Shell
from ds4ref.agent.tools import Toolbox
from ds4ref.agent.workspace import Workspace
from tests.agent.conftest import Tools

LINE = st.sampled_from(["a", "b", "}", ""])
"""Few, so that lines that moved look like others."""
TEXT = st.lists(LINE, max_size=7).flatmap(
    lambda lines: st.sampled_from(["\n", ""]).map(lambda end: "\n".join(lines) + end)
)
NUMBER = st.integers(1, 8)
STEP = st.one_of(
    st.tuples(st.just("read"), NUMBER, NUMBER),
    st.tuples(st.just("search"), LINE.filter(bool)),
    st.tuples(st.just("lines"), NUMBER, st.integers(0, 2), TEXT),
    st.tuples(st.just("anchor"), st.lists(LINE, min_size=1, max_size=3).map("\n".join), TEXT),
    st.tuples(st.just("all"), TEXT),
    st.tuples(st.just("write"), TEXT),
    st.tuples(st.just("other"), TEXT),
    st.tuples(st.just("insert"), NUMBER, LINE),
    st.tuples(st.just("answer")),
)


@pytest.fixture(scope="module", autouse=True)
def _no_sync():
    """Hundreds of examples need not survive a power failure."""
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda fd: None)
    yield
    patch.undo()


class Story:
    """One file, what is in it, and what a reader of all results believes to be in it."""

    def __init__(self, folder: str, box: Toolbox, text: str):
        self.path, self.tools = os.path.join(folder, "f"), Tools(box)
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

    def answer(self) -> None:
        """The model reads the results, and begins another answer."""
        self.tools.box.settle()
        for shown in self.unread:
            self.believed |= {int(n): line for n, line in re.findall(r"^ *(\d+) (.*)$", shown, re.M)}
        self.unread = []

    def step(self, kind: str, *what) -> None:
        before = self.text
        lines = split(before)
        if kind == "answer":
            self.answer()
        elif kind == "read":
            self.unread.append(self.tools.together("read", path="f", start_line=what[0], max_lines=what[1]).text)
        elif kind == "search":
            self.unread.append(self.tools.together("search", path="f", query=what[0]).text.partition("\n\n")[2])
        elif kind == "other":
            self.put(what[0])
        elif kind == "insert":
            self.put("".join([*lines[: what[0] - 1], what[1] + "\n", *lines[what[0] - 1 :]]))
        elif kind == "lines":
            first, last = what[0], what[0] + what[1]
            done = self.tools.together("edit", path="f", start_line=first, end_line=last, new=what[2])
            self.edited(done, before, "".join(self.expected(lines, first, last, what[2])))
            if not done.failed:
                for n in range(first, last + 1):
                    assert self.believed.get(n) == lines[n - 1].removesuffix("\n"), f"line {n} is not what was seen"
        elif kind == "anchor":
            done = self.tools.together("edit", path="f", old=what[0], new=what[1])
            self.edited(done, before, before.replace(what[0], what[1]))
        elif kind == "all":
            self.edited(self.tools.together("edit", path="f", range="all", new=what[0]), before, what[0], wrote=True)
        else:
            self.edited(self.tools.together("write", path="f", content=what[0]), before, what[0], wrote=True)

    def edited(self, done, before: str, after: str, wrote: bool = False) -> None:
        """What is there is the old text or the edited one."""
        assert self.text == (before if done.failed else after), done.text
        if done.failed:
            return
        around = done.text.partition("Current file around edit")[2]
        if wrote:
            self.believed = {n: line.removesuffix("\n") for n, line in enumerate(split(after), 1)}
        else:
            self.unread.append(around)

    @staticmethod
    def expected(lines: list[str], first: int, last: int, new: str) -> list[str]:
        kept = new and not new.endswith("\n") and last <= len(lines) and lines[last - 1].endswith("\n")
        return [*lines[: first - 1], new + "\n" * bool(kept), *lines[last:]]


@settings(max_examples=200)
@given(TEXT, st.lists(STEP, max_size=14))
def test_an_edit_hits_what_was_seen(text, steps) -> None:
    with tempfile.TemporaryDirectory() as folder, Workspace(folder) as workspace:
        story = Story(folder, Toolbox(workspace, Permit(TOOLS), Shell(folder, {})), text)
        for step in steps:
            story.step(*step)


@settings(max_examples=200)
@given(TEXT, TEXT, st.sampled_from(["lines", "anchor", "all", "write"]), NUMBER, st.booleans())
def test_no_change_of_another_is_lost(text, other, kind, line, peek) -> None:
    """Read, changed by somebody else, edited: refused, unless it is what was read. That the same answer reads it again
    first is no help: its author has not seen the result."""
    with tempfile.TemporaryDirectory() as folder, Workspace(folder) as workspace:
        story = Story(folder, Toolbox(workspace, Permit(TOOLS), Shell(folder, {})), text)
        story.step("read", 1, 100)
        story.answer()
        story.put(other)
        if peek:
            story.step("read", 1, 100)
        new = "something new\n"
        story.step(kind, *{"lines": (line, 0, new), "anchor": ("a", new), "all": (new,), "write": (new,)}[kind])
        assert story.text == other or other == text


def test_the_story_does_edit(tmp_path) -> None:
    """A reader that believes what it is shown gets its edits through, also several in one answer."""
    with Workspace(str(tmp_path)) as workspace:
        story = Story(str(tmp_path), Toolbox(workspace, Permit(TOOLS), Shell(str(tmp_path), {})), "a\nb\n}\na\n")
        for step in [("read", 1, 9), ("answer",), ("lines", 4, 0, "x"), ("lines", 1, 1, "y\nz\n"), ("answer",),
                     ("lines", 4, 0, "end")]:  # fmt: skip
            story.step(*step)
        assert story.text == "y\nz\n}\nend\n"
