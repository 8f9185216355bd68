"""The training loop: one process a core, gradients summed between them, resumed to the bit.

A step's data depend on its number alone, so a checkpoint is weights, optimizer and counters. Stages follow each other
when their questions are answered well enough (``PLAN``). The learning rate is constant; ``finish`` steps at the end
bring it to zero, from any checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file

from ...archs.deepseek4.shape import PLAIN
from ...kernels.system import keep_freed_memory
from ..skills import GRADED, tokenizer, vocabulary
from ..skills.curriculum import STAGES
from .batches import Batch, Feed, score, training_batch
from .model import Attention, Model, Pass, load_published
from .optim import Optimizer
from .shape import SHAPE


@dataclass(frozen=True)
class Goal:
    """A stage; the next begins when all scores and the share of right reply tokens are reached, or ``most`` tokens."""

    stage: str
    most: int
    batch: int
    right: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    dense: bool = False
    """Attention sees all compressed rows, not only those that the indexer selects."""
    far: bool = False
    """The stage begins with ``reach_far``."""
    exercise: bool = False
    """Most skills are not in the stage yet: they are scored rarely."""


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
"""Every how many steps the block of multi-token prediction learns, from streams that do not learn from it."""
SCORE_EVERY, SCORE_ITEMS = 100, 32
WORKERS = 6
"""Processes that make batches for a GPU."""


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    tokens: int = 0
    goal: int = 0
    goal_tokens: int = 0
    right: float = 0.0
    """Running mean of the share of reply tokens predicted right."""
    finish: tuple[int, int] | None = None
    """First step of the final descent, and its number of steps."""
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """How a run is started.

    seconds  after which it stops
    finish   steps of the final descent, from now; 0 for none
    descend  part of the time that the final descent takes, at its end; 0 for none
    start    folder of published weights to begin with, or ""
    goal     index of the first stage in PLAN
    device   "cpu" or "cuda"
    scale    tokens of a step, as a multiple of PLAN's
    seed     of the rows: runs that follow each other by ``start`` see new rows with new seeds
    """

    seconds: float
    finish: int = 0
    descend: float = 0.0
    start: str = ""
    goal: int = 0
    device: str = "cpu"
    scale: int = 1
    seed: int = 1


class Run:
    """One process of a training run in ``folder``."""

    def __init__(
        self, folder: Path, rank: int, world: int, seed: int = 1, start: Path | None = None, goal: int = 0,
        device: str = "cpu", scale: int = 1,
    ):  # fmt: skip
        self.folder, self.rank, self.world, self.seed = folder, rank, world, seed
        self.device, self.scale = torch.device(device), scale
        self.feed = Feed(WORKERS, seed, rank) if self.device.type == "cuda" else None
        torch.manual_seed(seed)
        self.model, self.tokenizer = Model(SHAPE), tokenizer()
        relate(self.model)
        if start is not None:
            tensors = load_file(start / "model.safetensors")
            load_published(self.model, {name: values.double().numpy() for name, values in tensors.items()})
        self.model.to(self.device)
        self.main = Optimizer(self.model, lambda name: not name.startswith("mtp."))
        self.next = Optimizer(self.model, lambda name: name.startswith("mtp."))
        self.progress = Progress(goal=goal)
        with suppress(FileNotFoundError):
            self.load(torch.load(folder / "checkpoint.pt", "cpu", weights_only=True))

    # --- checkpoints

    def load(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.main.load(state["main"])
        self.next.load(state["next"])
        self.progress = Progress(**state["progress"])

    def save(self) -> None:
        """Write a checkpoint that replaces the one before as a whole."""
        state = {
            "model": self.model.state_dict(), "main": self.main.state(), "next": self.next.state(),
            "progress": asdict(self.progress),
        }  # fmt: skip
        part = self.folder / "checkpoint.part"
        torch.save(state, part)
        os.replace(part, self.folder / "checkpoint.pt")

    def close(self) -> None:
        """Stop the processes that make batches."""
        if self.feed is not None:
            self.feed.close()

    # --- one step

    def rates(self) -> tuple[float, float]:
        """Return the learning rates of Muon and Adam at this step."""
        p = self.progress
        factor = min(1.0, (self.main.steps + 1) / WARM_UP)
        if p.finish is not None:
            factor *= max(0.0, 1 - (p.step - p.finish[0]) / p.finish[1])
        return MUON * factor, ADAM * factor

    def batch(self, goal: Goal) -> Batch:
        """Return the batch of this step."""
        step, tokens = self.progress.step, goal.batch * self.scale // self.world
        if self.feed is not None:
            return self.feed.get(goal.stage, step, tokens).to(self.device)
        return training_batch(STAGES[goal.stage], self.seed, step, self.rank, tokens, self.tokenizer)

    def step(self) -> dict[str, float]:
        """Learn from one batch; return its measures."""
        p, goal = self.progress, PLAN[self.progress.goal]
        batch = self.batch(goal)
        ahead = p.step % NEXT_EVERY == NEXT_EVERY - 1
        run = Pass(batch.ids, goal.dense)
        streams = self.model.streams(run, None if ahead else batch.wanted)
        logits = self.model.logits(streams[batch.wanted] if ahead else streams)
        loss = weighted(logits, batch.targets, batch.weights)
        total = loss + sum(run.index_loss)
        if ahead:
            total = total + NEXT_WEIGHT * self.next_loss(streams.detach(), batch, run)
        (total / self.world).backward()
        measures = torch.stack([loss.detach(), sum(run.index_loss).detach(), self.right(logits, batch)])
        used = [self.main, *([self.next] if ahead else [])]
        if self.world > 1:
            for optimizer in used:
                dist.all_reduce(optimizer.gradient)
            dist.all_reduce(measures)
        for optimizer in used:
            optimizer.step(*self.rates(), self.rank, self.world)
            optimizer.gradient.zero_()
        self.balance(run)
        count = batch.ids.numel() * self.world
        p.step, p.tokens, p.goal_tokens = p.step + 1, p.tokens + count, p.goal_tokens + count
        named = dict(zip(("loss", "index", "right"), (measures / self.world).tolist(), strict=True))
        p.right += 0.03 * (named["right"] - p.right)
        return named

    def next_loss(self, streams: torch.Tensor, batch: Batch, run: Pass) -> torch.Tensor:
        """Return the loss of the token after the next, where both are wanted, by its weight."""
        after = torch.roll(batch.ids, -1, 1)
        beyond = torch.roll(batch.ids, -2, 1).flatten()
        weights = torch.zeros(batch.ids.numel(), device=batch.ids.device)
        weights[batch.wanted] = batch.weights  # of the next token
        inside = batch.wanted % batch.ids.shape[1] < batch.ids.shape[1] - 2
        weights = weights.roll(-1)[batch.wanted] * inside
        logits = self.model.next_logits(self.model.predict_next(streams, after, run)[batch.wanted])
        return weighted(logits, beyond[batch.wanted], weights)

    @staticmethod
    def right(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the share of reply tokens predicted right, a scalar."""
        reply = batch.weights >= 1
        return ((logits.detach().argmax(-1) == batch.targets) & reply).sum() / reply.sum().clamp_min(1)

    def balance(self, run: Pass) -> None:
        """Move the router's biases towards equal use of the experts."""
        for bias, load in run.load:
            load = load.float()
            if self.world > 1:
                dist.all_reduce(load)
            bias.data += BALANCE * torch.sign(load.mean() - load)

    # --- scores and stages

    def measure(self, names: list[str], count: int) -> dict[str, float]:
        """Score held-out questions, shared between the processes."""
        mine = {name: score(self.model, name, count, self.tokenizer) for name in names[self.rank :: self.world]}
        if self.world == 1:
            return mine
        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, mine)
        return {name: value for part in parts for name, value in part.items()}

    def advance(self) -> None:
        """Begin the next stage if this one's goal is reached."""
        p, goal = self.progress, PLAN[self.progress.goal]
        reached = bool(goal.scores or goal.right) and p.right >= goal.right
        reached = reached and all(p.scores.get(name, 0) >= bar for name, bar in goal.scores.items())
        if reached or p.goal_tokens >= goal.most * self.scale:
            p.goal, p.goal_tokens, p.right = p.goal + 1, 0, 0.0
            if PLAN[p.goal].far:
                reach_far(self.model)


