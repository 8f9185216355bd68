"""The training loop: one process, on a GPU if there is one. A stopped run continues exactly where it was.

The data of a step depend only on its number, so a checkpoint is weights, optimizer state and counters. The next stage
begins when the model answers the questions of the current one well enough (``PLAN``). The learning rate is constant,
and falls to zero at the end.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from ...archs.deepseek4.shape import PLAIN
from ..skills import GRADED, tokenizer, vocabulary
from .batches import Batch, Steps, score
from .model import Attention, Model, Pass, load_published
from .optim import optimizers
from .shape import SHAPE


@dataclass(frozen=True)
class Goal:
    """A training stage and its goal: the next stage begins when ``right`` and all ``scores`` are reached, or after
    ``most`` tokens.

    stage   name in ``curriculum.STAGES``
    batch   number of tokens per step
    right   share of reply tokens predicted right
    scores  skill -> share of held-out questions answered right
    """

    stage: str
    most: int
    batch: int
    right: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    dense: bool = False
    """Attention sees all compressed rows, not only those that the indexer selects."""
    far: bool = False
    """The stage begins by calling ``reach_far``."""
    exercise: bool = False
    """The stage does not train most skills yet, so these are scored rarely."""


PLAN = (
    Goal("echo", 1_500_000, 2048, right=0.95, dense=True, exercise=True),
    Goal("pairs", 1_500_000, 2048, right=0.975, dense=True, exercise=True),
    Goal("sentences", 2_500_000, 4096, scores={"recall/window": 0.9, "recall/near": 0.7}, dense=True, far=True,
         exercise=True),
    Goal("search", 1_500_000, 4096, right=0.97, exercise=True),
    Goal("lookup", 1_500_000, 8192, scores={"recall/near": 0.85, "choice": 0.7}),
    Goal("mix", 5_000_000, 8192, scores={"recall/near": 0.9, "choice": 0.9, "tools/open": 0.8}),
    Goal("long", 1 << 60, 8192),
)  # fmt: skip
MUON, ADAM, WARM_UP, BALANCE = 6e-3, 3e-3, 60, 2e-3
NEXT_EVERY, NEXT_WEIGHT = 8, 1.0
"""Interval in steps at which the block for multi-token prediction is trained, and the weight of its loss; its gradient
does not reach the rest of the model."""
SCORE_EVERY, SCORE_ITEMS = 100, 32
WORKERS = 6
"""Number of processes that make batches for a GPU; a single one would be too slow for it."""


@dataclass
class Progress:
    """Counters of a training run; ``goal``: index of the stage in ``PLAN``; ``goal_tokens``: tokens in this stage."""

    step: int = 0
    tokens: int = 0
    goal: int = 0
    goal_tokens: int = 0
    right: float = 0.0
    """Running mean of the share of reply tokens predicted right."""
    finish: tuple[int, int] | None = None
    """First step of the final decrease of the learning rate, and its number of steps; None before it begins."""
    scores: dict[str, float] = field(default_factory=dict)


class Run:
    """A training run in ``folder``; if it contains a checkpoint, the run continues from it.

    start  folder with published weights to begin with; None: random weights
    goal   index in ``PLAN`` of the first stage
    scale  factor of the numbers of tokens in ``PLAN``
    seed   of the rows; a run that starts from another one's weights should have another seed
    """

    def __init__(self, folder: Path, start: Path | None = None, goal: int = 0, scale: int = 1, seed: int = 1):
        self.folder, self.scale, self.seed = folder, scale, seed
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(seed)
        self.model, self.tokenizer = Model(SHAPE), tokenizer()
        relate(self.model)
        if start is not None:
            load_published(self.model, load_file(start / "model.safetensors"))
        self.model.to(self.device)
        self.main, self.next = optimizers(self.model, ahead=False), optimizers(self.model, ahead=True)
        self.progress = Progress(goal=goal)
        with suppress(FileNotFoundError):
            state = torch.load(folder / "checkpoint.pt", "cpu", weights_only=True)
            self.model.load_state_dict(state["model"])
            for optimizer, own in zip((*self.main, *self.next), state["optimizers"], strict=True):
                optimizer.load_state_dict(own)
            self.progress = Progress(**state["progress"])
        self._rows: tuple[int, Iterator[list[torch.Tensor]]] | None = None

    def save(self) -> None:
        """Write a checkpoint, which atomically replaces the previous one."""
        state = {
            "model": self.model.state_dict(), "optimizers": [o.state_dict() for o in (*self.main, *self.next)],
            "progress": asdict(self.progress),
        }  # fmt: skip
        part = self.folder / "checkpoint.part"
        torch.save(state, part)
        os.replace(part, self.folder / "checkpoint.pt")

    # --- one step

    def rates(self) -> tuple[float, float]:
        """Return the learning rates of Muon and of Adam for the current step."""
        p = self.progress
        factor = min(1.0, (p.step + 1) / WARM_UP)
        if p.finish is not None:
            factor *= max(0.0, 1 - (p.step - p.finish[0]) / p.finish[1])
        return MUON * factor, ADAM * factor

    def batch(self) -> Batch:
        """Return the batch of the next step."""
        p, workers = self.progress, WORKERS if self.device.type == "cuda" else 0
        if self._rows is None or self._rows[0] != p.goal:
            steps = Steps(PLAN[p.goal].stage, self.seed, PLAN[p.goal].batch * self.scale)
            context = "spawn" if workers else None  # a forked copy of a process with threads or a GPU may hang
            loader = DataLoader(steps, batch_size=None, sampler=range(p.step, 1 << 60), num_workers=workers,
                                multiprocessing_context=context)  # fmt: skip
            self._rows = p.goal, iter(loader)
        ids, weights = (part.to(self.device, non_blocking=True) for part in next(self._rows[1]))
        return Batch.of(ids, weights)

    def step(self) -> dict[str, float]:
        """Train on one batch; return its loss, the indexer's loss ("index") and the share of reply tokens predicted
        right ("right")."""
        p, goal = self.progress, PLAN[self.progress.goal]
        batch = self.batch()
        ahead = p.step % NEXT_EVERY == NEXT_EVERY - 1
        run = Pass(batch.ids, goal.dense)
        streams = self.model.streams(run, None if ahead else batch.wanted)
        logits = self.model.logits(streams[batch.wanted] if ahead else streams)
        loss = weighted(logits, batch.targets, batch.weights)
        total = loss + sum(run.index_loss)
        if ahead:
            total = total + NEXT_WEIGHT * self.next_loss(streams.detach(), batch, run)
        total.backward()
        measures = torch.stack([loss.detach(), sum(run.index_loss).detach(), self.right(logits, batch)])
        for pair in [self.main, *([self.next] if ahead else [])]:
            for optimizer, rate in zip(pair, self.rates(), strict=True):
                optimizer.param_groups[0]["lr"] = rate
                optimizer.step()
        self.model.zero_grad()
        self.balance(run)
        count = batch.ids.numel()
        p.step, p.tokens, p.goal_tokens = p.step + 1, p.tokens + count, p.goal_tokens + count
        named = dict(zip(("loss", "index", "right"), measures.tolist(), strict=True))
        p.right += 0.03 * (named["right"] - p.right)
        return named

    def next_loss(self, streams: torch.Tensor, batch: Batch, run: Pass) -> torch.Tensor:
        """Return the loss of the block for multi-token prediction: of the token after each target, by its weight."""
        after = torch.roll(batch.ids, -1, 1)
        beyond = torch.roll(batch.ids, -2, 1).flatten()
        weights = torch.zeros(batch.ids.numel(), device=batch.ids.device)
        weights[batch.wanted] = batch.weights  # at each position, the weight of the next token
        inside = batch.wanted % batch.ids.shape[1] < batch.ids.shape[1] - 2
        weights = weights.roll(-1)[batch.wanted] * inside
        logits = self.model.next_logits(self.model.predict_next(streams, after, run)[batch.wanted])
        return weighted(logits, beyond[batch.wanted], weights)

    @staticmethod
    def right(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the share of the batch's reply tokens that are the most likely ones, a scalar tensor."""
        reply = batch.weights >= 1
        return ((logits.detach().argmax(-1) == batch.targets) & reply).sum() / reply.sum().clamp_min(1)

    def balance(self, run: Pass) -> None:
        """Change the router's biases a little so that experts are used more equally; ``run``: the last pass."""
        for bias, load in run.load:
            load = load.float()
            bias.data += BALANCE * torch.sign(load.mean() - load)

    # --- scores and stages

    def advance(self) -> None:
        """Begin the next stage if the current one has reached its goal or its number of tokens."""
        p, goal = self.progress, PLAN[self.progress.goal]
        reached = bool(goal.scores or goal.right) and p.right >= goal.right
        reached = reached and all(p.scores.get(name, 0) >= bar for name, bar in goal.scores.items())
        if reached or p.goal_tokens >= goal.most * self.scale:
            p.goal, p.goal_tokens, p.right = p.goal + 1, 0, 0.0
            if PLAN[p.goal].far:
                reach_far(self.model)


