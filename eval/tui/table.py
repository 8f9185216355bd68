"""The table of questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from ..plan import Key
from .board import Board, State
from .text import one_line
from .theme import QUIET, STATE_STYLES

COLUMNS = ("number", "state", "result", "question")
MARKS = {State.PASS: "✓", State.FAIL: "✗", State.AMBIG: "?", State.MISS: "–", State.ERR: "!", State.STOP: "■"}
"""Mark of a finished sample among the epochs of its question; ``·`` is pending, ``»`` running."""
MAX_ANSWER = 9
"""Largest number of characters shown of an answer."""
MAX_MARKS = 8
"""Largest number of epochs shown by a mark each; more are shown as counts."""


class QuestionTable(DataTable[Text], inherit_bindings=False):
    """Table of the questions ``shown`` (indexes into the pack).

    ``place`` moves the cursor for the program; ``moved_by_user`` reports any other move.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor_up", "Up", show=False),
        Binding("down,j", "cursor_down", "Down", show=False),
        Binding("pageup,b", "page_up", "Page up", show=False),
        Binding("pagedown,space", "page_down", "Page down", show=False),
        Binding("home,g", "scroll_top", "First", show=False),
        Binding("end,G", "scroll_bottom", "Last", show=False),
    ]

    def __init__(self, board: Board, id: str):
        super().__init__(id=id, cursor_type="row", show_header=False, cursor_foreground_priority="renderable")
        self.board = board
        self.shown: list[int] = list(range(len(board.questions)))
        self.epochs: dict[int, int] = {}  # epoch chosen by the user, by question
        self._placed = 0

    def on_mount(self) -> None:
        """Fill the table."""
        for name in COLUMNS:
            self.add_column("", key=name)
        self._fill()

    @property
    def selected(self) -> int | None:
        """Return the index of the question under the cursor; None if no question is shown."""
        return self.shown[self.cursor_row] if self.cursor_row < len(self.shown) else None

    @property
    def key(self) -> Key | None:
        """Return the sample under the cursor: the epoch chosen by the user, else the board's default."""
        i = self.selected
        return None if i is None else self._key(i)

    def show(self, questions: Sequence[int]) -> None:
        """Show the given questions; the cursor stays on its question, or goes to the next one shown."""
        if list(questions) == self.shown:
            return
        selected = self.selected or 0
        self.shown = list(questions)
        self._fill()
        self.place(next((i for i in self.shown if i >= selected), self.shown[-1] if self.shown else 0))

    def _fill(self) -> None:
        self.clear()
        for i in self.shown:
            self.add_row(*self._cells(i), key=str(i))

    def place(self, i: int) -> None:
        """Move the cursor to question ``i``, if it is shown."""
        if i in self.shown:
            self._placed = self.shown.index(i)
            self.move_cursor(row=self._placed)
        else:
            self._placed = self.cursor_row

    def moved_by_user(self) -> bool:
        """Return whether the user has moved the cursor since the last call."""
        moved = self.cursor_row != self._placed
        self._placed = self.cursor_row
        return moved

    def turn_epoch(self, step: int) -> None:
        """Show a later or earlier epoch of the selected question."""
        if (key := self.key) is not None and (i := self.selected) is not None:
            self.epochs[i] = max(1, min(self.board.epochs, key.epoch + step))
            self.update_rows([i])

    def update_rows(self, questions: Iterable[int]) -> None:
        """Redraw the rows of the given questions."""
        for i in questions:
            if str(i) in self.rows:
                for column, cell in zip(COLUMNS, self._cells(i), strict=True):
                    self.update_cell(str(i), column, cell, update_width=column == "result")

    # --- cells

    def _key(self, i: int) -> Key:
        return Key(self.epochs.get(i) or self.board.epoch(i), self.board.questions[i].id)

    def _cells(self, i: int) -> tuple[Text, Text, Text, Text]:
        question, states = self.board.questions[i], self.board.states(i)
        queued = any(key.question == question.id for key in self.board.queued)
        number = f"{'»' if queued else ' '}{i + 1:>{len(str(len(self.board.questions)))}}"
        title = Text.assemble((f"{one_line(question.source)}: ", QUIET), one_line(question.question[:400])[:200])
        if any(state.running for state in states):
            title.stylize("bold")
        result = self._marks(states) if self.board.epochs > 1 else self._answers(i)
        return Text(number, QUIET), self._state(i, states), result, title

    def _state(self, i: int, states: Sequence[State]) -> Text:
        """State of the running or only epoch; with several epochs ``right/graded``."""
        shown = self.board.state(self._key(i))
        graded = [state for state in states if state.graded]
        if self.board.epochs > 1 and graded and not shown.running:
            right = graded.count(State.PASS)
            colour = State.PASS if right == len(graded) else State.AMBIG if right else State.FAIL
            return Text(f"{right}/{len(graded)}", STATE_STYLES[colour])
        return Text(f"{shown:5}", STATE_STYLES[shown])

    def _answers(self, i: int) -> Text:
        """Return the cell ``given/expected`` of a question's graded sample."""
        key = Key(1, self.board.questions[i].id)
        sample = self.board.samples.get(key)
        if sample is None or sample.grade is None or key in self.board.live:
            return Text("")
        given, expected = (_shortened(one_line(text)) for text in (sample.grade.given, sample.expected))
        return Text.assemble((given or "?", STATE_STYLES[self.board.state(key)]), (f"/{expected}", QUIET))

    def _marks(self, states: Sequence[State]) -> Text:
        if len(states) > MAX_MARKS:
            finished = sum(state is not State.PEND and not state.running for state in states)
            return Text(f"{finished} of {len(states)}", QUIET)
        marks = ((MARKS.get(state, "»" if state.running else "·"), STATE_STYLES[state]) for state in states)
        return Text.assemble(*marks)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_ANSWER else text[: MAX_ANSWER - 1] + "…"
