"""The op ``top`` of the CPU backend, declared in ``ds4ref.kernels.ops``: the greatest values of a row, for sampling."""

from __future__ import annotations

from ..binding import bind
from . import tasktable as t
from .abi import Step
from .sizes import RANK_BLOCK
from .steps import Steps


class RankingOps(Steps):
    """The op that ranks logits."""

    @bind
    def top(self, x, k, values, ids, T, n):
        blocks = -(-n // RANK_BLOCK)
        items = T * blocks
        peaks, starts = self.temp(4 * items), self.temp(4 * items)
        ranked = self.at(x), peaks, starts, self.at(values), self.at(ids), n, blocks, k
        self.run(
            [
                Step(t.RANK_PEAKS, items, self.chunk(items, RANK_BLOCK), (self.at(x), peaks, starts, n, blocks)),
                Step(t.TOP, T, 1, ranked),
            ]
        )
