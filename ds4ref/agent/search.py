"""Searching a workspace: the entries of a folder, and lines that match."""

from __future__ import annotations

import fnmatch
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..cancellation import Cancellation
from .edit import Text
from .parameters import Search
from .workspace import ToolError, Workspace, shown_name

MAX_ENTRIES = 300
WIDTH = 400
"""Maximum characters of a line shown in full; of a longer line only the part around the match is shown."""
MAX_BYTES, MAX_SECONDS = 64 << 10, 30.0
_KINDS = {stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFREG: "-"}


def listing(workspace: Workspace, real: str) -> str:
    """Return a line ``T SIZE NAME`` for each entry of a folder, sorted by name, 300 at most.

    T is d (folder), l (link), - (file) or ? (other).
    """
    names = sorted(os.listdir(real))
    lines = [f"{workspace.shown(real)}:{'' if names else ' empty'}"]
    for name in names[:MAX_ENTRIES]:
        info = os.lstat(os.path.join(real, name))
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "?")
        lines.append(f"{kind} {info.st_size} {shown_name(name)}{'/' if kind == 'd' else ''}")
    if len(names) > MAX_ENTRIES:
        lines.append(f"... more entries omitted ({len(names) - MAX_ENTRIES}) ...")
    return "\n".join(lines)


def read_text(workspace: Workspace, real: str) -> Text:
    """Return a file's text; raises ToolError for a binary file."""
    data = workspace.read(real).data
    if b"\0" in data:
        raise ToolError(f"{workspace.shown(real)} is a binary file (NUL at byte {data.find(0)} of {len(data)})")
    return Text.parse(data)


@dataclass
class Block:
    """Numbered lines of a text in a result, until ``room`` bytes are used.

    text    the text
    room    bytes left
    width   maximum characters of a line shown in full
    lines   the formatted lines
    """

    text: Text
    room: int
    width: int
    lines: list[str] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    """Numbers of the lines that are shown in full."""

    def add(self, numbers: Iterable[int], at: int = 0) -> bool:
        """Append lines by number; return False, leaving out the rest, once ``room`` is used up.

        The very first line is appended in any case. Of a line too long, the part around character ``at`` is shown.
        """
        for number in numbers:
            shown = line = self.text.lines[number - 1].removesuffix("\n")
            if len(line) > self.width:
                start = max(0, at - self.width // 4)
                shown = f"{'...' * (start > 0)}{line[start : start + self.width]}... ({len(line)} characters)"
            self.room -= len(f"{number} {shown}\n".encode())
            if self.room < 0 and self.lines:
                return False
            self.lines.append(f"{number} {shown}")
            self.whole += [number] * (shown is line)
        return True


def search(workspace: Workspace, real: str, query: Search, cancel: Cancellation) -> tuple[str, dict[str, Block]]:
    """Run a search; return (result for the model, the lines shown of each file by path).

    In a folder, files that are binary, too large or unreadable are skipped. The search ends early, and the result says
    so, after half a minute or when ``cancel`` is pressed.
    """
    pattern, end = _compiled(query), time.monotonic() + MAX_SECONDS
    blocks: dict[str, Block] = {}
    count, room, note, late = 0, MAX_BYTES, "", f" (stopped after {MAX_SECONDS:.0f} s)"
    for file in workspace.files(real):
        if cancel.requested:
            note = " (interrupted)"
        elif time.monotonic() > end:
            note = note or late
        if note:
            break
        if not _wanted(query.glob, os.path.relpath(file, workspace.root)):
            continue
        try:
            text = read_text(workspace, file)
        except (OSError, ToolError):
            if file == real:  # asked for by name
                raise
            continue
        block, last = Block(text, room, WIDTH), 0
        try:
            for number, at in _matches(pattern, text, end):
                before = range(max(last + 1, number - query.context), number)
                behind = range(max(last, number) + 1, min(len(text.lines), number + query.context) + 1)
                fits = count < query.max_results and block.add(before)
                if not (fits and (number <= last or block.add([number], at)) and block.add(behind)):
                    note = " (there may be more: narrow the search, or raise max_results)"
                    break
                count, last = count + 1, max(number, *behind, last)
        except TimeoutError:
            note = late
        if block.lines:
            blocks[file], room = block, block.room
    if not blocks:
        return f"No matches{note}", blocks
    lines = [line for file in blocks for line in (workspace.shown(file), *(f"  {x}" for x in blocks[file].lines))]
    return "\n".join([f"{count} match(es) shown{note}", "", *lines]), blocks


def _compiled(query: Search) -> Any:
    import regex  # unlike re it takes a time limit

    try:
        flags = regex.V0 if query.case_sensitive else regex.V0 | regex.IGNORECASE
        return regex.compile(query.query if query.mode == "regex" else regex.escape(query.query), flags)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise ToolError(f"invalid regex: {str(error)[:200]}") from None


def _matches(pattern: Any, text: Text, end: float) -> Iterator[tuple[int, int]]:
    """Yield the number of each line that matches, and where in it. TimeoutError when it is ``end``."""
    for number, line in enumerate(text.lines, 1):
        seconds = end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        match = pattern.search(line.removesuffix("\n"), timeout=seconds)
        if match is not None:
            yield number, match.start()


def _wanted(glob: str, path: str) -> bool:
    """Return whether ``glob``, if there is one, matches the path or the name of a file."""
    names = path, os.path.basename(path)
    return not glob or any(fnmatch.fnmatchcase(name, one) for name in names for one in (glob, glob.removeprefix("**/")))
