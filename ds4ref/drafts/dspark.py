"""Drafts by a DSpark drafter (``archs.deepseek4.dspark``), for one sequence.

The model's passes keep the means of its streams (``Cache.means``). Each call turns those that are new into the
drafter's own rows, then guesses a whole block of tokens in one pass, with the chance of each to be accepted.

    dspark = DSpark(Drafter.open("dspark.gguf", engine.model))
    dspark.attach(cache)
    dspark.propose(tokens, None, 5)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..archs.deepseek4.dspark import Drafter
from ..decode import RANKS, recorded


class DSpark:
    """A source of drafts for one sequence that runs a DSpark drafter; implements ``Draft``.

    least    tokens from the first one on whose chance is below this are dropped, as in ds4 (0.0: none)
    chances  chance of each token that was returned last to be accepted if those before it are
    """

    name = "dspark"
    whole = True

    def __init__(self, drafter: Drafter, least: float = 0.0):
        self.drafter, self.least = drafter, least
        self.chances: list[float] = []
        self._rows, self._records = drafter.rows(), drafter.ops.record() is not None
        self._cache: Any = None
        self._recording: tuple[int, Any] | None = None

    def attach(self, cache: Any) -> None:
        """Implement ``Draft.attach``."""
        self._cache = cache

    def propose(self, tokens: Sequence[int], streams: Any, limit: int) -> list[int]:
        """Implement ``Draft.propose``; the means are read from the cache, not from ``streams``."""
        end, token = len(tokens) - 1, tokens[-1]
        self._read(end)
        guess = self.drafter.chained(token, *self._block(token), count=min(limit, self.drafter.settings.block))
        self.chances = guess.confidence.tolist()
        count = next((i for i, chance in enumerate(self.chances) if chance < self.least), len(guess.tokens))
        return guess.tokens[:count]

    def truncate(self, pos: int) -> None:
        """Implement ``Draft.truncate``."""
        if pos < self._rows.pos:
            self._rows.rewind(pos)

    def _read(self, end: int) -> None:
        """Make the rows of the positions before ``end`` that are new; forget older ones if there is a gap."""
        rows = self._rows
        first, means = self._cache.means(max(rows.pos, end - rows.most))
        if first != rows.pos:
            rows.restart(first)
        if len(means):
            self.drafter.inject(means, rows)

    def _block(self, token: int) -> tuple[Any, Any]:
        """Run the block after ``token``; return what ``Drafter.chained`` takes, valid until the next run."""
        drafter, rows = self.drafter, self._rows
        if not self._records:
            return drafter.forward(token, rows)
        if self._recording is None or self._recording[0] != drafter.ops.threads:
            made: Any = recorded(drafter, [rows], [1], [None], "block", RANKS)  # type: ignore[arg-type, list-item]
            self._recording = drafter.ops.threads, made
        replayed, inputs = self._recording[1]
        inputs.set(token, rows)
        replayed.replay()
        return replayed.kept[0], replayed.kept[1]
