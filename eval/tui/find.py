"""Which questions are in view, and where a word occurs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..packs import Question
from .board import Board, State

WRONG, UNCLEAR, FAILED, OPEN, ALL = "wrong", "ambiguous or missing", "failed", "unanswered", "all"
_STATES = {
    WRONG: {State.FAIL},
    UNCLEAR: {State.AMBIG, State.MISS},
    FAILED: {State.ERR},
    OPEN: {State.PEND, State.STOP, State.FILL, State.THINK, State.ANS},
}


@dataclass(frozen=True)
class Filter:
    """By what became of a question, one of its epochs at least, or by its source."""

    state: str = ALL
    source: str | None = None

    @property
    def name(self) -> str:
        """For people."""
        return self.state if self.source is None else self.source

    def rows(self, board: Board, always: int | None = None) -> list[int]:
        """Numbers of the questions it lets through, and ``always``."""
        return [i for i in range(len(board.questions)) if i == always or self._takes(board, i)]

    def _takes(self, board: Board, i: int) -> bool:
        if self.source is not None:
            return board.questions[i].source == self.source
        return self.state == ALL or any(state in _STATES[self.state] for state in board.states(i))


def filters(board: Board) -> list[tuple[Filter, int]]:
    """Those to choose from, and how many questions each of them shows; sources where there are several."""
    found = [Filter(name) for name in (ALL, OPEN, WRONG, UNCLEAR, FAILED)]
    sources = list(dict.fromkeys(q.source for q in board.questions))
    if len(sources) > 1:
        found += [Filter(source=source) for source in sources]
    return [(one, len(one.rows(board))) for one in found]


class Search:
    """A text looked for in id, source and question, choices included, whatever its case."""

    def __init__(self, questions: Sequence[Question]):
        self._texts = ["\n".join((q.id, q.source, q.question, *q.choices)).casefold() for q in questions]
        self.word = ""

    def hits(self, rows: Sequence[int]) -> list[int]:
        """Of ``rows`` those that have it; none while nothing is looked for."""
        word = " ".join(self.word.casefold().split())
        return [i for i in rows if word in self._texts[i]] if word else []

    def next(self, rows: Sequence[int], here: int, step: int) -> tuple[int, int, int] | None:
        """The hit after ``here`` (before it with a negative ``step``; ``here`` itself counts with 0), round the end;
        which of how many it is. None if there is none."""
        hits = self.hits(rows)
        if not hits:
            return None
        if step < 0:
            found = next((i for i in reversed(hits) if i < here), hits[-1])
        else:
            found = next((i for i in hits if i > here or (i == here and not step)), hits[0])
        return found, hits.index(found) + 1, len(hits)
