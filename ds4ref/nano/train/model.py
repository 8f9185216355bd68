"""DeepSeek V4 as a torch module for training: batches of whole sequences.

Parameters have the names of DeepSeek's published checkpoint, except those of hyper-connections and of the block for
multi-token prediction; ``published`` and ``load_published`` convert. The formulas are those of
docs/explanation/model.md, mode exact; tests compare logits and gradients with Hugging Face's.

For training, the indexer learns to predict attention (``index_loss``), its selection can be switched off (``dense``),
and ``predict_next`` runs the block for multi-token prediction. Shapes: B sequences of T tokens, N = B * T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...archs.deepseek4.rope import RopeTables
from ...archs.deepseek4.shape import CSA, PLAIN, ModelShape

HIDDEN = -1e30
"""Attention score of a row that a token must not attend to."""


@dataclass
class Pass:
    """Arguments of one forward pass, which all layers use (``dense``: attend to all compressed rows), and what layers
    collect for the trainer."""

    ids: Tensor
    dense: bool
    index_loss: list[Tensor] = field(default_factory=list)
    load: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list)
    """For each layer: its router's bias, and the number of tokens that each of its experts got."""


def _weight(*shape: int, std: float | None = None) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) * (shape[-1] ** -0.5 if std is None else std))


def _linear(inputs: int, outputs: int, std: float | None = None) -> nn.Linear:
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)
    layer.weight = _weight(outputs, inputs, std=std)
    return layer


class Rotation:
    """RoPE angles of one set of frequencies (``RopeTables``), on the device of the model."""

    def __init__(self, shape: ModelShape, compress: bool):
        self._rope, self._tables = RopeTables(shape, compress, "f32"), (torch.empty(0, 1), torch.empty(0, 1))

    def at(self, count: int, device: torch.device, every: int = 1) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (count, pairs) of the positions 0, every, 2 * every, ..."""
        end = count * every
        if len(self._tables[0]) < end or self._tables[0].device != device:
            cos, sin = self._rope.compute(np.arange(max(512, end)))
            self._tables = torch.from_numpy(np.array(cos)).to(device), torch.from_numpy(np.array(sin)).to(device)
        cos, sin = self._tables
        return cos[:end:every], sin[:end:every]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x (..., width) with its last channels, in pairs of neighbours, rotated by RoPE; cos and sin: (..., pairs),
    broadcast to x."""
    width = 2 * cos.shape[-1]
    plain, pairs = x[..., :-width], x[..., -width:].unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.cat([plain, torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)], -1)


