"""The list of questions: a row each, drawn only where it is in view, so that thousands cost what twenty do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from ..plan import Key
from .board import MARKS, Board, State
from .draw import Part, line
from .scroll import Scroller
from .text import cut, one_line, width

GIVEN = 9
"""Cells of an answer given, or expected, in a row."""
MOST_MARKS = 8
"""Epochs that have a mark of their own; more are counted."""


class QuestionList(Scroller):
    """``shown`` are the questions that are not filtered out, as numbers from 0; ``cursor`` is one of them.

    ``following`` says whether the cursor goes where the run goes; the user's own moves end that at once, for the next
    look at the run may come before any message of them is read."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "row", "row--cursor", "row--number", "row--source", "row--title", "row--running", "row--mark",
        *(f"state--{state.lower()}" for state in State),
    }  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup,b", "page(-1)", "Page up", show=False),
        Binding("pagedown,space", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(-1)", "First", show=False),
        Binding("end,G", "edge(1)", "Last", show=False),
    ]

    class Moved(Message):
        """The user chose another row."""

    class Opened(Message):
        """The user clicked a row twice."""

    def __init__(self, board: Board, id: str | None = None):
        super().__init__(id=id)
        self.board = board
        self.shown: list[int] = list(range(len(board.questions)))
        self.cursor, self.following = 0, True
        self.epochs: dict[int, int] = {}  # chosen by the user
        self._place = {i: y for y, i in enumerate(self.shown)}
        self._titles: dict[int, tuple[str, str]] = {}

    # --- what is shown

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.shown)

    def key(self, i: int | None = None) -> Key:
        """The sample that question ``i`` (the cursor's) stands for: the epoch the user chose, else the one worth
        seeing."""
        i = self.cursor if i is None else i
        return Key(self.epochs.get(i) or self.board.epoch(i), self.board.questions[i].id)

    def show(self, questions: Sequence[int]) -> None:
        """These and no others; the cursor stays where it is if its question is among them, else it goes to the next."""
        if list(questions) == self.shown:
            return
        self.shown = list(questions)
        self._place = {i: y for y, i in enumerate(self.shown)}
        if self.shown and self.cursor not in self._place:
            self.cursor = next((i for i in self.shown if i > self.cursor), self.shown[-1])
        self._centre()
        self.refresh()

    def select(self, i: int) -> None:
        """Put the cursor on question ``i``, if it is there."""
        if i in self._place and i != self.cursor:
            before, self.cursor = self.cursor, i
            self.renew([before, i])
            self._centre()

    def renew(self, questions: Iterable[int]) -> None:
        """Draw the rows of these questions again."""
        for i in questions:
            y = self._place.get(i)
            if y is not None:
                self.redraw(y, y + 1)

    @property
    def place(self) -> int:
        """In which row the cursor is."""
        return self._place.get(self.cursor, 0)

    def _centre(self) -> None:
        self.go(self.place - self.rows // 2)

    # --- keys and mouse

    def _to(self, y: int) -> None:
        self.following = False
        if self.shown:
            self.select(self.shown[max(0, min(len(self.shown) - 1, y))])
            self.post_message(self.Moved())

    def action_move(self, rows: int) -> None:
        """Up or down."""
        self._to(self.place + rows)

    def action_page(self, pages: int) -> None:
        """A screen up or down."""
        self._to(self.place + pages * max(1, self.rows - 1))

    def action_edge(self, which: int) -> None:
        """The first or the last row."""
        self._to(0 if which < 0 else len(self.shown) - 1)

    def turn(self, epochs: int) -> None:
        """Look at a later or earlier epoch of the selected question."""
        self.following = False
        now = self.key().epoch
        self.epochs[self.cursor] = max(1, min(self.board.epochs, now + epochs))
        self.renew([self.cursor])

    def on_click(self, event: events.Click) -> None:
        """Select; twice: open."""
        y = event.y + self.top
        if y < len(self.shown):
            self._to(y)
            if event.chain == 2:
                self.post_message(self.Opened())

    def on_resize(self, event: events.Resize) -> None:
        """The cursor stays in view."""
        self._centre()
        self.refresh()

    # --- drawing

    def strip_of(self, i: int) -> Strip:
        """Row ``i``."""
        question, cells = self.shown[i], self.size.width
        here = question == self.cursor
        base = self.base + self.named("row--cursor" if here else "row")
        return line(cells, base, *self._parts(question, cells, here))

    def _parts(self, i: int, cells: int, here: bool) -> tuple[list[Part], list[Part]]:
        states = self.board.states(i)
        running = any(state.running for state in states)
        style = self.named
        mark = "▌" if here else "»" if self._queued(i) else " "
        digits = len(str(len(self.board.questions)))
        word, coloured = self._word(i, states)
        source, title = self._title(i)
        left = [
            Part(mark, style("row--mark")),
            Part(f"{i + 1:>{digits}} ", style("row--number"), 2 if cells < 30 else 0),
            Part(f"{word:5} ", coloured),
        ]
        right = self._marks(states) if self.board.epochs > 1 else self._answers(i)
        right.append(Part(" ", Style()))  # the scroll bar is next
        room = cells - sum(width(part.text) for part in [*left, *right])
        shown = cut(f"{source}: ", max(0, room - 4))
        left += [
            Part(shown, style("row--source"), 3),
            Part(cut(title, max(0, room - width(shown))), style("row--running" if running else "row--title")),
        ]
        return left, right

    def _queued(self, i: int) -> bool:
        return any(key.question == self.board.questions[i].id for key in self.board.queued)

    def _title(self, i: int) -> tuple[str, str]:
        if i not in self._titles:
            q = self.board.questions[i]
            self._titles[i] = one_line(q.source), one_line(q.question[:400])
        return self._titles[i]

    def _word(self, i: int, states: Sequence[State]) -> tuple[str, Style]:
        """What a row says about its question: with several epochs what runs, else how many were right."""
        shown = self.board.state(self.key(i))
        graded = [state for state in states if state.graded]
        if self.board.epochs > 1 and graded and not shown.running:
            right = graded.count(State.PASS)
            colour = State.PASS if right == len(graded) else State.FAIL if not right else State.AMBIG
            return f"{right}/{len(graded)}", self.named(f"state--{colour.lower()}")
        return shown.value, self.named(f"state--{shown.lower()}")

    def _answers(self, i: int) -> list[Part]:
        """``given/expected`` of a question that was graded."""
        sample = self.board.samples.get(Key(1, self.board.questions[i].id))
        if sample is None or sample.grade is None or self.board.state(sample.key).running:
            return []
        given, expected = one_line(sample.grade.given) or "?", one_line(sample.expected)
        colour = self.named(f"state--{self.board.state(sample.key).lower()}")
        return [
            Part(f" {cut(given, GIVEN)}", colour, 1),
            Part(f"/{cut(expected, GIVEN)}", self.named("row--number"), 1),
        ]

    def _marks(self, states: Sequence[State]) -> list[Part]:
        if len(states) > MOST_MARKS:
            over = sum(state is not State.PEND and not state.running for state in states)
            return [Part(f" {over} of {len(states)}", self.named("row--number"), 1)]
        marks = [(MARKS.get(state, "»" if state.running else "·"), state) for state in states]
        return [
            Part(" ", Style(), 1),
            *(Part(mark, self.named(f"state--{state.lower()}"), 1) for mark, state in marks),
        ]