def weighted(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean cross entropy, in nats, of logits (n, V) for targets (n,)."""
    return (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum().clamp_min(1e-9)


@torch.no_grad()
def relate(model: Model) -> None:
    """Initialize the weights so that spellings of one word (with a blank before it, with a capital) begin with similar
    embeddings, and the output matrix as the embedding.

    All embeddings get one vector in common, in place of a bias, which no matrix has: what must be the same for all
    tokens, such as attention by position, can be computed from it.
    """
    embed = model.embed.weight
    first: dict[str, int] = {}
    for index, token in enumerate(vocabulary()[0]):
        word = token.removeprefix("\u0120").lower()
        if len(word) > 1 and word.isalpha():
            embed[index] = 0.3 * embed[index] + 0.95 * embed[first.setdefault(word, index)]
    model.head.weight.copy_(embed * (SHAPE.dim**-0.5 / embed.std()))
    shared = torch.randn(SHAPE.dim)
    embed.add_(shared * embed.std())
    for layer in model.layers:
        layer.attn.kv_norm.weight.fill_(2.0)  # norms fix the length of queries and rows; a gain sharpens attention
        if layer.attn.ratio != PLAIN:
            layer.attn.compressor.norm.weight.fill_(2.0)
    look_back(model.layers[0].attn, shared / shared.norm())


@torch.no_grad()
def look_back(attention: Attention, shared: torch.Tensor, steps: tuple[int, ...] = (1, 2, 3)) -> None:
    """Initialize the first heads of a layer so that they attend to the tokens ``steps`` positions back.

    shared: the direction that all embeddings have in common. RoPE rotates the fastest pair of channels by a radian per
    position and others by less, so the few channels that tell neighbours apart need a gain, which is slow to learn.
    """
    s, pairs, gain = attention.shape, 3, 6.0
    plain, constant = s.plain_dim, (s.dim / 2) ** 0.5
    attention.kv_norm.weight[plain : plain + 2 * pairs] = gain
    for pair in range(pairs):
        for half, size in ((0, 1.4), (1, 0.0)):
            row = attention.wkv.weight[plain + 2 * pair + half]
            row.copy_(0.3 * row + shared * size / constant)
    attention.wq_a.weight[0] = shared * 3 / constant
    for head, back in enumerate(steps):
        for pair in range(pairs):
            angle = back * SHAPE.rope_theta ** (-2 * pair / s.rope_dim)
            at = head * s.head_dim + plain + 2 * pair
            attention.wq_b.weight[at, 0] = 3.0 * math.cos(angle)
            attention.wq_b.weight[at + 1, 0] = -3.0 * math.sin(angle)


@torch.no_grad()
def reach_far(model: Model) -> None:
    """Copy the matrix that makes the sliding window's rows into the compressors: queries already match such rows."""
    for layer in model.layers:
        if layer.attn.ratio != PLAIN:
            weight = layer.attn.compressor.wkv.weight
            weight.copy_(layer.attn.wkv.weight.repeat(len(weight) // SHAPE.head_dim, 1))


def descent(elapsed: float, seconds: float, share: float, steps: int) -> int:
    """Return how many steps the final decrease of the learning rate takes, 0 before the last ``share`` of the time.

    elapsed, seconds: time so far, and in total. steps: done so far; the first ones compile, so are no measure.
    """
    if steps < WARM_UP or elapsed < (1 - share) * seconds:
        return 0
    return max(1, int(0.95 * (seconds - elapsed) * steps / elapsed))


def train(run: Run, seconds: float, descend: float = 0.0) -> None:
    """Train for ``seconds``; in the last ``descend`` of the time, a share, the learning rate falls to zero."""
    torch.set_float32_matmul_precision("high")
    p, first = run.progress, run.progress.step
    begun = last = time.monotonic()
    with open(run.folder / "log.jsonl", "a") as log:
        over = False
        while not over:
            line: dict[str, Any] = run.step()
            goal = PLAN[p.goal]
            line |= {"step": p.step, "tokens": p.tokens, "stage": goal.stage}
            ended = p.finish is not None and p.step >= sum(p.finish)
            if p.step % (SCORE_EVERY * (1 if goal.exercise else run.scale)) == 0 or ended:
                few = goal.exercise and p.step % (10 * SCORE_EVERY)
                names = goal.scores if few else GRADED
                p.scores |= {name: score(run.model, name, SCORE_ITEMS, run.tokenizer) for name in names}
                line["scores"] = dict(p.scores)
                run.advance()
            elapsed = time.monotonic() - begun
            if descend and p.finish is None:
                steps = descent(elapsed, seconds, descend, p.step - first)
                p.finish = (p.step, steps) if steps else None
            over = ended or elapsed > seconds
            print(json.dumps(line), file=log, flush=True)
            if over or time.monotonic() - last > 120:
                run.save()
                last = time.monotonic()
