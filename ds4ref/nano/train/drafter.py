"""Train a DSpark drafter for the embedded model, or resume (docs/explanation/model.md 15).

    python -m ds4ref.nano.train.drafter out/dspark --hours 2      from the folder's checkpoint, if there is one
    python -m ds4ref.nano.train.drafter out/dspark --export FILE  the checkpoint as a GGUF file

The model is frozen; its streams after every layer, averaged, are the drafter's context. Blocks begin at random tokens
of the rows that the model was trained on; each guess learns the model's own probabilities, given the row's tokens
before it, and the confidence learns how often its best guess is the model's. Every step computes with the weights as
the file will have them, and changes those before rounding. It may be stopped at any time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ds4ref.kernels.cpu.quantize import quantize
from ds4ref.kernels.formats import FORMATS

from ...archs.deepseek4.dspark import drafter_slots
from ...archs.deepseek4.published import DSPARK_NAMES, EXPERT_NAMES
from ...archs.deepseek4.shape import PLAIN, ModelShape
from ...archs.deepseek4.tensors import Q8_0, Slot
from ...weights.writer import TensorSpec, write_gguf
from ..trained import weights_folder
from .batches import Steps
from .model import HIDDEN as UNSEEN
from .model import Attention, Block, Head, Model, Pass, load_published, rotate
from .optim import optimizers
from .shape import SHAPE

SIZE, RANK, NOISE = 5, 32, 2
"""Tokens of a block, width of the table of token pairs, and the token that stands for unknown ones (padding)."""
TOKENS, BLOCKS, STAGE = 4096, 1024, "long"
"""Tokens and blocks of a step, and the stage of the model's training whose rows are used."""
LENGTH = 1024
"""Rows are cut to so many tokens."""
WARM_UP, MUON, ADAM, SURE = 50, 4e-3, 2e-3, 0.1
"""Steps until the learning rates are reached, these rates, and the weight of the confidence's loss."""


