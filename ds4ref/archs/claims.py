"""Append-only rows shared by timelines with a common past: who relies on which rows, and when to copy.

Sessions and snapshots alike hold a claim on the rows of their past; a timeline that would overwrite rows claimed by
another one continues in a copy (``archs.NAME.cache``).
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from typing import Any

from ..errors import ContextError, SessionError


class Claim:
    """A timeline's or snapshot's claim on the rows of the first ``pos`` tokens."""

    __slots__ = ("__weakref__", "pos")

    def __init__(self, pos: int):
        self.pos = pos


class Claims:
    """All claims on one store, which writes a row every ``unit`` tokens at most. Thread-safe."""

    def __init__(self, unit: int = 1):
        self._unit = unit
        self._claims: weakref.WeakSet[Claim] = weakref.WeakSet()
        self._lock = threading.Lock()

    def claim(self, pos: int) -> Claim:
        """Return a new claim on the rows of the first ``pos`` tokens."""
        claim = Claim(pos)
        with self._lock:
            self._claims.add(claim)
        return claim

    def extend(self, claim: Claim, end: int) -> bool:
        """Move a claim up to ``end``; return False if another claim relies on rows that would then be overwritten."""
        with self._lock:
            if any(c.pos // self._unit > claim.pos // self._unit for c in self._claims if c is not claim):
                return False
            claim.pos = end
            return True


class Timeline(ABC):
    """A cache's position on shared rows: ``pos`` tokens of a store for ``ctx``.

    ``moves`` counts replaced buffers, for recordings that hold addresses. half: rows are stored as float16.
    """

    _store: Any
    _claim: Claim

    def __init__(self, store: Any):
        self.ctx, self.half = store.ctx, store.half
        self.pos = self.moves = 0
        self._adopt(store, 0)

    @abstractmethod
    def rewindable(self, pos: int) -> bool:
        """Return whether everything that a token at ``pos`` needs is still cached."""

    @abstractmethod
    def _lay_out(self) -> None:
        """Set the buffers for ops from ``_store``."""

    def _moved(self) -> None:
        self.moves += 1
        self._lay_out()

    def _adopt(self, store: Any, pos: int) -> None:
        """Continue in ``store`` from ``pos`` on."""
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
        """Record that ``count`` tokens after ``pos`` were written."""
        self.pos += count

    def rewind(self, pos: int) -> None:
        """Return to ``pos``, which must be ``rewindable``, without copying or computing anything."""
        if not self.rewindable(pos):
            raise SessionError(f"position {pos} is out of reach from {self.pos}")
        self.pos = self._claim.pos = pos

    def _reset(self, store: Any, pos: int) -> None:
        """Restore ``pos`` on the rows of a snapshot's store, or on a copy if it is too small or of lower precision.

        ContextError, with nothing changed, if it does not fit.
        """
        if pos > self.ctx:
            raise ContextError(f"a snapshot of {pos} tokens does not fit the context of {self.ctx}")
        if store.ctx < self.ctx or (store.half and not self.half):
            store = store.copy(pos, self.ctx, store.half and self.half)
        if store is self._store:
            self._claim.pos = pos
        else:
            self._adopt(store, pos)
        self.pos = pos
