"""The greatest values of a row. What the op computes: ``ds4ref.kernels.ops``."""

from __future__ import annotations

from ...binding import I64, bind
from ..driver.grids import tiles_for
from ..rows import ranking
from .steps import Steps


class RankingOps(Steps):
    """Choosing among logits."""

    @bind
    def top(self, x, k, values, ids, T, n):
        if not T:
            return
        tile = ranking.TILE
        tiles = tiles_for(n, tile)
        candidates = self.empty(T, tiles, k, dtype=I64)
        self.go(ranking.of_values, [candidates], [x], T, n, k)
        while tiles * k > tile:
            count, tiles = tiles * k, tiles_for(tiles * k, tile)
            kept = self.empty(T, tiles, k, dtype=I64)
            self.go(ranking.of_candidates, [kept], [candidates], T, count, k)
            candidates = kept
        self.go(ranking.ranks, [values, ids], [candidates, x], T, n, tiles * k, k)
