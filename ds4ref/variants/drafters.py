"""Mistakes of DSpark drafters, one at a time, and how many drafted tokens each of them leaves acceptable.

A wrong drafter changes no output, only how many of its guesses the model accepts. So the mistakes are told apart by
acceptance on a known text: ``observe`` runs the model over the text once, ``accepted`` drafts along it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..archs.deepseek4.dspark import Drafter, Pass
from ..archs.deepseek4.mtp import Window
from ..engine import Engine

AT_ONCE = 64
"""Tokens of the text that one pass evaluates: a cache holds the means of so many."""


class _ByRow(Pass):
    def raw_window(self) -> tuple[np.ndarray, np.ndarray]:
        first = np.maximum(self.positions - (self.shape.window - 1), self._first).astype(np.int32)
        return first, (self.pos0 + len(self.positions) - first).astype(np.int32)


class _Causal(Pass):
    def raw_window(self) -> tuple[np.ndarray, np.ndarray]:
        first = np.full(len(self.positions), self._first, np.int32)
        return first, (self.positions - first + 1).astype(np.int32)


class _Late(Pass):
    """Rope angles of the position before."""

    def rope_tables(self, compress: bool | None = None, positions: np.ndarray | None = None) -> Any:
        return self.rope[False](np.maximum(self.positions - 1, 0))


class _Stretched(Pass):
    def rope_tables(self, compress: bool | None = None, positions: np.ndarray | None = None) -> Any:
        return self.rope[True](self.positions)


class _PairsLate(Drafter):
    def before(self, tokens: Sequence[int]) -> int:
        return tokens[max(0, len(tokens) - 2)]


class _StageMissing(Drafter):
    def stages(self) -> Sequence[int]:
        return range(self.shape.n_layers - 1)


def _of(kind: type[Pass]) -> type[Drafter]:
    return type(kind.__name__, (Drafter,), {"passes": lambda self, token, rows, ops=None: kind(self, token, rows, ops)})


@dataclass(frozen=True)
class Mistake:
    """A mistake: ``kind`` replaces the drafter's class; ``settings`` returns changed settings; ``means`` returns what
    reaches the drafter instead of the means (T, layers, D) after its layers, given also those of the layers before."""

    name: str
    says: str
    kind: type[Drafter] = Drafter
    settings: Callable[[Drafter], dict[str, Any]] = lambda drafter: {}
    means: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda after, before: after

    def of(self, drafter: Drafter) -> Drafter:
        """Return a drafter with this mistake and the same weights."""
        wrong = copy.copy(drafter)
        wrong.__class__ = self.kind
        wrong.settings = replace(drafter.settings, **self.settings(drafter))
        return wrong


def _shifted(means: np.ndarray, by: int) -> np.ndarray:
    return np.concatenate([means[:1]] * by + [means[:-by]])


MISTAKES = {
    mistake.name: mistake
    for mistake in (
        Mistake("window_by_row", "each row of a block has a sliding window of its own", _of(_ByRow)),
        Mistake("causal_block", "a row of a block does not see the later ones", _of(_Causal)),
        Mistake("rope_late", "rows of a block are rotated by the position before", _of(_Late)),
        Mistake("rope_stretched", "rows of a block are rotated with YaRN", _of(_Stretched)),
        Mistake("taps_before", "streams are read before the target layers, not after them",
                means=lambda after, before: before),
        Mistake("taps_late", "the streams of each position are those of the position before",
                means=lambda after, before: _shifted(after, 1)),
        Mistake("context_stale", "the streams of the newest positions are missing: older ones stand in their place",
                means=lambda after, before: _shifted(after, 6)),
        Mistake("noise_token", "noise is the token 0", settings=lambda drafter: {"noise": 0}),
        Mistake("pairs_late", "pairs begin with the token before the last", _PairsLate),
        Mistake("stage_missing", "the last stage is not run", _StageMissing),
    )
}  # fmt: skip
"""Mistakes that acceptance can show. A confidence of normed states shows only where confidence ends drafts; the sum of
the streams instead of their mean changes nothing, as a norm follows."""


def of_width(block: int) -> Mistake:
    """Return the mistake of running blocks of another number of tokens than the drafter was trained for."""
    return Mistake("width", f"blocks have {block} tokens", settings=lambda drafter: {"block": block})


def opened(path: str, engine: Engine) -> closing[Drafter]:
    """Return the drafter in a file or folder for the engine's model, to be closed; errors as ``Drafter.open``."""
    return closing(Drafter.open(path, engine.model))


@dataclass(frozen=True)
class Observed:
    """What the model does on a text: means of its streams (T, layers, D) after the drafter's layers, and after the
    layers before these; its best next token after each position, (T,)."""

    ids: list[int]
    after: np.ndarray
    before: np.ndarray
    best: np.ndarray


def observe(engine: Engine, drafter: Drafter, ids: Sequence[int], progress: Any = None) -> Observed:
    """Run the model over the text ``ids``. progress: called with (tokens done, all tokens)."""
    model: Any = engine.model
    after = drafter.settings.targets
    before = tuple(max(0, layer - 1) for layer in after)
    tapped, model.tapped = model.tapped, tuple(sorted({*after, *before}))
    layers = list(model.tapped)
    try:
        cache = model.cache(len(ids))
    finally:
        model.tapped = tapped
    means, best = [], []
    for start in range(0, len(ids), AT_ONCE):
        part = np.array(ids[start : start + AT_ONCE], np.int32)
        logits = model.ops.host(model.logits(model.forward(part, cache), start))
        best.append(logits.argmax(-1))
        first, some = cache.means(start)
        assert first == start
        means.append(some)
        if progress is not None:
            progress(start + len(part), len(ids))
    whole = np.concatenate(means)
    taps = [np.ascontiguousarray(whole[:, [layers.index(layer) for layer in each]]) for each in (after, before)]
    return Observed(list(ids), taps[0], taps[1], np.concatenate(best))


def accepted(
    drafter: Drafter, seen: Observed, mistake: Mistake | None = None, start: int = 1, width: int | None = None
) -> list[int]:
    """Draft along the text from position ``start`` on, as an engine would, and return how many tokens of each draft are
    accepted.

    A drafted token is accepted if it is the text's next one and the model's best, all before it being so; the next
    draft begins after the token that the model then adds, the last one before the text's last token. width: tokens that
    a draft keeps, at most (None: a block's).
    """
    means = seen.after if mistake is None else mistake.means(seen.after, seen.before)
    one = drafter if mistake is None else mistake.of(drafter)
    rows, counts, at = Window(one), [], start
    width = one.settings.block if width is None else width
    right = np.array(seen.ids[1:]) == seen.best[:-1]
    while at + 1 < len(seen.ids):
        inject_from = max(rows.pos, at - rows.most)
        if inject_from != rows.pos:
            rows.restart(inject_from)
        one.inject(means[inject_from:at], rows)
        tokens = one.guess(seen.ids[at], rows).tokens[: min(width, len(right) - at)]
        hits = [token == seen.ids[at + 1 + i] and right[at + i] for i, token in enumerate(tokens)]
        count = hits.index(False) if False in hits else len(hits)
        counts.append(count)
        at += count + 1
    return counts
