"""Filter and search questions."""

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
    """Selection of questions: of the source ``name``, or with an epoch in one of the states ``STATES[name]``."""

    name: str = "all"
    by_source: bool = False

    def rows(self, board: Board, keep: int | None = None) -> list[int]:
        """Return the indexes of the questions that match, and of the question ``keep``."""
        return [i for i in range(len(board.questions)) if i == keep or self._matches(board, i)]

    def _matches(self, board: Board, i: int) -> bool:
        if self.by_source:
            return board.questions[i].source == self.name
        return not STATES[self.name].isdisjoint(board.states(i))


def filters(board: Board) -> list[Filter]:
    """Return the filters to choose from: states, and sources if there are several."""
    sources = list(dict.fromkeys(q.source for q in board.questions))
    return [Filter(name) for name in STATES] + [Filter(name, True) for name in sources if len(sources) > 1]


class Search:
    """Case-insensitive search in id, source, question and choices."""

    def __init__(self, questions: Sequence[Question]):
        self._texts = ["\n".join((q.id, q.source, q.question, *q.choices)).casefold() for q in questions]
        self.word = ""

    def hits(self, rows: Sequence[int]) -> list[int]:
        """Return the elements of ``rows`` that contain the search text; none for an empty text."""
        word = " ".join(self.word.casefold().split())
        return [i for i in rows if word in self._texts[i]] if word else []

    def next(self, rows: Sequence[int], start: int, step: int) -> tuple[int, int, int] | None:
        """Return (row, rank from 1, number of hits) of the next hit; None if there is no hit.

        The next hit lies after ``start`` (step 1), before it (-1), or at or after it (0); the search wraps around.
        """
        hits = self.hits(rows)
        if not hits:
            return None
        if step < 0:
            row = next((i for i in reversed(hits) if i < start), hits[-1])
        else:
            row = next((i for i in hits if i > start or (i == start and not step)), hits[0])
        return row, hits.index(row) + 1, len(hits)
