"""Gemma 3 (text), one page of mathematics. The pass is ``archs.dense``.

x (T, D) is the residual stream, norm(x) = x / sqrt(mean(x^2) + eps) * (1 + w); files of GGUF hold 1 + w, folders w.

    x = sqrt(D) * embedding                                     the head is the embedding, not multiplied
    h = norm(x)
    q = norm(h Wq^T)    k = norm(h Wk^T)    v = h Wv^T          norms over each head of q and k
    q, k turned by rope: channel i of a head with channel i + half, by pos * theta^(-i / half)
    o_t = sum_s softmax_s(q_t . k_s / sqrt(head_dim)) v_s       over s <= t, and in windowed layers s > t - window
    x = x + norm(o Wo^T)
    h = norm(x)
    x = x + norm((gelu(h Wg^T) * (h Wu^T)) Wd^T)              gelu(y) = y (1 + tanh(sqrt(2/pi) (y + 0.044715 y^3))) / 2

Every sixth layer sees all tokens, with a base of 1e6 and the file's stretching of rope; the five before it have a
window, and a base of 1e4 without stretching. 27B multiplies scores by another factor and is refused (Gemma 3 technical
report, 2025).
"""

from __future__ import annotations

from ..dense import Dense, Family

FAMILY = Family("gemma3", halves=True, qk_norm=True, gemma=True, full=6)
_ARCH = Dense(FAMILY)
read_shape, bind, model, costs = _ARCH.read_shape, _ARCH.bind, _ARCH.model, _ARCH.costs
collector = _ARCH.collector

__all__ = ["FAMILY", "bind", "collector", "costs", "model", "read_shape"]
