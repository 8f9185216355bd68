"""Injected bugs of DeepSeek V4.1: those that only this family can have, and what other readings of it do differently
(docs/explanation/model-v41.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .faults import Changed, Edit, Fault, _both, _no_relu, _shape
from .rounding import float_bits, round_bf16

REPLAY = 128
"""Number of tokens of a prompt that engines with bounded replay run through the layers after the last kv source."""


def _unlagged(half: str) -> Edit:
    """Read the streams by the half layer's own weights, as V4 does."""
    return lambda value, layer, c, taps: c.ops.hc_reduce(taps[f"hc_{half}_in"], taps[f"hc_{half}_pre_weights"])


def _normed_heads(value: np.ndarray, layer: int, c: Any, taps: dict) -> np.ndarray:
    return c.ops.rms_norm(value, None, c.shape.rms_eps)


def _index_key(source: str, normed: bool) -> Edit:
    """Make index keys of the intermediate ``source``, with or without the norm of their own."""

    def edit(value: np.ndarray, layer: int, c: Any, taps: dict) -> np.ndarray:
        key = c.ops.linear(taps[source], c.w.indexer_attn_k, "float")
        if normed:
            key = c.ops.rms_norm(key, c.w.indexer_k_norm, c.shape.rms_eps)
        return c.index_rounding(c.ops.rope(key[:, None, :], *taps["attn_comp_rope_tables"])[:, 0])

    return edit


