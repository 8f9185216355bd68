"""The pane beside the table: the selected question, its progress, its answer."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import ProgressBar, Static

from ..log import Sample
from ..plan import Key, Settings
from ..view import heading
from . import document
from .board import Board, Live, State
from .header import Line, clock, speed
from .text import TextView, one_line
from .theme import QUIET, STATE_STYLES


class AnswerPane(Vertical):
    """Pane that shows one sample; ``guided``: whether the target lets us close its thinking at the hard limit."""

    def __init__(self, board: Board, settings: Settings, guided: bool):
        super().__init__(id="pane")
        self.board = board
        self.limits = {
            State.THINK: settings.tokens - (settings.hard_limit if guided else 0),
            State.ANS: settings.tokens,
        }
        self.head, self.state, self.figures = Line("about"), Line("state"), Line("figures")
        self.gauge = ProgressBar(settings.tokens, show_percentage=False, show_eta=False, id="gauge")
        self.preview = Static(id="preview", markup=False)
        self.view = TextView("answer")
        self._shown: tuple[Key, Live | None, Sample | None] | None = None

    def compose(self) -> ComposeResult:
        """Lay out heading, progress, question and answer."""
        yield self.head
        yield Horizontal(self.state, self.gauge, self.figures, id="state-line")
        yield self.preview
        yield self.view

    def renew(self, key: Key) -> None:
        """Redraw sample ``key`` in its current state."""
        live, sample = self.board.live.get(key), self.board.samples.get(key)
        self._progress(key, live, sample)
        shown = (key, live, None if live else sample)
        if (shown == self._shown and live is None) or not self.view.is_mounted:
            return
        if self._shown is None or key != self._shown[0] or (live is not None and live is not self._shown[1]):
            self._begin(key, live is not None or sample is not None)
        self._shown = shown
        if live is not None:
            self.view.show(document.answer(live.parts()))
        elif sample is not None:
            self.view.show(document.graded(sample, self.board.state(key)))
        else:
            self.view.show(document.unasked(self.board.questions[self.board.number[key.question]]))

    def _begin(self, key: Key, asked: bool) -> None:
        """Start on another sample: at the end of its answer, or at the beginning of its question."""
        i = self.board.number[key.question]
        question = self.board.questions[i]
        epoch = f" epoch {key.epoch}/{self.board.epochs}" if self.board.epochs > 1 else ""
        facts = "".join(f" · {one_line(fact)}" for fact in (question.domain, question.difficulty, question.id) if fact)
        position = f"{i + 1}/{len(self.board.questions)} {one_line(question.source)}{epoch}"
        self.head.show((position, "bold"), (facts, QUIET))
        self.preview.display = asked
        self.preview.update(Text(one_line(question.question[:2000])))
        self.view.anchor(asked)
        if not asked:
            self.view.scroll_home(animate=False, immediate=True)  # or it would undo a later anchor
        self.view.scrolled = False

    def _progress(self, key: Key, live: Live | None, sample: Sample | None) -> None:
        state, pace = self.board.state(key), self.board.pace
        limit = self.limits.get(state)
        self.state.show((state.value, STATE_STYLES[state]))
        self.gauge.display = bool(live and limit)
        if live is not None and limit:
            self.gauge.update(total=limit, progress=min(live.tokens, limit))
            rate = f", {speed(pace.speed)} tok/s" if len(self.board.live) == 1 else ""
            figures = f"{live.tokens:,}/{limit:,} tokens, {clock(pace.seconds - live.started)}"
            self.figures.show(f" {figures}", (rate, QUIET))
        elif live is not None:
            self.figures.show((f" sent {clock(pace.seconds - live.started)} ago", QUIET))
        elif sample is None:
            self.figures.show((" not asked yet", QUIET))
        else:
            self.figures.show(f" {one_line(heading(sample))}")