class HyperConnection(nn.Module):
    """Mixes the residual streams into a block's input (``pre``), and the block's output back into them (``post``)."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        c = shape.hc
        self.rms_eps, self.hc_eps, self.iters, self.streams = shape.rms_eps, shape.hc_eps, shape.sinkhorn_iters, c
        self.fn = _weight(shape.mix, c * shape.dim)
        self.scale = nn.Parameter(torch.full((3,), 0.1))
        # all streams begin as copies of the embedding; slightly different weights let them become different
        comb = 3 * torch.eye(c) + 0.3 * torch.randn(c, c)
        reads = math.log(1 / (c - 1)) + 0.3 * torch.randn(c)
        self.base = nn.Parameter(torch.cat([reads, 0.3 * torch.randn(c), comb.flatten()]))

    def pre(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c = self.streams
        mix = F.rms_norm(x.flatten(1), (x[0].numel(),), eps=self.rms_eps) @ self.fn.T
        scale = torch.cat([part.expand(n) for part, n in zip(self.scale, (c, c, c * c), strict=True)])
        pre, post, comb = (mix * scale + self.base).split([c, c, c * c], -1)
        pre, post = torch.sigmoid(pre) + self.hc_eps, 2 * torch.sigmoid(post)
        comb = comb.reshape(-1, c, c).softmax(-1) + self.hc_eps
        comb = comb / (comb.sum(1, keepdim=True) + self.hc_eps)
        for _ in range(self.iters - 1):
            comb = comb / (comb.sum(2, keepdim=True) + self.hc_eps)
            comb = comb / (comb.sum(1, keepdim=True) + self.hc_eps)
        return (pre[..., None] * x).sum(1), post, comb

    def post(self, x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        return post[..., None] * y[:, None] + comb.transpose(1, 2) @ x


class Compressor(nn.Module):
    """Pools each window of ``ratio`` tokens into one compressed row."""

    def __init__(self, shape: ModelShape, ratio: int, width: int):
        super().__init__()
        self.ratio, self.width, self.overlap = ratio, width, ratio == CSA
        columns = width * (2 if self.overlap else 1)
        self.wkv, self.wgate = _linear(shape.dim, columns), _linear(shape.dim, columns)
        self.ape = nn.Parameter(0.1 * torch.randn(ratio, columns))
        self.norm = nn.RMSNorm(width, shape.rms_eps)

    def forward(self, x: Tensor, rope: Rotation) -> Tensor:
        """Return the compressed rows (B, T // ratio, width) of attention inputs x (B, T, D)."""
        windows = x.shape[1] // self.ratio
        x = x[:, : windows * self.ratio]
        k = self.wkv(x).unflatten(1, (windows, self.ratio))
        g = self.wgate(x).unflatten(1, (windows, self.ratio)) + self.ape
        if self.overlap:
            before = F.pad(k[:, :-1, :, : self.width], (0, 0, 0, 0, 1, 0))
            unseen = F.pad(g[:, :-1, :, : self.width], (0, 0, 0, 0, 1, 0), value=HIDDEN)
            k, g = torch.cat([before, k[..., self.width :]], 2), torch.cat([unseen, g[..., self.width :]], 2)
        rows = self.norm((g.softmax(2) * k).sum(2))
        return rotate(rows, *rope.at(windows, x.device, self.ratio)) if windows else rows


class Indexer(nn.Module):
    """Scores compressed rows for every token, to select those that it attends to."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.heads, self.width, self.scale = shape.index_heads, shape.index_dim, shape.index_scale
        self.wq_b = _linear(shape.q_rank, shape.index_heads * shape.index_dim)
        self.weights_proj = _linear(shape.dim, shape.index_heads)
        self.compressor = Compressor(shape, CSA, shape.index_dim)

    def forward(self, x: Tensor, u: Tensor, rope: Rotation) -> Tensor:
        """Return scores (B, T, rows) from attention inputs x and low-rank queries u."""
        b, t, _ = x.shape
        cos, sin = rope.at(t, x.device)
        q = rotate(self.wq_b(u).reshape(b, t, self.heads, self.width), cos[:, None], sin[:, None])
        rows = self.compressor(x, rope)
        dots = (q.reshape(b, t * self.heads, self.width) @ rows.transpose(1, 2)).reshape(b, t, self.heads, -1)
        weights = self.weights_proj(x) * self.scale
        return (weights[:, :, None] @ dots.relu())[:, :, 0]


class Attention(nn.Module):
    """Attention of one layer, over the sliding window and the compressed rows."""

    def __init__(self, shape: ModelShape, ratio: int):
        super().__init__()
        self.shape, self.ratio = shape, ratio
        heads, width = shape.n_heads, shape.head_dim
        self.wq_a, self.q_norm = _linear(shape.dim, shape.q_rank), nn.RMSNorm(shape.q_rank, shape.rms_eps)
        self.wq_b = _linear(shape.q_rank, heads * width)
        self.wkv, self.kv_norm = _linear(shape.dim, width), nn.RMSNorm(width, shape.rms_eps)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.wo_a = _linear(heads * width // shape.o_groups, shape.o_groups * shape.o_rank)
        self.wo_b = _linear(shape.o_groups * shape.o_rank, shape.dim, std=0.5 * (shape.o_groups * shape.o_rank) ** -0.5)
        if ratio != PLAIN:
            self.compressor = Compressor(shape, ratio, width)
        if ratio == CSA:
            self.indexer = Indexer(shape)

    def forward(self, x: Tensor, rope: Rotation, run: Pass) -> Tensor:
        s = self.shape
        b, t, _ = x.shape
        heads, width, window = s.n_heads, s.head_dim, s.window
        u = self.q_norm(self.wq_a(x))
        q = self.wq_b(u).reshape(b, t, heads, width)
        q = F.rms_norm(q, (width,), eps=s.rms_eps)
        cos, sin = rope.at(t, x.device)
        q = rotate(q, cos[:, None], sin[:, None]) * s.attn_scale
        kv = rotate(self.kv_norm(self.wkv(x)), cos, sin)

        # sliding window: queries in blocks of ``window`` tokens attend to rows of their own block and the one before
        short = -t % window
        blocks = (t + short) // window
        padded = F.pad(kv, (0, 0, window, short)).reshape(b, blocks + 1, window, width)
        keys = torch.cat([padded[:, :-1], padded[:, 1:]], 2)
        qs = F.pad(q, (0, 0, 0, 0, 0, short)).reshape(b, blocks, window * heads, width)
        scores = (qs @ keys.transpose(2, 3)).reshape(b, blocks, window, heads, 2 * window)
        i = torch.arange(window, device=x.device)[:, None]
        j = torch.arange(2 * window, device=x.device)[None]
        unseen = ((j <= i) | (j > i + window))[None].expand(blocks, -1, -1).clone()
        unseen[0, :, :window] = True
        scores = scores.masked_fill(unseen[None, :, :, None], HIDDEN)
        scores = scores.reshape(b, blocks * window, heads, 2 * window)[:, :t]
        parts = [self.attn_sink[None, None, :, None].expand(b, t, heads, 1), scores]

        rows = None
        if self.ratio != PLAIN and t >= self.ratio:
            rows = self.compressor(x, rope)
            n = rows.shape[1]
            far = (q.reshape(b, t * heads, width) @ rows.transpose(1, 2)).reshape(b, t, heads, n)
            visible = (torch.arange(1, t + 1, device=x.device) // self.ratio)[:, None] > torch.arange(
                n, device=x.device
            )
            hidden = ~visible[None].expand(b, -1, -1)
            if self.ratio == CSA:
                hidden = self._select(x, u, rope, hidden, torch.cat([*parts, far], -1), run)
            parts.append(far.masked_fill(hidden[:, :, None], HIDDEN))
        p = torch.cat(parts, -1).softmax(-1)
        near = F.pad(p[..., 1 : 1 + 2 * window], (0, 0, 0, 0, 0, short)).reshape(b, blocks, window * heads, 2 * window)
        out = (near @ keys).reshape(b, blocks * window, heads, width)[:, :t]
        if rows is not None:
            out = out + (p[..., 1 + 2 * window :].reshape(b, t * heads, -1) @ rows).reshape(b, t, heads, width)
        out = rotate(out, cos[:, None], -sin[:, None])
        groups = out.reshape(b * t, s.o_groups, -1).transpose(0, 1)
        low = groups @ self.wo_a.weight.reshape(s.o_groups, s.o_rank, -1).transpose(1, 2)
        return self.wo_b(low.transpose(0, 1).reshape(b, t, -1))

    def _select(self, x: Tensor, u: Tensor, rope: Rotation, hidden: Tensor, scores: Tensor, run: Pass) -> Tensor:
        """Return which of n compressed rows each token does not attend to, bool (B, T, n): those of ``hidden``, and
        those not selected. Add to ``run`` the indexer's loss, its KL divergence from attention over all visible rows;
        ``scores``: attention scores, those of the compressed rows last."""
        n = hidden.shape[2]
        index = self.indexer(x.detach(), u.detach(), rope).masked_fill(hidden, HIDDEN)
        if torch.is_grad_enabled():
            with torch.no_grad():
                every = torch.cat([scores[..., :-n], scores[..., -n:].masked_fill(hidden[:, :, None], HIDDEN)], -1)
                target = every.softmax(-1)[..., -n:].sum(2)
                mass = target.sum(-1, keepdim=True)
                share = target / mass.clamp_min(1e-9)
            loss = -(target * index.log_softmax(-1).clamp_min(-50)).sum(-1) + (
                target * share.clamp_min(1e-9).log()
            ).sum(-1)
            some = ~hidden.all(-1)
            run.index_loss.append((loss * some).sum() / some.sum().clamp_min(1))
        k = self.shape.index_topk
        if run.dense or n <= k:
            return hidden
        chosen = torch.zeros_like(hidden).scatter_(-1, index.detach().topk(k, -1).indices, True)
        return hidden | ~chosen


class Expert(nn.Module):
    def __init__(self, dim: int, ff: int, limit: float):
        super().__init__()
        self.limit = limit
        self.w1, self.w2, self.w3 = _linear(dim, ff), _linear(ff, dim, std=0.5 * ff**-0.5), _linear(dim, ff)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x).clamp(max=self.limit), self.w3(x).clamp(-self.limit, self.limit)
        return self.w2(F.silu(gate) * up)


class Gate(nn.Module):
    def __init__(self, shape: ModelShape, hashed: bool, seed: int):
        super().__init__()
        self.weight = _weight(shape.n_experts, shape.dim)
        if hashed:
            rng = np.random.default_rng(seed)
            table = np.stack([rng.permutation(shape.n_experts)[: shape.n_used] for _ in range(shape.vocab)])
            self.register_buffer("tid2eid", torch.from_numpy(table.astype(np.int64)))
        else:
            self.bias = nn.Parameter(torch.zeros(shape.n_experts), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class Experts(nn.Module):
    """The feed-forward of a layer: shared expert and routed experts."""

    def __init__(self, shape: ModelShape, hashed: bool, limit: float):
        super().__init__()
        self.shape, self.hashed = shape, hashed
        self.gate = Gate(shape, hashed, seed=20261125)
        self.experts = nn.ModuleList(Expert(shape.dim, shape.expert_ff, limit) for _ in range(shape.n_experts))
        self.shared_experts = Expert(shape.dim, shape.expert_ff, limit)

    def forward(self, x: Tensor, ids: Tensor, run: Pass) -> Tensor:
        """Return the output (N, D) for x (N, D) of tokens ``ids`` (N,)."""
        s = self.shape
        p = F.softplus(self.gate(x)).sqrt()
        if self.hashed:
            chosen = self.gate.tid2eid[ids]
        else:
            chosen = (p.detach() + self.gate.bias).topk(s.n_used, -1).indices
            if torch.is_grad_enabled():
                run.load.append((self.gate.bias, F.one_hot(chosen, s.n_experts).sum((0, 1))))
        picked = p.gather(-1, chosen)
        picked = picked / (picked.sum(-1, keepdim=True) + 1e-20) * s.route_scale
        # with few experts, computing all of them for all tokens is faster than sorting tokens by expert
        shares = x.new_zeros(len(x), s.n_experts).scatter(-1, chosen, picked)
        out = self.shared_experts(x)
        for share, expert in zip(shares.T, self.experts, strict=True):
            out = out + share[:, None] * expert(x)
        return out


class Block(nn.Module):
    def __init__(self, shape: ModelShape, ratio: int, hashed: bool, limit: float):
        super().__init__()
        self.hc_attn, self.hc_ffn = HyperConnection(shape), HyperConnection(shape)
        self.attn_norm, self.ffn_norm = nn.RMSNorm(shape.dim, shape.rms_eps), nn.RMSNorm(shape.dim, shape.rms_eps)
        self.attn, self.ffn = Attention(shape, ratio), Experts(shape, hashed, limit)

    def forward(self, x: Tensor, rope: Rotation, run: Pass, wanted: Tensor | None = None) -> Tensor:
        """Return the streams (N, C, D) after the layer, or only those of the ``wanted`` token indices (n,)."""
        b, t = run.ids.shape
        h, post, comb = self.hc_attn.pre(x)
        y = self.attn(self.attn_norm(h).reshape(b, t, -1), rope, run)
        x = self.hc_attn.post(x, y.reshape(b * t, -1), post, comb)
        ids = run.ids.flatten()
        if wanted is not None:
            x, ids = x[wanted], ids[wanted]
        h, post, comb = self.hc_ffn.pre(x)
        y = self.ffn(self.ffn_norm(h), ids, run)
        return self.hc_ffn.post(x, y, post, comb)


class Head(nn.Module):
    """Mixes the residual streams into the one vector that the output matrix takes."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.fn = _weight(shape.hc, shape.hc * shape.dim)
        self.scale = nn.Parameter(torch.full((1,), 0.1))
        self.base = nn.Parameter(torch.full((shape.hc,), math.log(1 / (shape.hc - 1))))
        self.rms_eps, self.hc_eps = shape.rms_eps, shape.hc_eps

    def forward(self, x: Tensor) -> Tensor:
        mix = F.rms_norm(x.flatten(1), (x[0].numel(),), eps=self.rms_eps) @ self.fn.T
        return ((torch.sigmoid(mix * self.scale + self.base) + self.hc_eps)[..., None] * x).sum(1)


class NextToken(nn.Module):
    """The block for multi-token prediction: from streams at t and the token at t + 1 it predicts the token at t + 2."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.e_proj, self.h_proj = _linear(shape.dim, shape.dim), _linear(shape.dim, shape.dim)
        self.enorm, self.hnorm, self.norm = (nn.RMSNorm(shape.dim, shape.rms_eps) for _ in range(3))
        self.hc_head = Head(shape)
        self.block = Block(shape, PLAIN, False, shape.swiglu_limit[-1])


class Model(nn.Module):
    """The whole model, for batches of sequences (B, T) that all begin at position 0."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.shape = shape
        self.embed = nn.Module()
        self.embed.weight = _weight(shape.vocab, shape.dim, std=0.5)
        self.layers = nn.ModuleList(
            Block(shape, ratio, index < shape.n_hash_layers, limit)
            for index, (ratio, limit) in enumerate(zip(shape.ratios, shape.swiglu_limit, strict=True))
        )
        self.hc_head, self.norm = Head(shape), nn.RMSNorm(shape.dim, shape.rms_eps)
        self.head = _linear(shape.dim, shape.vocab)
        self.mtp = nn.ModuleList([NextToken(shape)])
        self.ropes = {False: Rotation(shape, False), True: Rotation(shape, True)}

    def streams(self, run: Pass, wanted: Tensor | None = None) -> Tensor:
        """Return the streams (N, C, D) after the last layer, or only those of the ``wanted`` token indices (n,)."""
        x = self.embed.weight[run.ids.flatten()][:, None].expand(-1, self.shape.hc, -1).contiguous()
        for index, (ratio, layer) in enumerate(zip(self.shape.ratios, self.layers, strict=True)):
            x = layer(x, self.ropes[ratio != PLAIN], run, wanted if index == len(self.layers) - 1 else None)
        return x

    def logits(self, streams: Tensor) -> Tensor:
        """Return the logits (n, V) of streams (n, C, D)."""
        return self.head(self.norm(self.hc_head(streams)))

    def forward(self, ids: Tensor, dense: bool = False) -> Tensor:
        """Return logits (B, T, V) for ids (B, T)."""
        return self.logits(self.streams(Pass(ids, dense))).reshape(*ids.shape, -1)

    def predict_next(self, streams: Tensor, ids: Tensor, run: Pass) -> Tensor:
        """Return the streams (N, C, D) of the block for multi-token prediction, from the model's ``streams`` (N, C, D)
        at each position and the tokens ids (B, T) that follow these positions."""
        block = self.mtp[0]
        e = block.e_proj(block.enorm(self.embed.weight[ids.flatten()]))
        x = e[:, None] + block.h_proj(block.hnorm(streams))
        again = Pass(ids, run.dense)
        x = block.block(x.contiguous(), self.ropes[False], again)
        run.load += again.load
        return x

    def next_logits(self, streams: Tensor) -> Tensor:
        """Return the logits (n, V) of streams (n, C, D) of the block for multi-token prediction."""
        return self.head(self.mtp[0].norm(self.mtp[0].hc_head(streams)))


_HC = {".hc_attn.": ".hc_attn_", ".hc_ffn.": ".hc_ffn_", "hc_head.": "hc_head_", "mtp.0.block.": "mtp.0."}


def _published_name(name: str) -> str:
    for ours, theirs in _HC.items():
        name = name.replace(ours, theirs)
    return name


def published(model: Model) -> dict[str, np.ndarray]:
    """Return published name -> values of all weights, float32 (int64 for the hash routing table)."""
    return {_published_name(name): tensor.cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def load_published(model: Model, weights: Mapping[str, Any]) -> None:
    """Set the model's weights from arrays or tensors by their published names; raise KeyError if one is missing."""
    model.load_state_dict({name: torch.as_tensor(weights[_published_name(name)]) for name in model.state_dict()})
