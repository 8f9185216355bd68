"""KV cache rows that sequences with a common prefix share: keeps track of who needs which rows, and copies them when
two sequences would write different tokens to the same rows.

Rows are only ever appended. Each session and each snapshot holds a claim on the rows of its first tokens; a sequence
that would overwrite rows claimed by another one continues in a copy (``archs.NAME.cache``).
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from typing import Any

from ..errors import ContextError, SessionError


class Claim:
    """Says that one sequence or snapshot needs the rows of its first ``pos`` tokens; it ends when garbage-collected."""

    __slots__ = ("__weakref__", "pos")

    def __init__(self, pos: int):
        self.pos = pos


class Claims:
    """Base of a store of shared cache rows: all claims on its rows. Thread-safe.

    unit: number of tokens per row (the smallest, if layers differ); claims that end within the same row do not
    conflict.
    """

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
        """Extend a claim to the first ``end`` tokens, before rows for them are written.

        Return False, without extending it, if that would overwrite rows that another claim needs.
        """
        with self._lock:
            if any(c.pos // self._unit > claim.pos // self._unit for c in self._claims if c is not claim):
                return False
            claim.pos = end
            return True


class SequenceCache(ABC):
    """Base of the families' KV caches: one sequence of ``pos`` tokens, in a store of shared rows for ``ctx`` tokens.

    ``moves`` counts how often buffers were replaced: recorded passes hold their addresses. ``half``: whether rows are
    stored as float16.
    """

    _store: Any
    _claim: Claim

    def __init__(self, store: Any):
        self.ctx, self.half = store.ctx, store.half
        self.pos = self.moves = 0
        self._adopt(store, 0)

    @abstractmethod
    def rewindable(self, pos: int) -> bool:
        """Return whether everything that a token at ``pos`` reads is still cached."""

    @abstractmethod
    def _lay_out(self) -> None:
        """Make the arrays that ops read and write those of ``_store``, after it was replaced."""

    def _moved(self) -> None:
        self.moves += 1
        self._lay_out()

    def _adopt(self, store: Any, pos: int) -> None:
        """Make ``store`` this sequence's store, with a claim on its first ``pos`` tokens."""
        self._store, self._claim = store, store.claim(pos)
        self._moved()

    def reserve(self, count: int) -> None:
        """Make room for ``count`` tokens after ``pos``, copying shared rows if needed; raise ContextError if the tokens
        exceed the context."""
        end = self.pos + count
        if end > self.ctx:
            raise ContextError(f"{end} tokens do not fit the context of {self.ctx}")
        if not self._store.extend(self._claim, end):
            self._adopt(self._store.copy(self.pos, self.ctx, self._store.half), end)

    def advance(self, count: int) -> None:
        """Move ``pos`` forward by ``count`` tokens, after their rows have been written."""
        self.pos += count

    def rewind(self, pos: int) -> None:
        """Set the position back to ``pos``, which must be ``rewindable``; nothing is copied or computed.

        Raise SessionError if ``pos`` is not rewindable.
        """
        if not self.rewindable(pos):
            raise SessionError(f"position {pos} is out of reach from {self.pos}")
        self.pos = self._claim.pos = pos

    def _reset(self, store: Any, pos: int) -> None:
        """Continue at ``pos`` on the rows of a snapshot's store, or on a copy if it is too small or less precise.

        Raise ContextError, with nothing changed, if ``pos`` exceeds the context.
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
