"""Drafts from the conversation itself: the tokens that followed when the newest tokens occurred before.

This pays because edits of files, tool results and quotations repeat earlier text; no weights are needed. A table holds
the last position of every run of ``RUN`` tokens, and each position is linked to the previous one of the same run. The
newest of these positions are compared with the end of the text, token by token backwards; the longest match wins, the
newer one if they are equally long. ``truncate`` restores the table exactly as it was before the removed tokens.

Memory: 12 bytes per token, and a table entry (about 150 bytes) for each distinct run. Tokens are not copied.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

RUN = 2
"""Minimum number of tokens that must match."""
TRIES = 8
"""Maximum number of earlier positions of the same run that are compared for one draft."""
COMPARED = 32
"""Maximum number of tokens that are compared at one position."""
GRADES = (3, 8)
"""Lengths of the match at which confidence rises to grade 1 and to grade 2."""

_NONE = -1


class Lookup:
    """A source of drafts for one sequence: lookup in its own tokens. ``propose`` first adds new tokens to the table."""

    name = "lookup"

    def __init__(self) -> None:
        self.grade = 0
        """Confidence in the newest draft, 0 to len(GRADES), by the length of the match."""
        self._runs = array("Q")  # by position: the two tokens that end there, packed into a number; 0 at the first
        self._before = array("i")  # by position: the previous position where the same run ends
        self._last: dict[int, int] = {}  # run -> the last position where it ends
        self._at, self._source = _NONE, _NONE  # newest draft: length of the sequence then, position it was copied from

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Return at most ``limit`` tokens that followed the longest earlier match of the newest tokens; [] if none
        matches.

        If the text ends before ``limit`` tokens, the draft goes on by repeating itself. ``streams`` are not used.
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
        """Remove positions ``pos`` and later from the table."""
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
        """Return (length of the best match, position after it); (0, -1) if nothing matches."""
        best, match = 0, _NONE
        for place in self._places(len(tokens)):
            length = self._matched(tokens, place)
            if length >= RUN and (length > best or (length == best and place > match)):
                best, match = length, place
            if best == COMPARED:
                break
        return best, match

    def _places(self, end: int) -> Iterator[int]:
        """Yield earlier positions of the run that ends the sequence of ``end`` tokens: each time the position after
        it."""
        if self._source != _NONE:  # the text may go on as where the last draft came from, maybe beyond TRIES positions
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
        """Return how many tokens before position ``place`` equal the newest ones, at most ``COMPARED``."""
        end, most = len(tokens), min(COMPARED, place)
        length = 0
        while length < most and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length
