"""Drafts of the block for multi-token prediction (``archs.deepseek4.mtp``), for one sequence.

Each call gives the block the pairs that it has not seen, the model's streams at p with the token at p + 1; the last of
them predicts the first draft. Further drafts follow from the block's own streams. Their rows are then taken back: the
next call writes those of the model's streams in their place.

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
"""Upper limits of ``depth`` and ``margin``, those of ds4."""

MOST_RECORDED = 8
"""Maximum number of pairs in a recorded pass: the rows of a pass that verifies drafts. More come only after a
prompt."""


class Mtp:
    """Drafts of one sequence by the block; implements ``Draft``.

    depth   maximum number of drafts
    margin  two drafts become one if the logits of the best two tokens for the second are closer than this, as in ds4
    """

    name = "mtp"

    def __init__(self, block: Block, depth: int = MOST_DRAFTED, margin: float = 0.0):
        """Raise UsageError for a number out of range."""
        if not 1 <= depth <= MOST_DRAFTED:
            raise UsageError(f"drafts of multi-token prediction must be 1 to {MOST_DRAFTED}, got {depth}")
        if not 0 <= margin <= MOST_MARGIN:
            raise UsageError(f"the margin of the second draft must be 0 to {MOST_MARGIN:g}, got {margin:g}")
        self.block, self.depth, self.margin = block, depth, margin
        self.window = block.shape.window
        self._rows, self._records = Window(block), block.ops.record() is not None
        self._recordings: dict[tuple[int, int], tuple[Any, Any]] = {}

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Implement ``Draft.propose``. Without streams nothing is known of the sequence: propose nothing."""
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
        """Implement ``Draft.truncate``: the row of a position also holds the token after it."""
        if pos - 1 < self._rows.pos:
            self._rows.rewind(max(pos - 1, 0))

    @staticmethod
    def paired(tokens: Sequence[int], start: int, end: int) -> Sequence[int]:
        """Return the tokens that go with the streams of positions start .. end - 1."""
        return tokens[start + 1 : end + 1]

    def _go_to(self, pos: int) -> None:
        """Continue at ``pos``: with the rows before it, if they are there, else without any."""
        if pos < self._rows.pos:
            self._rows.rewind(pos)
        else:
            self._rows.restart(pos)

    def _step(self, X: np.ndarray, ids: Sequence[int]) -> tuple[np.ndarray, list[int], list[float]]:
        """Run pairs (T, C, D), (T,); return the last one's streams (1, C, D), valid until the next step, its best
        tokens and their logits."""
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
        """Return the recording of a pass of ``count`` pairs and its inputs, None if such a pass is not recorded."""
        block, key = self.block, (count, self.block.ops.threads)
        if count > MOST_RECORDED or not self._records:
            return None
        if key not in self._recordings:
            # a recording for other numbers of threads is of no more use
            self._recordings = {known: made for known, made in self._recordings.items() if known[1] == key[1]}
            self._recordings[key] = recorded(block, [self._rows], [count], [None], count, RANKS)  # type: ignore[arg-type, list-item]
        return self._recordings[key]
