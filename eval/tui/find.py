"""Filter and search of questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..packs import Question
from .board import Board, State

STATES = {
    "all": frozenset(State),
    "unanswered": frozenset({State.PEND, State.STOP, State.FILL, State.THINK, State.ANS}),
    "wrong": frozenset({State.FAIL}),
    "ambiguous or missing": frozenset({State.AMBIG, State.MISS}),
    "failed": frozenset({State.ERR}),
}


@dataclass(frozen=True)
class Filter:
    """Questions of one source (if given), or with an epoch in one of the states that ``name`` stands for."""

    name: str = "all"
    by_source: bool = False

    def rows(self, board: Board, keep: int | None = None) -> list[int]:
        """Indexes of the questions that match, and ``keep``."""
        return [i for i in range(len(board.questions)) if i == keep or self._matches(board, i)]

    def _matches(self, board: Board, i: int) -> bool:
        if self.by_source:
            return board.questions[i].source == self.name
        return not STATES[self.name].isdisjoint(board.states(i))


def filters(board: Board) -> list[Filter]:
    """Filters to choose from; sources only where there are several."""
    sources = list(dict.fromkeys(q.source for q in board.questions))
    return [Filter(name) for name in STATES] + [Filter(name, True) for name in sources if len(sources) > 1]


class Search:
    """Case-insensitive search in id, source, question and choices."""

    def __init__(self, questions: Sequence[Question]):
        self._texts = ["\n".join((q.id, q.source, q.question, *q.choices)).casefold() for q in questions]
        self.word = ""

    def hits(self, rows: Sequence[int]) -> list[int]:
        """Those of ``rows`` that contain the word; none for an empty word."""
        word = " ".join(self.word.casefold().split())
        return [i for i in rows if word in self._texts[i]] if word else []

    def next(self, rows: Sequence[int], start: int, step: int) -> tuple[int, int, int] | None:
        """Return (row, rank from 1, hits) of the next hit; None without one.

        The next after ``start`` (before it if ``step`` is -1; ``start`` itself counts if 0), around the end."""
        hits = self.hits(rows)
        if not hits:
            return None
        if step < 0:
            row = next((i for i in reversed(hits) if i < start), hits[-1])
        else:
            row = next((i for i in hits if i > start or (i == start and not step)), hits[0])
        return row, hits.index(row) + 1, len(hits)
