"""Drafts by the block for multi-token prediction (``archs.deepseek4.mtp``), for one sequence.

The block, one more layer in a file of its own, takes pairs: the model's residual streams at position p and the token at
p + 1. Each call passes it the pairs that are new since the last call; the newest pair predicts the first drafted token.
Further ones are predicted from the block's own streams; the cache rows that these wrote are then removed.

    mtp = Mtp(Block.open("mtp.gguf", engine.model))
    mtp.propose(tokens, streams, 2)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..archs.deepseek4.mtp import Block, Window
from ..decode import RANKS, recorded
from ..errors import UsageError

MOST_DRAFTED, MOST_MARGIN = 16, 1000.0
"""Upper limits of ``depth`` and ``margin``, as in ds4."""

MOST_RECORDED = 8
"""Maximum number of pairs in a recorded pass (one that is replayed): as many as a pass verifies at once. More pairs
occur only after a prompt."""


class Mtp:
    """A source of drafts for one sequence that runs the MTP block; implements ``Draft``.

    depth   maximum number of drafted tokens
    margin  of exactly two drafted tokens the second is dropped if the logits of the best two candidates for it differ
            by less than this, as in ds4
    """

    name = "mtp"

    def __init__(self, block: Block, depth: int = MOST_DRAFTED, margin: float = 0.0):
        """Raise UsageError if ``depth`` or ``margin`` is out of range."""
        if not 1 <= depth <= MOST_DRAFTED:
            raise UsageError(f"drafts of multi-token prediction must be 1 to {MOST_DRAFTED}, got {depth}")
        if not 0 <= margin <= MOST_MARGIN:
            raise UsageError(f"the margin of the second draft must be 0 to {MOST_MARGIN:g}, got {margin:g}")
        self.block, self.depth, self.margin = block, depth, margin
        self.window = block.shape.window
        self._rows, self._records = Window(block), block.ops.record() is not None
        self._recordings: dict[tuple[int, int], tuple[Any, Any]] = {}

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Implement ``Draft.propose``; without streams, return no tokens and empty the block's cache."""
        if streams is None:
            self._rows.restart(0)
            return []
        limit, end = min(limit, self.depth), len(tokens) - 1
        if limit < 1 or end < 1:
            return []
        first = end - len(streams)
        start = max(min(self._rows.pos, end - 1), end - self._rows.most)
        if not first <= start == self._rows.pos:
            self._go_to(max(start, first))
        start = self._rows.pos
        X, ids = self.block.ops.host(streams[start - first :]), self.paired(tokens, start, end)
        drafts: list[int] = []
        margins: list[float] = []
        while len(drafts) < limit:
            X, best, (value, *others) = self._step(X, ids)
            margins.append(value - max(others, default=-math.inf))
            drafts.append(best[0])
            ids = drafts[-1:]
        self._rows.rewind(end)
        if len(drafts) == 2 and margins[1] < self.margin:
            del drafts[1]
        return drafts

    def truncate(self, pos: int) -> None:
        """Implement ``Draft.truncate``, from ``pos`` - 1 on, as a cache row depends on the token after its position."""
        if pos - 1 < self._rows.pos:
            self._rows.rewind(max(pos - 1, 0))

    @staticmethod
    def paired(tokens: Sequence[int], start: int, end: int) -> Sequence[int]:
        """Return the tokens that form pairs with the streams of positions start .. end - 1: each the next one."""
        return tokens[start + 1 : end + 1]

    def _go_to(self, pos: int) -> None:
        """Set the block's cache to position ``pos``, keeping the rows before it if it holds them all, else empty."""
        if pos < self._rows.pos:
            self._rows.rewind(pos)
        else:
            self._rows.restart(pos)

    def _step(self, X: np.ndarray, ids: Sequence[int]) -> tuple[np.ndarray, list[int], list[float]]:
        """Run the block on T pairs, streams X (T, C, D) and tokens ids (T,).

        Return, for the last pair, the block's streams (1, C, D), valid until the next step, its best tokens and their
        logits.
        """
        block, rows, ops = self.block, self._rows, self.block.ops
        recording = self._recording(len(ids))
        if recording is None:
            streams, logits = block.forward(X, ids, rows)
            values, best = ops.top(logits, min(RANKS, block.shape.vocab))
        else:
            replayed, inputs = recording
            inputs.set(X, ids, rows)
            replayed.replay()
            rows.advance(len(ids))
            (values, best), (streams, _) = replayed.outputs, replayed.kept
        return ops.host(streams), ops.host(best)[0].tolist(), ops.host(values)[0].tolist()

    def _recording(self, count: int) -> tuple[Any, Any] | None:
        """Return a recorded pass of ``count`` pairs and its inputs, made at first use; None if such passes are not
        recorded."""
        block, key = self.block, (count, self.block.ops.threads)
        if count > MOST_RECORDED or not self._records:
            return None
        if key not in self._recordings:
            # drop recordings made for another number of threads
            self._recordings = {known: made for known, made in self._recordings.items() if known[1] == key[1]}
            self._recordings[key] = recorded(block, [self._rows], [count], [None], count, RANKS)  # type: ignore[arg-type, list-item]
        return self._recordings[key]
