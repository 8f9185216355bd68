"""Qwen3 with experts, one page of mathematics. The pass is ``archs.dense``.

As ``archs.qwen3`` up to the second half of a layer, where K of E experts take the place of one feed-forward:

    h = norm(x)
    p = softmax(h Wr^T)                                         over the E experts
    S = the K experts of largest p                              ties to the lower number
    x = x + sum_(e in S) p_e / (sum_S p) * (silu(h Wg_e^T) * (h Wu_e^T)) Wd_e^T

The quotient is the softmax of the K chosen logits alone, which is what is computed. There is no shared expert, and
every layer has experts: ``decoder_sparse_step`` other than 1 and ``mlp_only_layers`` are refused, and so is
``norm_topk_prob`` false (p_e without the quotient), which no published model has (Qwen3 technical report, 2025).
"""

from __future__ import annotations

from ..dense import Dense, Family

FAMILY = Family("qwen3moe", halves=True, qk_norm=True, experts="expert_feed_forward_length")
_ARCH = Dense(FAMILY)
read_shape, bind, model, costs = _ARCH.read_shape, _ARCH.bind, _ARCH.model, _ARCH.costs
collector = _ARCH.collector

__all__ = ["FAMILY", "bind", "collector", "costs", "model", "read_shape"]
