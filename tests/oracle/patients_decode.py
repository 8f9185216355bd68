"""Mistakes that show only while tokens are decoded one by one after a prefill: caches, positions, one-token kernels.

An engine has two code paths and often one of them right. The first rows of such a patient are clean, the rest are not.
"""

from __future__ import annotations

from transformers.models.deepseek_v4 import modeling_deepseek_v4 as modeling

from .surgery import ATTENTION, CSA, EXPERTS, HASHED, HCA, INDEXER, LEARNED, MOE, Patient, both, edit, forward

PREFILL = 100
"""Tokens of the first call; all later calls have one."""

POOLS = (CSA, INDEXER, HCA)
_ROW_CACHE, _OVERLAP = modeling.DeepseekV4HCACache, modeling.DeepseekV4CSACache
_START = "first_window_position = self.entry_count[name] * self.compress_rate"
_BACK = "attn_output = apply_rotary_pos_emb(attn_output.transpose(1, 2), cos, -sin).transpose(1, 2)"

_LIST = [
    ("decode_no_ape", "compressor position bias missing in decode",
     forward(*POOLS, to=[("self.position_bias", "self.position_bias * (first_window_position == 0)")])),
    ("decode_no_previous_window", "ratio 4: previous window forgotten between calls",
     forward(CSA, INDEXER, to=[("if prior_kv is not None:", "if False:")])),
    ("decode_prefill_window", "ratio 4: of a prefill, its first window is kept for decode instead of its last", edit(
        _OVERLAP, "update_overlap_state",
        ("chunk_kv[:, -1,", "chunk_kv[:, 0,"), ("chunk_gate[:, -1,", "chunk_gate[:, 0,"))),
    ("decode_row_rope_late", "compressed rows of decode rotated one window late", edit(
        _ROW_CACHE, "store_compression_weights", (_START, f"{_START}\n"
        "    first_window_position += self.compress_rate * (first_window_position > 0)"))),
    ("decode_rows_late", "ratio 4: rows visible one token late in decode",
     edit(INDEXER, "forward", ("(position_ids + 1)", "(position_ids + (seq_len > 1))"))),
    ("decode_no_new_rows", "rows of decode never attended",
     edit(INDEXER, "forward", ("(position_ids + 1)", f"(position_ids + 1).clamp(max={PREFILL})"))),
    ("decode_indexer_oldest", "indexer takes the oldest rows in decode", edit(INDEXER, "forward", (
        "top_k_indices = index_scores.topk(top_k, dim=-1).indices",
        "index_scores = index_scores if seq_len > 1 else -entry_indices.float().expand_as(index_scores)\n"
        "        top_k_indices = index_scores.topk(top_k, dim=-1).indices"))),
    ("decode_no_inverse_rope", "attention output not rotated back in decode",
     edit(ATTENTION, "forward", (_BACK, f"if input_shape[1] > 1:\n        {_BACK}"))),
    ("decode_no_sink", "no attention sink in decode", edit(modeling, "eager_attention_forward", (
        "combined_logits = torch.cat(", "if query.shape[2] == 1:\n        sinks = torch.full_like(sinks, -1e30)\n"
        "    combined_logits = torch.cat("))),
    ("decode_scale_twice", "routed weights scaled twice in decode", forward(LEARNED, HASHED, to=[(
        "weights * self.routed_scaling_factor",
        "weights * self.routed_scaling_factor ** (2 if len(flat) == 1 else 1)")])),
    ("decode_shared_0.97", "shared expert x 0.97 in decode", edit(MOE, "forward", (
        "self.shared_experts(residual)", "self.shared_experts(residual) * (0.97 if seq_len == 1 else 1)"))),
    ("decode_no_clamp", "routed experts: no clamp in decode", both(
        edit(EXPERTS, "_apply_gate", ("self.limit", "self.limit_")),
        edit(EXPERTS, "forward", ("final = torch",
             "self.limit_ = self.limit if len(hidden_states) > 1 else 1e30\n    final = torch")))),
    ("decode_hash_byte", "hash layers: decode looks up the token id modulo 256", edit(HASHED, "forward", (
        "input_ids.reshape(-1)]", "input_ids.reshape(-1) % (256 if len(flat) == 1 else 1 << 30)]"))),
]  # fmt: skip

DECODE_PATIENTS = [Patient(name, says, apply) for name, says, apply in _LIST]
