"""Where a text announces an answer: words and phrases of tables, found from the end.

Words are looked up in a dictionary: a pattern of some hundred phrases is several times slower, and an output may
consist of nothing else. Only the last ones matter, so the text is searched piece by piece, from its end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from . import words

PIECE, BEYOND = 2048, 30
"""Characters that are searched at a time, and behind them for the rest of a phrase."""


class Cue(NamedTuple):
    """``kind`` is the name of the table; the text from ``start`` to ``end`` is one of its phrases."""

    start: int
    end: int
    kind: str


class Finder:
    """Finds phrases of tables in text of lower case."""

    def __init__(self, **tables: tuple[str, ...]):
        self._phrases: dict[str, list[tuple[str, str]]] = {}  # by first word, longest first, and their kind
        self._touching: dict[str, str] = {}  # the same in scripts without spaces
        for kind, table in tables.items():
            alone, touching = words.forms(table)
            for phrase in alone:
                self._phrases.setdefault(re.split("[ ']", phrase, maxsplit=1)[0], []).append((phrase, kind))
            self._touching |= dict.fromkeys(touching, kind)
        self._any = {first: tuple(phrase for phrase, _ in them) for first, them in self._phrases.items()}
        longest_first = sorted(self._touching, key=len, reverse=True)
        shortest = min(map(len, self._phrases))
        self._word = re.compile(rf"[^\W\d_]{{{shortest},}}+")
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def last(self, low: str, count: int) -> list[Cue]:
        """The last ``count``, in order."""
        found: list[Cue] = []
        stop = len(low)
        while stop > 0 and len(found) < count:
            start = max(0, stop - PIECE)
            found = [*self._within(low, start, stop), *found]
            stop = start
        return found[-count:]

    def _within(self, low: str, start: int, stop: int) -> list[Cue]:
        """Those that begin there. A word is not one whose beginning is before the piece."""
        found = []
        for word in self._word.finditer(low, start, stop + BEYOND):
            at = word.start()
            first = word[0]
            if first not in self._any or not low.startswith(self._any[first], at):
                continue
            for phrase, kind in self._phrases[first]:
                end = at + len(phrase)
                if low.startswith(phrase, at) and not (
                    low[end : end + 1].isalnum() or low[max(0, at - 1) : at].isalpha()
                ):
                    found.append(Cue(at, end, kind))
                    break
        if not low.isascii():
            touching = self._pattern.finditer(low, start, stop + BEYOND)
            found += [Cue(m.start(), m.end(), self._touching[m[0]]) for m in touching]
        return sorted(cue for cue in found if cue.start < stop)
