"""Lines out of styled parts: what has no room is left out, and a line is exactly as wide as it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from .text import cut, width


class Part(NamedTuple):
    """Some text in a style. ``rank``: the higher, the sooner it goes where room is short; 0 stays, and is cut."""

    text: str
    style: Style
    rank: int = 0


class Drawn(Widget):
    """A widget that draws its lines itself, in styles by name that are looked up once."""

    def __init__(self, id: str | None = None):
        super().__init__(id=id)
        self._named: dict[str, Style] = {}

    def named(self, name: str) -> Style:
        """The style that the style sheet gives a class of ``COMPONENT_CLASSES``."""
        if name not in self._named:
            self._named[name] = self.get_component_rich_style(name, partial=True)
        return self._named[name]

    @property
    def base(self) -> Style:
        """What lies under everything."""
        if "" not in self._named:
            self._named[""] = self.rich_style
        return self._named[""]

    def notify_style_update(self) -> None:
        """Colours are others."""
        super().notify_style_update()
        self._named.clear()

    def blank(self) -> Strip:
        """A line without anything."""
        return Strip.blank(self.size.width, self.base)


def line(cells: int, base: Style, left: Sequence[Part], right: Sequence[Part] = ()) -> Strip:
    """``left`` and ``right`` at the two ends of ``cells``; ``base`` lies under all of it."""
    kept = [(part, side) for side, parts in enumerate((left, right)) for part in parts if part.text]
    while sum(width(part.text) for part, _ in kept) > cells:
        worst = max((part.rank for part, _ in kept), default=0)
        if worst == 0:
            break
        kept = [entry for entry in kept if entry[0].rank < worst]
    segments: list[Segment] = []
    room = cells
    ends = [part for part, side in kept if side == 1]
    last = sum(width(part.text) for part in ends)
    for part in (part for part, side in kept if side == 0):
        text = cut(part.text, max(0, room - last))
        segments.append(Segment(text, base + part.style))
        room -= width(text)
    if room > last:
        segments.append(Segment(" " * (room - last), base))
        room = last
    for part in ends:
        text = cut(part.text, room)
        segments.append(Segment(text, base + part.style))
        room -= width(text)
    if room > 0:  # a wide character had to go
        segments.append(Segment(" " * room, base))
    return Strip(segments, cells)


def count(n: int | float) -> str:
    """``812``, ``15.5k``, ``1.2M``."""
    if n < 10_000:
        return f"{n:.0f}"
    return f"{n / 1e3:.4g}k" if n < 999_950 else f"{n / 1e6:.3g}M"


def clock(seconds: float) -> str:
    """``0:07``, ``12:34``, ``1:02:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def speed(rate: float | None) -> str:
    """``26.7`` or ``1234``, ``–`` if it is not known."""
    if rate is None:
        return "–"
    return f"{rate:.1f}" if rate < 999.95 else f"{rate:.0f}"
