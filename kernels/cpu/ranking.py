"""The greatest values of a row. What the op computes: ``kernels.ops``."""

from __future__ import annotations

import numpy as np

from ..ops import MOST_RANKED
from . import tasktable as t
from .abi import Step
from .sizes import RANK_BLOCK
from .steps import I32, Steps, expect


class RankingOps(Steps):
    """Choosing among logits."""

    def top(self, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        x = self.f32(x, "x")
        expect(x.ndim == 2 and 1 <= k <= min(x.shape[1], MOST_RANKED), "top", x.shape, k)
        tokens, n = x.shape
        values, ids = self.empty(tokens, k), self.empty(tokens, k, dtype=I32)
        blocks = -(-n // RANK_BLOCK)
        peaks, starts = self.temp(4 * tokens * blocks), self.temp(4 * tokens * blocks)
        self.run(
            [
                Step(
                    t.RANK_PEAKS, tokens * blocks, self.chunk(tokens * blocks, RANK_BLOCK),
                    (self.at(x), peaks, starts, n, blocks),
                ),
                Step(t.TOP, tokens, 1, (self.at(x), peaks, starts, self.at(values), self.at(ids), n, blocks, k)),
            ]
        )  # fmt: skip
        return values, ids
