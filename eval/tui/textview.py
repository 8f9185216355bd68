"""A pane of text that grows at its end: wrapped as it comes, drawn line by line, with scrollback."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple, get_args

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

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


class TextView(ScrollView, can_focus=True):
    """Shows pieces. While its end is in view it stays in view."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"text--{kind}" for kind in get_args(Kind)}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "Scroll up", show=False),
        Binding("down,j", "scroll_down", "Scroll down", show=False),
        Binding("pageup,b", "page_up", "Page up", show=False),
        Binding("pagedown,space", "page_down", "Page down", show=False),
        Binding("home,g", "scroll_home", "Beginning", show=False),
        Binding("end,G", "scroll_end", "End", show=False),
    ]

    def __init__(self, id: str | None = None):
        super().__init__(id=id)
        self._raw: list[list[str]] = []  # [kind, text of a paragraph], a paragraph being a line of the text
        self._lines: list[tuple[Kind, str]] = []
        self._cells = 0
        self._kept = 0

    # --- content

    def show(self, pieces: Iterable[Piece], at_end: bool = False) -> None:
        """These pieces instead of what is there, from the beginning or scrolled to the end."""
        self._raw, self._lines, self._kept = [], [], 0
        for piece in pieces:
            self._append(piece)
        self._resized()
        self.scroll_to(y=self.max_scroll_y if at_end else 0, animate=False)
        self.refresh()

    def renew(self, pieces: Iterable[Piece]) -> None:
        """These pieces instead of what is there, at the place where the reader is."""
        end, y = self.is_at_end, self.scroll_offset.y
        self.show(pieces, end)
        if not end:
            self.scroll_to(y=y, animate=False)

    def write(self, pieces: Iterable[Piece]) -> None:
        """More at the end."""
        end, before = self.is_at_end, len(self._lines)
        for piece in pieces:
            self._append(piece)
        if self._kept > MOST:
            self._shorten()
            before = 0
        self._resized()
        if end:
            self.scroll_to(y=self.max_scroll_y, animate=False)
        self.refresh_lines(max(0, before - 1), len(self._lines) - before + 2)

    @property
    def is_at_end(self) -> bool:
        """Whether the last line is in view, or would be."""
        return self.scroll_offset.y >= self.max_scroll_y

    @property
    def text(self) -> str:
        """All of it, wrapped, without gutters."""
        return "\n".join(text for _, text in self._lines)

    def _append(self, piece: Piece) -> None:
        first, *others = piece.text.split("\n")
        if self._raw and self._raw[-1][0] == piece.kind:
            self._raw[-1][1] += first
            if first:
                kind, last = self._lines.pop()
                self._wrap(kind, last + first)
        else:
            others.insert(0, first)
        for text in others:
            self._raw.append([piece.kind, text])
            self._wrap(piece.kind, text)
        self._kept += len(piece.text)

    def _wrap(self, kind: Kind, text: str) -> None:
        room = self._cells - (len(THOUGHT_GUTTER) if kind == "thought" else 0)
        self._lines += [(kind, row) for row in wrap(text, room)]

    def _shorten(self) -> None:
        while self._kept > MOST // 2 and len(self._raw) > 1:
            self._kept -= len(self._raw.pop(0)[1]) + 1
        if self._kept > MOST:  # one paragraph without end
            self._raw[0][1] = self._raw[0][1][-MOST // 2 :]
        self._kept = sum(len(text) + 1 for _, text in self._raw)
        self._raw.insert(0, ["quiet", "(what came before this is in the log)"])
        self._rewrap()

    def _rewrap(self) -> None:
        self._lines = []
        for kind, text in self._raw:
            self._wrap(kind, text)  # type: ignore[arg-type]

    def _resized(self) -> None:
        size = Size(self.scrollable_content_region.width, len(self._lines))
        if size != self.virtual_size:
            self.virtual_size = size

    # --- drawing

    def on_resize(self, event: events.Resize) -> None:
        """Another width wraps anew; the end stays in view if it was."""
        cells = max(4, self.scrollable_content_region.width)
        if cells == self._cells:
            return
        end = self.is_at_end
        share = self.scroll_offset.y / max(1, len(self._lines))
        self._cells = cells
        self._rewrap()
        self._resized()
        self.scroll_to(y=self.max_scroll_y if end else round(share * len(self._lines)), animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Line ``y`` of what is in view."""
        cells, base = self._cells, self.rich_style
        i = y + self.scroll_offset.y
        if i >= len(self._lines):
            return Strip.blank(cells, base)
        kind, text = self._lines[i]
        style = self.get_component_rich_style(f"text--{kind}")
        segments = [Segment(text, style)]
        if kind == "thought":
            segments.insert(0, Segment(THOUGHT_GUTTER, style))
        return Strip(segments).adjust_cell_length(cells, base)