def _rows_late(c: Any) -> None:
    """Let a token see rows of the tokens before it alone."""
    at = c.positions.copy()

    def counted(ratio: int) -> np.ndarray:
        return (at // ratio).astype(np.int32)

    c.visible = counted
    source = c.shape.candidate_source
    if source is not None:
        rows, size, most = counted(c.shape.ratios[source]), c.shape.candidate_size, c.shape.candidate_blocks
        blocks = -(-rows // size)
        behind = np.where(blocks > most, (most - 1) * size + (rows - 1) % size + 1, rows).astype(np.int32)
        c.visible_blocks, c.listed = lambda: blocks.astype(np.int32), lambda: behind


def _no_candidates(c: Any) -> None:
    if hasattr(c.plan, "candidates"):  # the output head has no such plan
        c.plan = c.plan._replace(candidates=False)


def _no_newest(c: Any) -> None:
    """Do not keep the newest block whatever its score."""

    def block_maxima(scores: np.ndarray, visible: np.ndarray, size: int, count: int) -> np.ndarray:
        padded = np.full((len(scores), count * size), -np.inf, np.float32)
        padded[:, : scores.shape[1]] = np.where(np.arange(scores.shape[1]) < visible[:, None], scores, -np.inf)
        return padded.reshape(len(scores), count, size).max(axis=2)

    c.ops = Changed(c.ops, block_maxima=block_maxima)


def _listed(value: np.ndarray, layer: int, c: Any, taps: dict) -> np.ndarray:
    """Count the rows of candidate blocks of which the newest may be missing."""

    def listed() -> np.ndarray:
        """Return how many rows of its candidate blocks a token sees: the newest block, if it is among them, is last."""
        rows, size = c.visible(c.ratio), c.shape.candidate_size
        missing = (c.candidates != (rows[:, None] - 1) // size).all(axis=1)
        whole = (c.candidates >= 0).sum(axis=1) * size
        return np.where(missing, whole, whole - size + (rows - 1) % size + 1).astype(np.int32)

    c.listed = listed
    return value


def _bound_source(value: np.ndarray | None, layer: int, c: Any, taps: dict) -> np.ndarray | None:
    """Let the candidate source itself select from its candidates alone."""
    if value is None or layer != c.shape.candidate_source or "candidates" not in taps:
        return value
    scores, blocks = taps["indexer_scores"], taps["candidates"]
    kept = np.zeros((len(scores), -(-scores.shape[1] // c.shape.candidate_size) + 1), bool)
    np.put_along_axis(kept, np.where(blocks < 0, kept.shape[1] - 1, blocks), True, axis=1)
    mask = np.repeat(kept[:, :-1], c.shape.candidate_size, axis=1)[:, : scores.shape[1]]
    masked = np.where(mask, scores, np.float32(-np.inf))
    return c.ops.select_rows(masked, c.visible(c.ratio), c.shape.index_topk)


def _not_reindexed(value: np.ndarray | None, layer: int, c: Any, taps: dict) -> np.ndarray | None:
    """Keep the selection of the kv source in the index sources after it."""
    if layer in c.shape.kv_sources:
        taps["of source"] = value
    return taps["of source"]


def _both_scores(change: Callable[[Callable], Callable]) -> Callable:
    """Return a ``begin`` function that replaces scores of all rows, and of those of candidate blocks."""

    def begin(c: Any) -> None:
        scores = change(c.ops.index_scores)

        def of_blocks(q: np.ndarray, rows: np.ndarray, w: np.ndarray, blocks: np.ndarray, size: int) -> np.ndarray:
            where = (blocks[:, :, None].astype(np.int64) * size + np.arange(size)).reshape(len(blocks), -1)
            exists = (blocks.repeat(size, axis=1) >= 0) & (where < len(rows))
            every = scores(q, rows, w, np.array([len(rows)], np.int32))
            return np.where(exists, np.take_along_axis(every, np.where(exists, where, 0), axis=1), -np.inf).astype("f4")

        c.ops = Changed(c.ops, index_scores=scores, block_scores=of_blocks)

    begin.touches = frozenset({"index_scores"})  # type: ignore[attr-defined]
    return begin


def _in_bf16(scores: Callable) -> Callable:
    """Round the products of heads and rows, and weighted by head, to bfloat16 before they are summed."""

    def wrong(q: np.ndarray, rows: np.ndarray, w: np.ndarray, n: np.ndarray) -> np.ndarray:
        products = round_bf16(np.einsum("thd,nd->thn", q, rows, optimize=True).astype(np.float32))
        return round_bf16(np.maximum(products, 0) * round_bf16(w)[:, :, None]).sum(axis=1, dtype=np.float32)

    return wrong


def _pooled_alike(value: tuple, layer: int, c: Any, taps: dict) -> tuple:
    return value[0], np.zeros_like(value[1])


def _rounding(name: str, wrong: Callable[[Any, Callable], Callable]) -> Callable:
    """Return a ``begin`` function that replaces the chunk's rounding ``name`` by wrong(chunk, original)."""

    def begin(c: Any) -> None:
        setattr(c, name, wrong(c, getattr(c, name)))

    begin.touches = frozenset({{"kv_rounding": "KVcur", "row_rounding": "KVcompress"}[name]})  # type: ignore[attr-defined]
    return begin


def _plain_rotary(c: Any, right: Callable) -> Callable:
    plain = c.shape.head_dim - c.shape.rope_dim
    return lambda rows: np.concatenate((right(rows)[..., :plain], rows[..., plain:]), axis=-1)


def _powers_of_two(c: Any, right: Callable) -> Callable:
    """Round rows to E2M1 in blocks of 16 whose scale is a power of two."""

    def wrong(rows: np.ndarray) -> np.ndarray:
        halves = rows.reshape(-1, 2, 16)
        wide = np.repeat(halves[:, :, None, :], 2, axis=2).reshape(-1, 32)  # each block of 16 twice: the same scale
        return c.ops.round_e2m1(np.ascontiguousarray(wide)).reshape(-1, 2, 2, 16)[:, :, 0].reshape(rows.shape)

    return wrong


def _scaled_by_sixth(c: Any, right: Callable) -> Callable:
    """Compute the scale of compressed rows as the greatest magnitude times 1/6, in float32, not divided by 6."""

    def wrong(rows: np.ndarray) -> np.ndarray:
        blocks = rows.reshape(-1, 16)
        greatest = np.maximum(np.abs(blocks).max(axis=1, keepdims=True), np.float32(6 * 2.0**-9))
        scale = float_bits(greatest * np.float32(1 / 6), 3, -6, 448)
        return (float_bits(blocks / scale, 1, 0, 6) * scale).astype(np.float32).reshape(rows.shape)

    return wrong


def _floor_of_scale(c: Any, right: Callable) -> Callable:
    """Let the scale of raw rows be at least 1e-4, rounded up to a power of two, instead of the greatest magnitude."""

    def wrong(rows: np.ndarray) -> np.ndarray:
        blocks = rows.reshape(-1, 32)
        scale = np.exp2(np.ceil(np.log2(np.maximum(np.abs(blocks).max(axis=1, keepdims=True) / 448, 1e-4))))
        return (float_bits(blocks / scale, 3, -6, 448) * scale).astype(np.float32).reshape(rows.shape)

    return wrong


def _norms_bf16(c: Any) -> None:
    """Round the result of norms to bfloat16 before it is multiplied by the weight, and the product, too."""
    plain = c.ops.rms_norm

    def rms_norm(x: np.ndarray, weight: np.ndarray | None, eps: float) -> np.ndarray:
        normed = round_bf16(plain(x, None, eps))
        return normed if weight is None else round_bf16(normed * round_bf16(weight))

    c.ops = Changed(c.ops, rms_norm=rms_norm)


def _replayed(value: tuple, layer: int, c: Any, taps: dict) -> tuple:
    """Hide raw rows from before the last ``REPLAY`` tokens in the layers from the last kv source on."""
    begin = c.pos0 + len(c.ids) - REPLAY
    if layer < max(c.shape.kv_sources) or begin <= 0:
        return value
    first, end = value[0], value[0] + value[1]
    late = np.where(c.positions >= begin, np.maximum(first, begin), first)
    return late.astype(np.int32), (end - late).astype(np.int32)


# --- Engram


def _streams(change: Callable[..., np.ndarray]) -> Edit:
    """Return an edit that computes the streams after Engram as change(chunk, streams before, keys and value)."""
    return lambda value, layer, c, taps: change(c, taps["engram_in"], taps["engram_kv"])


def _gated(c: Any, X: np.ndarray, joined: np.ndarray, gate: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Add the value to each stream, times gate(s); s: the product of a stream and its key."""
    dim, eps = X.shape[2], c.shape.rms_eps
    x, key = X.astype(np.float64), joined[:, : X.shape[1] * dim].reshape(X.shape).astype(np.float64)
    norms = np.sqrt((np.square(x).mean(axis=2) + eps) * (np.square(key).mean(axis=2) + eps))
    s = (x * c.w.engram_gate * key).sum(axis=2) / norms / np.sqrt(dim)
    return (x + gate(s)[..., None] * joined[:, None, X.shape[1] * dim :]).astype(np.float32)


def _no_root(c: Any, X: np.ndarray, joined: np.ndarray) -> np.ndarray:
    return _gated(c, X, joined, lambda s: 1 / (1 + np.exp(-s)))


def _ungated(c: Any, X: np.ndarray, joined: np.ndarray) -> np.ndarray:
    return _gated(c, X, joined, np.ones_like)


def _first_key(c: Any, X: np.ndarray, joined: np.ndarray) -> np.ndarray:
    dim = X.shape[2]
    same = np.concatenate((np.tile(joined[:, :dim], X.shape[1]), joined[:, X.shape[1] * dim :]), axis=1)
    return c.ops.engram_gate(X, same, c.w.engram_gate, c.shape.rms_eps)


def _row_before(value: np.ndarray, layer: int, c: Any, taps: dict) -> np.ndarray:
    return np.concatenate((value[:1], value[:-1]))


def _other_layer(value: np.ndarray, layer: int, c: Any, taps: dict) -> np.ndarray:
    """Find a layer's rows by the multipliers of another layer."""
    lookup, others = c.lookups[layer], [each for key, each in c.lookups.items() if key != layer]
    if not others:
        return value
    hashing, which = lookup.hashing, others[0].which
    factors = hashing.multipliers.copy()
    factors[lookup.which] = factors[which]
    wrong = type(hashing)(hashing.numbers, hashing.pad, factors, hashing.primes, hashing.offsets)
    return type(lookup)(wrong, lookup.which, lookup.table)(c)[0]


LIST = [
    Fault("read_unlagged", "hyper-connections: a half layer reads by its own weights, as in V4, not by those before",
          edits={f"hc_{half}_pre": _unlagged(half) for half in ("attn", "ffn")}),
    Fault("read_unlagged_attn", "the same, in attention alone", edits={"hc_attn_pre": _unlagged("attn")}),
    Fault("query_heads_normed", "query heads normed, as in V4", edits={"Qraw": _normed_heads}),
    Fault("index_key_rotated", "index keys made of the latent vector after rope",
          edits={"indexer_KVcompress": _index_key("KVcompress", True)}),
    Fault("index_key_no_norm", "index keys without their norm",
          edits={"indexer_KVcompress": _index_key("attn_comp_norm", False)}),
    Fault("rows_late", "compressed rows visible one token late", _rows_late),
    Fault("no_candidates", "late index sources score all rows, not those of candidate blocks", _no_candidates),
    Fault("newest_block_lost", "newest block no candidate unless its score is", _no_newest,
          edits={"candidates": _listed}),
    Fault("candidates_bind_source", "candidate source selects from its own candidates alone",
          edits={"indexer_topk": _bound_source}),
    Fault("not_reindexed", "index sources keep the selection of the kv source", edits={"indexer_topk": _not_reindexed}),
    Fault("scores_no_relu", "index scores without ReLU", _both_scores(_no_relu)),
    Fault("scores_no_weights", "index scores without the weights of heads",
          _both_scores(lambda op: lambda q, rows, w, n: op(q, rows, np.ones_like(w), n))),
    Fault("scores_bf16", "index scores in bfloat16 steps (NeMo, SGLang)", _both_scores(_in_bf16), quiet=True),
    Fault("head_weights_bf16", "index heads' weights in bfloat16 (NeMo, SGLang)",
          edits={"indexer_weights": lambda value, layer, c, taps: round_bf16(value)}, quiet=True),
    Fault("norms_bf16", "norms: result in bfloat16 before the weight (transformers)", _norms_bf16, quiet=True),
    Fault("rows_scaled_by_sixth", "compressed rows: scale times 1/6 in float32, not divided by 6 (SGLang)",
          _rounding("row_rounding", _scaled_by_sixth), needs="kv_fp8", quiet=True),
    Fault("raw_scale_floor", "raw rows: scale at least 1e-4, not the greatest value (SGLang's packed pages)",
          _rounding("kv_rounding", _floor_of_scale), needs="kv_fp8", quiet=True),
    Fault("pooling_mean", "a pair's row is the mean of its tokens", edits=_both("candidates", _pooled_alike)),
    Fault("no_temperature", "router: temperature ignored (SGLang, NeMo)", _shape(gate_temp=1.0)),
    Fault("e4m3_not_rotary", "E4M3 leaves the rotary channels out, as in V4",
          _rounding("kv_rounding", _plain_rotary), needs="kv_fp8"),
    Fault("rows_e4m3", "compressed rows in E4M3, as raw ones",
          _rounding("row_rounding", lambda c, right: c.kv_rounding), needs="kv_fp8"),
    Fault("rows_powers_of_two", "compressed rows in E2M1 with scales that are powers of two",
          _rounding("row_rounding", _powers_of_two), needs="kv_fp8"),
    Fault("bounded_replay", f"layers after the last kv source saw only the last {REPLAY} tokens of the prompt (bounded "
          "replay: SGLang's default)", edits={"raw_window": _replayed}, tokens=REPLAY),
    Fault("no_engram", "Engram left out (mlx-lm)",
          edits={"engram_out": lambda value, layer, c, taps: taps["engram_in"]}),
    Fault("engram_no_root", "Engram: gate without the square root", edits={"engram_out": _streams(_no_root)}),
    Fault("engram_ungated", "Engram: value added without a gate", edits={"engram_out": _streams(_ungated)}),
    Fault("engram_first_key", "Engram: all streams gated by the first one's key",
          edits={"engram_out": _streams(_first_key)}),
    Fault("engram_late", "Engram: rows of the token before", edits={"engram_rows": _row_before}),
    Fault("engram_multipliers", "Engram: rows found by another layer's multipliers",
          edits={"engram_rows": _other_layer}),
]  # fmt: skip

SHARED = """
    window_short window_long no_sink sink_zero no_inverse_rope rope_half_split rope_first_dims yarn_magnitude no_yarn
    compressed_main_rope plain_compressed_rope row_rope_end row_rope_late indexer_all indexer_recent router_no_scale
    router_softmax router_not_normalised router_biased_weights router_no_bias no_clamp_routed no_clamp_shared
    gate_clamped_below hc_comb_transposed hc_post_half sinkhorn_1 sinkhorn_short hc_eps_0 rms_eps_1e5 self_missing
    key_position_late no_kv_norm no_q_lora_norm attn_norm_of_ffn ffn_norm_of_attn o_groups_interleaved gate_up_swapped
    gelu no_shared_expert no_routed_experts routed_late router_one_fewer router_weights_swapped experts_swapped
    expert_off_by_one hc_identity hc_post_before hc_comb_before indexer_topk_short indexer_ties_high
    chunk_32_window_cut chunk_64_window_cut chunk_128_window_cut chunk_64_shared_lost chunk_64_routed_lost
""".split()
"""Names of V4's faults that V4.1 can have."""
