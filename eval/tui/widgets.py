"""What the screen is made of: header, table of questions, pane with one answer, dialog with a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.theme import Theme
from textual.widgets import DataTable, Static

from ds4ref.console.common import duration

from ..packs import LETTERS
from ..plan import Key, Settings
from ..view import heading
from .board import GRADED, RUNNING, Board, Live, State
from .text import clean, one_line, split_thinking

if TYPE_CHECKING:
    from ds4ref.runs.stats import Interval

THEME = Theme(
    "ds4", primary="#7aa2f7", secondary="#bb9af7", accent="#7dcfff", warning="#e0af68", error="#f7768e",
    success="#9ece6a", foreground="#c8d0e8", background="#16171f", surface="#1b1d28", panel="#262a3a", dark=True,
)  # fmt: skip
QUIET = "#8a90ab"
STYLES = {
    State.PEND: "#5d6380", State.FILL: "#7dcfff", State.THINK: "#bb9af7", State.ANS: "bold #7aa2f7",
    State.PASS: "#9ece6a", State.FAIL: "bold #f7768e", State.AMBIG: "#e0af68", State.MISS: "#e0af68",
    State.ERR: "bold #ff79c6", State.STOP: "bold #e0af68",
}  # fmt: skip
"""Colours; every state is also shown as a word, for terminals without colours."""
COUNTS = {
    State.FAIL: "wrong", State.AMBIG: "ambiguous", State.MISS: "missing", State.ERR: "failed", State.STOP: "stopped",
}  # fmt: skip
MARKS = {State.PASS: "✓", State.FAIL: "✗", State.AMBIG: "?", State.MISS: "–", State.ERR: "!", State.STOP: "■"}
"""Mark of a finished sample among the epochs of its question; ``·`` is pending, ``»`` running."""
MAX_ANSWER, MAX_MARKS = 9, 8
"""Maximum number of characters of an answer, and of epochs with a mark each, in a row of the table."""
TAIL = 4000
"""Number of characters at the end of a running answer that are shown."""

HELP = """\
↑ ↓  j k             previous, next question
PgUp PgDn Home End   a page up or down, the first, the last
Enter                ask it now, or again; the running one waits
o                    details: prompt, answers of all epochs, grade, timings
l                    follow the running question again
p                    pause, resume
/  f                 show questions with these words in id, source, text or state; Esc: all
Tab                  switch between table and answer
+ -                  replay faster, slower
q  Ctrl-C            stop and report; twice: without waiting

PEND                 waiting
FILL                 sent, no token yet
THINK  ANS           thinking, answering
PASS  FAIL           right, wrong
AMBIG  MISS          several answers, no answer found
ERR                  the engine failed: not in the score
STOP                 stopped: not in the score

The score is the share of right answers among the graded ones, with its 95 % interval."""


def line(*parts: str | tuple[str, str]) -> Text:
    """Return one line of (text, style) and plain texts, cut with ``…`` at the edge of the screen."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def clock(seconds: float) -> str:
    """Format seconds as ``0:01:07``."""
    return str(timedelta(seconds=int(seconds)))


def speed(rate: float | None) -> str:
    """Format a speed in tokens per second, ``–`` while unknown."""
    return "–" if rate is None else f"{rate:.1f}"


def header(board: Board, title: str, status: str, waiting: int, score: Interval | None) -> Table:
    """Return the top lines of the screen: target and speed, score and time, progress and counts.

    ``waiting``: number of samples still to ask.
    """
    pace, counts = board.pace, board.counts()
    graded = sum(counts[state] for state in GRADED)
    left = pace.seconds_left(waiting) if waiting else None
    marks: list[tuple[str, str]] = [(" no answer graded yet", QUIET)]
    if graded:
        share = counts[State.PASS] / graded if score is None else score.estimate
        marks = [(f" score {counts[State.PASS]}/{graded} = {100 * share:.1f} %", f"{STYLES[State.PASS]} bold")]
        if score is not None:
            marks.append((f" ({100 * score.low:.1f} to {100 * score.high:.1f})", QUIET))
    time = f" {clock(pace.seconds)} " + ("" if left is None else f"· {duration(left)} left ")
    tally = [(f" {counts[state]} {name} ", STYLES[state]) for state, name in COUNTS.items() if counts[state]]
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1, no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row(line(*marks), line((f" {status.upper()} ", "bold reverse") if status else "", time))
    grid.add_row(line((" ds4-eval ", "bold reverse"), f" {title}"),
                 line(f"{pace.tokens:,} tokens, {speed(pace.speed)} tok/s, mean {speed(pace.mean)} "))  # fmt: skip
    done = counts.total()
    bar = ProgressBar(board.total, done, style="#3b4058", complete_style=THEME.primary, finished_style=THEME.primary)
    grid.add_row(bar, line(f" {done}/{board.total} ", *tally))
    return grid


