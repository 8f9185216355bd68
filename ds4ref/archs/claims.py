"""Append-only rows that timelines with a common past share: who counts on how many of them, and how one
goes on, back, or elsewhere.

Everyone has a claim on the rows of its past, sessions and snapshots of them alike; who would overwrite what another one
claims goes on in a copy (``archs.NAME.cache``).
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from typing import Any

from ..errors import ContextError, SessionError


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


class Timeline(ABC):
    """A cache's place on shared rows: ``pos`` tokens of a store that has room for ``ctx``. ``moves`` counts how often
    some buffer became another one, for those who remember addresses. half: rows are stored as float16."""

    _store: Any
    _claim: Claim

    def __init__(self, store: Any):
        self.ctx, self.half = store.ctx, store.half
        self.pos = self.moves = 0
        self._adopt(store, 0)

    @abstractmethod
    def rewindable(self, pos: int) -> bool:
        """Whether everything that a token at ``pos`` needs is still there."""

    @abstractmethod
    def _lay_out(self) -> None:
        """Buffers, as ops get them, are those of ``_store`` now."""

    def _moved(self) -> None:
        self.moves += 1
        self._lay_out()

    def _adopt(self, store: Any, pos: int) -> None:
        """Go on in ``store`` from ``pos`` on."""
        self._store, self._claim = store, store.claim(pos)
        self._moved()

    def reserve(self, count: int) -> None:
        """Make room for ``count`` tokens after ``pos``, which ops may then write. ContextError beyond the context."""
        end = self.pos + count
        if end > self.ctx:
            raise ContextError(f"{end} tokens do not fit the context of {self.ctx}")
        if not self._store.extend(self._claim, end):
            self._adopt(self._store.copy(self.pos, self.ctx, self._store.half), end)

    def advance(self, count: int) -> None:
        """``count`` tokens after ``pos`` were written."""
        self.pos += count

    def rewind(self, pos: int) -> None:
        """Back to ``pos``, which must be ``rewindable``: nothing is copied or computed."""
        if not self.rewindable(pos):
            raise SessionError(f"position {pos} is out of reach from {self.pos}")
        self.pos = self._claim.pos = pos

    def _reset(self, store: Any, pos: int) -> None:
        """To ``pos`` on rows of a snapshot's store, or on a copy where it has too little room or too few bits.
        ContextError, with nothing changed, if it does not fit."""
        if pos > self.ctx:
            raise ContextError(f"a snapshot of {pos} tokens does not fit the context of {self.ctx}")
        if store.ctx < self.ctx or (store.half and not self.half):
            store = store.copy(pos, self.ctx, store.half and self.half)
        if store is self._store:
            self._claim.pos = pos
        else:
            self._adopt(store, pos)
        self.pos = pos
