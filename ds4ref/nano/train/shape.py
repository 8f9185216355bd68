"""Dimensions of the trained embedded model: every mechanism of DeepSeek V4 Flash in 5.9 million weights.

Rows of expert matrices have 256 inputs, as every recipe of ``ds4-quantize`` requires. An expert therefore has 196,608
weights, and 12 MB of BF16 hold three layers and one block for multi-token prediction, with three routed experts each.
"""

from __future__ import annotations

from dataclasses import replace

from ...archs.deepseek4.shape import CSA, FLASH, HCA, PLAIN

SHAPE = replace(
    FLASH,
    n_layers=3,
    dim=256,
    vocab=2048,
    n_heads=4,
    head_dim=160,
    rope_dim=32,
    q_rank=128,
    o_rank=64,
    o_groups=2,
    n_experts=3,
    n_used=2,
    expert_ff=256,
    n_hash_layers=1,
    window=64,
    index_heads=8,
    index_dim=64,
    index_topk=32,
    ratios=(PLAIN, CSA, HCA),
    swiglu_limit=(4.0,) * 3,
    name="ds4ref nano",
)
"""Already in sequences of 256 tokens the indexer has to select: 32 of the 64 compressed rows at ratio 4."""
