"""Attention and indexer ops of the CPU backend, declared in ``ds4ref.kernels.ops``."""

from __future__ import annotations

from ..binding import bind
from . import tasktable as t
from .abi import Step
from .sizes import HEAD_GROUP, INDEX_BLOCK, attend_bytes, attention_bytes, index_bytes, index_query_floats
from .steps import Steps, is_half


class AttentionOps(Steps):
    """The ops for attention, index scores and row selection."""

    @bind
    def attention(
        self, q, raw, raw_first, raw_count, comp, comp_count, selected, sinks, scale, out, T, H, d, N, M, k, failure
    ):
        selects = comp is not None and selected is not None  # without compressed rows there is nothing to select from
        group = min(HEAD_GROUP, H)
        if T * -(-H // group) < self.threads:  # half the heads an item, which still fill a tile
            group = min(HEAD_GROUP // 2, H)
        groups = -(-H // group)
        values = (
            *map(self.at, (q, raw, raw_first, raw_count, comp)), is_half(comp),
            *map(self.at, (comp_count, selected if selects else None, sinks, out)),
            N, M, k if selects else 0, H, d, group, groups, scale,
        )  # fmt: skip
        self.run([Step(t.ATTENTION, T * groups, 1, values, attention_bytes(d))], failure)

    @bind
    def attend(self, q, keys, values, first, row_counts, scale, out, T, N, K, g, d, failure):
        group = max(1, min(HEAD_GROUP, g))
        groups = -(-g // group)
        tile = max(1, min(T, HEAD_GROUP // group))  # tokens scored against a block of rows together
        numbers = (
            *map(self.at, (q, keys, values, first, row_counts, out)), is_half(keys), is_half(values),
            N, T, K, g, group, groups, tile, d, scale,
        )  # fmt: skip
        self.run([Step(t.ATTEND, -(-T // tile) * K * groups, 1, numbers, attend_bytes(d))], failure)

    @bind
    def index_scores(self, iq, rows, w, count, out, T, H, d, n):
        packed = self.temp(4 * index_query_floats(H, d) * T)
        pack = self.at(iq), self.at(w), packed, H, d
        scores = packed, self.at(rows), is_half(rows), self.at(count), self.at(out), T, n, H, d
        self.run(
            [
                Step(t.INDEX_PACK, T, self.chunk(T, H * d), pack),
                Step(t.INDEX_SCORES, -(-n // INDEX_BLOCK) * T, 1, scores, index_bytes(d)),
            ]
        )

    @bind
    def select_rows(self, scores, visible, k, out, T, n):
        self.go(t.SELECT_ROWS, T, 8 * n, (scores, visible, out), n, k)
