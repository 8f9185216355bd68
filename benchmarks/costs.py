"""Operations a token needs, as engine.md 7.4 counts them: 2 for every multiply-add."""

from __future__ import annotations

from ds4ref.shape import ModelShape


def token_flops(shape: ModelShape, pos: int, head: bool = True) -> dict[str, float]:
    """Operations for the token at position ``pos`` by part; ``head``: its logits are wanted."""
    s = shape
    group = s.n_heads * s.head_dim
    projections = s.dim * (s.q_rank + s.head_dim) + s.q_rank * group + group * s.o_rank + s.o_groups * s.o_rank * s.dim
    expert = 3 * s.dim * s.expert_ff
    parts = dict.fromkeys(("projections", "experts", "shared", "compressors", "small", "head", "indexer"), 0.0)
    parts |= {"attention": 0.0, "scores": 0.0}
    for layer, ratio in enumerate(s.ratios):
        parts["projections"] += projections
        parts["experts"] += s.n_used * expert
        parts["shared"] += s.n_shared * expert
        parts["small"] += s.n_experts * s.dim + 2 * s.mix * s.hc * s.dim
        rows = min(pos + 1, s.window)
        if ratio:
            parts["compressors"] += 2 * s.dim * s.comp_width(layer)
            visible = (pos + 1) // ratio
            if ratio == 4:
                parts["compressors"] += 2 * s.dim * 2 * s.index_dim
                if visible > s.index_topk:
                    parts["indexer"] += s.index_heads * (s.q_rank * s.index_dim + s.dim)
                    parts["scores"] += visible * s.index_heads * s.index_dim
                visible = min(visible, s.index_topk)
            rows += visible
        parts["attention"] += 2 * rows * group
    if head:
        parts["head"] = s.vocab * s.dim + s.hc * s.hc * s.dim
    return {name: 2.0 * count for name, count in parts.items()}


def chunk_flops(shape: ModelShape, pos: int, tokens: int) -> float:
    """Operations of a prefill chunk of ``tokens`` tokens from position ``pos`` on, with one row of logits."""
    first, last = (sum(token_flops(shape, p, head=False).values()) for p in (pos, pos + tokens - 1))
    return tokens * (first + last) / 2 + token_flops(shape, pos)["head"]


def matmul_flops(shape: ModelShape, pos: int) -> float:
    """The part of one token's operations that are products with weights, without the head."""
    parts = token_flops(shape, pos, head=False)
    return sum(parts.values()) - parts["attention"] - parts["scores"]
