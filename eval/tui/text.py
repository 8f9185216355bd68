"""Text of models and packs, made safe to show, and a scrolling view of it; logs keep the original text.

Control characters become visible symbols, so that an escape sequence is shown and not obeyed. Characters about whose
width terminals disagree (joiners, bidirectional marks, skin tones, flags) are dropped or spelled out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple

import regex
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

TAB = "    "
MAX_MARKS = 6
"""Largest number of combining marks kept per character."""
BLOCK = 2000
"""Number of characters after which the next line feed begins a new block."""
BLOCKS = 50
"""The view keeps between this many blocks and twice as many; older text is in the log only."""
Kind = Literal["plain", "thought", "label", "quiet", "good", "bad", "unclear", "broken"]
OPEN, CLOSE = "<think>", "</think>"

_FIRST_FLAG = 0x1F1E6
_FILLERS = "\u115f\u1160\u3164\uffa0"
_UNSAFE = regex.compile(
    r"[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}--\n]"  # control, format, lone surrogates, separators of lines and paragraphs
    r"|[\ufe00-\ufe0f\U000e0100-\U000e01ef\U0001f3fb-\U0001f3ff]"  # variation selectors, skin tones
    rf"|[\U0001f1e6-\U0001f1ff{_FILLERS}]",  # letters of flags; letters of Hangul that are blank
    regex.V1,
)
_MANY_MARKS = regex.compile(rf"(\p{{M}}{{{MAX_MARKS}}})\p{{M}}+")
_BARE_MARK = regex.compile(r"(?m)^(?=\p{M})")


def clean(text: str) -> str:
    """Replace characters that a terminal would act on; line feeds stay."""
    if text.isascii() and text.isprintable():
        return text
    text = _UNSAFE.sub(lambda match: _visible(match[0]), text.replace("\r\n", "\n"))
    return text if text.isascii() else _BARE_MARK.sub("\u25cc", _MANY_MARKS.sub(r"\1", text))


def one_line(text: str) -> str:
    """Clean ``text`` and collapse its whitespace."""
    return " ".join(clean(text).split())


def split_thinking(reasoning: str, output: str) -> list[tuple[bool, str]]:
    """Split an answer, finished or so far, into (is_thought, text) parts without think tags.

    If the target does not report reasoning, tags in ``output`` delimit it: an opening tag at the beginning, or the
    first closing one, since the prompt may have opened it.
    """
    body = output.lstrip()
    before, closed, after = body.removeprefix(OPEN).partition(CLOSE)
    if not reasoning.strip():
        if closed or body.startswith(OPEN):
            reasoning, output = before, after
    elif closed and not before.strip():  # the end of the reported reasoning
        output = after
    elif body.startswith(OPEN):
        output = body.removeprefix(OPEN)
    thought = reasoning.removeprefix(OPEN).replace(CLOSE, "").lstrip("\n")
    parts = [(True, thought), (False, output.lstrip("\n"))]
    return [(is_thought, text) for is_thought, text in parts if text]


def _visible(char: str) -> str:
    code, category = ord(char), unicodedata.category(char)
    if char == "\t":
        return TAB
    if category == "Cc":
        return chr(0x2400 + code) if code < 32 else "\u2421" if code == 127 else "\ufffd"
    if category in ("Zl", "Zp"):
        return "\n"
    if category == "Cs":
        return "\ufffd"
    if 0 <= code - _FIRST_FLAG < 26:
        return chr(ord("A") + code - _FIRST_FLAG)
    return " " if char in _FILLERS else ""


# ---------------------------------------------------------------------------------------------------- the view


class Piece(NamedTuple):
    """Text of one style, beginning on a new line; ``kind``: a class of eval.tcss."""

    kind: Kind
    text: str


class Block(Static):
    """Widget for one piece of text, or a part of a long one."""

    def __init__(self, piece: Piece):
        super().__init__(clean(piece.text), markup=False, classes=piece.kind)
        self.piece = piece

    def show(self, piece: Piece) -> None:
        """Replace the text if it differs."""
        if piece != self.piece:
            self.piece = piece
            self.set_classes(piece.kind)
            self.update(clean(piece.text))


class TextView(VerticalScroll):
    """Scrolling text in blocks, so that a growing text wraps only its last block again.

    If anchored (``anchor()``), the view shows the end of the text until the user scrolls up, and again when the user
    returns there.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", "Up", show=False),
        Binding("j", "scroll_down", "Down", show=False),
        Binding("b", "page_up", "Page up", show=False),
        Binding("space", "page_down", "Page down", show=False),
        Binding("g", "scroll_home", "Beginning", show=False),
        Binding("G", "scroll_end", "End", show=False),
    ]

    def __init__(self, id: str):
        self._body = Vertical()  # as tall as the view or taller: Textual would show a short text at the bottom
        super().__init__(self._body, id=id)
        self._blocks: list[Block] = []
        self.scrolled = False  # by the user, in the text shown now

    def release_anchor(self) -> None:
        """Record that the user scrolled; called by Textual."""
        super().release_anchor()
        self.scrolled = True

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "\n".join(block.piece.text for block in self._blocks)

    @property
    def reads_back(self) -> bool:
        """Return whether the user has scrolled up from the end of an anchored text."""
        return self.is_anchored and not self.is_vertical_scroll_end

    def show(self, pieces: Iterable[Piece]) -> None:
        """Show ``pieces``, redrawing only blocks that changed."""
        wanted = newest(list(split(pieces)))
        for block, piece in zip(self._blocks, wanted, strict=False):
            block.show(piece)
        added = [Block(piece) for piece in wanted[len(self._blocks) :]]
        for block in self._blocks[len(wanted) :]:
            block.remove()
        self._blocks = self._blocks[: len(wanted)] + added
        if added:
            self._body.mount_all(added)


def split(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Split long pieces at line feeds, so that text added at the end changes only the last part."""
    for kind, text in pieces:
        start, limit = 0, 4 * BLOCK
        while len(text) - start > BLOCK:
            end = text.find("\n", start + BLOCK, start + limit)
            if end < 0 and len(text) - start <= limit:
                break
            if end < 0:  # a line without end: at a space, if there is one
                end = text.rfind(" ", start, start + limit)
            end = end if end > start else start + limit
            yield Piece(kind, text[start:end])
            start = end + text[end].isspace()
        yield Piece(kind, text[start:])


def newest(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Drop the oldest of many pieces, ``BLOCKS`` at a time, so that most additions move no block."""
    dropped = max(0, len(pieces) // BLOCKS - 1) * BLOCKS
    return [Piece("quiet", "(earlier text is in the log)"), *pieces[dropped:]] if dropped else pieces
