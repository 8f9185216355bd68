"""Append-only rows that timelines with a common past share: who counts on how many of them.

Everyone has a claim on the rows of its past, sessions and snapshots of them alike; who would overwrite what another one
claims goes on in a copy (``archs.NAME.cache``).
"""

from __future__ import annotations

import threading
import weakref


class Claim:
    """A timeline or a snapshot counts on the rows of the first ``pos`` tokens."""

    __slots__ = ("__weakref__", "pos")

    def __init__(self, pos: int):
        self.pos = pos


class Claims:
    """All claims on one store. Some row is written for every ``unit`` tokens, and none for fewer. From any thread."""

    def __init__(self, unit: int = 1):
        self._unit = unit
        self._claims: weakref.WeakSet[Claim] = weakref.WeakSet()
        self._lock = threading.Lock()

    def claim(self, pos: int) -> Claim:
        """A new claim on the rows of the first ``pos`` tokens."""
        claim = Claim(pos)
        with self._lock:
            self._claims.add(claim)
        return claim

    def extend(self, claim: Claim, end: int) -> bool:
        """Move a claim up to ``end`` if no other one counts on the rows that would then be written; else False."""
        with self._lock:
            if any(c.pos // self._unit > claim.pos // self._unit for c in self._claims if c is not claim):
                return False
            claim.pos = end
            return True
