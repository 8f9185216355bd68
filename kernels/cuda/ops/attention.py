"""Hyper-connections, elementwise arithmetic, attention and the indexer. What each op computes: ``kernels.ops``."""

from __future__ import annotations

import numpy as np

from ...binding import F32, I32, bind
from ..driver.arrays import DeviceArray
from ..rows import attending, attending_many, halving, hyper, indexing, indexing_many
from .steps import Steps


class AttentionOps(Steps):
    """What happens to streams, and everything that reads cached rows."""

    @bind
    def streams(self, x, count, out, T, D):
        self.go(hyper.repeat, [out], [x], out.size, count, D)

    @bind
    def hc_split(self, mix, scale, base, iters, eps, pre, post, comb, T, C):
        if C > hyper.MOST_STREAMS:
            raise ValueError(f"hc_split of more than {hyper.MOST_STREAMS} streams: {C}")
        self.go(hyper.hc_split, [pre, post, comb], [mix, scale, base], T, C, iters, eps)

    @bind
    def hc_head_weights(self, mix, scale, base, eps, out, T, C):
        self.go(hyper.hc_head_weights, [out], [mix, scale, base], out.size, C, float(eps))

    @bind
    def hc_reduce(self, X, w, out, T, C, D):
        self.go(hyper.hc_reduce, [out], [X, w], T, C, D)

    @bind
    def hc_expand(self, X, y, post, comb, out, T, C, D):
        self.go(hyper.hc_expand, [out], [X, y, post, comb], T, C, D)

    @bind
    def add(self, a, b, out):
        self.go(hyper.add, [out], [a, b], out.size)

    @bind
    def scale(self, x, factor, out):
        self.go(hyper.scale, [out], [x], out.size, float(factor))

    @bind
    def remove_along(self, x, direction, factor, out, T, n):
        self.go(hyper.remove_along, [out], [x, direction], T, n, factor)

    # --- rows

    def _halved(self, x: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Return x as binary16, two values a word, and an int32 (1,) that is not 0 if that is not the same."""
        halves, lossy = self.empty(x.size // 2, dtype=I32), self.empty(1, dtype=I32)
        self.go(halving.halve, [halves, lossy], [x], halves.size)
        return halves, lossy

    @bind
    def attention(
        self, q, raw, raw_first, raw_count, comp, comp_count, selected, sinks, scale, out, T, H, d, N, M, k, failure
    ):
        if not out.size:
            return
        picked = comp is None or selected is not None  # of no rows none is picked
        picks = k if comp is not None else 0
        lossy = self.absent(I32)
        many = attending_many.fits(T, d) and (comp is None or comp.dtype == np.float16)
        if many:
            halves, lossy = self._halved(raw)
            rows = self.absent(np.float16) if comp is None else comp
            self.go(
                attending_many.attention_many, [out, self.error],
                [
                    lossy, q, halves, raw_first, raw_count, rows, comp_count, selected if picks else lossy, sinks,
                ],
                T, H, d, N, M, picks, picked, scale, self.failure(failure),
            )  # fmt: skip
        runs = attending.runs_for(T, 1, H, N + (picks if picked else M), attending.tile_rows(d))
        parts, tops, totals = self.empty(T, runs, H, d), self.empty(T, runs, H), self.empty(T, runs, H)
        self.go(
            attending.attention, [out, parts, tops, totals, self.error],
            [
                q, raw, raw_first, raw_count, self.or_absent(comp), comp_count,
                selected if picks else self.absent(I32), sinks, lossy,
            ],
            T, H, d, runs, N, M, picks, picked, scale, self.failure(failure), many,
        )  # fmt: skip

    @bind
    def attend(self, q, keys, values, first, row_counts, scale, out, T, N, K, g, d, failure):
        if not out.size:
            return
        runs, heads = attending.runs_for(T, K, g, N, attending.tile_rows(d)), K * g
        parts, tops, totals = self.empty(T, runs, heads, d), self.empty(T, runs, heads), self.empty(T, runs, heads)
        self.go(
            attending.attend, [out, parts, tops, totals, self.error],
            [q, keys, values, first, row_counts, self.absent(F32), self.absent(I32)],
            T, K, g, d, runs, N, scale, self.failure(failure),
        )  # fmt: skip

    @bind
    def index_scores(self, iq, rows, w, count, out, T, H, d, n):
        lossy = self.absent(I32)
        many = indexing_many.fits(T, H, d) and rows.dtype == np.float16
        if many and out.size:
            halves, lossy = self._halved(iq)
            self.go(indexing_many.index_scores_many, [out], [lossy, halves, rows, w, count], T, n, H, d)
        self.go(indexing.index_scores, [out], [iq, rows, w, count, lossy], T, n, H, d, many)

    @bind
    def select_rows(self, scores, visible, k, out, T, n):
        self.go(indexing.select_rows, [out], [scores, visible], T, n, k)
