"""What lies over the screen for a while: help, the details of a sample, the choice of a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import Static

from .draw import Part, line
from .find import Filter
from .scroll import Scroller
from .text import one_line
from .textview import Piece, TextView

KEYS = (
    ("↑ ↓  j k", "the question above, below"),
    ("PgUp PgDn Home End", "a screen up or down, the first, the last"),
    ("← →", "another epoch of the question"),
    ("Enter", "ask it now; what runs waits again"),
    ("r", "ask it again, next"),
    ("o", "all about it: prompt, answer, grade, timings"),
    ("l", "along with the answer that is coming in"),
    ("p", "pause, go on"),
    ("f", "filter: unanswered, wrong, failed, a source"),
    ("/  n N", "search id, source, text; next, previous"),
    ("Tab", "between the list and the answer"),
    ("q  Ctrl-C", "stop and report; twice: without waiting"),
)
STATES = (
    ("PEND", "waits"), ("FILL", "sent, no token yet"), ("THINK", "thinks"), ("ANS", "answers"), ("PASS", "right"),
    ("FAIL", "wrong"), ("AMBIG", "several answers"), ("MISS", "no answer found"),
    ("ERR", "the engine failed: in no score"), ("STOP", "stopped: in no score"),
)  # fmt: skip


class Paper(ModalScreen[None]):
    """Text in a frame, to be scrolled and closed. ``write`` says what; asked again whenever ``version`` changes."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,o,question_mark,enter", "close", "Close")]

    def __init__(self, title: str, write: Callable[[], Iterable[Piece]], version: Callable[[], object] = lambda: None):
        super().__init__()
        self._heading, self._write, self._version = title, write, version
        self._seen: object = None

    def compose(self) -> ComposeResult:
        """One view in a frame."""
        with Vertical(id="paper") as frame:
            frame.border_title = Content(self._heading)  # content, not markup
            frame.border_subtitle = Content("↑ ↓ scroll · Esc closes")
            with Horizontal():
                view = TextView(id="paper-text")
                yield view
                yield view.bar

    def on_mount(self) -> None:
        """The first text, and a look now and then whether there is another."""
        self._seen = self._version()
        self.call_after_refresh(lambda: self.query_one(TextView).show(self._write()))
        self.set_interval(0.5, self._look)

    def _look(self) -> None:
        now = self._version()
        if now != self._seen:
            self._seen = now
            self.query_one(TextView).renew(self._write())

    def action_close(self) -> None:
        """Back."""
        self.dismiss()


def help_text() -> list[Piece]:
    """Keys and states."""
    return [
        Piece("label", "KEYS"),
        Piece("plain", "\n".join(f"{keys:19} {what}" for keys, what in KEYS)),
        Piece("label", "\nSTATES"),
        Piece("plain", "\n".join(f"{state:19} {what}" for state, what in STATES)),
        Piece("quiet", "\nThe score is the share of right answers among the graded ones, with its 95 % interval."),
    ]


class Menu(Scroller):
    """A few lines, cleaned, of which one is chosen."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"menu", "menu--cursor"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("home,pageup,g", "move(-1000)", "First", show=False),
        Binding("end,pagedown,G", "move(1000)", "Last", show=False),
        Binding("enter,space", "choose", "Choose", show=False),
    ]

    class Chosen(Message):
        """The line under the cursor."""

    def __init__(self, lines: Sequence[str], cursor: int = 0):
        super().__init__(id="menu")
        self.lines, self.cursor = list(lines), cursor

    @property
    def count(self) -> int:
        """Lines."""
        return len(self.lines)

    def strip_of(self, i: int) -> Strip:
        """Line ``i``."""
        style = self.base + self.named("menu--cursor" if i == self.cursor else "menu")
        mark = "▌" if i == self.cursor else " "
        return line(self.size.width, style, [Part(f"{mark}{self.lines[i]}", style)])

    def on_resize(self, event: events.Resize) -> None:
        """The cursor stays in view."""
        self.action_move(0)

    def action_move(self, step: int) -> None:
        """Up or down."""
        self.cursor = max(0, min(self.count - 1, self.cursor + step))
        self.go(self.cursor - self.rows // 2)
        self.refresh()

    def action_choose(self) -> None:
        """That one."""
        self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        """The one that was clicked."""
        if event.y + self.top < self.count:
            self.cursor = event.y + self.top
            self.action_choose()


class FilterDialog(ModalScreen[Filter | None]):
    """Choose one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,f", "close", "Close")]

    def __init__(self, choices: Sequence[tuple[Filter, int]], now: Filter):
        super().__init__()
        self.choices = [one for one, _ in choices]
        cursor = next((i for i, one in enumerate(self.choices) if one == now), 0)
        self.menu = Menu([f"{n:>5}  {one_line(one.name)}" for one, n in choices], cursor)

    def compose(self) -> ComposeResult:
        """A short list."""
        with Vertical(id="filter") as frame:
            frame.border_title = Content("show")
            self.menu.styles.height = len(self.choices)
            yield self.menu

    @on(Menu.Chosen)
    def _chosen(self) -> None:
        self.dismiss(self.choices[self.menu.cursor])

    def action_close(self) -> None:
        """As it was."""
        self.dismiss(None)


class Heading(Static):
    """The line above the list."""

    _said = ""

    def say(self, text: str) -> None:
        """Plain text."""
        if text != self._said:
            self._said = text
            self.update(Content(text))
