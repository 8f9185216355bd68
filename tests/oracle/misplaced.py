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
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from .hf import Oracle

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


# ---- kinds: each returns (what is wrong, intermediates, how)

Kind = Callable[[Draw], tuple[str, tuple[str, ...], Apply]]


def _gate_up(d: Draw) -> Any:
    return (
        "gate and up exchanged",
        ROUTED,
        altered(d.at("mlp.experts.gate_up_proj"), lambda w: torch.roll(w, w.shape[1] // 2, 1)),
    )


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


def _mixing_tensor(d: Draw) -> Any:
    half, name = d.one(("attn", "ffn")), d.one(("fn", "base", "scale"))
    own, other = d.at(f"{half}_hc.{name}"), d.at(f"{'ffn' if half == 'attn' else 'attn'}_hc.{name}")
    ops = tuple(f"hc_{half}_pre_{part}" for part in ("mixes", "weights", "post_weights", "comb"))
    return f"{half}_hc.{name} of the other half", ops, altered(own, lambda v: other.clone())


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


KINDS: tuple[Kind, ...] = (
    _gate_up, _bias, _foreign, _noisy, _shard, _expert_shard, _expert_lost, _transposed, _sink, _norm_skipped,
    _norm_weight, _mixing_tensor, _heads, _rows, _rows, _stale, _leak, _coarse, _scaled,
)  # fmt: skip


def draw(oracle: Oracle, number: int) -> Mistake | None:
    """Return mistake ``number``; None if what was drawn is not possible in this model."""
    d = Draw(oracle, np.random.default_rng([number, 44]))
    made = KINDS[number % len(KINDS)](d)
    return None if made is None else Mistake(made[0], made[1], d.layer, made[2])