class QuestionTable(DataTable[Text], inherit_bindings=False):
    """Table of the questions ``shown`` (indexes into the pack).

    The program moves the cursor with ``place``; ``moved_by_user`` reports moves by the user.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor_up", "Up", show=False),
        Binding("down,j", "cursor_down", "Down", show=False),
        Binding("pageup,b", "page_up", "Page up", show=False),
        Binding("pagedown,space", "page_down", "Page down", show=False),
        Binding("home,g", "scroll_top", "First", show=False),
        Binding("end,G", "scroll_bottom", "Last", show=False),
    ]

    def __init__(self, board: Board):
        super().__init__(id="questions", cursor_type="row", show_header=False, cursor_foreground_priority="renderable")
        self.board = board
        self.shown: list[int] = []
        self._placed = 0

    def on_mount(self) -> None:
        """Fill the table."""
        self.add_columns(*((" ", name) for name in ("number", "state", "result", "question")))
        self.show(range(len(self.board.questions)))

    @property
    def key(self) -> Key | None:
        """Return the sample under the cursor; None if no question is shown."""
        return self.board.key(self.shown[self.cursor_row]) if self.cursor_row < len(self.shown) else None

    def show(self, questions: Iterable[int]) -> None:
        """Show the given questions; the cursor stays on its question, or goes to the next one shown."""
        selected = self.shown[self.cursor_row] if self.cursor_row < len(self.shown) else 0
        self.shown = list(questions)
        self.clear()
        for i in self.shown:
            self.add_row(*self._cells(i), key=str(i))
        self.place(next((i for i in self.shown if i >= selected), self.shown[-1] if self.shown else 0))

    def place(self, i: int) -> None:
        """Move the cursor to question ``i``, if it is shown."""
        if i in self.shown:
            self._placed = self.shown.index(i)
            self.move_cursor(row=self._placed)

    def moved_by_user(self) -> bool:
        """Return whether the user has moved the cursor since the last call."""
        moved = self.cursor_row != self._placed
        self._placed = self.cursor_row
        return moved

    def update_rows(self, questions: Iterable[int]) -> None:
        """Redraw the rows of the given questions."""
        for i in questions:
            if str(i) in self.rows:
                for column, cell in zip(self.columns, self._cells(i), strict=True):
                    self.update_cell(str(i), column, cell, update_width=True)

    def _cells(self, i: int) -> tuple[Text, Text, Text, Text]:
        """Return the cells of the row of question ``i``: number, state, result and text."""
        board, question, states = self.board, self.board.questions[i], self.board.states(i)
        number = f" {i + 1:>{len(str(len(board.questions)))}}"
        title = Text.assemble((f"{one_line(question.source)}: ", QUIET), one_line(question.question[:400])[:200])
        if RUNNING.intersection(states):
            title.stylize("bold")
        state = board.state(board.key(i))
        return Text(number, QUIET), Text(f"{state:5}", STYLES[state]), self._result(i, states), title

    def _result(self, i: int, states: Sequence[State]) -> Text:
        """Return ``given/expected``; with several epochs a mark for each, and how many are right."""
        if len(states) > 1:
            marks = [(MARKS.get(state, "»" if state in RUNNING else "·"), STYLES[state]) for state in states]
            return Text.assemble(*(marks if len(marks) <= MAX_MARKS else ()),
                                 f" {states.count(State.PASS)}/{sum(state in GRADED for state in states)}")  # fmt: skip
        sample = self.board.samples.get(self.board.key(i))
        if sample is None or sample.grade is None or RUNNING.intersection(states):
            return Text("")
        given, expected = (_shortened(one_line(text)) for text in (sample.grade.given, sample.expected))
        return Text.assemble((given or "?", STYLES[states[0]]), (f"/{expected}", QUIET))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_ANSWER else text[: MAX_ANSWER - 1] + "…"


class Reader(VerticalScroll):
    """A scrollable text. If anchored, it shows the end of the text, until the user scrolls up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", "Up", show=False),
        Binding("j", "scroll_down", "Down", show=False),
        Binding("b", "page_up", "Page up", show=False),
        Binding("space", "page_down", "Page down", show=False),
        Binding("g", "scroll_home", "Beginning", show=False),
        Binding("G", "scroll_end", "End", show=False),
    ]

    def __init__(self, id: str):
        self.thought, self.body, self.verdict = (
            Static(markup=False, id=name) for name in ("thought", "plain", "verdict")
        )
        super().__init__(
            Vertical(self.thought, self.body, self.verdict), id=id
        )  # else Textual puts a short text at the bottom
        self.scrolled = False  # whether the user scrolled in the text shown now
        self.shown: list[str | Text] = ["", "", ""]

    def release_anchor(self) -> None:
        """Record that the user scrolled; called by Textual."""
        super().release_anchor()
        self.scrolled = True

    @property
    def reads_back(self) -> bool:
        """Return whether the user has scrolled up from the end of an anchored text."""
        return self.scrolled and self.is_anchored and not self.is_vertical_scroll_end

    def show(self, parts: Iterable[tuple[bool, str]], verdict: Text | None = None) -> None:
        """Show thinking and answer, and below it ``verdict``."""
        texts = {thought: clean(text) for thought, text in parts}
        shown = [texts.get(True, "").rstrip("\n"), texts.get(False, ""), verdict or ""]
        for widget, text, before in zip((self.thought, self.body, self.verdict), shown, self.shown, strict=True):
            if text != before:
                widget.update(text)
                widget.display = bool(text)
        self.shown = shown


