"""The CUDA backend's ops for hyper-connections, arithmetic, attention, and choosing rows and tokens. ``kernels.ops``
says what each op computes."""

from __future__ import annotations

from ...binding import F32, I32, I64, bind
from ..driver.grids import blocks_for
from ..rows import attending, hyper, indexing, ranking
from .steps import Steps


class AttentionOps(Steps):
    """The ops on residual streams, and those that read cache rows."""

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

    @bind
    def engram_gate(self, X, joined, weight, eps, out, T, C, D):
        self.go(hyper.engram_gate, [out], [X, joined, weight], T, C, D, float(eps))

    # --- rows

    @bind
    def attention(
        self, q, raw, raw_first, raw_count, comp, comp_count, selected, sinks, scale, out, T, H, d, N, M, k, failure
    ):
        picked = comp is None or selected is not None  # without compressed rows, none is selected
        picks = k if comp is not None else 0
        chosen = selected if picks else None
        more, sizes = [comp, comp_count, chosen, sinks], [N, M, picks, picked]
        self._attend(out, [q, raw, raw, raw_first, raw_count], more, [T, 1, H, d], sizes, scale, failure)

    @bind
    def attend(self, q, keys, values, first, row_counts, scale, out, T, N, K, g, d, failure):
        more, sizes = [None, None, None, None], [N, 0, 0, True]
        self._attend(out, [q, keys, values, first, row_counts], more, [T, K, g, d], sizes, scale, failure)

    def _attend(self, out, rings, more, heads, sizes, scale, failure):
        """Launch attention to cache rows.

        rings: queries, ring buffers of keys and of values, and the first row and number of rows for each token
        more: compressed rows, how many of them each token sees, those it selected, and sinks; each may be None
        heads: tokens T, key heads K, query heads per key head g, values per row d
        sizes: rows of a ring, compressed rows, selected rows per token, and whether rows are selected
        failure: message of the IndexError for a row number out of range
        """
        if not out.size:
            return
        (T, K, g, d), (N, M, picks, picked) = heads, sizes
        runs = attending.runs_for(T, K, g, N + (picks if picked else M), attending.tile_rows(d))
        parts, tops, totals = (self.empty(T, runs, K * g, *each) for each in ((d,), (), ()))
        there = [self.or_absent(array, dtype) for array, dtype in zip(more, (F32, I32, I32, F32), strict=True)]
        self.go(
            attending.attend, [out, parts, tops, totals, self.error], [*rings, *there],
            *heads, runs, *sizes, rings[1] is not rings[2], more[3] is not None, scale, self.failure(failure),
        )  # fmt: skip

    @bind
    def index_scores(self, iq, rows, w, count, out, T, H, d, n):
        self.go(indexing.index_scores, [out], [iq, rows, w, count], T, n, H, d)

    @bind
    def select_rows(self, scores, visible, k, out, T, n):
        self.go(indexing.select_rows, [out], [scores, visible], T, n, k)

    @bind
    def block_maxima(self, scores, visible, size, count, out, n):
        self.go(indexing.block_maxima, [out], [scores, visible], out.size, n, size, count)

    @bind
    def block_scores(self, iq, rows, w, blocks, size, out, H, d, n, b):
        self.go(indexing.block_scores, [out], [iq, rows, w, blocks], out.size, n, H, d, size, b)

    @bind
    def block_rows(self, picks, blocks, size, out, k, b):
        self.go(indexing.block_rows, [out], [picks, blocks], out.size, k, size, b)

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
