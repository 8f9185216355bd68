"""The head of the screen: what is measured, how far it is, what it scores so far and how sure that is."""

from __future__ import annotations

from typing import ClassVar

from textual.strip import Strip

from ds4ref.cli.common import duration

from .board import Board, State
from .draw import Drawn, Part, clock, count, line, speed
from .text import one_line

BAR = (
    (State.PASS, "right"),
    (State.FAIL, "wrong"),
    (State.AMBIG, "ambiguous"),
    (State.MISS, "missing"),
    (State.ERR, "failed"),
    (State.STOP, "stopped"),
)
"""In the order of the bar: state and what the counts call it."""


class Header(Drawn):
    """Three lines; one where the screen is low. ``told`` is what the run does: "", "paused", "done" ..."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "head--name", "head--title", "head--told", "head--score", "head--quiet", "head--rest",
        *(f"state--{state.lower()}" for state in State),
    }  # fmt: skip

    def __init__(self, board: Board, title: str, id: str | None = None):
        super().__init__(id=id)
        self.board, self.title = board, one_line(title)
        self.told = ""
        self.waiting = 0
        self._drawn: tuple[object, ...] = ()

    def renew(self) -> None:
        """Draw again if anything in it is another."""
        board, pace = self.board, self.board.pace
        now = (
            self.told, self.waiting, int(2 * pace.seconds),  # who reads a speed that changes faster?
            tuple(board.counts.items()), len(board.live), board.score(),
        )  # fmt: skip
        if now != self._drawn:
            self._drawn = now
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Line ``y``."""
        parts = [self._what, self._score, self._counts] if self.size.height >= 3 else [self._short]
        cells = self.size.width
        if y >= len(parts):
            return self.blank()
        left, right = parts[y](cells)
        return line(cells, self.base, left, right)

    def _time(self) -> list[Part]:
        pace, quiet = self.board.pace, self.named("head--quiet")
        left = pace.left(self.waiting)
        parts = [Part(f"{clock(pace.seconds)} ", self.named("head--title"))]
        if left is not None and self.waiting:
            parts.append(Part(f"· {duration(left)} left ", quiet, 1))
        if self.told:
            parts.insert(0, Part(f" {self.told.upper()} ", self.named("head--told")))
            parts.insert(1, Part(" ", quiet))
        return parts

    def _what(self, cells: int) -> tuple[list[Part], list[Part]]:
        left = [Part(" ds4-eval ", self.named("head--name")), Part(f" {self.title} ", self.named("head--title"))]
        return left, self._time()

    def _scored(self) -> list[Part]:
        board = self.board
        if not board.graded:
            return [Part(" no answer graded yet", self.named("head--quiet"))]
        parts = [Part(f" score {board.right}/{board.graded}", self.named("head--score"))]
        found = board.score()
        share = board.right / board.graded if found is None else found.estimate
        parts.append(Part(f" = {100 * share:.1f} %", self.named("head--score")))
        if found is not None:
            parts.append(Part(f" ({100 * found.low:.1f} to {100 * found.high:.1f})", self.named("head--quiet"), 1))
        return parts

    def _score(self, cells: int) -> tuple[list[Part], list[Part]]:
        pace, quiet = self.board.pace, self.named("head--quiet")
        right = [
            Part(f"{speed(pace.speed)} tok/s", self.named("head--title"), 2),
            Part(f", mean {speed(pace.mean)} ", quiet, 3),
        ]
        if pace.tokens:
            right.insert(0, Part(f"{count(pace.tokens)} tokens, ", quiet, 4))
        return self._scored(), right

    def _counts(self, cells: int) -> tuple[list[Part], list[Part]]:
        board = self.board
        over = board.total - board.counts[State.PEND]
        right = []
        for rank, (state, name) in enumerate(BAR):
            if state is State.PASS or (state is State.STOP and not board.counts[state]):
                continue
            colour = self.named(f"state--{state.lower()}") if board.counts[state] else self.named("head--quiet")
            right.append(Part(f" {board.counts[state]} {name} ", colour, 9 - rank if rank > 2 else 1))
        said = Part(f" {over}/{board.total} ", self.named("head--title"))
        taken = sum(len(part.text) for part in [said, *right])
        return [Part(" ", self.named("head--quiet")), *self._bar(max(10, cells - taken - 2)), said], right

    def _bar(self, cells: int) -> list[Part]:
        """All samples as one line, coloured by what became of them."""
        board = self.board
        ends, before, parts = 0, 0, []
        for state, _ in BAR:
            ends += board.counts[state]
            until = round(cells * ends / max(1, board.total))
            parts.append(Part("━" * (until - before), self.named(f"state--{state.lower()}")))
            before = until
        return [*parts, Part("─" * (cells - before), self.named("head--rest"))]

    def _short(self, cells: int) -> tuple[list[Part], list[Part]]:
        over = self.board.total - self.board.counts[State.PEND]
        right = [Part(f" {over}/{self.board.total} ", self.named("head--quiet"), 2), *self._time()]
        return self._scored(), right
