"""Panes of many lines of which a screenful is drawn, and the bar beside them.

Textual's own scrolling lays out the whole screen anew whenever a text grows by a line. Here that costs the lines that
are another, and the bar if its thumb is somewhere else.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from .draw import Drawn, Part, line

WHEEL = 3
"""Lines per notch of a mouse wheel."""


class Scroller(Drawn, can_focus=True):
    """``count`` lines, ``top`` is the first one in view. ``strip_of`` draws one."""

    def __init__(self, id: str | None = None):
        super().__init__(id=id)
        self.top = 0
        self.ended = True  # ``at_end`` when it was last scrolled or grew: in a resize it is too late to ask
        self.bar = Bar(self)

    class Scrolled(Message):
        """The user did it."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many lines there are."""

    @abstractmethod
    def strip_of(self, i: int) -> Strip:
        """Line ``i``, as wide as the widget."""

    # --- where it is

    @property
    def rows(self) -> int:
        """Lines in view."""
        return self.size.height

    @property
    def last_top(self) -> int:
        """``top`` when the last line is in view."""
        return max(0, self.count - self.rows)

    @property
    def at_end(self) -> bool:
        """Whether it is."""
        return self.top >= self.last_top

    def go(self, top: int) -> None:
        """Scroll there, or as far as there is something."""
        top = max(0, min(self.last_top, top))
        if top != self.top:
            self.top = top
            self.refresh()
        self.ended = self.at_end
        self.bar.renew()

    def redraw(self, start: int, end: int) -> None:
        """Lines ``start`` to ``end`` are another, as far as they are in view."""
        first, last = max(0, start - self.top), min(self.rows, end - self.top)
        if first < last:
            self.refresh(Region(0, first, self.size.width, last - first))

    def render_line(self, y: int) -> Strip:
        """Line ``y`` of the widget."""
        i = y + self.top
        return self.strip_of(i) if i < self.count else self.blank()

    # --- keys and mouse

    def by(self, lines: int) -> None:
        """So many lines down, on behalf of the user."""
        self.go(self.top + lines)
        self.post_message(self.Scrolled())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        event.stop()
        self.by(WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        event.stop()
        self.by(-WHEEL)


class Bar(Drawn):
    """Which part of a pane is in view; pressed or dragged, it brings another one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"bar--thumb"}

    def __init__(self, pane: Scroller):
        super().__init__()
        self.pane = pane
        self._drawn = (0, 0)
        self._held = False

    def thumb(self) -> tuple[int, int]:
        """Its first row and the one behind its last; none where everything is in view."""
        rows, count = self.size.height, self.pane.count
        if count <= self.pane.rows or not rows:
            return 0, 0
        length = max(1, rows * self.pane.rows // count)
        start = round((rows - length) * self.pane.top / max(1, self.pane.last_top))
        return start, start + length

    def renew(self) -> None:
        """Draw it, if it is somewhere else."""
        now = self.thumb()
        if now != self._drawn:
            self._drawn = now
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """One cell of it."""
        start, end = self.thumb()
        return line(self.size.width, self.base, [Part("▐" if start <= y < end else " ", self.named("bar--thumb"))])

    def _to(self, y: float) -> None:
        share = y / max(1, self.size.height - 1)
        self.pane.go(round(share * self.pane.last_top))
        self.pane.post_message(Scroller.Scrolled())

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """There."""
        self._held = True
        self.capture_mouse()
        self._to(event.y)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Along."""
        if self._held:
            self._to(event.y)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Done."""
        self._held = False
        self.release_mouse()
