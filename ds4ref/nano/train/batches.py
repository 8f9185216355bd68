"""Batches of token rows: those that each training step learns from, and held-out questions with their replies, to score
a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...text.tokenizer import Tokenizer
from ..skills import Item, held_out, mixture, tokenizer, training_rng
from ..skills.base import conversation
from ..skills.curriculum import STAGES
from .model import Model, Pass

SHARE = 0.15
"""Share of the tokens outside replies that one step learns, chosen at random; their weights are divided by it."""
PAD = 2


@dataclass(frozen=True)
class Batch:
    """B rows of T tokens, and which of their tokens the model must predict (targets).

    ids      int64 (B, T)
    wanted   indices into the flattened rows, (n,), of tokens whose next token is a target
    targets  these next tokens, int64 (n,)
    weights  of the targets, float32 (n,)
    """

    ids: Tensor
    wanted: Tensor
    targets: Tensor
    weights: Tensor

    @classmethod
    def of(cls, ids: Tensor, weights: Tensor) -> Batch:
        """Return the batch of rows ids (B, T); weights (B, T): of each token as a target, 0 if it is not one."""
        after = torch.zeros_like(weights)
        after[:, :-1] = weights[:, 1:]
        (wanted,) = after.flatten().nonzero(as_tuple=True)
        return cls(ids, wanted, ids.roll(-1, 1).flatten()[wanted], after.flatten()[wanted])


class Steps(torch.utils.data.Dataset[tuple[np.ndarray, np.ndarray]]):
    """The rows of each step of a training stage: item n has those of step n. Equal arguments give equal rows, so other
    processes can make them."""

    def __init__(self, stage: str, seed: int, tokens: int):
        self.kinds, self.seed, self.tokens = STAGES[stage], seed, tokens

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return token ids (B, T) and the weight of each as a target (B, T)."""
        kind = training_rng(self.seed, step).choices(self.kinds, [rows.share for rows in self.kinds])[0]
        count = max(1, self.tokens // kind.length)
        rng = training_rng(self.seed, (step + 1) * 1_000_003)
        ids = np.full((count, kind.length), PAD, np.int64)
        weights = np.zeros((count, kind.length), np.float32)
        for index in range(count):
            ids[index], weights[index] = mixture(kind.weights, rng, kind.length, tokenizer(), **kind.levels)
        some = np.random.default_rng((self.seed, step, 0)).random(weights.shape) < SHARE
        return ids, np.where(weights >= 1, weights, np.where(some, weights / SHARE, 0)).astype(np.float32)


def item_rows(items: Sequence[Item], tables: Tokenizer) -> list[tuple[list[int], int]]:
    """Return, for each question, the token ids of its prompt and reply, and how many of them belong to the reply,
    including the end token."""
    rows = []
    for item in items:
        prompt = item.prompt().encode(tables)
        ids, _ = conversation([item]).encode(tables)
        rows.append((ids, len(ids) - len(prompt)))
    return rows


@torch.no_grad()
def score(model: Model, skill: str, count: int, tables: Tokenizer, seed: int = 0, tokens: int = 8192) -> float:
    """Return the share of held-out questions for which every token of the right reply is the most likely one.

    Greedy decoding would write this reply, so this is the share of right answers, except for those in other words.
    """
    rows = sorted(item_rows(held_out(skill, count, seed), tables), key=lambda row: len(row[0]))
    device = model.head.weight.device
    right = 0
    while rows:
        length = -(-len(rows[-1][0]) // 64) * 64
        some = [rows.pop() for _ in range(min(len(rows), max(1, tokens // length)))]
        ids = torch.full((len(some), length), PAD, device=device)
        weights = torch.zeros((len(some), length), device=device)
        for index, (row, reply) in enumerate(some):
            ids[index, : len(row)] = torch.tensor(row, device=device)
            weights[index, len(row) - reply : len(row)] = 1
        batch = Batch.of(ids, weights)
        best = model.logits(model.streams(Pass(batch.ids, False), batch.wanted)).argmax(-1)
        wrong = batch.wanted[best != batch.targets] // length
        right += len(some) - len(set(wrong.tolist()))
    return right / count
