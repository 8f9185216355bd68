"""Mistakes of one place, made in Hugging Face's model: which op and layer they are in is known, their name is not.

    mistake = draw(oracle, 17)                 everything follows from the number
    with mistake.apply(oracle): oracle.logits(ids)

Written without a look at the changes that ``places`` tries (``ds4ref.variants.edits``), so that neither the kinds nor
their formulation agree with these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from .hf import Oracle
from .surgery import HIDDEN, rewritten

Apply = Callable[[Oracle], AbstractContextManager[None]]
Alter = Callable[[torch.Tensor], torch.Tensor]

LINEARS = {
    "self_attn.q_a_proj": ("q_lora", "q_lora_norm"),
    "self_attn.q_b_proj": ("Qraw", "Qnorm", "Qcur"),
    "self_attn.kv_proj": ("KVraw", "KVnorm", "KVrope", "KVcur"),
    "self_attn.o_a_proj": ("attn_low", "kqv_back", "kqv_out"),
    "self_attn.o_b_proj": ("attn_out",),
    "self_attn.compressor.kv_proj": ("attn_comp_kv_raw", "attn_comp_candidates", "KVcompress"),
    "self_attn.compressor.gate_proj": ("attn_comp_gate_raw", "attn_comp_score_raw", "attn_comp_candidates"),
    "self_attn.compressor.indexer.q_b_proj": ("indexer_q", "indexer_scores", "indexer_topk"),
    "self_attn.compressor.indexer.scorer.weights_proj": ("indexer_weights", "indexer_scores", "indexer_topk"),
    "mlp.shared_experts.gate_proj": ("ffn_shexp_gate", "ffn_shexp_mid"),
    "mlp.shared_experts.up_proj": ("ffn_shexp_up", "ffn_shexp_mid"),
    "mlp.shared_experts.down_proj": ("ffn_shexp",),
}
"""Module within a layer -> intermediates that count as its place: its output, and what has the same effect."""
NORMS = {
    "input_layernorm": ("attn_norm",),
    "post_attention_layernorm": ("ffn_norm",),
    "self_attn.q_a_norm": ("q_lora_norm",),
    "self_attn.kv_norm": ("KVnorm", "KVrope", "KVcur", "KVraw"),
    "self_attn.compressor.kv_norm": ("KVcompress",),
}
ROUTED = ("ffn_moe_weighted_swiglu", "ffn_moe_gate", "ffn_moe_up")
WEIGHTS, TOPK = ("ffn_moe_weights_scaled", "ffn_moe_probs"), ("ffn_moe_topk", "ffn_moe_weights_scaled")
HEADS = ("kqv_out", "kqv_back", "attn_low")


@dataclass(frozen=True)
class Mistake:
    """One mistake: what it is, the intermediates that count as its place, its layer (-1: the head), and how to make
    it."""

    says: str
    ops: tuple[str, ...]
    layer: int
    apply: Apply


class Draw:
    """Draws of one mistake: the model, its layers, and random choices."""

    def __init__(self, oracle: Oracle, rng: np.random.Generator):
        self.oracle, self.rng, self.layers = oracle, rng, oracle.model.model.layers
        self.layer = int(rng.integers(len(self.layers)))

    def one(self, choices: Any) -> Any:
        options = list(choices)
        return options[int(self.rng.integers(len(options)))]

    def at(self, path: str, layer: int | None = None) -> Any:
        """The module or tensor at ``path`` of a layer; None if it has none."""
        here: Any = self.layers[self.layer if layer is None else layer]
        for name in path.split("."):
            here = getattr(here, name, None)
        return here

    def choose(self, paths: dict[str, tuple[str, ...]]) -> tuple[str, tuple[str, ...]]:
        """Draw one of ``paths`` that some layer has, and set ``layer`` to one that has it."""
        path = self.one(paths)
        self.need(path)
        return path, paths[path]

    def need(self, path: str) -> None:
        self.layer = self.one(i for i in range(len(self.layers)) if self.at(path, i) is not None)

    def noise(self, shape: Any) -> torch.Tensor:
        seed = int(self.rng.integers(1 << 31))
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def block(self, size: int) -> slice:
        """A random run of an eighth to a half of ``size``, at a multiple of that."""
        n = size // self.one((2, 4, 8))
        start = n * int(self.rng.integers(size // n))
        return slice(start, start + n)


def wrapped(module: Any, change: Callable[..., Any]) -> Apply:
    """While open, change(plain, *args) stands for the module's ``forward``."""

    @contextmanager
    def apply(_oracle: Oracle) -> Iterator[None]:
        plain = module.forward
        with patch.object(module, "forward", lambda *args, **kw: change(plain, *args, **kw)):
            yield

    return apply


