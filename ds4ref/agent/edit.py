"""Texts as lines, and what an edit makes of them. Nothing here reads or writes files.

A line ends with ``\\n``, and a ``\\r`` before it belongs to the ending; the last line may have none. A byte order mark
belongs to the file and not to its first line. Bytes that are no UTF-8 come through unchanged (surrogateescape).

The model never sees line endings, so an edit puts in the ending of the place it is made at: in a file with ``\\r\\n`` a
bare ``\\n`` of new text becomes one, and old text is looked for as if all endings were ``\\n``. In other files texts
are taken as they are: the result is that of plain replacement of strings.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .workspace import ToolError

BOM = b"\xef\xbb\xbf"
DIFF_LINES, DIFF_WIDTH = 20, 200
_NAMED = 5
_UNDECODED = re.compile("[\udc80-\udcff]")
_BARE = re.compile(r"(?<!\r)\n")


@dataclass(frozen=True)
class Document:
    """A file's text: its lines with their endings, and whether a byte order mark comes before them."""

    lines: tuple[str, ...]
    bom: bool = False

    @classmethod
    def parse(cls, data: bytes) -> Document:
        """Any bytes; ``encode`` gives exactly these back."""
        bom = data.startswith(BOM)
        text = data[len(BOM) * bom :].decode("utf-8", "surrogateescape")
        return cls(tuple(split(text)), bom)

    def encode(self) -> bytes:
        """The file's bytes."""
        return BOM * self.bom + "".join(self.lines).encode("utf-8", "surrogateescape")

    @property
    def has_crlf(self) -> bool:
        """Whether any line ends with ``\\r\\n``."""
        return any(line.endswith("\r\n") for line in self.lines)

    def ending(self, index: int) -> str:
        """The ending to be used at line ``index`` (from 0): its own, of a last line without one that of the line
        before, ``\\n`` in a file that has none."""
        for line in reversed(self.lines[max(0, index - 1) : index + 1]):
            if line.endswith("\n"):
                return "\r\n" if line.endswith("\r\n") else "\n"
        return "\n"


@dataclass(frozen=True)
class Change:
    """``removed`` lines, from number ``start`` (from 0) on, give way to ``added`` ones."""

    start: int
    removed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def shift(self) -> int:
        """By how much the numbers of the lines behind it grow."""
        return len(self.added) - len(self.removed)

    def apply(self, text: Document) -> Document:
        """The text after it."""
        end = self.start + len(self.removed)
        return Document((*text.lines[: self.start], *self.added, *text.lines[end:]), text.bom)

    def diff(self, limit: int | None = DIFF_LINES, width: int = DIFF_WIDTH) -> str:
        """The change for a reader: a head with line numbers, ``-`` and ``+`` lines, at most ``limit`` of each."""
        old, new = (f"{self.start + bool(part)},{len(part)}" for part in (self.removed, self.added))
        lines = [f"@@ -{old} +{new} @@"]
        for sign, part in (("-", self.removed), ("+", self.added)):
            lines += [f"{sign}{shown_line(line, width)}" for line in part[:limit]]
            if limit is not None and len(part) > limit:
                lines.append(f"... {len(part) - limit} more {sign} lines ...")
        ends = [part[-1].endswith("\n") for part in (self.removed, self.added) if part]
        if ends in ([True, False], [False, True]):
            lines.append(f"(the newline at the end of the file is {'gone' if ends[0] else 'new'})")
        return "\n".join(lines)


# --- lines


def split(text: str) -> list[str]:
    """Lines with their endings."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def body(line: str) -> str:
    """A line without its ending."""
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line


def readable(text: str) -> str:
    """Text that can be sent: U+FFFD for bytes that are no UTF-8."""
    return _UNDECODED.sub("\ufffd", text)


def shown_line(line: str, width: int = DIFF_WIDTH) -> str:
    """A line fit to be read, cut to about ``width`` characters."""
    text = readable(body(line))
    return text if len(text) <= width else f"{text[:width]}... ({len(text) - width} more characters)"


def fitted(text: str, ending: str) -> str:
    """New text with the file's ending in it."""
    return _BARE.sub("\r\n", text) if ending == "\r\n" else text


# --- edits


def check_range(text: Document, first: int, last: int) -> None:
    """ToolError unless there are lines first..last (from 1)."""
    if not 1 <= first <= last:
        raise ToolError("invalid range; use START:END, for example 10:20")
    if last > len(text.lines):
        raise ToolError(f"edit line range is outside the file, which has {_lines(len(text.lines))}")


