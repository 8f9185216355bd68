"""Text of models and packs as it may be shown: nothing in it moves the cursor, and its width is known.

What a terminal would act on is replaced (control characters by their pictures, so that an escape sequence is seen) or
left out (marks that join, colour, hide or turn around their neighbours, about whose width terminals disagree). Nothing
is read as markup. Logs keep the text as it came.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import regex
from rich.cells import get_character_cell_size

TAB = "    "
MARKS = 6
"""Combining marks that one character may carry; the next ones are left out."""

_FLAG = 0x1F1E6
_FILLERS = "\u115f\u1160\u3164\uffa0"
_ACTING = regex.compile(
    r"[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}--\n]"  # control, format, lone surrogates, separators of lines and paragraphs
    r"|[\ufe00-\ufe0f\U000e0100-\U000e01ef\U0001f3fb-\U0001f3ff]"  # variation selectors, skin tones
    rf"|[\U0001f1e6-\U0001f1ff{_FILLERS}]",  # flags are pairs of these; letters of Hangul that are blank
    regex.V1,
)


def clean(text: str) -> str:
    """``text`` as it may be shown, on as many lines as it has."""
    if text.isascii() and text.isprintable():
        return text
    return _ACTING.sub(lambda found: _shown(found[0]), text.replace("\r\n", "\n"))


def _shown(char: str) -> str:
    code, category = ord(char), unicodedata.category(char)
    if char == "\t":
        return TAB
    if category == "Cc":
        return chr(0x2400 + code) if code < 32 else "\u2421" if code == 127 else "\ufffd"
    if category in ("Zl", "Zp"):
        return "\n"
    if category == "Cs":
        return "\ufffd"
    if 0 <= code - _FLAG < 26:
        return chr(ord("A") + code - _FLAG)
    return " " if char in _FILLERS else ""


def one_line(text: str) -> str:
    """``text`` as it may be shown, whitespace collapsed."""
    return _based(" ".join(clean(text).split()))


def width(text: str) -> int:
    """Cells of a text that was cleaned."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def cut(text: str, cells: int) -> str:
    """``text``, or as much of it as fits with ``…`` behind it."""
    if width(text) <= cells:
        return text
    return _head(text, cells - 1) + "…" if cells > 0 else ""


def _head(text: str, cells: int) -> str:
    """The longest beginning that fits into ``cells``."""
    if text.isascii():
        return text[: max(0, cells)]
    total = 0
    for i, char in enumerate(text):
        total += get_character_cell_size(char)
        if total > cells:
            return text[:i]
    return text


def _based(line: str) -> str:
    """A mark at the beginning of a line would be drawn onto what stands to the left of it."""
    return "\u25cc" + line if line and not line[0].isascii() and not get_character_cell_size(line[0]) else line


# ---------------------------------------------------------------------------------------------------------- wrapping

_WIDE = (
    r"\u1100-\u115e\u2e80-\u303e\u3041-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60"
    r"\uffe0-\uffe6\U0001f300-\U0001faff\U00020000-\U0003fffd"
)
_UNITS = regex.compile(rf" +|[{_WIDE}]\p{{M}}*|[^ {_WIDE}]+", regex.V1)
_MARKED = regex.compile(rf"(\p{{M}}{{{MARKS}}})\p{{M}}+")


def wrap(line: str, cells: int) -> list[str]:
    """One line of cleaned text on lines of at most ``cells`` (2 at least): at spaces where there are some, and between
    wide characters. A word that is longer than a line begins on one of its own. Spaces at a break hang over.

    Nothing is lost, and the last line together with text that comes later wraps to what the whole would: all but it are
    final."""
    cells = max(2, cells)
    if not line.isascii():
        line = _based(_MARKED.sub(r"\1", line))
    if width(line) <= cells:
        return [line]
    done: list[str] = []
    row: list[str] = []
    used = 0
    for unit in _UNITS.findall(line):
        size = width(unit)
        if unit[0] == " " and used:
            row.append(unit)
            used += size
            continue
        if used and used + size > cells:
            done.append("".join(row))
            row, used = [], 0
        while size > cells:
            head = _head(unit, cells)
            done.append(head)
            unit = unit[len(head) :]
            size = width(unit)
        row.append(unit)
        used += size
    return [*done, "".join(row)]


# --------------------------------------------------------------------------------------------------------- the stream

_OPEN, _CLOSE = "<think>", "</think>"


class Transcript:
    """An answer as it comes: pieces (thought, text) that are cleaned and hold no think tags.

    Targets that know about thinking say which is which; where one does not, the tags in its text do: one at the very
    beginning opens, the first other one closes. Half a tag, and a carriage return that a line feed may follow, are kept
    back until more comes. ``turns`` counts how often what was there already turned out to be thought: then ``pieces``
    were written anew.
    """

    def __init__(self) -> None:
        self.pieces: list[tuple[bool, str]] = []
        self.turns = 0
        self._rest = {True: "", False: ""}
        self._began: set[bool] = set()
        self._told = False  # the target said itself that something was thought
        self._inside = False  # it did not, and a tag opened
        self._closed = False

    @classmethod
    def of(cls, reasoning: str, output: str) -> Transcript:
        """A whole one."""
        made = cls()
        made.add(reasoning, True)
        made.add(output, False)
        made.finish()
        return made

    def add(self, text: str, thinking: bool) -> None:
        """More of it."""
        text, self._rest[thinking] = _kept_back(self._rest[thinking] + text)
        if thinking not in self._began and text:
            text = self._opened(text, thinking)
        if thinking:
            self._told = self._told or bool(text)
            self._put(True, text.replace(_CLOSE, ""))
        else:
            self._say(text)

    def finish(self) -> None:
        """Nothing comes any more: what was kept back is no tag."""
        for thinking in (True, False):
            rest, self._rest[thinking] = self._rest[thinking], ""
            self._put(thinking or self._inside, rest)

    def _opened(self, text: str, thinking: bool) -> str:
        """``text`` without a tag and the space before it at the beginning of the whole."""
        said = text.lstrip()
        if not said:
            return ""
        self._began.add(thinking)
        tagged = said.startswith(_OPEN) and not self._closed
        self._inside = self._inside or (tagged and not thinking and not self._told)
        return said.removeprefix(_OPEN) if tagged else text

    def _say(self, text: str) -> None:
        before, tag, after = text.partition(_CLOSE)
        leftover = self._told and not before.strip() and not any(not thought for thought, _ in self.pieces)
        if not tag or self._closed or (self._told and not leftover):
            self._put(self._inside, text)
            return
        self._closed, self._inside = True, False
        if any(not thought for thought, _ in self.pieces):
            self.pieces = [(True, said) for _, said in self.pieces]
            self.turns += 1
        self._put(True, before if before.strip() else "")
        self._began.discard(False)
        self._put(False, self._opened(after, False) if after else "")

    def _put(self, thinking: bool, text: str) -> None:
        if not self.pieces or self.pieces[-1][0] is not thinking:
            text = text.lstrip("\n")
        if text:
            self.pieces.append((thinking, clean(text)))

    def __iter__(self) -> Iterator[tuple[bool, str]]:
        return iter(self.pieces)


def _kept_back(text: str) -> tuple[str, str]:
    """``text`` without the beginning of a tag, or a carriage return, at its end; that."""
    start = text.rfind("<")
    if start >= 0 and any(tag.startswith(text[start:]) and tag != text[start:] for tag in (_OPEN, _CLOSE)):
        return text[:start], text[start:]
    return (text[:-1], "\r") if text.endswith("\r") else (text, "")
