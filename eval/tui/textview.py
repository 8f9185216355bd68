"""A pane of text that grows at its end: wrapped as it comes, drawn line by line, with scrollback."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple, get_args

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip

from .scroll import Scroller
from .text import wrap

Kind = Literal["plain", "thought", "label", "quiet", "good", "bad", "unclear", "broken"]
THOUGHT_GUTTER = "┊ "
"""Sets thinking apart where colours do not."""
MOST = 200_000
"""Characters kept; beyond that the first half goes."""


class Piece(NamedTuple):
    """Some text, cleaned, that goes on where the last piece of its kind ended, or on a new line after another kind."""

    kind: Kind
    text: str


class TextView(Scroller):
    """Shows pieces. While its end is in view it stays in view."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"text--{kind}" for kind in get_args(Kind)}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "rows(-1)", "Up", show=False),
        Binding("down,j", "rows(1)", "Down", show=False),
        Binding("pageup,b", "pages(-1)", "Page up", show=False),
        Binding("pagedown,space", "pages(1)", "Page down", show=False),
        Binding("home,g", "edge(0)", "Beginning", show=False),
        Binding("end,G", "edge(1)", "End", show=False),
    ]

    def __init__(self, id: str | None = None):
        super().__init__(id=id)
        self._raw: list[tuple[Kind, list[str]]] = []  # a line of the text each, in the pieces it came in
        self._lines: list[tuple[Kind, str]] = []  # wrapped
        self._starts: list[int] = []  # with which of these each of those begins
        self._strips: dict[int, Strip] = {}
        self._cells = 0
        self._kept = 0

    # --- content

    @property
    def count(self) -> int:
        """Wrapped lines."""
        return len(self._lines)

    @property
    def text(self) -> str:
        """All of it, wrapped, without gutters."""
        return "\n".join(text for _, text in self._lines)

    def show(self, pieces: Iterable[Piece], at_end: bool = False) -> None:
        """These pieces instead of what is there, from the beginning or scrolled to the end."""
        self._raw, self._lines, self._starts, self._kept = [], [], [], 0
        self._strips.clear()
        for piece in pieces:
            self._append(piece)
        self.refresh()
        self.go(self.last_top if at_end else 0)

    def renew(self, pieces: Iterable[Piece]) -> None:
        """These pieces instead of what is there, at the place where the reader is."""
        end, top = self.at_end, self.top
        self.show(pieces, end)
        if not end:
            self.go(top)

    def write(self, pieces: Iterable[Piece]) -> None:
        """More at the end."""
        end, before = self.at_end, self.count
        for piece in pieces:
            self._append(piece)
        if self._kept > MOST:
            self._shorten()
            self.refresh()
        self._strips.pop(before - 1, None)
        self.redraw(before - 1, self.count)
        self.go(self.last_top if end else self.top)

    def _append(self, piece: Piece) -> None:
        first, *others = piece.text.split("\n")
        if self._raw and self._raw[-1][0] == piece.kind:
            if first:
                self._raw[-1][1].append(first)
                kind, last = self._lines.pop()
                self._wrap(kind, last + first)
        else:
            others.insert(0, first)
        for text in others:
            self._raw.append((piece.kind, [text]))
            self._starts.append(self.count)
            self._wrap(piece.kind, text)
        self._kept += len(piece.text)

    def _wrap(self, kind: Kind, text: str) -> None:
        room = self._cells - (len(THOUGHT_GUTTER) if kind == "thought" else 0)
        self._lines += [(kind, row) for row in wrap(text, room)]

    def _shorten(self) -> None:
        said = [(kind, "".join(texts)) for kind, texts in self._raw]
        kept, size = [], 0
        while said and size < MOST // 2:
            kind, text = said.pop()
            kept.append((kind, [text[-MOST // 2 :]]))
            size += len(text) + 1
        note: tuple[Kind, list[str]] = ("quiet", ["(what came before this is in the log)"])
        self._raw, self._kept = [note, *reversed(kept)], min(size, MOST // 2)
        self._rewrap()

    def _rewrap(self) -> None:
        self._lines, self._starts = [], []
        self._strips.clear()
        for kind, texts in self._raw:
            self._starts.append(self.count)
            self._wrap(kind, "".join(texts))

    def _place(self) -> tuple[int, int]:
        """Which line of the text is at the top, and how many of its characters lie above."""
        which = bisect.bisect_right(self._starts, self.top) - 1
        above = self._lines[self._starts[which] : self.top] if which >= 0 else []
        return which, sum(len(text) for _, text in above)

    def _line_of(self, which: int, above: int) -> int:
        """The wrapped line in which that is."""
        if which < 0:
            return 0
        i = self._starts[which]
        end = self._starts[which + 1] if which + 1 < len(self._starts) else self.count
        while i + 1 < end and len(self._lines[i][1]) <= above:
            above -= len(self._lines[i][1])
            i += 1
        return i

    # --- drawing

    def on_resize(self, event: events.Resize) -> None:
        """Another width wraps anew. The end stays in view if it was, else what was at the top stays there."""
        end, place = self.ended, self._place()
        if event.size.width != self._cells:
            self._cells = event.size.width
            self._rewrap()
        self.go(self.last_top if end else self._line_of(*place))
        self.refresh()

    def notify_style_update(self) -> None:
        """Colours are others."""
        super().notify_style_update()
        self._strips.clear()

    def strip_of(self, i: int) -> Strip:
        """Line ``i``; drawn once, because textual keeps what it made of a strip with it."""
        strip = self._strips.get(i)
        if strip is None:
            kind, text = self._lines[i]
            style = self.base + self.named(f"text--{kind}")
            gutter = THOUGHT_GUTTER if kind == "thought" else ""
            strip = Strip([Segment(gutter + text, style)]).adjust_cell_length(self._cells, style)
            if len(self._strips) > 1000:
                self._strips.clear()
            self._strips[i] = strip
        return strip

    # --- keys

    def action_rows(self, rows: int) -> None:
        """Up or down."""
        self.by(rows)

    def action_pages(self, pages: int) -> None:
        """A screen up or down."""
        self.by(pages * max(1, self.rows - 1))

    def action_edge(self, end: int) -> None:
        """The beginning or the end."""
        self.by(self.count if end else -self.count)
