"""The greatest values of a row. What the op computes: ``ds4ref.kernels.ops``."""

from __future__ import annotations

from ...binding import I64, bind
from ..driver.grids import blocks_for
from ..rows import ranking
from .steps import Steps


class RankingOps(Steps):
    """Choosing among logits."""

    @bind
    def top(self, x, k, values, ids, T, n):
        if not T:
            return
        count, candidates = n, self.empty(T, n, dtype=I64)
        self.go(ranking.candidates, [candidates], [x], x.size, n)
        while count > ranking.TILE:
            tiles = blocks_for(count, ranking.TILE)
            kept = self.empty(T, tiles * k, dtype=I64)
            self.go(ranking.best, [kept], [candidates], T, count, k)
            count, candidates = tiles * k, kept
        self.go(ranking.ranks, [values, ids], [candidates, x], T, n, count, k)
