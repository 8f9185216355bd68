"""Llama 1 to 3 and llama2.c's stories, one page of mathematics. The pass is ``archs.dense``.

x (T, D) is the residual stream, norm(x) = x / sqrt(mean(x^2) + eps) * w. Each layer adds two halves to it:

    h = norm(x)
    q = h Wq^T    k = h Wk^T    v = h Wv^T
    q, k turned by rope: channels 2 i and 2 i + 1 of a head, by pos * theta^(-2 i / head_dim) / divisor_i
    o_t = sum_s softmax_s(q_t . k_s / sqrt(head_dim)) v_s       over s <= t
    x = x + o Wo^T
    h = norm(x)
    x = x + (silu(h Wg^T) * (h Wu^T)) Wd^T

Query heads share key and value heads in equal groups. logits = norm(x) Whead^T, the embedding where heads are tied. The
divisors are 1, or Llama 3's, which the file states or rope's scaling gives (``archs.dense.rope``).

GGUF has no other name for Mistral and Mixtral: files of this architecture may declare a window and experts
(``archs.mistral``, ``archs.mixtral``). Rows of ``attn_q`` and ``attn_k`` are in the order of GGUF, llama2.c's and
Meta's own files; Hugging Face's checkpoints use another order, which ``published`` converts.
"""

from __future__ import annotations

from ..dense import Dense, Family

FAMILY = Family("llama", halves=False, qk_norm=False, experts="feed_forward_length")
_ARCH = Dense(FAMILY)
read_shape, bind, model, costs = _ARCH.read_shape, _ARCH.bind, _ARCH.model, _ARCH.costs
collector = _ARCH.collector

__all__ = ["FAMILY", "bind", "collector", "costs", "model", "read_shape"]
