"""The KV cache of one sequence of V4.1: the arrays of ``archs.deepseek4.cache``, where only kv sources have compressed
rows, and the ids of all tokens, of which Engram hashes the newest.

The ids lie on the host. Sequences share them with the compressed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..deepseek4 import cache
from .hashing import BEFORE
from .shape import ModelShape


class Store(cache.Store):
    """The append-only rows of all kv sources and the ids of the tokens, int32 (ctx,)."""

    def __init__(self, shape: Any, ctx: int, ops: Any, half: bool):
        super().__init__(shape, ctx, ops, half)
        self.ids = np.zeros(ctx, np.int32)

    def copy(self, pos: int, ctx: int, half: bool) -> Store:
        """Return a separate store for ``ctx`` tokens with the rows and ids of the first ``pos`` tokens."""
        fresh = super().copy(pos, ctx, half)
        assert isinstance(fresh, Store)
        fresh.ids[:pos] = self.ids[:pos]
        return fresh


class Cache(cache.Cache):
    """The KV cache of one sequence, for all layers, filled up to position ``pos``."""

    store_kind = Store
    shape: ModelShape  # type: ignore[assignment]
    _store: Store

    def note(self, pos: int, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Note the ids of tokens from position ``pos`` on, for which ``reserve`` made room; return those that n-grams
        reach before them, ``BEFORE`` for positions that do not exist."""
        self._store.ids[pos : pos + len(ids)] = ids
        before = np.full(self.shape.engram_grams - 1, BEFORE, np.int64)
        known = min(len(before), pos)
        before[len(before) - known :] = self._store.ids[pos - known : pos]
        return before
