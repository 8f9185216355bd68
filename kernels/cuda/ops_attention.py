"""Hyper-connections, elementwise arithmetic, attention and the indexer. What each op computes: ``kernels.ops``."""

from __future__ import annotations

import math
from typing import Any

from . import attending, indexing, streams
from .steps import F32, I32, Steps, expect


class AttentionOps(Steps):
    """What happens to streams, and everything that reads cached rows."""

    def streams(self, x: Any, count: int) -> Any:
        x = self.f32(x, "x")
        expect(x.ndim == 2, "streams", x.shape)
        out = self.empty(len(x), count, x.shape[1])
        if out.size:
            self.go(streams.streams, [out], [x], len(x), count, x.shape[1])
        return out

    def hc_split(self, mix: Any, scale: Any, base: Any, iters: int, eps: float) -> Any:
        mix, scale, base = self.f32(mix, "mix"), self.f32(scale, "scale"), self.f32(base, "base")
        tokens, width = mix.shape
        C = math.isqrt(width + 1) - 1
        fits = C * (C + 2) == width and base.shape == (width,) and scale.shape == (3,)
        expect(fits, "hc_split", mix.shape, scale.shape, base.shape)
        expect(C <= streams.MOST_STREAMS, f"hc_split of more than {streams.MOST_STREAMS} streams", mix.shape)
        out = self.empty(tokens, C), self.empty(tokens, C), self.empty(tokens, C, C)
        if tokens:
            self.go(streams.hc_split, out, [mix, scale, base], tokens, C, iters, eps)
        return out

    def hc_head_weights(self, mix: Any, scale: Any, base: Any, eps: float) -> Any:
        mix, scale, base = self.f32(mix, "mix"), self.f32(scale, "scale"), self.f32(base, "base")
        tokens, C = mix.shape
        expect(base.shape == (C,) and scale.shape == (1,), "hc_head_weights", mix.shape, scale.shape, base.shape)
        out = self.empty(tokens, C)
        if out.size:
            self.go(streams.hc_head_weights, [out], [mix, scale, base], tokens, C, eps)
        return out

    def hc_reduce(self, X: Any, w: Any) -> Any:
        X, w = self.f32(X, "X"), self.f32(w, "w")
        expect(X.ndim == 3 and w.shape == X.shape[:2], "hc_reduce", X.shape, w.shape)
        tokens, C, D = X.shape
        out = self.empty(tokens, D)
        if out.size:
            self.go(streams.hc_reduce, [out], [X, w], tokens, C, D)
        return out

    def hc_expand(self, X: Any, y: Any, post: Any, comb: Any) -> Any:
        X, y, post, comb = self.f32(X, "X"), self.f32(y, "y"), self.f32(post, "post"), self.f32(comb, "comb")
        expect(X.ndim == 3, "hc_expand", X.shape)
        tokens, C, D = X.shape
        fits = y.shape == (tokens, D) and post.shape == (tokens, C) and comb.shape == (tokens, C, C)
        expect(fits, "hc_expand", X.shape, y.shape, post.shape, comb.shape)
        out = self.empty(*X.shape)
        if out.size:
            self.go(streams.hc_expand, [out], [X, y, post, comb], tokens, C, D)
        return out

    def add(self, a: Any, b: Any) -> Any:
        a, b = self.f32(a, "a"), self.f32(b, "b")
        expect(a.shape == b.shape, "add", a.shape, b.shape)
        out = self.empty(*a.shape)
        if out.size:
            self.go(streams.add, [out], [a, b], out.size)
        return out

    def scale(self, x: Any, factor: float) -> Any:
        x = self.f32(x, "x")
        out = self.empty(*x.shape)
        if out.size:
            self.go(streams.scale, [out], [x], out.size, factor)
        return out

    # --- rows

    def attention(
        self, q: Any, raw: Any, raw_first: Any, raw_count: Any, comp: Any, comp_count: Any, selected: Any, sinks: Any,
        scale: float,
    ) -> Any:  # fmt: skip
        q, raw, sinks = self.f32(q, "q"), self.f32(raw, "raw"), self.f32(sinks, "sinks")
        raw_first, raw_count = self.i32(raw_first, "raw_first"), self.i32(raw_count, "raw_count")
        comp_count = self.i32(comp_count, "comp_count")
        tokens, heads, dim = q.shape
        expect(raw.ndim == 2 and raw.shape[1] == dim and sinks.shape == (heads,), "attention", q.shape, raw.shape)
        per_token = raw_first.shape == raw_count.shape == comp_count.shape == (tokens,)
        expect(per_token, "attention", q.shape, raw_first.shape, raw_count.shape, comp_count.shape)
        comp_rows = picks = 0
        if comp is not None:
            comp = self.cached(comp, "comp")
            expect(comp.ndim == 2 and comp.shape[1] == dim, "attention", q.shape, comp.shape)
            comp_rows = len(comp)
        picked = comp is None or selected is not None  # of no rows none is picked
        if comp is not None and selected is not None:
            selected = self.i32(selected, "selected")
            expect(selected.ndim == 2 and len(selected) == tokens, "attention", q.shape, selected.shape)
            picks = selected.shape[1]
        out = self.empty(*q.shape)
        if not out.size:
            return out
        runs = attending.runs_for(tokens, 1, heads, len(raw) + (picks if picked else comp_rows))
        parts = self.empty(tokens, runs, heads, dim)
        tops, totals = self.empty(tokens, runs, heads), self.empty(tokens, runs, heads)
        code = self.failure(f"attention: a row number lies outside {len(raw)} raw or {comp_rows} compressed rows")
        rows = self.absent(F32) if comp is None else comp
        picks_of = selected if picks else self.absent(I32)
        self.go(
            attending.attention, [out, parts, tops, totals, self.error],
            [q, raw, raw_first, raw_count, rows, comp_count, picks_of, sinks],
            tokens, heads, dim, runs, len(raw), comp_rows, picks, picked, scale, code,
        )  # fmt: skip
        return out

    def attend(self, q: Any, keys: Any, values: Any, first: Any, seen: Any, scale: float) -> Any:
        q, first, seen = self.f32(q, "q"), self.i32(first, "first"), self.i32(seen, "seen")
        keys, values = self.cached(keys, "keys"), self.cached(values, "values")
        expect(q.ndim == keys.ndim == 3 and keys.shape == values.shape, "attend", q.shape, keys.shape, values.shape)
        (tokens, heads, dim), (ring, shared, width) = q.shape, keys.shape
        fits = width == dim and shared > 0 and heads % shared == 0 and first.shape == seen.shape == (tokens,)
        expect(fits, "attend", q.shape, keys.shape, first.shape, seen.shape)
        out, sharing = self.empty(*q.shape), heads // shared
        if not out.size:
            return out
        runs = attending.runs_for(tokens, shared, sharing, ring)
        parts = self.empty(tokens, runs, heads, dim)
        tops, totals = self.empty(tokens, runs, heads), self.empty(tokens, runs, heads)
        code = self.failure(f"attend: a row number lies outside {ring} rows")
        self.go(
            attending.attend, [out, parts, tops, totals, self.error],
            [q, keys, values, first, seen, self.absent(F32), self.absent(I32)],
            tokens, shared, sharing, dim, runs, ring, scale, code,
        )  # fmt: skip
        return out

    def index_scores(self, iq: Any, rows: Any, w: Any, count: Any) -> Any:
        iq, w, count = self.f32(iq, "iq"), self.f32(w, "w"), self.i32(count, "count")
        rows = self.cached(rows, "rows")
        tokens, heads, dim = iq.shape
        fits = rows.ndim == 2 and rows.shape[1] == dim and w.shape == (tokens, heads) and count.shape == (1,)
        expect(fits, "index_scores", iq.shape, rows.shape, w.shape, count.shape)
        out = self.empty(tokens, len(rows))
        if out.size:
            self.go(indexing.index_scores, [out], [iq, rows, w, count], tokens, len(rows), heads, dim)
        return out

    def select_rows(self, scores: Any, visible: Any, k: int) -> Any:
        scores, visible = self.f32(scores, "scores"), self.i32(visible, "visible")
        expect(scores.ndim == 2 and visible.shape == scores.shape[:1], "select_rows", scores.shape, visible.shape)
        out = self.empty(len(scores), k, dtype=I32)
        if out.size:
            self.go(indexing.select_rows, [out], [scores, visible], *scores.shape, k)
        return out
