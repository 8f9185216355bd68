"""Searching a workspace: list the entries of a folder, and find lines that match a text or pattern."""

from __future__ import annotations

import fnmatch
import os
import stat
import time
from collections.abc import Iterator
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
    """Return a line ``T SIZE NAME`` for each entry of the folder ``real``, sorted by name, 300 at most.

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
    """Return the text of the file ``real``; raises ToolError for a binary file."""
    data = workspace.read(real).data
    if b"\0" in data:
        raise ToolError(f"{workspace.shown(real)} is a binary file (NUL at byte {data.find(0)} of {len(data)})")
    return Text.parse(data)


def shortened(line: str, width: int, at: int = 0) -> str:
    """Return a line of at most ``width`` characters; of a longer one the part around character ``at``."""
    if len(line) <= width:
        return line
    start = max(0, at - width // 4)
    return f"{'...' * (start > 0)}{line[start : start + width]}... ({len(line)} characters)"


def search(workspace: Workspace, real: str, query: Search, cancel: Cancellation) -> str:
    """Return the lines in ``real`` (a folder or a file) that match ``query``, as the model sees them: for each file its
    path, then a line ``  NUMBER TEXT`` per match.

    In a folder, files that are binary, too large or unreadable are skipped. The search ends early, and the result says
    so, after half a minute or when ``cancel`` is pressed.
    """
    lines: list[str] = []
    count, size, note, last = 0, 0, "", ""
    try:
        for file, number, line, at in _matches(workspace, real, query, cancel):
            size += len(line)
            if count == query.max_results or size > MAX_BYTES:
                note = " (there may be more: narrow the search, or raise max_results)"
                break
            lines += [workspace.shown(file)] * (file != last) + [f"  {number} {shortened(line, WIDTH, at)}"]
            count, last = count + 1, file
    except TimeoutError:
        note = f" (stopped after {MAX_SECONDS:.0f} s)"
    if cancel.requested:
        note = " (interrupted)"
    return "\n".join([f"{count} match(es) shown{note}", "", *lines]) if count else f"No matches{note}"


def _matches(
    workspace: Workspace, real: str, query: Search, cancel: Cancellation
) -> Iterator[tuple[str, int, str, int]]:
    """Yield (file, line number, text, position of the match in the text) for each line that matches; TimeoutError when
    it takes too long."""
    pattern, end = _compiled(query), time.monotonic() + MAX_SECONDS
    for file in workspace.files(real):
        if cancel.requested:
            return
        if time.monotonic() > end:
            raise TimeoutError
        if not _wanted(query.glob, os.path.relpath(file, workspace.root)):
            continue
        try:
            text = read_text(workspace, file)
        except (OSError, ToolError):
            if file == real:  # the call named this very file
                raise
            continue
        for number, line in enumerate((line.removesuffix("\n") for line in text.lines), 1):
            if (seconds := end - time.monotonic()) <= 0:
                raise TimeoutError
            match = pattern.search(line, timeout=seconds)
            if match is not None:
                yield file, number, line, match.start()


def _compiled(query: Search) -> Any:
    import regex  # unlike re, it supports a time limit

    try:
        flags = regex.V0 if query.case_sensitive else regex.V0 | regex.IGNORECASE
        return regex.compile(query.query if query.mode == "regex" else regex.escape(query.query), flags)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise ToolError(f"invalid regex: {str(error)[:200]}") from None


def _wanted(glob: str, path: str) -> bool:
    """Return whether ``glob``, if there is one, matches the path or the name of a file."""
    names = path, os.path.basename(path)
    return not glob or any(fnmatch.fnmatchcase(name, one) for name in names for one in (glob, glob.removeprefix("**/")))
