"""One decoded token as a single prepared job: the pass of attention.py, moe.py and head.py, laid out as steps.

The op-by-op pass returns to Python some fifty times a layer; this does once a token. It uses the same compiled tasks
on the same data, so its results are equal to the bit, which tests assert in every mode. Sessions use it for single
tokens when no hooks are attached and the backend offers programs.

A program holds addresses of one session's caches. It is rebuilt when one of them moves (a restored snapshot may do
that) and when the indexer starts to select.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.formats import FORMATS

from ..session.cache import Cache, CompressorState, LayerCache, Rows
from ..weights.tensors import LayerWeights
from .chunk import ACTIVATION
from .experts import matrices
from .forward import Model


class TokenProgram:
    """Evaluates single tokens of one session."""

    def __init__(self, model: Model, cache: Cache):
        self.model, self.cache = model, cache
        self._key: tuple[Any, ...] = ()

    @property
    def program(self) -> Any:
        """The prepared steps of the last token (``kernels.cpu.Program``)."""
        return self._steps.p

    def run(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """Advance the cache by one token; returns final streams (1, C, D) and logits (V,), both copies."""
        model, cache, pos = self.model, self.cache, self.cache.pos
        closing = {ratio for ratio in (4, 128) if (pos + 1) % ratio == 0}
        for layer, ratio in zip(cache.layers, model.shape.ratios, strict=True):
            layer.raw.reserve(1)
            if ratio in closing:
                layer.comp.reserve(1)
                if ratio == 4:
                    layer.index.reserve(1)
        selecting = (pos + 1) // 4 > model.shape.index_topk
        key = (selecting, model.ops.threads(), sum(layer.moves for layer in cache.layers))
        if key != self._key:
            self._steps = _Layout(model, cache, selecting)
            self._key = key
        self._steps.run(token, pos)
        for layer, ratio in zip(cache.layers, model.shape.ratios, strict=True):
            layer.raw.commit(1)
            if ratio in closing:
                layer.comp.commit(1)
                if ratio == 4:
                    layer.index.commit(1)
        cache.pos += 1
        return self._steps.X[None].copy(), self._steps.logits.copy()


class _Layout:
    """The steps of one token and the buffers between them."""

    def __init__(self, model: Model, cache: Cache, selecting: bool):
        shape, ops = model.shape, model.ops
        self.model, self.shape, self.numerics, self.selecting = model, shape, model.numerics, selecting
        self.p = p = ops.Program()
        half = shape.rope_dim // 2
        # what changes from token to token; tasks read it when they run
        self.raw_slot = p.array(1, dtype=np.int64)
        self.window = p.array(2, dtype=np.int32)
        self.phase = {ratio: p.array(1, dtype=np.int64) for ratio in (4, 128)}
        self.row_slot = {ratio: p.array(1, dtype=np.int64) for ratio in (4, 128)}
        self.visible = {ratio: p.array(1, dtype=np.int32) for ratio in (0, 4, 128)}
        self.tables = {compress: p.array(2, half) for compress in (False, True)}
        self.row_tables = {ratio: p.array(2, half) for ratio in (4, 128)}
        self.ids = p.array(shape.n_layers, shape.n_used, dtype=np.int32)
        self.hash_ids: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._emit: dict[int, list[int]] = {4: [], 128: []}
        self._scores: list[int] = []

        embed = FORMATS[model.weights.token_embd.fmt].dequantize
        assert embed is not None, "the binder accepts only formats that can be read"
        self._embed = embed
        self.embedding = p.array(shape.hc, shape.dim)
        X = self.embedding
        for number, (w, layer) in enumerate(zip(model.weights.layers, cache.layers, strict=True)):
            X = self._attention(number, w, layer, X)
            X = self._ffn(number, w, X)
        self.X = X
        self.logits = self._head(X)
        p.seal()
        self._raw = cache.layers[0].raw
        self._close_words = {
            ratio: np.array([p.items_word(s) for s in steps], np.int64) for ratio, steps in self._emit.items()
        }
        self._close_items = {ratio: p.words[words].copy() for ratio, words in self._close_words.items()}
        self._score_items = np.array([p.items_word(s) for s in self._scores], np.int64)
        self._score_n = np.array([p.field_word(s, "n") for s in self._scores], np.int64)

    def run(self, token: int, pos: int) -> None:
        """Set what belongs to this token and run."""
        p, shape, rope = self.p, self.shape, self.model.rope
        self.embedding[:] = self._embed(self.model.weights.token_embd.data[token])
        for layer, table, ids in self.hash_ids:
            ids[:] = table[token]
            if self.model.experts.advise:  # hash layers choose by token alone, so theirs can be asked for right away
                self.model.experts.ask_for(layer, ids)
        count = min(pos + 1, shape.window)
        slot = self._raw.next_slot
        self.raw_slot[0] = slot
        self.window[:] = slot + 1 - count, count
        for compress, tables in self.tables.items():
            tables[0], tables[1] = rope[compress].at(pos)
        for ratio, words in self._close_words.items():
            closes = (pos + 1) % ratio == 0
            self.phase[ratio][0] = pos % ratio
            self.visible[ratio][0] = (pos + 1) // ratio
            self.row_slot[ratio][0] = pos // ratio
            p.words[words] = self._close_items[ratio] if closes else 0
            if closes:
                self.row_tables[ratio][0], self.row_tables[ratio][1] = rope[True].at(pos + 1 - ratio)
        if self.selecting:
            n = (pos + 1) // 4
            p.words[self._score_n] = n
            p.words[self._score_items] = p.index_items(n)
        p.run()
        self.model.experts.used_by_token(self.ids)

    def _act(self, w: Any) -> str:
        return ACTIVATION[w.fmt] if self.numerics.act_quant else "float"

    def _pre(self, X: np.ndarray, fn: Any, scale: np.ndarray, base: np.ndarray) -> tuple[np.ndarray, tuple]:
        """hyper_connections.pre."""
        p, s = self.p, self.shape
        flat, mix = p.array(X.size), p.array(fn.rows)
        pre, post, comb, h = p.array(s.hc), p.array(s.hc), p.array(s.hc, s.hc), p.array(s.dim)
        p.rms_norm(X.reshape(-1), None, s.rms_eps, flat)
        p.linear(p.pack(flat, fn, "float"), fn, mix)
        p.hc_split(mix, scale, base, s.sinkhorn_iters, s.hc_eps, pre, post, comb)
        p.hc_reduce(X, pre, h)
        return h, (X, post, comb)

    def _post(self, y: np.ndarray, mixing: tuple) -> np.ndarray:
        """hyper_connections.post."""
        X, post, comb = mixing
        out = self.p.array(*X.shape)
        self.p.hc_expand(X, y, post, comb, out)
        return out

    def _attention(self, number: int, w: LayerWeights, layer: LayerCache, X: np.ndarray) -> np.ndarray:
        """attention.half_layer."""
        p, s, ratio = self.p, self.shape, self.shape.ratios[number]
        h, mixing = self._pre(X, w.hc_attn_fn, w.hc_attn_scale, w.hc_attn_base)
        x = p.array(s.dim)
        p.rms_norm(h, w.attn_norm, s.rms_eps, x)
        cos, sin = self.tables[ratio != 0]
        prefixes = {0: (), 4: ("attn", "indexer"), 128: ("attn",)}[ratio]
        selecting = self.selecting and ratio == 4

        lora, u, kv = p.array(s.q_rank), p.array(s.q_rank), p.array(s.head_dim)
        projections = {
            name: (p.array(s_.kv.shape[1]), p.array(s_.kv.shape[1])) for name, s_ in _states(layer, prefixes)
        }
        index_weights = p.array(s.index_heads)
        with p.together():
            packed = p.pack(x, w.attn_q_a, self._act(w.attn_q_a))
            plain = p.pack(x, w.attn_compressor_kv, "float") if ratio and w.attn_compressor_kv is not None else None
        with p.together():
            p.linear(packed, w.attn_q_a, lora)
            p.linear(packed, w.attn_kv, kv)
            if plain is not None:
                for name, (values, gate) in projections.items():
                    c = w.compressor(name)
                    p.linear(plain, c.kv, values)
                    p.linear(plain, c.gate, gate)
                if selecting and w.indexer_proj is not None:
                    p.linear(plain, w.indexer_proj, index_weights)
        with p.together():
            p.rms_norm(lora, w.attn_q_a_norm, s.rms_eps, u)
            p.rms_norm(kv, w.attn_kv_a_norm, s.rms_eps, kv)
            for name, state in _states(layer, prefixes):
                values, gate = projections[name]
                p.push_projection(
                    values, gate, w.compressor(name).ape, state.kv, state.score, self.phase[ratio], state.first
                )
        with p.together():
            packed = p.pack(u, w.attn_q_b, self._act(w.attn_q_b))
            if selecting and w.indexer_attn_q_b is not None:
                plain = p.pack(u, w.indexer_attn_q_b, "float")
                p.scale(index_weights, float(np.float32((s.index_dim * s.index_heads) ** -0.5)))
            p.rope(kv[None], cos, sin, kv[None])
        q, iq = p.array(s.n_heads, s.head_dim), p.array(s.index_heads, s.index_dim)
        with p.together():
            p.linear(packed, w.attn_q_b, q.reshape(-1))
            if selecting and w.indexer_attn_q_b is not None and plain is not None:
                p.linear(plain, w.indexer_attn_q_b, iq.reshape(-1))
            if self.numerics.kv_fp8:
                p.round_e4m3(kv[: s.head_dim - s.rope_dim])
        with p.together():
            p.rms_norm(q, None, s.rms_eps, q)
            if self.numerics.kv_f16:
                p.round_f16(kv)
        with p.together():
            p.rope(q, cos, sin, q)
            p.store_row(kv, layer.raw.buffer, self.raw_slot)
        for name, state in _states(layer, prefixes):
            rows = layer.comp if name == "attn" else layer.index
            self._emit_row(name, state, w.compressor(name).norm, rows)
        selected = self._select(iq, index_weights, layer.index, cos, sin) if selecting else None
        o, y = p.array(s.n_heads, s.head_dim), p.array(s.dim)
        count = self.visible[ratio]
        comp = layer.comp.buffer if ratio else None
        p.attention(
            q, layer.raw.buffer, self.window[:1], self.window[1:], comp, count, selected, w.attn_sinks,
            s.head_dim**-0.5, o,
        )  # fmt: skip
        p.rope(o, cos, sin, o, inverse=True)
        low = p.array(w.attn_output_a.rows)
        packed = p.pack(o.reshape(s.o_groups, -1), w.attn_output_a, self._act(w.attn_output_a))
        p.linear(packed, w.attn_output_a, low, s.o_groups)
        p.linear(p.pack(low, w.attn_output_b, self._act(w.attn_output_b)), w.attn_output_b, y)
        return self._post(y, mixing)

    def _emit_row(self, name: str, state: CompressorState, norm: np.ndarray, rows: Rows) -> None:
        """compressor.emit_rows for a window that closes; the items of these steps are 0 in all other tokens."""
        p, ratio, width = self.p, state.ratio, len(norm)
        first, kv, score = len(p), state.kv, state.score
        if state.overlap:
            kv, score = p.array(2 * ratio, width), p.array(2 * ratio, width)
            with p.together():
                p.overlap(state.kv, kv)
                p.overlap(state.score, score)
        row, turned = p.array(width), p.array(width)
        p.pool(kv, score, row)
        p.rms_norm(row, norm, self.shape.rms_eps, row)
        cos, sin = self.row_tables[ratio]
        p.rope(row[None], cos, sin, row[None])
        if name == "attn" and self.numerics.kv_fp8:
            p.round_e4m3(row[: width - self.shape.rope_dim])
        if name == "indexer" and self.numerics.indexer_qat:
            p.hadamard(row, turned)
            p.round_e2m1(turned)
            row = turned
        if self.numerics.kv_f16:
            p.round_f16(row)
        p.store_row(row, rows.buffer, self.row_slot[ratio])
        p.close_window(state.kv, state.score, ratio, state.first)
        self._emit[ratio] += range(first, len(p))

    def _select(self, iq: np.ndarray, weights: np.ndarray, rows: Rows, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        """indexer.select once there are more rows than top-k."""
        p = self.p
        p.rope(iq, cos, sin, iq)
        if self.numerics.indexer_qat:
            turned = p.array(*iq.shape)
            p.hadamard(iq, turned)
            p.round_e2m1(turned)
            iq = turned
        scores = p.array(len(rows.buffer))
        self._scores.append(p.index_scores(iq, rows.buffer, weights, scores))
        selected = p.array(self.shape.index_topk, dtype=np.int32)
        p.select_rows(scores, self.visible[4], selected)
        return selected

    def _ffn(self, number: int, w: LayerWeights, X: np.ndarray) -> np.ndarray:
        """moe.half_layer."""
        p, s, K = self.p, self.shape, self.shape.n_used
        h, mixing = self._pre(X, w.hc_ffn_fn, w.hc_ffn_scale, w.hc_ffn_base)
        x, limit = p.array(s.dim), s.swiglu_limit[number]
        p.rms_norm(h, w.ffn_norm, s.rms_eps, x)
        logits, probs, chosen = p.array(s.n_experts), p.array(s.n_experts), p.array(K)
        ids, hash_ids = self.ids[number], None
        if w.ffn_gate_tid2eid is not None:
            hash_ids = p.array(K, dtype=np.int32)
            self.hash_ids.append((number, w.ffn_gate_tid2eid, hash_ids))
        bias = None if hash_ids is not None else w.exp_probs_b
        ff, shared = w.ffn_gate_exps.rows, w.ffn_gate_shexp.rows
        with p.together():
            plain = p.pack(x, w.ffn_gate_inp, "float")
            packed = p.pack(x, w.ffn_gate_exps, self._act(w.ffn_gate_exps))
            packed_shared = p.pack(x, w.ffn_gate_shexp, self._act(w.ffn_gate_shexp))
        p.linear(plain, w.ffn_gate_inp, logits)
        p.route(logits, bias, hash_ids, s.route_scale, self.numerics.route_floor, probs, ids, chosen)
        with p.together():
            tables = p.group_experts(ids, s.n_experts)
            if self.model.experts.advise and hash_ids is None:
                for matrix in matrices(w):
                    p.advise_experts(ids, matrix)
        gate, up, mid = p.array(K, ff), p.array(K, ff), p.array(K, ff)
        gate_s, up_s, mid_s = p.array(1, shared), p.array(1, shared), p.array(1, shared)
        with p.together():
            # the shared expert first: routed ones may still be on their way from disk
            p.linear(packed_shared, w.ffn_gate_shexp, gate_s)
            p.linear(packed_shared, w.ffn_up_shexp, up_s)
            p.expert_linear(packed, tables, K, w.ffn_gate_exps, gate)
            p.expert_linear(packed, tables, K, w.ffn_up_exps, up)
        with p.together():
            p.swiglu(gate, up, limit, chosen, mid)
            p.swiglu(gate_s, up_s, limit, None, mid_s)
        routed, y_s, y = p.array(s.dim), p.array(s.dim), p.array(s.dim)
        with p.together():
            packed = p.pack(mid, w.ffn_down_exps, self._act(w.ffn_down_exps))
            packed_shared = p.pack(mid_s, w.ffn_down_shexp, self._act(w.ffn_down_shexp))
        with p.together():
            p.expert_sum(packed, tables, K, w.ffn_down_exps, routed)
            p.linear(packed_shared, w.ffn_down_shexp, y_s)
        p.add(routed, y_s, y)
        return self._post(y, mixing)

    def _head(self, X: np.ndarray) -> np.ndarray:
        """head.logits."""
        p, s, w = self.p, self.shape, self.model.weights
        flat, mix, weights = p.array(X.size), p.array(s.hc), p.array(s.hc)
        v, normed, logits = p.array(s.dim), p.array(s.dim), p.array(s.vocab)
        p.rms_norm(X.reshape(-1), None, s.rms_eps, flat)
        p.linear(p.pack(flat, w.output_hc_fn, "float"), w.output_hc_fn, mix)
        p.hc_head_weights(mix, w.output_hc_scale, w.output_hc_base, s.hc_eps, weights)
        p.hc_reduce(X, weights, v)
        p.rms_norm(v, w.output_norm, s.rms_eps, normed)
        p.linear(p.pack(normed, w.output, self._act(w.output)), w.output, logits)
        return logits


def _states(layer: LayerCache, prefixes: tuple[str, ...]) -> list[tuple[str, CompressorState]]:
    return list(zip(prefixes, layer.states(), strict=True))
