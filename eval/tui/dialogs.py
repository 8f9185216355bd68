"""Dialogs over the screen: a scrolling text (help, details of a sample), a list of filters, a search line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from .board import Board
from .find import Filter
from .text import Piece, TextView, one_line

KEYS = """\
↑ ↓  j k             previous, next question
PgUp PgDn Home End   a page up or down, the first, the last
← →                  another epoch of the question
Enter                ask it now; the running one waits
r                    ask it again, next
o                    details: prompt, answer, grade, timings
l                    follow the running question again
p                    pause, resume
f                    filter: unanswered, wrong, failed, a source
/  n N               search id, source, text; next, previous hit
Tab                  switch between table and answer
+ -                  replay faster, slower
q  Ctrl-C            stop and report; twice: without waiting"""
STATES = """\
PEND                 waiting
FILL                 sent, no token yet
THINK  ANS           thinking, answering
PASS  FAIL           right, wrong
AMBIG  MISS          several answers, no answer found
ERR                  the engine failed: not in the score
STOP                 stopped: not in the score"""


def help_text() -> list[Piece]:
    """Return the help: keys, states, and the meaning of the score."""
    score = "\nThe score is the share of right answers among the graded ones, with its 95 % interval."
    return [Piece("label", "KEYS"), Piece("plain", KEYS), Piece("label", "\nSTATES"), Piece("plain", STATES),
            Piece("quiet", score)]  # fmt: skip


class TextDialog(ModalScreen[None]):
    """Dialog with a scrolling text; ``pieces`` is called twice a second, so that the text follows the run."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,o,question_mark,enter", "dismiss", "Close")]

    def __init__(self, title: str, pieces: Callable[[], Iterable[Piece]]):
        super().__init__()
        self.heading, self.pieces, self.view = title, pieces, TextView("text")

    def compose(self) -> ComposeResult:
        """Show the text in a frame."""
        with Vertical(id="dialog") as frame:
            frame.border_title = Content(self.heading)  # content is not parsed as markup
            frame.border_subtitle = "↑ ↓ scroll · Esc closes"
            yield self.view

    def on_mount(self) -> None:
        """Show the text and keep it up to date."""
        self.view.show(self.pieces())
        self.set_interval(0.5, lambda: self.view.show(self.pieces()))


class FilterDialog(ModalScreen[Filter | None]):
    """Dialog to choose a filter; its result is None if nothing was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f", "dismiss", "Close"),
        Binding("k", "move('up')", show=False),
        Binding("j", "move('down')", show=False),
    ]

    def __init__(self, board: Board, choices: Sequence[Filter], current: Filter):
        super().__init__()
        self.choices, self.current = choices, current
        names = [f"{len(choice.rows(board)):>5}  {one_line(choice.name)}" for choice in choices]
        self.options = OptionList(*(Option(Content(name)) for name in names), markup=False)

    def compose(self) -> ComposeResult:
        """Show the choices in a frame."""
        with Vertical(id="filter") as frame:
            frame.border_title = "show"
            yield self.options

    def on_mount(self) -> None:
        """Highlight the current filter."""
        self.options.highlighted = self.choices.index(self.current) if self.current in self.choices else 0

    def action_move(self, direction: str) -> None:
        """Move the highlight up or down, for the keys j and k."""
        (self.options.action_cursor_up if direction == "up" else self.options.action_cursor_down)()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close the dialog with the chosen filter."""
        self.dismiss(self.choices[event.option_index])


class SearchDialog(ModalScreen[str | None]):
    """One line to enter a text to search for; its result is None if the user leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]

    def __init__(self, word: str):
        super().__init__()
        self.field = Input(word, placeholder="id, source or text", id="search")

    def compose(self) -> ComposeResult:
        """Show the line at the bottom, below the table."""
        yield self.field

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close the dialog with the text."""
        self.dismiss(event.value)
