"""Hooks on named intermediates of the forward pass: they can record or replace them.

The pass calls ``tap`` with each intermediate listed in ``NAMES`` and continues with the value that it returns. Names
are those of ds4's graph dumps (model.md 1.4) where there is one. The others, marked "ours", are mostly decisions that
ds4 does not dump (windows, visible rows, RoPE tables, pooling candidates): with them, a hook can inject any single bug
into the model without extra code in the pass.

    with a Recorder:  rec = Recorder("attn_norm", "kqv_out"); session.hooks = rec; session.sync(ids); rec["kqv_out", 3]
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

NAMES = {
    # every layer, attention half
    "hc_attn_in": "streams entering the half layer (T, C, D); ours",
    "hc_attn_pre_mixes": "mixing logits (T, 2C + C*C)",
    "hc_attn_pre_weights": "pre weights (T, C)",
    "hc_attn_pre_post_weights": "post weights (T, C)",
    "hc_attn_pre_comb": "stream mixing matrix (T, C, C), first index is the source",
    "hc_attn_pre": "block input before its norm (T, D)",
    "attn_norm": "block input (T, D)",
    "q_lora": "query low rank before its norm (T, q_rank)",
    "q_lora_norm": "query low rank (T, q_rank)",
    "Qraw": "query heads (T, H, hd)",
    "Qnorm": "after the per-head norm",
    "Qcur": "after rope",
    "KVraw": "shared key = value row (T, hd)",
    "KVnorm": "after its norm",
    "KVrope": "after rope",
    "KVcur": "as stored in the cache",
    "rope_tables": "(cos, sin) each (T, R/2) of the layer's queries and rows; ours",
    "attn_comp_gate_raw": "compressor gate before the position bias (T, cw); ours",
    "attn_comp_kv_raw": "compressor values (T, cw)",
    "attn_comp_score_raw": "compressor gate plus position bias (T, cw)",
    "attn_comp_candidates": "(kv, score) of the closing windows, each (n, m, hd); ours",
    "attn_comp_rope_tables": "(cos, sin) of the rows emitted; ours",
    "KVcompress": "compressed rows emitted by this chunk (n, hd), as stored",
    "raw_window": "(first row, row count) of the visible raw rows, int32 (T,) each; ours",
    "comp_count": "visible compressed rows, int32 (T,); ours",
    "attn_sinks": "sink logits (H,); ours",
    "kqv_out": "attention output (T, H, hd)",
    "kqv_back": "after the inverse rope",
    "attn_low": "grouped low rank output (T, G*o_rank)",
    "attn_out": "block output (T, D)",
    "hc_attn_post": "streams leaving the half layer (T, C, D)",
    # ratio-4 layers
    "indexer_comp_gate_raw": "as attn_comp_*, 128 wide; ours",
    "indexer_comp_kv_raw": "",
    "indexer_comp_score_raw": "",
    "indexer_comp_candidates": "ours",
    "indexer_comp_rope_tables": "ours",
    "indexer_KVcompress": "",
    "indexer_q": "indexer queries after rope and rounding (T, Hi, d); ours",
    "indexer_weights": "head weights, scaled (T, Hi); ours",
    "indexer_rows": "all indexer rows so far (n, d); ours",
    "indexer_scores": "(T, n)",
    "indexer_topk": "selected rows int32 (T, k), ascending, -1 padded; None while nothing is deselected",
    # every layer, ffn half
    "hc_ffn_in": "streams entering the half layer; ours",
    "hc_ffn_pre_mixes": "",
    "hc_ffn_pre_weights": "",
    "hc_ffn_pre_post_weights": "",
    "hc_ffn_pre_comb": "",
    "hc_ffn_pre": "",
    "ffn_norm": "block input (T, D)",
    "ffn_moe_logits": "router logits (T, E)",
    "ffn_moe_probs": "sqrt(softplus(logits))",
    "ffn_moe_topk": "chosen experts int32 (T, K)",
    "ffn_moe_weights_scaled": "their weights (T, K)",
    "ffn_moe_gate": "before the clamp (T, K, ff); ours",
    "ffn_moe_up": "before the clamp (T, K, ff); ours",
    "ffn_moe_weighted_swiglu": "(T, K, ff)",
    "ffn_moe_out": "routed experts (T, D)",
    "ffn_shexp_gate": "shared expert before the clamp (T, ff); ours",
    "ffn_shexp_up": "ours",
    "ffn_shexp_mid": "ours",
    "ffn_shexp": "shared expert (T, D)",
    "ffn_out": "routed + shared (T, D)",
    "hc_ffn_post": "streams leaving the half layer (T, C, D)",
    # head (layer = -1)
    "result_hc_pre": "head mixing logits (T, C)",
    "result_hc_weights": "stream weights (T, C)",
    "result_hc": "weighted sum (T, D)",
    "result_norm": "after the output norm (T, D)",
    "result_output": "logits (T, V)",
}

LATER = {
    "hc_attn_read": "weights by which attention reads the streams, those of the half layer before (T, C)",
    "hc_ffn_read": "the same of the experts: attention's (T, C)",
    "result_hc_read": "the same of the output head: those of the last layer's experts (T, C)",
    "attn_comp_norm": "latent vectors of compressed rows, before rope (n, hd)",
    "candidates": "candidate blocks int32 (T, blocks), ascending, -1 padded",
    "engram_rows": "rows of the lookup tables, joined (T, columns * width)",
    "engram_kv": "keys of the streams and value (T, (C + 1) * D)",
    "engram_in": "streams before (T, C, D)",
    "engram_out": "streams with the gated value (T, C, D)",
}
"""Intermediates that only V4.1 has."""


class Hooks(Protocol):
    """Interface of hooks: the pass calls ``begin`` once per chunk and ``tap`` for every named intermediate.

    ``begin`` may replace the chunk's attributes ``ops``, ``shape``, ``rope`` or ``visible``, which is how variants of
    the model with injected bugs are made.
    """

    def begin(self, chunk: Any) -> None:
        """Prepare for a chunk (``chunk.Chunk``), before its first intermediate; the hook may modify the chunk."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Return the value that the pass continues with: ``value``, the intermediate ``name`` of a layer, or a
        replacement."""


class Recorder:
    """Hooks that keep copies of named intermediates (all by default) of every chunk.

    names: keys of ``NAMES`` here or, for other families, in ``archs.dense.chunk``; raise KeyError for any other.
    layers: record only these layers; None: all.
    ``recorder[name, layer]`` returns the intermediate for all chunks, concatenated along the token axis.
    """

    def __init__(self, *names: str, layers: set[int] | None = None):
        from ..dense.chunk import NAMES as DENSE

        known = {*NAMES, *LATER, *DENSE}
        unknown = set(names) - known
        if unknown:
            raise KeyError(f"no intermediate is called {', '.join(sorted(unknown))}")
        self.names = set(names) or known
        self.layers = layers
        self.parts: dict[tuple[str, int], list[Any]] = {}

    def __repr__(self) -> str:
        kept = ", ".join(f"{name} of layer {layer}" for name, layer in list(self.parts)[:4])
        more = f" and {len(self.parts) - 4} more" if len(self.parts) > 4 else ""
        return f"<Recorder: {kept or 'nothing recorded yet'}{more}>"

    def begin(self, chunk: Any) -> None:
        """Do nothing."""

    def tap(self, name: str, layer: int, value: Any, chunk: Any) -> Any:
        """Keep a copy of the value if its name and layer are to be recorded; return the value."""
        if name in self.names and (self.layers is None or layer in self.layers):
            recorded = value.copy() if isinstance(value, np.ndarray) else value
            self.parts.setdefault((name, layer), []).append(recorded)
        return value

    def __getitem__(self, key: tuple[str, int]) -> np.ndarray:
        return np.concatenate(self.parts[key])
