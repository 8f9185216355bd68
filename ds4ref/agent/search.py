"""Looking through a workspace: what is in a folder, and which lines match."""

from __future__ import annotations

import fnmatch
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..cancellation import Cancellation
from .edit import Document, body, readable
from .workspace import Place, ToolError, Workspace, check_text, shown_name

MAX_ENTRIES = 300
WIDTH = 400
"""Characters of a line that is shown whole; of a longer one only what is around the match."""
MAX_BYTES, MAX_SECONDS = 64 << 10, 30.0
_KINDS = {stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFREG: "-"}


def listing(workspace: Workspace, place: Place) -> str:
    """``T SIZE NAME`` for each entry, T one of d, l, - and ?; by name, 300 at most. OSError if it cannot be read."""
    found = workspace.entries(place)
    lines = [f"{place.shown}:" if found else f"{place.shown}: empty"]
    for name, info in found[:MAX_ENTRIES]:
        kind = "?" if info is None else _KINDS.get(stat.S_IFMT(info.st_mode), "?")
        lines.append(f"{kind} {0 if info is None else info.st_size} {shown_name(name)}{'/' if kind == 'd' else ''}")
    if len(found) > MAX_ENTRIES:
        lines.append(f"... more entries omitted ({len(found) - MAX_ENTRIES}) ...")
    return "\n".join(lines)


@dataclass(frozen=True)
class Query:
    """What is looked for, line by line. ``glob`` is matched with a file's name and with its path."""

    text: str
    regex: bool = False
    glob: str = ""
    context: int = 0
    most: int = 50
    case: bool = True

    def compiled(self) -> Any:
        """The pattern. ToolError if it is none."""
        import regex  # it can be given a time limit

        if not self.text or "\n" in self.text:
            raise ToolError("query is looked for line by line: it must be text without a line break")
        try:
            flags = regex.V0 if self.case else regex.V0 | regex.IGNORECASE
            return regex.compile(self.text if self.regex else regex.escape(self.text), flags)
        except (regex.error, RecursionError, OverflowError, ValueError) as error:
            raise ToolError(f"invalid regex: {str(error)[:200]}") from None

    def wants(self, place: Place) -> bool:
        """Whether the file is one to look into."""
        names = place.name, place.path
        return not self.glob or any(
            fnmatch.fnmatchcase(name, glob) for name in names for glob in (self.glob, self.glob.removeprefix("**/"))
        )


@dataclass(frozen=True)
class Found:
    """The lines of one file that are shown, and those of them that are shown whole."""

    place: Place
    text: Document
    whole: tuple[int, ...]


def search(
    workspace: Workspace,
    place: Place,
    query: Query,
    cancel: Cancellation,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[str, list[Found]]:
    """The text of the answer, and what it shows. Below a folder, binary files, too large ones and those that cannot be
    read are passed over. It ends early after half a minute, or when ``cancel`` is pressed, and then says so."""
    pattern, end = query.compiled(), clock() + MAX_SECONDS
    lines: list[str] = []
    found: list[Found] = []
    shown = size = 0
    more, stopped = False, ""
    with closing(workspace.files(place)) as files:
        for file in files:
            if cancel.requested or clock() > end:
                stopped = "interrupted" if cancel.requested else f"stopped after {MAX_SECONDS:.0f} s"
            if more or stopped:
                break
            if not query.wants(file):
                continue
            try:
                data = workspace.read(file).data
                check_text(data, file)
            except (OSError, ToolError):
                if file is place:  # asked for by name
                    raise
                continue
            text = Document.parse(data)
            try:
                hits, more = _hits(pattern, text, query.most - shown, end - clock(), cancel)
            except TimeoutError:
                hits, stopped = {}, f"stopped after {MAX_SECONDS:.0f} s: this pattern takes too long"
            if not hits:
                continue
            block, whole = _block(text, hits, query.context, MAX_BYTES - size)
            lines += [shown_name(file.path), *block]
            size += sum(len(line.encode()) + 1 for line in block)
            shown += len(hits)
            more |= size >= MAX_BYTES
            found.append(Found(file, text, tuple(whole)))
    notes = (["there may be more: narrow the search, or raise max_results"] if more else []) + [stopped] * bool(stopped)
    note = f" ({'; '.join(notes)})" if notes else ""
    if not shown:
        return f"No matches{note}", []
    return "\n".join([f"{shown} match(es) shown{note}", "", *lines]), found


def _hits(pattern: Any, text: Document, most: int, seconds: float, cancel: Cancellation) -> tuple[dict[int, int], bool]:
    """Line number: where its first match starts, for the first ``most`` lines that match; and whether there are more.
    TimeoutError if one line takes longer than ``seconds``."""
    hits: dict[int, int] = {}
    for number, line in enumerate(text.lines, 1):
        match = pattern.search(readable(body(line)), timeout=max(0.01, seconds))
        if match is None:
            continue
        if len(hits) >= most or cancel.requested:
            return hits, True
        hits[number] = match.start()
    return hits, False


def _block(text: Document, hits: dict[int, int], context: int, room: int) -> tuple[list[str], list[int]]:
    """Numbered lines around the matches until ``room`` bytes are full; the numbers of those that are shown whole."""
    last = len(text.lines)
    numbers = sorted({n for hit in hits for n in range(max(1, hit - context), min(last, hit + context) + 1)})
    lines: list[str] = []
    whole: list[int] = []
    for before, number in zip([None, *numbers], numbers, strict=False):
        if context and before is not None and number > before + 1:
            lines.append("  ...")
        line = readable(body(text.lines[number - 1]))
        if len(line) <= WIDTH:
            whole.append(number)
        else:
            at = max(0, hits.get(number, 0) - WIDTH // 4)
            line = f"{'...' if at else ''}{line[at : at + WIDTH]}... (a line of {len(line)} characters)"
        lines.append(f"  {number} {line}")
        room -= len(lines[-1].encode()) + 1
        if room <= 0:
            lines.append("  ... more lines of this file are left out ...")
            break
    return lines, whole


def numbered(text: Document, numbers: Iterable[int], width: int, room: int) -> tuple[list[str], list[int], int]:
    """``N text`` for lines until ``room`` bytes are full, the first one in any case; the numbers of those shown whole;
    the last number shown."""
    lines: list[str] = []
    whole: list[int] = []
    last = 0
    for number in numbers:
        line = readable(body(text.lines[number - 1]))
        cut = len(line) > width
        shown = f"{number} {line[:width]}" + (f"... ({len(line) - width} more characters)" if cut else "")
        room -= len(shown.encode()) + 1
        if room < 0 and lines:
            break
        lines.append(shown)
        whole += [] if cut else [number]
        last = number
    return lines, whole, last
