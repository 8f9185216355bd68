"""Top lines of the screen: target and speed, score with its interval, progress and counts."""

from __future__ import annotations

from datetime import timedelta

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import ProgressBar, Static

from ds4ref.console.common import duration

from .board import Board, State
from .text import one_line
from .theme import QUIET, STATE_STYLES

COUNTS = {
    State.FAIL: "wrong", State.AMBIG: "ambiguous", State.MISS: "missing", State.ERR: "failed", State.STOP: "stopped",
}  # fmt: skip


class Line(Static):
    """One line of text, cut with ``…`` if it is too long; redrawn only when it changes."""

    def __init__(self, id: str):
        super().__init__(id=id, markup=False)
        self._text = Text()

    def show(self, *parts: str | tuple[str, str]) -> None:
        """Show the concatenation of ``parts``, each plain text or (text, style)."""
        text = Text.assemble(*parts)
        if text != self._text:
            self.update(text, layout=text.cell_len != self._text.cell_len)
            self._text = text


class Header(Vertical):
    """Three lines at the top; on a low screen only the second one, with score and time."""

    def __init__(self, board: Board, title: str):
        super().__init__(id="header")
        self.board, self.title = board, one_line(title)
        self.target, self.speed = Line("target"), Line("speed")
        self.score, self.status, self.clock, self.time_left = Line("score"), Line("status"), Line("clock"), Line("left")
        self.progress = ProgressBar(board.total, show_percentage=False, show_eta=False, id="progress")
        self.counts = Line("counts")

    def compose(self) -> ComposeResult:
        """Lay out the lines."""
        yield Horizontal(self.target, self.speed, classes="line")
        yield Horizontal(self.score, self.status, self.clock, self.time_left)
        yield Horizontal(self.progress, self.counts, classes="line")

    def renew(self, status: str, waiting: int) -> None:
        """Redraw from the board.

        ``status``: "", "paused", "stopping", "stopped" or "done"; ``waiting``: number of samples still to ask.
        """
        board, pace = self.board, self.board.pace
        left = pace.seconds_left(waiting) if waiting else None
        self.target.show((" ds4-eval ", "bold reverse"), f" {self.title}")
        self.speed.show(f"{pace.tokens:,} tokens, {speed(pace.speed)} tok/s, mean {speed(pace.mean)} ")
        self.score.show(*self._score())
        self.status.show(f" {status.upper()} " if status else "")
        self.clock.show(f" {clock(pace.seconds)} ")
        self.time_left.show((f"· {duration(left)} left ", QUIET) if left is not None else "")
        self.progress.update(progress=board.finished)
        counts = [(f" {board.counts[state]} {name} ", STATE_STYLES[state]) for state, name in COUNTS.items()
                  if board.counts[state]]  # fmt: skip
        self.counts.show(f" {board.finished}/{board.total} ", *counts)

    def _score(self) -> list[tuple[str, str]]:
        board, score = self.board, self.board.score()
        if not board.graded:
            return [(" no answer graded yet", QUIET)]
        right = board.counts[State.PASS]
        share = right / board.graded if score is None else score.estimate
        parts = [(f" score {right}/{board.graded} = {100 * share:.1f} %", STATE_STYLES[State.PASS] + " bold")]
        if score is not None:
            parts.append((f" ({100 * score.low:.1f} to {100 * score.high:.1f})", QUIET))
        return parts


def clock(seconds: float) -> str:
    """Format seconds as ``0:01:07``."""
    return str(timedelta(seconds=int(seconds)))


def speed(rate: float | None) -> str:
    """Format tokens per second, ``–`` while unknown."""
    return "–" if rate is None else f"{rate:.1f}"