class BlockAttention(Attention):
    """Attention of one stage: each row of a block sees the rows of the context and the whole block."""

    def rows(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return cache rows (..., width) of inputs x (..., D)."""
        return rotate(self.kv_norm(self.wkv(x)), cos, sin)

    def block(self, x: Tensor, context: Tensor, seen: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return outputs (A, S, D) for blocks x (A, S, D), rows of the context (A, W, width) of which those ``seen``
        (A, W) exist, and angles of the blocks' positions (A, S, pairs)."""
        s, (a, size, _) = self.shape, x.shape
        q = self.wq_b(self.q_norm(self.wq_a(x))).reshape(a, size, s.n_heads, s.head_dim)
        q = rotate(F.rms_norm(q, (s.head_dim,), eps=s.rms_eps), cos[:, :, None], sin[:, :, None]) * s.attn_scale
        keys = torch.cat([context, self.rows(x, cos, sin)], 1)
        scores = (q.flatten(1, 2) @ keys.mT).reshape(a, size, s.n_heads, -1)
        visible = torch.cat([seen, seen.new_ones(a, size)], 1)
        scores = scores.masked_fill(~visible[:, None, None], UNSEEN)
        sinks = self.attn_sink.expand(a, size, -1)[..., None]
        p = torch.cat([sinks, scores], -1).softmax(-1)[..., 1:]
        out = (p.flatten(1, 2) @ keys).reshape(a, size, s.n_heads, -1)
        out = rotate(out, cos[:, :, None], -sin[:, :, None])
        groups = out.reshape(a * size, s.o_groups, -1).transpose(0, 1)
        low = groups @ self.wo_a.weight.reshape(s.o_groups, s.o_rank, -1).transpose(1, 2)
        return self.wo_b(low.transpose(0, 1).reshape(a, size, -1))


class DSpark(nn.Module):
    """The drafter. Parameters have published names, but for those of hyper-connections (``model.published``)."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.shape, stages = shape, shape.n_layers
        self.main_proj, self.main_norm = (
            nn.Linear(stages * shape.dim, shape.dim, bias=False),
            nn.RMSNorm(shape.dim, shape.rms_eps),
        )
        self.stages = nn.ModuleList(Block(shape, PLAIN, False, shape.swiglu_limit[-1]) for _ in range(stages))
        for stage in self.stages:
            stage.attn = BlockAttention(shape, PLAIN)
        self.hc_head, self.norm = Head(shape), nn.RMSNorm(shape.dim, shape.rms_eps)
        self.markov_w1 = nn.Parameter(torch.randn(shape.vocab, RANK) * RANK**-0.5)
        self.markov_w2 = nn.Parameter(torch.zeros(shape.vocab, RANK))
        self.confidence = nn.Linear(shape.dim + RANK, 1, bias=False)

    def forward(
        self, model: Model, means: Tensor, ids: Tensor, rows: Tensor, at: Tensor, run: Pass
    ) -> tuple[Tensor, Tensor]:
        """Guess the tokens after positions ``at`` (A,) of the ``rows`` (A,) of ids (B, T).

        means: (B, T, layers, D). Return logits (A, SIZE, V), each given the row's tokens before it, and the logits of
        confidence (A, SIZE).
        """
        s, rope = self.shape, model.ropes[False]
        cos, sin = rope.at(ids.shape[1] + SIZE, ids.device)
        fused = self.main_norm(self.main_proj(means.flatten(2)))
        before = at[:, None] + torch.arange(-s.window, 0)
        seen, before = before >= 0, before.clamp_min(0)
        places = at[:, None] + torch.arange(SIZE)
        own = ids[rows, at][:, None], torch.full((len(at), SIZE - 1), NOISE)
        x = model.embed.weight[torch.cat(own, 1).flatten()][:, None].expand(-1, s.hc, -1).contiguous()
        for stage in self.stages:
            context = stage.attn.rows(fused, cos[: ids.shape[1]], sin[: ids.shape[1]])[rows[:, None], before]
            h, post, comb = stage.hc_attn.pre(x)
            h = stage.attn_norm(h).reshape(len(at), SIZE, -1)
            y = stage.attn.block(h, context, seen, cos[places], sin[places])
            x = stage.hc_attn.post(x, y.flatten(0, 1), post, comb)
            h, post, comb = stage.hc_ffn.pre(x)
            x = stage.hc_ffn.post(x, stage.ffn(stage.ffn_norm(h), ids[:0, 0], run), post, comb)
        y = self.hc_head(x)
        pairs = self.markov_w1[ids[rows[:, None], places]]
        logits = model.head(self.norm(y)).reshape(len(at), SIZE, -1) + pairs @ self.markov_w2.T
        self.state = torch.cat([y.detach().reshape(len(at), SIZE, -1), pairs.detach()], -1)
        return logits, self.confidence(self.state)[..., 0]


class Training:
    """A training run in ``folder``, which continues from its checkpoint if there is one."""

    def __init__(self, folder: Path):
        torch.manual_seed(1)
        self.folder, self.step, self.finish = folder, 0, 0
        self.model = Model(SHAPE)
        load_published(self.model, load_file(weights_folder() / "model.safetensors"))
        self.model.requires_grad_(False)
        self.drafter = DSpark(SHAPE)
        block = self.model.mtp[0]
        self.drafter.hc_head.load_state_dict(block.hc_head.state_dict())
        self.drafter.norm.load_state_dict(block.norm.state_dict())
        for stage in self.drafter.stages:
            stage.load_state_dict(block.block.state_dict())
        self.optimizers = optimizers(self.drafter, ahead=False)
        self.values = published(self.drafter)  # views
        with suppress(FileNotFoundError):
            state = torch.load(folder / "checkpoint.pt", "cpu", weights_only=True)
            self.step = state["step"]
            self.drafter.load_state_dict(state["drafter"])
            for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(own)

    def save(self) -> None:
        """Write a checkpoint, which replaces the previous one atomically."""
        state = {"step": self.step, "drafter": self.drafter.state_dict(),
                 "optimizers": [o.state_dict() for o in self.optimizers]}  # fmt: skip
        torch.save(state, self.folder / "checkpoint.part")
        os.replace(self.folder / "checkpoint.part", self.folder / "checkpoint.pt")

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Give the drafter the weights that its file would have, for a while."""
        before = {}
        for slot in slots():
            for name in _sources(slot) if _format(slot) != "F32" else ():
                value, fmt = self.values[name], _format(slot)
                before[name] = value.copy()
                value[...] = FORMATS[fmt].dequantize(_encoded(value, fmt)).reshape(value.shape)
        try:
            yield
        finally:
            for name, value in before.items():
                self.values[name][...] = value

    def batch(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows of token ids (B, T), and rows and positions (A,) at which blocks begin: nearly all in replies,
        which are what is drafted."""
        ids, weights = Steps(STAGE, 77, TOKENS)[number]
        chance = np.random.default_rng(number)
        starts = [chance.integers(0, max(1, ids.shape[1] - LENGTH + 1)) for _ in ids]
        cut = [slice(start, start + LENGTH) for start in starts]
        ids = np.stack([row[part] for row, part in zip(ids, cut, strict=True)])
        weights = np.stack([row[part] for row, part in zip(weights, cut, strict=True)])
        likely = np.where(weights[:, 1:] >= 1, 1.0, 0.05) * (ids[:, 1:] != NOISE)
        likely[:, -SIZE:] = 0
        chosen = chance.choice(likely.size, min(BLOCKS, likely.size // 4), p=likely.ravel() / likely.sum())
        rows, at = np.divmod(chosen, likely.shape[1])
        return torch.from_numpy(ids), torch.from_numpy(rows), torch.from_numpy(at)

    def context(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means (B, T, layers, D) of the model's streams after every layer, and the last streams
        (N, C, D)."""
        run, taps = Pass(ids, False), []
        x = self.model.embed.weight[ids.flatten()][:, None].expand(-1, SHAPE.hc, -1).contiguous()
        for ratio, layer in zip(SHAPE.ratios, self.model.layers, strict=True):
            x = layer(x, self.model.ropes[ratio != PLAIN], run)
            taps.append(x.mean(1).reshape(*ids.shape, -1))
        return torch.stack(taps, 2), x

    def losses(self, number: int) -> tuple[Tensor, Tensor, Tensor, Pass]:
        """Return the loss of the guesses, that of the confidence, and how many guesses (A, SIZE) are the model's own
        best tokens, with all before them."""
        ids, rows, at = self.batch(number)
        with torch.no_grad():
            taps, x = self.context(ids)
            places = (rows[:, None] * ids.shape[1] + at[:, None] + torch.arange(SIZE)).flatten()
            target = self.model.logits(x[places]).log_softmax(-1).reshape(len(at), SIZE, -1)
        run = Pass(ids, False)
        logits, sure = self.drafter(self.model, taps, ids, rows, at, run)
        loss = F.kl_div(logits.log_softmax(-1), target, reduction="none", log_target=True).sum(-1)
        # a guess is used only if those before it were right: later ones count less
        weight = 0.8 ** torch.arange(SIZE)
        right = logits.argmax(-1) == target.argmax(-1)
        confidence = F.binary_cross_entropy_with_logits(sure, right.float())
        return (loss * weight).mean(), confidence, right, run

    def train(self, seconds: float) -> None:
        """Train for so many seconds, the learning rate falling to 0 over the last half; print a line every 20 steps."""
        begun = saved = time.monotonic()
        seen: list[Any] = []
        while (passed := (time.monotonic() - begun) / seconds) < 1:
            factor = min(1.0, (self.step + 1) / WARM_UP, 2 * (1 - passed))
            with self.rounded():
                loss, confidence, right, run = self.losses(self.step)
                (loss + SURE * confidence).backward()
            for optimizer, rate in zip(self.optimizers, (MUON, ADAM), strict=True):
                optimizer.param_groups[0]["lr"] = rate * factor
                optimizer.step()
            self.drafter.zero_grad()
            for bias, load in run.load:
                load = load.float()
                bias.data += 2e-3 * torch.sign(load.mean() - load)
            self.step += 1
            chains = right.float().cumprod(1).mean(0)
            seen.append([loss.item(), confidence.item(), 1 + chains.sum().item(), *chains.tolist()])
            if self.step % 20 == 0:
                mean = np.mean(seen, 0)
                accepted = " ".join(f"{share:.3f}" for share in mean[3:])
                print(f"step {self.step}: loss {mean[0]:.3f}, confidence {mean[1]:.3f}, {mean[2]:.2f} tokens a pass "
                      f"({accepted}), {100 * passed:.0f} %", flush=True)  # fmt: skip
                seen = []
            if time.monotonic() - saved > 120:
                self.save()
                saved = time.monotonic()
        self.save()


def calibrate(training: Training, batches: int = 12, first: int = 1 << 20) -> float:
    """Fit the confidence anew, on batches that were not trained on: logistic regression of whether a guess is the
    model's best token. Return the mean loss in nats.

    The gradient steps of the training follow states that still change, so their confidence is far from calibrated.
    """
    states, labels = [], []
    with torch.no_grad(), training.rounded():
        for number in range(first, first + batches):
            _, _, right, _ = training.losses(number)
            states.append(training.drafter.state.flatten(0, 1))
            labels.append(right.flatten().float())
    x, wanted = torch.cat(states).double(), torch.cat(labels).double()
    scale = x.std(0) + 1e-6
    weights = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits((x / scale) @ weights, wanted)
        total = value + 1e-4 * weights.square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    with torch.no_grad():
        training.drafter.confidence.weight.copy_((weights / scale)[None].float())
        return float(F.binary_cross_entropy_with_logits((x / scale) @ weights, wanted))


def published(drafter: DSpark) -> dict[str, np.ndarray]:
    """Return published name -> values of all weights, float32."""
    last = f"mtp.{len(drafter.stages) - 1}."
    own = {
        "main_": "mtp.0.main_", "norm.": f"{last}norm.", "hc_head.": f"{last}hc_head_",
        "confidence.": f"{last}confidence_head.proj.", "stages.": "mtp.",
    }  # fmt: skip
    values = {}
    for name, tensor in drafter.state_dict().items():
        prefix = next((each for each in own if name.startswith(each)), None)
        theirs = f"{last}markov_head.{name}.weight" if prefix is None else own[prefix] + name.removeprefix(prefix)
        values[theirs.replace(".hc_attn.", ".hc_attn_").replace(".hc_ffn.", ".hc_ffn_")] = tensor.numpy()
    return values


def slots() -> list[Slot]:
    """Return the slots of the drafter's file."""
    return drafter_slots(SHAPE, SHAPE.n_layers, SHAPE.n_layers, RANK)


def export(drafter: DSpark, path: Path) -> None:
    """Write the drafter as ds4 lays it out, in less than 2 MB."""
    values, stages = published(drafter), SHAPE.n_layers
    specs = [TensorSpec(slot.name, _format(slot), slot.dims) for slot in slots()]
    metadata = [
        ("general.architecture", "string", "deepseek4-dspark"),
        ("general.name", "string", f"DSpark drafter of {SHAPE.name}"),
        ("deepseek4.dspark.layer_count", "u32", stages), ("deepseek4.dspark.block_size", "u32", SIZE),
        ("deepseek4.dspark.markov_rank", "u32", RANK), ("deepseek4.dspark.noise_token_id", "u32", NOISE),
        ("deepseek4.dspark.target_layers", "u32[]", list(range(stages))),
    ]  # fmt: skip
    with write_gguf(path, metadata, specs) as out:
        for slot in slots():
            value = np.concatenate([values[name] for name in _sources(slot)])
            out.write(slot.name, _encoded(value, _format(slot)))


def _sources(slot: Slot) -> list[str]:
    """Return the published names of what a slot holds: one, or all experts'."""
    mtp, stage, name = slot.name.split(".", 2)
    if name in EXPERT_NAMES:
        return [f"{mtp}.{stage}.ffn.experts.{i}.{EXPERT_NAMES[name]}.weight" for i in range(SHAPE.n_experts)]
    return [f"{mtp}.{stage}.{DSPARK_NAMES[name]}"]


def _format(slot: Slot) -> str:
    if slot.part == "experts":
        return "Q4_K" if slot.attr.startswith("ffn_down") else "Q2_K"
    if slot.fmts == Q8_0:
        return "MXFP4"
    if slot.attr.startswith("markov"):
        return "Q8_0"
    return "F32" if len(slot.dims) == 1 else "F16"


def _encoded(values: np.ndarray, fmt: str) -> np.ndarray:
    values = np.ascontiguousarray(values, np.float32)
    return quantize(fmt, values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values[None])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m ds4ref.nano.train.drafter", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("folder", type=Path, help="where checkpoint and log are")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--export", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    training = Training(args.folder)
    if args.export:
        print(f"confidence: {calibrate(training):.3f} nats")
        export(training.drafter, args.export)
    else:
        training.train(3600 * args.hours)


if __name__ == "__main__":
    main()
