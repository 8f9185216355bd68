"""The greatest values of a row. What the op computes: ``kernels.ops``."""

from __future__ import annotations

from typing import Any

from ..ops import MOST_RANKED
from . import ranking
from .launch import tiles_for
from .steps import I32, I64, Steps, expect


class RankingOps(Steps):
    """Choosing among logits."""

    def top(self, x: Any, k: int) -> Any:
        x = self.f32(x, "x")
        expect(x.ndim == 2 and 1 <= k <= min(x.shape[1], MOST_RANKED), "top", x.shape, k)
        rows, n = x.shape
        values, ids = self.empty(rows, k), self.empty(rows, k, dtype=I32)
        if not rows:
            return values, ids
        tile = ranking.tile_for(k)
        tiles = tiles_for(n, tile)
        found = self.empty(rows, tiles, k, dtype=I64)
        self.go(ranking.of_values, [found], [x], rows, n, k)
        while tiles * k > tile:
            count, tiles = tiles * k, tiles_for(tiles * k, tile)
            kept = self.empty(rows, tiles, k, dtype=I64)
            self.go(ranking.of_candidates, [kept], [found], rows, count, k)
            found = kept
        self.go(ranking.ranks, [values, ids], [found, x], rows, n, tiles * k, k)
        return values, ids
