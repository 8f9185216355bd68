"""The two halves of a layer and the head: grouped-query attention, gated feed-forward, logits.

x (T, D) is the residual stream. Formulas: Touvron et al. 2023 (Llama), Ainslie et al. 2023 (GQA), Shazeer 2020
(SwiGLU), Henry et al. 2020 (norm of queries and keys).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..inputs import into_part, of_sequence
from . import experts
from .chunk import HEAD, Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from ds4ref.kernels.formats import Matrix

    from .cache import LayerRows
    from .weights import LayerWeights, Weights


def embed(c: Chunk, w: Weights) -> np.ndarray:
    """Return the embeddings of the chunk's tokens, (T, D)."""
    x = c.ops.embed(w.token_embd, c.ids)
    return c.ops.scale(x, math.sqrt(c.shape.dim)) if c.shape.family.gemma else x


def attention(c: Chunk, w: LayerWeights, caches: Sequence[LayerRows], x: np.ndarray) -> np.ndarray:
    """Return x + attention(norm(x)), (T, D), and write keys and values into the layer's cache of each sequence,
    ``caches``."""
    ops, s, tokens = c.ops, c.shape, len(x)
    x = c.tap("l_in", x)
    h = c.inputs(c.tap("attn_norm", ops.rms_norm(x, w.attn_norm, s.rms_eps)))
    tables = c.rope_tables()
    q = c.tap("Qraw", _project(c, h, w.attn_q, w.attn_q_bias)).reshape(tokens, s.n_heads, s.head_dim)
    k = c.tap("Kraw", _project(c, h, w.attn_k, w.attn_k_bias)).reshape(tokens, s.n_kv_heads, s.head_dim)
    v = _project(c, h, w.attn_v, w.attn_v_bias).reshape(tokens, s.n_kv_heads, s.head_dim)
    if w.attn_q_norm is not None:
        q = ops.rms_norm(q, w.attn_q_norm, s.rms_eps)
        k = ops.rms_norm(k, w.attn_k_norm, s.rms_eps)
    q = c.tap("Qcur", ops.rope(q, *tables, halves=s.family.halves))
    k = c.tap("Kcur", c.store(ops.rope(k, *tables, halves=s.family.halves)))
    v = c.tap("Vcur", c.store(v))
    joined = ops.array(*q.shape) if c.members else None
    for (part, places), rows in zip(c.sequences(), caches, strict=True):
        part.layer = c.layer
        for new, stored in ((k, rows.keys), (v, rows.values)):
            ops.store_rows(of_sequence(new.reshape(tokens, s.kv_width), places), stored, part.at())
        mine = of_sequence(q, places), *rows.heads(s.n_kv_heads), *part.seen(), s.attn_scale
        o = ops.attend(*mine, **into_part(joined, places))
    o = c.tap("kqv_out", o if joined is None else joined)
    o = c.inputs(o.reshape(tokens, s.n_heads * s.head_dim))
    o = c.tap("attn_out", ops.linear(o, w.attn_output, c.act(w.attn_output)))
    o = c.steer("attn", o)
    return c.tap("ffn_inp", ops.add(x, _normed(c, o, "attn_post_norm", w.post_attention_norm)))


def _normed(c: Chunk, x: np.ndarray, name: str, weight: np.ndarray | None) -> np.ndarray:
    """Return x, the output of attention or FFN, after its norm if the family has one before the residual is added;
    ``name``: intermediate for hooks; ``weight``: of the norm, None for no norm."""
    return x if weight is None else c.tap(name, c.ops.rms_norm(x, weight, c.shape.rms_eps))


def _project(c: Chunk, h: np.ndarray, w: Matrix, bias: np.ndarray | None) -> np.ndarray:
    """Return h (T, D) times the matrix w, plus the bias (1, n) if there is one."""
    # the bias is added by the op for biases that depend on the position, with a period of one position
    y = c.ops.linear(h, w, c.act(w))
    return y if bias is None else c.ops.position_bias(y, bias, c.at())


def feed_forward(c: Chunk, w: LayerWeights, x: np.ndarray) -> np.ndarray:
    """Return x + f(norm(x)), (T, D), where f is the gated feed-forward or the sum of the token's experts."""
    h = c.inputs(c.tap("ffn_norm", c.ops.rms_norm(x, w.ffn_norm, c.shape.rms_eps)))
    out = c.tap("ffn_out", _gated(c, w, h) if w.ffn_gate is not None else experts.routed(c, w, h))
    out = c.steer("ffn", out)
    return c.tap("l_out", c.ops.add(x, _normed(c, out, "ffn_post_norm", w.post_ffw_norm)))


def _gated(c: Chunk, w: LayerWeights, h: np.ndarray) -> np.ndarray:
    """Return down(silu(gate(h)) * up(h)), (T, D); Gemma has GELU instead of SiLU."""
    ops, s, tokens = c.ops, c.shape, len(h)
    assert w.ffn_gate is not None and w.ffn_up is not None and w.ffn_down is not None
    gate = c.tap("ffn_gate", ops.linear(h, w.ffn_gate, c.act(w.ffn_gate)))
    up = c.tap("ffn_up", ops.linear(h, w.ffn_up, c.act(w.ffn_up)))
    if s.family.gemma:
        mid = ops.geglu(gate, up)
    else:
        mid = ops.swiglu(gate.reshape(tokens, 1, s.ff), up.reshape(tokens, 1, s.ff), math.inf).reshape(tokens, s.ff)
    mid = c.tap("ffn_swiglu", mid)
    return ops.linear(c.inputs(mid), w.ffn_down, c.act(w.ffn_down))


def logits(c: Chunk, w: Weights, x: np.ndarray) -> np.ndarray:
    """Compute logits (T, V) from the residual stream x (T, D) of the chunk's last T tokens, or of all."""
    c.layer = HEAD
    x = c.tap("result_norm", c.ops.rms_norm(x, w.output_norm, c.shape.rms_eps))
    return c.tap("result_output", c.ops.linear(c.inputs(x), w.output, c.act(w.output)))
