"""Rows as batches: training steps by number, and graded questions in teacher forcing."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...text.tokenizer import Tokenizer
from ..skills import Item, held_out, mixture, tokenizer, training_rng
from ..skills.base import conversation
from ..skills.curriculum import STAGES, Stage
from .model import Model, Pass

SHARE = 0.15
"""Part of the tokens outside replies that are learned in one step; each weighs as much more."""
PAD = 2


@dataclass(frozen=True)
class Batch:
    """Rows of one length.

    ids      (B, T) int64
    wanted   (n,) positions in the flattened rows whose next token is a target
    targets  (n,) int64
    weights  (n,) float32
    """

    ids: Tensor
    wanted: Tensor
    targets: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return Batch(*(t.to(device, non_blocking=True) for t in (self.ids, self.wanted, self.targets, self.weights)))


def training_batch(stage: Stage, seed: int, step: int, rank: int, tokens: int, tables: Tokenizer) -> Batch:
    """Return the batch of one process at one step, the same for the same arguments."""
    return _batch(*_training_rows(stage, seed, step, rank, tokens, tables))


def _training_rows(
    stage: Stage, seed: int, step: int, rank: int, tokens: int, tables: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids (B, T) and the weight of each as a target (B, T)."""
    kind = training_rng(seed, step).choices(stage.rows, [rows.share for rows in stage.rows])[0]
    count = max(1, tokens // kind.length)
    rng = training_rng(seed, (step + 1) * 1_000_003 + rank)
    ids = np.full((count, kind.length), PAD, np.int64)
    weights = np.zeros((count, kind.length), np.float32)
    for index in range(count):
        row, learn = mixture(kind.weights, rng, kind.length, tables, **kind.levels)
        ids[index, : len(row)], weights[index, : len(row)] = row, learn
    some = np.random.default_rng((seed, step, rank)).random(weights.shape) < SHARE
    return ids, np.where(weights >= 1, weights, np.where(some, weights / SHARE, 0)).astype(np.float32)


class Feed:
    """Makes the batches of coming steps in other processes; each is the one that ``training_batch`` returns."""

    def __init__(self, workers: int, seed: int, rank: int):
        # Spawned: a copy of a process with threads or a GPU's context may hang.
        self._pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
        self._ahead, self._seed, self._rank = 2 * workers, seed, rank
        self._made: dict[tuple[str, int, int], Future[tuple[np.ndarray, np.ndarray]]] = {}

    def get(self, stage: str, step: int, tokens: int) -> Batch:
        """Return the batch of a step, and begin those that follow it."""
        wanted = [(stage, at, tokens) for at in range(step, step + self._ahead)]
        for key in self._made.keys() - wanted:
            self._made.pop(key).cancel()
        for key in wanted:
            if key not in self._made:
                self._made[key] = self._pool.submit(_made_elsewhere, *key, self._seed, self._rank)
        return _batch(*self._made.pop(wanted[0]).result())

    def close(self) -> None:
        """Stop the processes."""
        self._pool.shutdown(cancel_futures=True)


def _made_elsewhere(stage: str, step: int, tokens: int, seed: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    return _training_rows(STAGES[stage], seed, step, rank, tokens, tokenizer())


def _batch(ids: np.ndarray, weights: np.ndarray) -> Batch:
    """Return rows with the weight of each token as a target."""
    after = np.zeros_like(weights)
    after[:, :-1] = weights[:, 1:]
    (wanted,) = after.ravel().nonzero()
    follows = np.roll(ids, -1, axis=1).ravel()[wanted]
    return Batch(*(torch.from_numpy(a) for a in (ids, wanted, follows, after.ravel()[wanted])))


def item_rows(items: Sequence[Item], tables: Tokenizer) -> list[tuple[list[int], int]]:
    """Return the token ids of each question with its reply, and how many of them are the reply, end token included."""
    rows = []
    for item in items:
        prompt = item.prompt().encode(tables)
        ids, _ = conversation([item]).encode(tables)
        assert ids[: len(prompt)] == prompt
        rows.append((ids, len(ids) - len(prompt)))
    return rows


@torch.no_grad()
def score(model: Model, skill: str, count: int, tables: Tokenizer, seed: int = 0, tokens: int = 8192) -> float:
    """Return the share of held-out questions whose every reply token is the most likely one.

    That is what greedy decoding writes, so it is the score but for replies that are right in other words.
    """
    rows = sorted(item_rows(held_out(skill, count, seed), tables), key=lambda row: len(row[0]))
    device = model.head.weight.device
    right = 0
    while rows:
        length = -(-len(rows[-1][0]) // 64) * 64
        some = [rows.pop() for _ in range(min(len(rows), max(1, tokens // length)))]
        ids = np.full((len(some), length), PAD, np.int64)
        weights = np.zeros((len(some), length), np.float32)
        for index, (row, reply) in enumerate(some):
            ids[index, : len(row)], weights[index, len(row) - reply : len(row)] = row, 1
        batch = _batch(ids, weights).to(device)
        best = model.logits(model.streams(Pass(batch.ids, False), batch.wanted)).argmax(-1)
        wrong = batch.wanted[best != batch.targets] // length
        right += len(some) - len(set(wrong.tolist()))
    return right / count
