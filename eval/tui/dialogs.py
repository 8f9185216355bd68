"""What lies over the screen for a while: help, the details of a sample, the choice of a filter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from .find import Filter
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


class FilterDialog(ModalScreen[Filter | None]):
    """Choose one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f", "close", "Close"),
        Binding("j", "cursor(1)", show=False),
        Binding("k", "cursor(-1)", show=False),
    ]

    def __init__(self, choices: Sequence[tuple[Filter, int]], now: Filter):
        super().__init__()
        self._choices, self._now = choices, now

    def compose(self) -> ComposeResult:
        """A short list."""
        with Vertical(id="filter") as frame:
            frame.border_title = Content("show")
            options = OptionList(*(Option(Content(f"{n:>5}  {one_line(one.name)}")) for one, n in self._choices))
            options.highlighted = next((i for i, (one, _) in enumerate(self._choices) if one == self._now), 0)
            yield options

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """That one."""
        self.dismiss(self._choices[event.option_index][0])

    def action_cursor(self, step: int) -> None:
        """Up or down."""
        options = self.query_one(OptionList)
        (options.action_cursor_down if step > 0 else options.action_cursor_up)()

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