def by_lines(text: Document, first: int, last: int, new: str) -> Change:
    """``new`` in place of lines first..last (from 1); "" deletes them. The last of them keeps its ending, even if
    ``new`` does not end with one. ToolError for lines that are not there."""
    check_range(text, first, last)
    removed = text.lines[first - 1 : last]
    put = fitted(new, text.ending(first - 1))
    if put and not put.endswith("\n") and removed[-1].endswith("\n"):
        put += text.ending(last - 1)
    _check_bytes(removed, new, first)
    return _checked(text, text.lines[: first - 1], split(put), text.lines[last:])


def by_anchor(text: Document, old: str, new: str) -> Change:
    """``new`` in place of ``old``, which must be there exactly once, overlapping occurrences counted. ToolError says
    where else it is, or what looks like it."""
    if not old:
        raise ToolError("old is empty; give the exact text that is to be replaced, or line/range plus new")
    crlf = text.has_crlf
    lines = [line[:-2] + "\n" if line.endswith("\r\n") else line for line in text.lines] if crlf else text.lines
    view, wanted = "".join(lines), old.replace("\r\n", "\n") if crlf else old
    starts = [0, *accumulate(map(len, lines))]
    found = _occurrences(view, wanted)
    if len(found) != 1:
        numbers = [bisect_right(starts, at) for at in found]
        raise _not_once(text, old, numbers)

    def raw(at: int) -> tuple[int, int]:
        """Line and column of a place in the view: endings are the only difference, so columns are the same."""
        line = min(bisect_right(starts, at) - 1, len(lines) - 1)
        return line, at - starts[line]

    (line, column), (end, stop) = raw(found[0]), raw(found[0] + len(wanted))
    if stop == len(lines[end]):  # the very end of the text
        stop = len(text.lines[end])
    head, tail = text.lines[line][:column], text.lines[end][stop:]
    _check_bytes(text.lines[line : end + 1], new, line + 1)
    put = head + fitted(new, text.ending(line) if crlf else "\n") + tail
    return _checked(text, text.lines[:line], split(put), text.lines[end + 1 :])


def whole(text: Document, new: str) -> Change:
    """``new`` in place of everything; a file whose lines all end with ``\\r\\n`` goes on so."""
    pure = text.has_crlf and all(line.endswith("\r\n") for line in text.lines if line.endswith("\n"))
    _check_bytes(text.lines, new, 1)
    put = new.removeprefix("\ufeff") if text.bom else new
    return _checked(text, (), split(fitted(put, "\r\n" if pure else "\n")), ())


def _checked(text: Document, before: Sequence[str], middle: Sequence[str], after: Sequence[str]) -> Change:
    """The change that makes before + middle + after of a text, as small as whole lines allow."""
    old, new = text.lines, (*before, *middle, *after)
    if old == new:
        raise ToolError("this edit changes nothing: the new text is what is there")
    start, most = len(before), min(len(old), len(new))
    while start < most and old[start] == new[start]:
        start += 1
    behind = len(after)
    while behind < most - start and old[-1 - behind] == new[-1 - behind]:
        behind += 1
    behind = min(behind, most - start)
    return Change(start, old[start : len(old) - behind], new[start : len(new) - behind])


def _check_bytes(removed: Sequence[str], new: str, first: int) -> None:
    """What the model saw as U+FFFD it can only write as that: this would damage the bytes that are there."""
    if "\ufffd" in new:
        for number, line in enumerate(removed, first):
            if _UNDECODED.search(line):
                raise ToolError(
                    f"line {number} has bytes that are no UTF-8, which this edit would lose; use bash for it"
                )


def _occurrences(text: str, wanted: str) -> list[int]:
    """Where it is, a few places at most."""
    found: list[int] = []
    at = text.find(wanted)
    while at >= 0 and len(found) <= _NAMED:
        found.append(at)
        at = text.find(wanted, at + 1)
    return found


def _not_once(text: Document, old: str, numbers: Sequence[int]) -> ToolError:
    if numbers:
        # several of a line count once
        named = ", ".join(map(str, dict.fromkeys(numbers[:_NAMED]))) + (", ..." if len(numbers) > _NAMED else "")
        why = "old text is not unique; read the target lines and retry with line/range plus new"
        return ToolError(f"{why} (it starts at lines {named})")
    key = next(filter(None, (" ".join(line.split()) for line in old.split("\n"))), "")
    near = [n for n, line in enumerate(text.lines, 1) if key and key in " ".join(line.split())]
    hint = f"; something like its first line is in line {near[0]}: read there, every character counts" if near else ""
    return ToolError(f"old text not found{hint}")


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"
