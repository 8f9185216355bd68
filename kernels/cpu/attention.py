"""Attention and the indexer. What each op computes: ``kernels.ops``."""

from __future__ import annotations

import numpy as np

from . import tasktable as t
from .abi import Step
from .sizes import HEAD_GROUP, INDEX_BLOCK, attend_bytes, attention_bytes, index_bytes, index_query_floats
from .steps import Steps, expect


class AttentionOps(Steps):
    """Everything that reads cached rows."""

    def attention(
        self, q: np.ndarray, raw: np.ndarray, raw_first: np.ndarray, raw_count: np.ndarray, comp: np.ndarray | None,
        comp_count: np.ndarray, selected: np.ndarray | None, sinks: np.ndarray, scale: float,
    ) -> np.ndarray:  # fmt: skip
        q, raw, sinks = self.f32(q, "q"), self.f32(raw, "raw"), self.f32(sinks, "sinks")
        raw_first, raw_count = self.i32(raw_first, "raw_first"), self.i32(raw_count, "raw_count")
        comp_count = self.i32(comp_count, "comp_count")
        tokens, heads, dim = q.shape
        expect(raw.ndim == 2 and raw.shape[1] == dim and sinks.shape == (heads,), "attention", q.shape, raw.shape)
        per_token = raw_first.shape == raw_count.shape == comp_count.shape == (tokens,)
        expect(per_token, "attention", q.shape, raw_first.shape, raw_count.shape, comp_count.shape)
        comp_rows = picks = half = 0
        if comp is not None:
            comp, half = self.cached(comp, "comp")
            expect(comp.ndim == 2 and comp.shape[1] == dim, "attention", q.shape, comp.shape)
            comp_rows = len(comp)
        if comp is not None and selected is not None:
            selected = self.i32(selected, "selected")
            expect(selected.ndim == 2 and len(selected) == tokens, "attention", q.shape, selected.shape)
            picks = selected.shape[1]
        else:
            selected = None
        out = self.empty(*q.shape)
        group = min(HEAD_GROUP, heads)
        groups = -(-heads // group)
        values = (
            *map(self.at, (q, raw, raw_first, raw_count, comp)), half,
            *map(self.at, (comp_count, selected, sinks, out)),
            len(raw), comp_rows, picks, heads, dim, group, groups, scale,
        )  # fmt: skip
        failure = f"attention: a row number lies outside {len(raw)} raw or {comp_rows} compressed rows"
        self.run([Step(t.ATTENTION, tokens * groups, 1, values, attention_bytes(dim))], failure)
        return out

    def attend(
        self, q: np.ndarray, keys: np.ndarray, values: np.ndarray, first: np.ndarray, seen: np.ndarray, scale: float
    ) -> np.ndarray:
        q, first, seen = self.f32(q, "q"), self.i32(first, "first"), self.i32(seen, "seen")
        (keys, key_half), (values, value_half) = self.cached(keys, "keys"), self.cached(values, "values")
        expect(q.ndim == keys.ndim == 3 and keys.shape == values.shape, "attend", q.shape, keys.shape, values.shape)
        (tokens, heads, dim), (rows, shared, width) = q.shape, keys.shape
        fits = width == dim and shared > 0 and heads % shared == 0 and first.shape == seen.shape == (tokens,)
        expect(fits, "attend", q.shape, keys.shape, first.shape, seen.shape)
        out, sharing = self.empty(*q.shape), heads // shared
        group = max(1, min(HEAD_GROUP, sharing))
        groups = -(-sharing // group)
        tile = max(1, min(tokens, HEAD_GROUP // group))  # tokens that meet rows together
        numbers = (
            *map(self.at, (q, keys, values, first, seen, out)), key_half, value_half,
            rows, tokens, shared, sharing, group, groups, tile, dim, scale,
        )  # fmt: skip
        steps = [Step(t.ATTEND, -(-tokens // tile) * shared * groups, 1, numbers, attend_bytes(dim))]
        self.run(steps, f"attend: a row number lies outside {rows} rows")
        return out

    def index_scores(self, iq: np.ndarray, rows: np.ndarray, w: np.ndarray, count: np.ndarray) -> np.ndarray:
        iq, w, count = self.f32(iq, "iq"), self.f32(w, "w"), self.i32(count, "count")
        rows, half = self.cached(rows, "rows")
        tokens, heads, dim = iq.shape
        fits = rows.ndim == 2 and rows.shape[1] == dim and w.shape == (tokens, heads) and count.shape == (1,)
        expect(fits, "index_scores", iq.shape, rows.shape, w.shape, count.shape)
        n = len(rows)
        out, packed = self.empty(tokens, n), self.temp(4 * index_query_floats(heads, dim) * tokens)
        pack = self.at(iq), self.at(w), packed, heads, dim
        scores = packed, self.at(rows), half, self.at(count), self.at(out), tokens, n, heads, dim
        self.run(
            [
                Step(t.INDEX_PACK, tokens, self.chunk(tokens, heads * dim), pack),
                Step(t.INDEX_SCORES, -(-n // INDEX_BLOCK) * tokens, 1, scores, index_bytes(dim)),
            ]
        )
        return out

    def select_rows(self, scores: np.ndarray, visible: np.ndarray, k: int) -> np.ndarray:
        scores, visible = self.f32(scores, "scores"), self.i32(visible, "visible")
        expect(scores.ndim == 2 and visible.shape == scores.shape[:1], "select_rows", scores.shape, visible.shape)
        tokens, n = scores.shape
        out = self.empty(tokens, k, dtype=np.int32)
        values = (*map(self.at, (scores, visible, out)), n, k)
        self.run([Step(t.SELECT_ROWS, tokens, self.chunk(tokens, 8 * n), values)])
        return out