def weighted(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted mean cross entropy in nats."""
    return (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum().clamp_min(1e-9)


@torch.no_grad()
def relate(model: Model) -> None:
    """Let spellings of one word begin alike: with and without a blank before it, with a capital; outputs like inputs.

    All embeddings share a part, because no matrix has a bias: what is to be the same for all tokens, such as attention
    by position, has something to be computed from.
    """
    embed = model.embed.weight
    first: dict[str, int] = {}
    for index, token in enumerate(vocabulary().tokens):
        word = token.removeprefix("\u0120").lower()
        if len(word) > 1 and word.isalpha():
            embed[index] = 0.3 * embed[index] + 0.95 * embed[first.setdefault(word, index)]
    model.head.weight.copy_(embed * (SHAPE.dim**-0.5 / embed.std()))
    shared = torch.randn(SHAPE.dim)
    embed.add_(shared * embed.std())
    for layer in model.layers:
        layer.attn.kv_norm.weight.fill_(2.0)  # queries and rows of fixed length: without a gain, attention stays flat
        if layer.attn.ratio != PLAIN:
            layer.attn.compressor.norm.weight.fill_(2.0)
    look_back(model.layers[0].attn, shared / shared.norm())


@torch.no_grad()
def look_back(attention: Attention, shared: torch.Tensor, steps: tuple[int, ...] = (1, 2, 3)) -> None:
    """Let the first heads begin by looking ``steps`` tokens back.

    Neighbours differ by a radian in the fastest pair of channels and less in others. Norms give a row a fixed length,
    so the few channels that tell neighbours apart need a gain that learning is slow to find.
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
    """Let compressed rows be made as the window's rows are, which the queries match already."""
    for layer in model.layers:
        if layer.attn.ratio != PLAIN:
            weight = layer.attn.compressor.wkv.weight
            weight.copy_(layer.attn.wkv.weight.repeat(len(weight) // SHAPE.head_dim, 1))


def descent(elapsed: float, seconds: float, share: float, steps: int) -> int:
    """Return how many steps a descent over the last ``share`` of the time may take; 0 before it is time.

    The first steps, which compile, say nothing about the others.
    """
    if steps < WARM_UP or elapsed < (1 - share) * seconds:
        return 0
    return max(1, int(0.95 * (seconds - elapsed) * steps / elapsed))


def train(rank: int, world: int, folder: str, port: int, settings: Settings) -> None:
    """Run one process until the time is over or the final descent has ended."""
    if settings.device == "cuda":
        torch.set_float32_matmul_precision("high")
    else:
        keep_freed_memory()
        torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    start = Path(settings.start) if settings.start else None
    run = Run(
        Path(folder), rank, world, settings.seed, start, settings.goal, device=settings.device, scale=settings.scale
    )
    p, first = run.progress, run.progress.step
    if settings.finish:
        p.finish = (p.step, settings.finish)
    begun = last = time.monotonic()
    parent = os.getppid()  # a process whose parent was killed stops
    log = open(Path(folder) / "log.jsonl", "a") if rank == 0 else None
    while True:
        before = time.monotonic()
        line: dict[str, Any] = run.step()
        line |= {"step": p.step, "tokens": p.tokens, "stage": PLAN[p.goal].stage, "seconds": time.monotonic() - before}
        ended = p.finish is not None and p.step >= sum(p.finish)
        goal = PLAN[p.goal]
        if p.step % (SCORE_EVERY * (1 if goal.exercise else settings.scale)) == 0 or ended:
            few = goal.exercise and p.step % (10 * SCORE_EVERY)
            p.scores |= run.measure([*goal.scores] if few else [*GRADED], SCORE_ITEMS)
            line["scores"] = dict(p.scores)
            run.advance()
        elapsed = time.monotonic() - begun
        state = torch.tensor([float(ended or elapsed > settings.seconds or os.getppid() != parent), elapsed])
        if world > 1:
            dist.broadcast(state, 0)
        over, elapsed = state.tolist()
        if settings.descend and p.finish is None:
            steps = descent(elapsed, settings.seconds, settings.descend, p.step - first)
            p.finish = (p.step, steps) if steps else None
        if rank == 0:
            assert log is not None
            shown = {name: round(value, 4) if isinstance(value, float) else value for name, value in line.items()}
            print(json.dumps(shown), file=log, flush=True)
            if over or time.monotonic() - last > 120:
                run.save()
                last = time.monotonic()
        if over:
            run.close()
            if log is not None:
                log.close()
            return
