"""Simulate an engine that verifies drafts, with a right or a wrong verifier.

A pass of ``depth`` rows holds the greedy token and depth - 1 drafts. Row r says what comes after token r of the pass,
so draft r is held against row r - 1, and the pass commits its tokens up to the first draft that is refused.

    each row              the best token of each row: greedy decoding, whatever the drafts
    runners-up of row 0   the depth - 1 best tokens of row 0, ds4's former mistake: the top-k of one row where the best
                          of each of k rows was meant. The first draft is held against the right token, so depth 2
                          does not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Timeline(Protocol):
    """The part of a session that a pass needs."""

    @property
    def pos(self) -> int:
        """Return the number of tokens so far."""

    def extend(self, tokens: Sequence[int]) -> np.ndarray:
        """Append tokens and return the logits after each, (T, vocab)."""

    def rewind(self, pos: int) -> None:
        """Drop the tokens from position ``pos`` on."""


Verifier = Callable[[np.ndarray], np.ndarray]
"""Returns the token that each draft is held against, (drafts,), from the rows before the drafts, (drafts, vocab)."""

Drafter = Callable[[Timeline, np.ndarray, int], list[int]]
"""Returns at most ``count`` drafts (third argument) after the timeline's last token, whose row (vocab,) it is given;
the timeline is left as it was."""


def best_of(row: np.ndarray, count: int) -> list[int]:
    """Return the ``count`` best tokens of a row, best first; of equals the lower id."""
    return [int(i) for i in np.argsort(-row, kind="stable")[:count]]


def each_row(rows: np.ndarray) -> np.ndarray:
    """Return the best token of each row."""
    return np.argmax(rows, axis=1)


def row_zero(rows: np.ndarray) -> np.ndarray:
    """Return as many best tokens of the first row as there are rows."""
    return np.array(best_of(rows[0], len(rows)), np.int64)


VERIFIERS: dict[str, Verifier] = {"each row": each_row, "runners-up of row 0": row_zero}


def adversary(timeline: Timeline, row: np.ndarray, count: int) -> list[int]:
    """Draft the best tokens of one row: what a verifier that reads one row accepts."""
    return best_of(row, count)


def oracle(rate: float, rng: np.random.Generator) -> Drafter:
    """Return a drafter of the true continuation, each token replaced by the adversary's at ``rate`` (0 to 1)."""

    def draft(timeline: Timeline, row: np.ndarray, count: int) -> list[int]:
        start, worst, drafts = timeline.pos, adversary(timeline, row, count), []
        for other in worst:
            drafts.append(other if rng.random() < rate else int(np.argmax(row)))
            row = timeline.extend(drafts[-1:])[0]
        timeline.rewind(start)
        return drafts

    return draft


@dataclass(frozen=True)
class Committed:
    """Tokens that a simulated engine committed, and how many each pass gave."""

    ids: list[int]
    passes: list[int]


def speculate(
    timeline: Timeline, prompt: Sequence[int], tokens: int, depth: int, drafter: Drafter, verifier: Verifier
) -> Committed:
    """Continue ``prompt`` greedily by ``tokens`` tokens in passes of ``depth`` rows; the timeline must be empty."""
    row = timeline.extend(prompt)[-1]
    ids: list[int] = []
    passes: list[int] = []
    while len(ids) < tokens:
        start, first = timeline.pos, int(np.argmax(row))
        rows = timeline.extend([first])
        drafts = drafter(timeline, rows[0], depth - 1)
        accepted = 0
        if drafts:
            rows = np.concatenate([rows, timeline.extend(drafts)])
            refused = np.flatnonzero(verifier(rows[:-1]) != drafts)
            accepted = int(refused[0]) if len(refused) else len(drafts)
            if accepted < len(drafts):
                timeline.rewind(start + 1 + accepted)
        kept = [first, *drafts[:accepted]][: tokens - len(ids)]
        row = rows[accepted]
        ids += kept
        passes.append(len(kept))
    return Committed(ids, passes)
