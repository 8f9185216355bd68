"""Dense Qwen3, one page of mathematics. The pass is ``archs.dense``.

x (T, D) is the residual stream, norm(x) = x / sqrt(mean(x^2) + eps) * w. Each layer adds two halves to it:

    h = norm(x)
    q = norm(h Wq^T)    k = norm(h Wk^T)    v = h Wv^T          norms over each head of q and k
    q, k turned by rope: channel i of a head with channel i + half, by pos * theta^(-i / half)
    o_t = sum_s softmax_s(q_t . k_s / sqrt(head_dim)) v_s       over s <= t, and in windowed layers s > t - window
    x = x + o Wo^T
    h = norm(x)
    x = x + (silu(h Wg^T) * (h Wu^T)) Wd^T

Query heads share key and value heads in equal groups; heads need not add up to D. logits = norm(x) Whead^T, the
embedding where heads are tied. Windows are Hugging Face's ``use_sliding_window``, as in ``archs.qwen2`` (Qwen3
technical report, 2025).
"""

from __future__ import annotations

from ..dense import Dense, Family

FAMILY = Family("qwen3", halves=True, qk_norm=True)
_ARCH = Dense(FAMILY)
read_shape, bind, model, costs = _ARCH.read_shape, _ARCH.bind, _ARCH.model, _ARCH.costs
collector = _ARCH.collector

__all__ = ["FAMILY", "bind", "collector", "costs", "model", "read_shape"]
