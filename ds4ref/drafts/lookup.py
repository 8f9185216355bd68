"""Drafts from the conversation itself: what followed the same tokens when they occurred last.

Edits of files, tool results and quotations repeat what is there already; no weights are needed. Every run of ``RUN``
tokens is hashed into a table of its last place, and places of equal hash are chained from new to old, as in LZ77
compressors. The newest places are compared backwards, token by token, and the longest match wins, the newer one on
ties. Undoing an entry restores the one before it, so ``truncate`` is exact.

Memory: 8 bytes a token and a table of 4 to 8 bytes a token (``nbytes``). Tokens are not copied.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

RUN = 2
"""Least number of tokens that must match."""
TRIES = 8
"""Most places that are compared for one proposal."""
COMPARED = 32
"""Most tokens by which a match is measured."""
GRADES = (3, 8)
"""Lengths of matches from which the next grade of confidence begins."""

_FACTORS = (0x9E3779B1, 0x85EBCA77)
"""Odd multipliers of a run's tokens; the upper bits of the sum modulo 2**32 are its slot."""
_SMALLEST = 10
"""Bits of the smallest table."""
_BULK = 256
"""New tokens from which they are entered by NumPy at once."""
_NONE = -1


class Lookup:
    """Drafts by lookup in one sequence; ``propose`` enters the tokens that are new to it."""

    name = "lookup"

    def __init__(self) -> None:
        self.grade = 0
        """Confidence of the last proposal, 0 to len(GRADES), by the length of the match."""
        self._clear()

    def _clear(self) -> None:
        self._hashes = array("I")  # of the run that ends at each position; 0 where there is none
        self._before = array("i")  # the place before it with an equal slot
        self._bits = _SMALLEST
        self._last = array("i", [_NONE]) * (1 << _SMALLEST)  # by slot
        self._at, self._source = _NONE, _NONE  # the last proposal: made at which length, copied from where

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory used."""
        return sum(part.itemsize * len(part) for part in (self._hashes, self._before, self._last))

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Return what followed the longest earlier match of the newest tokens, at most ``limit`` tokens.

        A match that reaches into the present is continued periodically. See ``Draft``; ``streams`` are not used.
        """
        if len(tokens) < len(self._hashes):
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
        drop = len(self._hashes) - max(0, pos)
        if drop <= 0:
            return
        self._source = _NONE
        if drop == len(self._hashes):
            self._clear()
            return
        if drop > _BULK:
            del self._hashes[-drop:]
            self._rebuild()
            return
        shift, last, runs = 32 - self._bits, self._last, RUN - 1
        for _ in range(drop):
            slot, before = self._hashes.pop() >> shift, self._before.pop()
            if len(self._hashes) >= runs:
                last[slot] = before

    def _search(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return (length of the best match, position that followed it); (0, -1) if there is none."""
        end, best, found = len(tokens), 0, _NONE
        if end < RUN:
            return best, found
        newest = tokens[end - RUN : end]
        if self._source != _NONE:  # the text may still follow the last proposal's source, now beyond the tries
            place = self._source + end - self._at
            if RUN <= place < end and tokens[place - RUN : place] == newest:
                best, found = self._matched(tokens, place), place
        place = self._before[end - 1] + 1
        for _ in range(TRIES):
            if place <= 0 or best == COMPARED:
                break
            if tokens[place - RUN : place] == newest:
                length = self._matched(tokens, place)
                if length > best or (length == best and place > found):
                    best, found = length, place
            place = self._before[place - 1] + 1
        return best, found

    @staticmethod
    def _matched(tokens: Sequence[int], place: int) -> int:
        """Return how many tokens before ``place`` equal the newest ones, at most ``COMPARED``; RUN are known to."""
        end, most = len(tokens), min(COMPARED, place)
        length = RUN
        while length < most and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length

    def _enter(self, tokens: Sequence[int]) -> None:
        known, total = len(self._hashes), len(tokens)
        if total - known >= _BULK:
            self._extend(tokens, known)
            return
        hashes, before, (a, b) = self._hashes, self._before, _FACTORS
        for at in range(known, total):
            if at < RUN - 1:
                hashes.append(0)
                before.append(_NONE)
                continue
            if at >= len(self._last):
                self._rebuild()
                before = self._before
            value = (tokens[at - 1] * a + tokens[at] * b) & 0xFFFFFFFF
            slot = value >> 32 - self._bits
            hashes.append(value)
            before.append(self._last[slot])
            self._last[slot] = at

    def _extend(self, tokens: Sequence[int], known: int) -> None:
        """Enter many tokens at once."""
        start = max(0, known - RUN + 1)
        ids = np.array(tokens[start:], np.uint32)
        runs = len(ids) - RUN + 1
        values = np.zeros(runs, np.uint32)
        for offset, factor in enumerate(_FACTORS):
            values += ids[offset : offset + runs] * np.uint32(factor)
        self._hashes.frombytes(bytes(4 * (min(RUN - 1, len(tokens)) - known)) if known < RUN - 1 else b"")
        self._hashes.frombytes(values[len(self._hashes) - start - RUN + 1 :].tobytes())
        self._rebuild()

    def _rebuild(self) -> None:
        """Make table and chains anew from the hashes, the table with room for as many positions again."""
        count = len(self._hashes)
        self._bits = max(_SMALLEST, count.bit_length())
        slots = np.frombuffer(self._hashes, np.uint32)[RUN - 1 :] >> np.uint32(32 - self._bits)
        order = np.argsort(slots, kind="stable").astype(np.int32)
        same = slots[order[1:]] == slots[order[:-1]]
        before = np.full(count, _NONE, np.int32)
        before[RUN - 1 :][order[1:][same]] = order[:-1][same] + np.int32(RUN - 1)
        last = np.full(1 << self._bits, _NONE, np.int32)
        newest = order[np.append(~same, True)] if len(order) else order
        last[slots[newest]] = newest + np.int32(RUN - 1)
        del slots
        self._before, self._last = array("i", before.tobytes()), array("i", last.tobytes())
