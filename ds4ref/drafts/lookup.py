"""Drafts from the conversation itself: what followed the same tokens when they occurred last.

Edits of files, tool results and quotations repeat what is there already; no weights are needed. The last place of every
run of ``RUN`` tokens is in a table, and earlier places of the same run are chained to it, from new to old. The newest
places are compared backwards, token by token, and the longest match wins, the newer one on ties. Undoing an entry
restores the one before it, so ``truncate`` is exact.

Memory: 12 bytes a token, and a table entry (about 150 bytes) for each distinct run. Tokens are not copied.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

RUN = 2
"""Least number of tokens that must match."""
TRIES = 8
"""Most places that are compared for one proposal."""
COMPARED = 32
"""Most tokens by which a match is measured."""
GRADES = (3, 8)
"""Lengths of matches from which the next grade of confidence begins."""

_NONE = -1


class Lookup:
    """Drafts by lookup in one sequence; ``propose`` enters the tokens that are new to it."""

    name = "lookup"

    def __init__(self) -> None:
        self.grade = 0
        """Confidence of the last proposal, 0 to len(GRADES), by the length of the match."""
        self._runs = array("Q")  # the run that ends at each position, as a number; 0 at the first
        self._before = array("i")  # the place before it with the same run
        self._last: dict[int, int] = {}  # by run
        self._at, self._source = _NONE, _NONE  # the last proposal: made at which length, copied from where

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Return what followed the longest earlier match of the newest tokens, at most ``limit`` tokens.

        A match that reaches into the present is continued periodically. See ``Draft``; ``streams`` are not used.
        """
        self.truncate(len(tokens))
        self._enter(tokens)
        length, source = self._search(tokens) if limit > 0 else (0, _NONE)
        self._at, self._source = len(tokens), source
        if not length:
            return []
        self.grade = sum(length >= least for least in GRADES)
        draft = list(tokens[source : source + limit])
        period = len(tokens) - source
        while len(draft) < limit:
            draft.append(draft[len(draft) - period])
        return draft

    def truncate(self, pos: int) -> None:
        """Forget positions from ``pos`` on."""
        while len(self._runs) > max(0, pos):
            run, before = self._runs.pop(), self._before.pop()
            self._source = _NONE
            if before != _NONE:
                self._last[run] = before
            else:
                self._last.pop(run, None)

    def _enter(self, tokens: Sequence[int]) -> None:
        for at in range(len(self._runs), len(tokens)):
            run = tokens[at - 1] << 32 | tokens[at] if at else 0
            self._runs.append(run)
            self._before.append(self._last.get(run, _NONE) if at else _NONE)
            if at:
                self._last[run] = at

    def _search(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return (length of the best match, position that followed it); (0, -1) if there is none."""
        best, match = 0, _NONE
        for place in self._places(len(tokens)):
            length = self._matched(tokens, place)
            if length >= RUN and (length > best or (length == best and place > match)):
                best, match = length, place
            if best == COMPARED:
                break
        return best, match

    def _places(self, end: int) -> Iterator[int]:
        """Yield where the newest run may have stood before, each as the position after it."""
        if self._source != _NONE:  # the text may still follow the last proposal's source, now beyond the tries
            place = self._source + end - self._at
            if place < end:
                yield place
        place = self._before[end - 1] if end else _NONE
        for _ in range(TRIES):
            if place == _NONE:
                return
            yield place + 1
            place = self._before[place]

    @staticmethod
    def _matched(tokens: Sequence[int], place: int) -> int:
        """Return how many tokens before ``place`` equal the newest ones, at most ``COMPARED``."""
        end, most = len(tokens), min(COMPARED, place)
        length = 0
        while length < most and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length