class AnswerPane(Vertical):
    """Pane that shows one sample; ``guided``: whether the thinking of this target can be ended at the hard limit."""

    def __init__(self, board: Board, settings: Settings, guided: bool):
        super().__init__(id="pane")
        self.board = board
        self.limits = {
            State.THINK: settings.tokens - (settings.hard_limit if guided else 0),
            State.ANS: settings.tokens,
        }
        self.about, self.view = Static(id="about"), Reader("answer")
        self._shown: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Lay out state, question and answer."""
        yield self.about
        yield self.view

    def renew(self, key: Key) -> None:
        """Redraw the pane for sample ``key`` in its current state."""
        live, sample = self.board.live.get(key), self.board.samples.get(key)
        i = self.board.number[key.question]
        question, shown = self.board.questions[i], (key, live, None if live else sample)
        epoch = f" epoch {key.epoch}/{self.board.epochs}" if self.board.epochs > 1 else ""
        facts = "".join(f" · {one_line(fact)}" for fact in (question.domain, question.difficulty, question.id) if fact)
        head = line((f"{i + 1}/{len(self.board.questions)} {one_line(question.source)}{epoch}", "bold"), (facts, QUIET))
        state = line((self.board.state(key).value, STYLES[self.board.state(key)]), self._figures(key, live))
        preview = Text(one_line(question.question[:2000]), THEME.primary) if live or sample else Text()
        self.about.update(Group(head, state, preview))
        if self._shown[:2] != shown[:2] and (live or not self._shown or key != self._shown[0]):
            self.view.anchor(bool(live or sample))
            self.view.scrolled = False
            if not (live or sample):
                self.view.scroll_home(animate=False, immediate=True)  # a delayed scroll would undo a later anchor
        if live is not None:
            if not self.view.reads_back:
                self.view.show((thought, text[-TAIL:]) for thought, text in live.parts())
        elif shown != self._shown:
            if sample is not None:
                grade, *figures = heading(sample).split("\n")
                word = self.board.state(key)
                verdict = Text.assemble((f"\n{word}  {grade}", STYLES[word]), ("\n" + "\n".join(figures), QUIET))
                self.view.show(split_thinking(sample.reasoning, sample.output), verdict)
            else:
                choices = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, question.choices, strict=False)]
                text = "\n\n".join([question.question, "\n".join(choices)])
                self.view.show([(False, text)], Text("\nNot asked yet. Enter asks it now.", QUIET))
        self._shown = shown

    def _figures(self, key: Key, live: Live | None) -> str:
        """Return the tokens and time of a running answer, or the figures of a finished one."""
        if live is None:
            sample = self.board.samples.get(key)
            return "" if sample is None else f" {one_line(heading(sample))}"
        pace, limit = self.board.pace, self.limits.get(live.state)
        since = clock(pace.seconds - live.started)
        if limit is None:
            return f" sent {since} ago"
        rate = f", {speed(pace.speed)} tok/s" if len(self.board.live) == 1 else ""
        return f" {live.tokens:,}/{limit:,} tokens, {since}{rate}"


class TextDialog(ModalScreen[None]):
    """A dialog with a scrollable text; ``text`` is a function, called twice a second so that the text follows the
    run."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,o,question_mark,enter", "dismiss", "Close")]

    def __init__(self, title: str, text: Callable[[], str]):
        super().__init__()
        self.heading, self.source, self.view = title, text, Reader("text")

    def compose(self) -> ComposeResult:
        """Show the text in a frame."""
        with Vertical(id="dialog") as frame:
            frame.border_title = Content(self.heading)  # content is not parsed as markup
            frame.border_subtitle = "↑ ↓ scroll · Esc closes"
            yield self.view

    def on_mount(self) -> None:
        """Show the text and keep it up to date."""
        self.renew()
        self.set_interval(0.5, self.renew)

    def renew(self) -> None:
        """Show the text as it is now."""
        self.view.show([(False, self.source())])