def output(module: Any, alter: Alter) -> Apply:
    return wrapped(module, lambda plain, *args, **kw: alter(plain(*args, **kw)))


def altered(tensor: torch.Tensor, alter: Alter) -> Apply:
    """While open, the tensor holds ``alter`` of its values."""

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        kept = tensor.detach().clone()
        try:
            tensor.copy_(alter(kept.clone()))
            yield
        finally:
            tensor.copy_(kept)

    return apply


def retold(module: Any, *changes: tuple[str, str]) -> Apply:
    """While open, this one module's ``forward`` has another text."""
    new = rewritten(type(module).forward, changes)
    return wrapped(module, lambda plain, *args, **kw: MethodType(new, module)(*args, **kw))


# ---- kinds: each returns (what is wrong, intermediates, how)

Kind = Callable[[Draw], tuple[str, tuple[str, ...], Apply]]


def _gate_up(d: Draw) -> Any:
    return (
        "gate and up exchanged",
        ROUTED,
        altered(d.at("mlp.experts.gate_up_proj"), lambda w: torch.roll(w, w.shape[1] // 2, 1)),
    )


def _shared_gate_up(d: Draw) -> Any:
    mlp = d.at("mlp.shared_experts")

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        gate, up = mlp.gate_proj, mlp.up_proj
        with patch.object(mlp, "gate_proj", up), patch.object(mlp, "up_proj", gate):
            yield

    return "shared gate and up exchanged", ("ffn_shexp_mid", "ffn_shexp_gate", "ffn_shexp_up"), apply


def _bias(d: Draw) -> Any:
    path, ops = d.choose(LINEARS)
    rows = d.at(path).weight.shape[0]
    b, size = d.noise(rows), d.one((0.1, 0.3, 1.0))
    return (
        f"a bias of {size} in {path}",
        ops,
        output(
            d.at(path),
            lambda y: (
                y + size * y.std() * b.reshape(y.shape[-1])
                if b.numel() == y.shape[-1]
                else y + size * y.std() * b.reshape(y.shape[-2:])
            ),
        ),
    )


def _foreign(d: Draw) -> Any:
    path, ops = d.choose(LINEARS | NORMS)
    own = d.at(path).weight
    others = [
        i
        for i in range(len(d.layers))
        if i != d.layer and d.at(path, i) is not None and d.at(path, i).weight.shape == own.shape
    ]
    if not others:
        return None
    other = d.one(others)
    return f"{path} of layer {other}", ops, altered(own, lambda w: d.at(path, other).weight.clone())


def _noisy(d: Draw) -> Any:
    path, ops = d.choose(LINEARS)
    w, size = d.at(path).weight, d.one((0.03, 0.1, 0.3))
    e = d.noise(w.shape)
    return f"noise of {size} in {path}", ops, altered(w, lambda v: v + size * v.std() * e)


def _shard(d: Draw) -> Any:
    path, ops = d.choose(LINEARS)
    w, axis = d.at(path).weight, int(d.rng.integers(2))
    part = d.block(w.shape[axis])
    index = (part, slice(None)) if axis == 0 else (slice(None), part)

    def alter(v: torch.Tensor) -> torch.Tensor:
        v[index] = 0
        return v

    return (
        f"{'rows' if axis == 0 else 'columns'} {part.start} to {part.stop} of {path} are zero",
        ops,
        altered(w, alter),
    )


def _expert_shard(d: Draw) -> Any:
    down = bool(d.rng.integers(2))
    w = d.at("mlp.experts.down_proj" if down else "mlp.experts.gate_up_proj")
    part, axis = d.block(w.shape[1]), 1

    def alter(v: torch.Tensor) -> torch.Tensor:
        v.narrow(axis, part.start, part.stop - part.start).zero_()
        return v

    ops = ("ffn_moe_out", *ROUTED[:1]) if down else ROUTED
    return (
        f"rows {part.start} to {part.stop} of experts' {'down' if down else 'gate_up'} are zero",
        ops,
        altered(w, alter),
    )


def _expert_lost(d: Draw) -> Any:
    e = int(d.rng.integers(d.oracle.config.n_routed_experts))
    return (
        f"expert {e} lost",
        ("ffn_moe_out", *ROUTED, *TOPK),
        altered(d.at("mlp.experts.down_proj"), lambda w: w * (torch.arange(len(w)) != e)[:, None, None]),
    )


def _experts_rolled(d: Draw) -> Any:
    name = d.one(("gate_up_proj", "down_proj"))
    return (
        f"experts' {name} rolled",
        ("ffn_moe_out", *ROUTED, "ffn_moe_topk"),
        altered(d.at(f"mlp.experts.{name}"), lambda w: torch.roll(w, 1, 0)),
    )


def _transposed(d: Draw) -> Any:
    name = d.one(("gate_proj", "up_proj", "down_proj"))
    w = d.at(f"mlp.shared_experts.{name}").weight
    if w.shape[0] != w.shape[1]:
        return None
    return f"shared {name} transposed", LINEARS[f"mlp.shared_experts.{name}"], altered(w, lambda v: v.T.contiguous())


def _sink(d: Draw) -> Any:
    sinks = d.at("self_attn.sinks")
    h = int(d.rng.integers(len(sinks) + 1))

    def alter(v: torch.Tensor) -> torch.Tensor:
        v[h if h < len(v) else slice(None)] = -1e9
        return v

    return f"sink of head {h} missing", ("attn_sinks", "kqv_out"), altered(sinks, alter)


def _norm_skipped(d: Draw) -> Any:
    path, ops = d.choose(NORMS)
    return f"{path} skipped", ops, wrapped(d.at(path), lambda plain, x: x)


def _norm_weight(d: Draw) -> Any:
    path, ops = d.choose(NORMS)
    return f"{path} without its weight", ops, altered(d.at(path).weight, torch.ones_like)


def _clamp(d: Draw) -> Any:
    path, op = d.one((("mlp.experts", "ffn_moe_weighted_swiglu"), ("mlp.shared_experts", "ffn_shexp_mid")))
    module, limit = d.at(path), d.one((1e9, 1.0, 2.0))

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        with patch.object(module, "limit", limit):
            yield

    return f"clamp of {path} at {limit:g}", (op, f"{op.split('_weighted')[0].split('_mid')[0]}_up"), apply


def _router(d: Draw) -> Any:
    gate, kind = d.at("mlp.gate"), d.one(("normalized", "fewer", "scale", "noise", "exchanged", "beside"))
    noise = d.noise(gate.weight.shape)
    E = gate.num_experts

    def change(plain: Any, *args: Any, **kw: Any) -> Any:
        logits, weights, ids = plain(*args, **kw)
        scores = gate.score_fn(logits)
        if kind == "normalized":
            weights = scores.gather(1, ids) * gate.routed_scaling_factor
        elif kind == "fewer":
            order = scores.gather(1, ids).argsort(1, descending=True)
            keep = torch.ones_like(weights).scatter(1, order[:, -1:], 0)
            weights = weights * keep
            weights = weights / weights.sum(1, keepdim=True) * gate.routed_scaling_factor
        elif kind == "scale":
            weights = weights / gate.routed_scaling_factor
        elif kind == "exchanged":
            weights = weights.flip(1)
        elif kind == "beside":
            ids = (ids + 1) % E
        return logits, weights, ids

    if kind == "noise":
        return (
            "noise in the router",
            ("ffn_moe_logits", *TOPK),
            altered(gate.weight, lambda w: w + 0.3 * w.std() * noise),
        )
    ops = {"beside": (*TOPK, "ffn_moe_out"), "fewer": TOPK}.get(kind, WEIGHTS)
    return f"router: {kind}", ops, wrapped(gate, change)


def _mixing(d: Draw) -> Any:
    half = d.one(("attn", "ffn"))
    module, part = (
        d.at(f"{half}_hc"),
        d.one(("post", "comb rows", "comb columns", "transposed", "collapsed", "uniform")),
    )
    i, j = d.rng.permutation(module.hc_mult)[:2].tolist()
    order = list(range(module.hc_mult))
    order[i], order[j] = j, i

    def change(plain: Any, streams: torch.Tensor) -> Any:
        post, comb, collapsed = plain(streams)
        if part == "post":
            post = post[..., order]
        elif part == "comb rows":
            comb = comb[..., order, :]
        elif part == "comb columns":
            comb = comb[..., order]
        elif part == "transposed":
            comb = comb.transpose(-1, -2)
        elif part == "uniform":
            comb = torch.full_like(comb, 1 / module.hc_mult)
        else:
            collapsed = plain(streams[..., order, :])[2]
        return post, comb, collapsed

    op = {"post": f"hc_{half}_pre_post_weights", "collapsed": f"hc_{half}_pre"}.get(part, f"hc_{half}_pre_comb")
    ops = (
        (op, f"hc_{half}_pre_weights", f"hc_{half}_pre_mixes", f"hc_{half}_in")
        if part == "collapsed"
        else (op, f"hc_{half}_post")
    )
    return f"{half} hyper-connection: {part} {i} {j}", ops, wrapped(module, change)


def _mixing_tensor(d: Draw) -> Any:
    half, name = d.one(("attn", "ffn")), d.one(("fn", "base", "scale"))
    own, other = d.at(f"{half}_hc.{name}"), d.at(f"{'ffn' if half == 'attn' else 'attn'}_hc.{name}")
    ops = tuple(f"hc_{half}_pre_{part}" for part in ("mixes", "weights", "post_weights", "comb"))
    return f"{half}_hc.{name} of the other half", ops, altered(own, lambda v: other.clone())


def _attention(d: Draw) -> Any:
    module = d.at("self_attn")
    text, ops = d.one((
        (("scaling=self.scaling", "scaling=self.scaling * 1.2"), ("kqv_out",)),
        (("scaling=self.scaling", "scaling=self.scaling * 0.5"), ("kqv_out",)),
        (("attn_output.transpose(1, 2), cos, -sin", "attn_output.transpose(1, 2), cos, sin"), ("kqv_back",)),
        (("attn_output.transpose(1, 2), cos, -sin", "attn_output.transpose(1, 2), cos, 0 * sin"), ("kqv_back",)),
        (("kv = apply_rotary_pos_emb(kv, cos, sin)", "kv = kv"), ("KVrope", "KVcur")),
        (("kv = apply_rotary_pos_emb(kv, cos, sin)",
          "w = self.sliding_window; i = torch.arange(kv.shape[2]); i = torch.where(i < w, i, i - w); "
          "kv = apply_rotary_pos_emb(kv, cos[:, i], sin[:, i])"), ("KVrope", "KVcur", "rope_tables")),
        (("kv = apply_rotary_pos_emb(kv, cos, sin)",
          "i = torch.arange(kv.shape[2]); i = torch.where(i < 48, i + 24, i).clamp(max=len(i) - 1); "
          "kv = apply_rotary_pos_emb(kv, cos[:, i], sin[:, i])"), ("KVrope", "KVcur", "rope_tables")),
        (("q = apply_rotary_pos_emb(q, cos, sin)", "q = apply_rotary_pos_emb(q, cos, -sin)"), ("Qcur", "rope_tables")),
        (("q = self.q_b_norm(q)", "q = q"), ("Qnorm", "Qcur")),
        (("grouped = self.o_a_proj(grouped)", "grouped = self.o_a_proj(grouped.flip(-2))"), HEADS),
        (("attn_output.reshape(", "attn_output.flip(-2).reshape("), HEADS),
        (("position_embeddings[self.rope_layer_type]",
          "position_embeddings['main' if self.rope_layer_type == 'compress' else 'compress']"),
         ("rope_tables", "Qcur", "KVrope", "kqv_back")),
    ))  # fmt: skip
    return text[1], ops, retold(module, text)


def _heads(d: Draw) -> Any:
    H = d.oracle.config.num_attention_heads
    lost = d.one((slice(0, H // 2), slice(H // 2, H), *(slice(h, h + 1) for h in range(H))))
    module = d.at("self_attn.o_a_proj")

    def change(plain: Any, x: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(*x.shape[:-2], H, -1).clone()
        heads[..., lost, :] = 0
        return plain(heads.reshape(x.shape))

    return f"heads {lost.start} to {lost.stop} lost", (*HEADS, "attn_out"), wrapped(module, change)


def _rows(d: Draw) -> Any:
    """Rows of one op wrong from a position on, at every n-th, or in a run."""
    path, ops = d.choose(LINEARS | {"self_attn.o_b_proj": ("attn_out",)})
    which = d.one(("from", "every", "run"))
    start, every = int(d.rng.integers(20, 150)), d.one((3, 5, 8, 16))
    how = d.one(("zero", "late", "scaled", "noise"))
    e = d.noise((400, 1 << 12))

    def alter(y: torch.Tensor) -> torch.Tensor:
        t = torch.arange(y.shape[1])
        mask = {"from": t >= start, "every": t % every == start % every, "run": (t >= start) & (t < start + 12)}[which]
        wrong = {
            "zero": 0 * y,
            "late": torch.roll(y, 1, 1),
            "scaled": 1.5 * y,
            "noise": y + 0.3 * y.std() * e[: len(t), : y[0, 0].numel()].reshape(y.shape),
        }[how]
        return torch.where(mask.reshape(1, -1, *[1] * (y.ndim - 2)), wrong, y)

    return f"{path} {how}, {which} {start} {every}", ops, output(d.at(path), alter)


def _stale(d: Draw) -> Any:
    """Cached rows of some positions are those of other tokens."""
    start, by = int(d.rng.integers(10, 120)), int(d.rng.integers(3, 9))
    count = int(d.rng.integers(4, 24))

    def alter(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[:, start : start + count] = y[:, start - by : start - by + count].clone()
        return y

    return (
        f"rows {start} + {count} stale by {by}",
        ("KVraw", "KVnorm", "KVrope", "KVcur", "kqv_out"),
        output(d.at("self_attn.kv_norm"), alter),
    )


def _leak(d: Draw) -> Any:
    size = d.one((0.02, 0.1, 0.5))
    path = d.one(("self_attn.o_b_proj", "mlp.shared_experts.down_proj", "self_attn.kv_norm"))
    ops = {"self_attn.kv_norm": ("KVnorm", "KVraw", "KVrope", "KVcur")}.get(path) or LINEARS[path]
    by = int(d.rng.integers(5, 60))
    return (
        f"{size} of {by} rows before leaks into {path}",
        ops,
        output(d.at(path), lambda y: y + size * torch.roll(y, by, 1)),
    )


def _window(d: Draw) -> Any:
    kind, n = d.one(("short", "missing", "no self")), int(d.rng.integers(2, 24))

    def change(plain: Any, *args: Any, attention_mask: torch.Tensor, **kw: Any) -> Any:
        t = torch.arange(attention_mask.shape[-1])
        back = t[:, None] - t
        hide = {
            "short": back >= d.oracle.config.sliding_window - n,
            "missing": (back > 2) & (t[:, None] % n == 0),
            "no self": (back == 0) & (t[:, None] > 0),
        }[kind]
        return plain(*args, attention_mask=attention_mask.masked_fill(hide, HIDDEN), **kw)

    return f"window: {kind} {n}", ("raw_window", "kqv_out"), wrapped(d.at("self_attn"), change)


def _compressor(d: Draw) -> Any:
    d.need("self_attn.compressor")
    module = d.at("self_attn.compressor")
    csa = hasattr(module, "indexer")
    bias, count = "self.position_bias", ("comp_count", "KVcompress", "kqv_out", "indexer_topk")
    choices = [
        ((bias, f"torch.roll({bias}, 1, 0)"), ("attn_comp_score_raw", "attn_comp_candidates")),
        ((bias, f"0 * {bias}"), ("attn_comp_score_raw", "attn_comp_candidates")),
        (("positions * self.compress_rate", "positions"), ("KVcompress", "attn_comp_rope_tables")),
        (("positions * self.compress_rate", "(positions + 1) * self.compress_rate"),
         ("KVcompress", "attn_comp_rope_tables")),
        (("chunk_gate.softmax(" if not csa else "new_gate.softmax(",
          "(0.5 * chunk_gate).softmax(" if not csa else "(0.5 * new_gate).softmax("),
         ("attn_comp_candidates", "attn_comp_score_raw", "attn_comp_gate_raw")),
        (("compressed_kv = compressed.unsqueeze(1)", "compressed_kv = torch.roll(compressed, 1, 1).unsqueeze(1)"),
         count),
    ]  # fmt: skip
    if csa:
        choices.append(
            (
                ("chunk_kv[:, :-1, :, : self.head_dim]", "chunk_kv[:, :-1, :, self.head_dim :]"),
                ("attn_comp_candidates", "KVcompress"),
            )
        )
    else:
        choices += [
            (("(position_ids + 1)", "position_ids"), count),
            (("(position_ids + 1)", "(position_ids - 40)"), count),
        ]
    text, ops = d.one(choices)
    return text[1], ops, retold(module, text)


def _indexer(d: Draw) -> Any:
    path = "self_attn.compressor.indexer"
    d.need(path)
    module = d.at(path)
    kind = d.one(("topk", "relu", "rope", "weights", "late"))
    ops = ("indexer_scores", "indexer_topk", "indexer_weights", "indexer_q")
    if kind == "relu":
        return "indexer without relu", ops[:3], retold(module.scorer, ("F.relu(scores)", "scores"))
    if kind == "weights":
        e = d.noise(module.scorer.weights_proj.weight.shape)
        return "indexer weights by chance", ops[:3], altered(module.scorer.weights_proj.weight, lambda w: w.std() * e)
    if kind == "rope":
        return (
            "indexer query not rotated",
            (ops[3], *ops[:2]),
            retold(module, ("q = apply_rotary_pos_emb(q, cos_q, sin_q).transpose(1, 2)", "q = q.transpose(1, 2)")),
        )
    if kind == "late":
        return (
            "indexer rows one late",
            ops[:2] + ("comp_count",),
            retold(module, ("(position_ids + 1)", "position_ids")),
        )

    fewer = module.index_topk - d.one((1, 8, 16))

    @contextmanager
    def apply(oracle: Oracle) -> Iterator[None]:
        with patch.object(module, "index_topk", fewer):
            yield

    return "fewer rows", ops[:2], apply


def _coarse(d: Draw) -> Any:
    path, ops = d.choose(LINEARS)
    kind = d.one(("output fp8", "weights fp8", "weights int4", "input fp8"))

    def fp8(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float8_e4m3fn).float()

    def int4(w: torch.Tensor) -> torch.Tensor:
        scale = w.abs().amax(-1, keepdim=True) / 7
        return (w / scale).round() * scale

    if kind == "output fp8":
        return f"{path}: {kind}", ops, output(d.at(path), fp8)
    if kind == "input fp8":
        return f"{path}: {kind}", ops, wrapped(d.at(path), lambda plain, x: plain(fp8(x)))
    return f"{path}: {kind}", ops, altered(d.at(path).weight, fp8 if kind.endswith("fp8") else int4)


def _scaled(d: Draw) -> Any:
    free = {"self_attn.o_b_proj": ("attn_out", "attn_low", "kqv_back", "kqv_out"),
            "self_attn.o_a_proj": ("attn_low", "attn_out", "kqv_back", "kqv_out"),
            "mlp.shared_experts.down_proj": ("ffn_shexp", "ffn_shexp_mid"), "mlp.experts": ("ffn_moe_out", *ROUTED),
            "mlp": ("ffn_out",), "input_layernorm": ("attn_norm",), "post_attention_layernorm": ("ffn_norm",),
            "self_attn.kv_norm": ("KVnorm", "KVrope", "KVcur"), "self_attn.q_b_norm": ("Qnorm", "Qcur", "kqv_out"),
            "self_attn.compressor.kv_norm": ("KVcompress",)}  # fmt: skip
    path, ops = d.choose(free)
    factor = d.one((1.01, 1.05, 1.2, 0.8, 2.0))
    return f"{path} times {factor}", ops, output(d.at(path), lambda y: y * factor)


def _head(d: Draw) -> Any:
    model, d.layer = d.oracle.model, -1
    kind = d.one(("norm", "hc", "vocabulary", "base"))
    if kind == "norm":
        return "output norm without weight", ("result_norm",), altered(model.model.norm.weight, torch.ones_like)
    if kind == "base":
        return (
            "head's base zero",
            ("result_hc_weights", "result_hc"),
            altered(model.model.hc_head.hc_base, torch.zeros_like),
        )
    if kind == "hc":
        return (
            "head's streams moved",
            ("result_hc_weights", "result_hc_pre", "result_hc"),
            altered(model.model.hc_head.hc_fn, lambda w: torch.roll(w, 1, 0)),
        )
    part = d.block(model.lm_head.weight.shape[1])

    def alter(w: torch.Tensor) -> torch.Tensor:
        w[:, part] = 0
        return w

    return (
        "a shard of the output matrix is zero",
        ("result_output", "result_norm"),
        altered(model.lm_head.weight, alter),
    )


KINDS: tuple[Kind, ...] = (
    _gate_up, _shared_gate_up, _bias, _foreign, _noisy, _shard, _expert_shard, _expert_lost, _experts_rolled,
    _transposed, _sink, _norm_skipped, _norm_weight, _clamp, _router, _router, _mixing, _mixing, _mixing_tensor,
    _attention, _attention, _heads, _rows, _rows, _stale, _leak, _window, _compressor, _compressor, _indexer, _coarse,
    _scaled, _head,
)  # fmt: skip


def draw(oracle: Oracle, number: int) -> Mistake | None:
    """Return mistake ``number``; None if what was drawn is not possible in this model."""
    d = Draw(oracle, np.random.default_rng([number, 44]))
    made = KINDS[number % len(KINDS)](d)
    return None if made is None else Mistake(made[0], made[1], d.layer, made[2])
