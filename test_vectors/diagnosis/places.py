"""Where a mistake without a name may be: ops and layers ranked by how well changes there explain the numbers.

Thousands of changes of our pass are tried (``variants.edits``), each at one place: an op in one layer or in all. The
score of a change is the log likelihood that it gains over the pass without it, with an error of the same relative size
at every position, as a change near the right place explains part of what is seen, and the right change all of it.
First all changes are run as they are; then the best again, with the size and the positions that fit best. ``FORM``
converts the scores of places into probabilities.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from threading import local
from typing import Any

import numpy as np

from ds4ref.engine import Engine
from ds4ref.variants.edits import changes, everywhere, finer
from ds4ref.variants.replay import Change, Replay
from ds4ref.variants.runner import SMALL

from ..observation import Observation, log_softmax
from .case import Case
from .evidence import seen_through
from .verdict import where

SECONDS = 30.0
"""Most CPU time that the search takes; what was not tried by then has no place in the answer."""
PATIENCE = 4.0
"""Most time that it takes on a machine with other work, in units of that."""
NEARER = 2.0
"""Numbers are compared with those of another set than "exact" only if they are nearer to these by this factor."""
SCREENING = 0.75
"""Share of this time after which no further change is tried."""
FEWEST = 300
"""Number of passes for which there must be time."""
SCREENED, STEP = 48, 16
"""All changes are run on SCREENED tokens, of which the first deviation is one of the first STEP."""
EARLIER = ("attn_comp", "KVcomp", "indexer", "comp_count")
"""Beginnings of the names of ops that make later rows of the cache of tokens before the first deviation."""
EVERY = (*range(2, 25), 32, 48, 64, 96, 128)
"""Periods of wrong positions that are looked for."""
APART, FEW = 0.72, 6
"""Rows are in two groups if this share of their levels' variance is between the groups, and neither has fewer rows; it
is 0.64 for a normal distribution."""
RUNS = (8, 16, 64)
CACHED = {(op, says) for op in ("KVcur", "KVcompress") for says in ("zero", "of the row before")}
"""Changes that are tried at runs of so many positions, too: a page of the cache is another's, or stale."""
WIDTH = 32
"""Number of random directions to which full rows are projected."""
ALL = 0.9
"""Once a change scores this share of what one can, only its layer is changed further."""
REFINED = 48
"""Number of changes that are run on the whole prompt."""
RESIZED = 10
"""Number of these whose size is fitted further, and that are tried in all layers at once."""
A_PLACE = 3
"""Most changes of one place among these."""
SIZED = 1.0
"""Log likelihood that a change of a fitted size costs, relative to the change as it is."""
MASKED = 1.0
"""The same of a change at some positions only."""
SHOWN = 10
Cancel = Callable[[], bool]
Effects = list[tuple[Change, np.ndarray]]
FORM: Mapping[str, float] = {"sharpness": 0.15, "chance": 6.0, "blur": 2.0, "most": 0.95}
"""How scores become probabilities, fitted on mistakes made in Hugging Face (``benchmarks.places``): places share by
exp(sharpness x score); what a change gains by chance, and on what scale gains above that become evidence; the largest
probability."""


@dataclass(frozen=True)
class Place:
    """A place where the mistake may be.

    op           intermediate of the pass (docs/reference/trace.md)
    layer        its layer, -1 for the output head; None: every layer that has it
    positions    first and last position at which something is changed there
    probability  that the mistake is there
    change       the change of our pass there that explains most, in words
    explained    share of the difference that it explains (of mean log square)
    score        log likelihood gained
    """

    op: str
    layer: int | None
    positions: tuple[int, int]
    probability: float
    change: str
    explained: float
    score: float

    def to_json(self) -> dict[str, Any]:
        """Return the place in JSON types."""
        return {"op": self.op, "layer": self.layer, "positions": list(self.positions),
                "probability": round(self.probability, 4), "change": self.change,
                "explained": round(self.explained, 3), "score": round(self.score, 1)}  # fmt: skip

    def text(self) -> str:
        """Return the place in one line."""
        return f"{self.op} of {where(self.layer)}, positions {self.positions[0]} to {self.positions[1]}: {self.change}"


@dataclass(frozen=True)
class Trial:
    """A change with its score, and how far it was taken (``Change.share``)."""

    change: Change
    score: float
    share: float = 1.0

    @property
    def place(self) -> tuple[str, int | None]:
        """Return op and layer."""
        return self.change.op, self.change.layer


@dataclass(eq=False)
class _Difference:
    """The difference to be explained: theirs less ours at the observed rows.

    Full rows are projected at random to ``WIDTH`` numbers, which keeps sums of squares within a tenth or so; an exact
    match stays one.

    seen    the observation
    base    (R, K) our log probabilities
    values  (R, k) the difference, 0 where a value is missing
    noise   (R,) sum of squares that a right engine may have
    columns token ids that are compared, None for all (``Signatures``)
    since   first position of the logits that changes give
    square  (R,) sum of squares of the difference
    total   score of a change that leaves nothing but noise
    """

    seen: Observation
    base: np.ndarray
    values: np.ndarray
    noise: np.ndarray
    columns: np.ndarray | None = None
    since: int = 0
    square: np.ndarray = field(init=False)
    total: float = field(init=False)

    def __post_init__(self) -> None:
        self.seen = replace(self.seen, rows=self.seen.rows - self.since)
        self.known = np.isfinite(self.values)
        self.values = self._projected(np.where(self.known, self.values, 0))
        self.square = np.einsum("rk,rk->r", self.values, self.values)
        self.total = float(0.5 * np.log((self.square + self.noise) / self.noise).sum())

    def _projected(self, values: np.ndarray) -> np.ndarray:
        if values.shape[1] <= WIDTH:
            return values
        return values.astype(np.float32) @ directions(values.shape[1])

    def effect(self, logits: np.ndarray) -> np.ndarray:
        """Return what a change does to the log probabilities, (R, k) like ``values``."""
        with np.errstate(invalid="ignore"):
            logprobs = log_softmax(logits).astype(np.float32)
            moved = seen_through(self.seen, logprobs if self.columns is None else logprobs[:, self.columns]) - self.base
        return self._projected(np.where(self.known & np.isfinite(moved), moved, 0)).astype(np.float32)

    def trial(self, change: Change, effect: np.ndarray, mask: np.ndarray | None = None) -> Trial:
        """Return a change with the score that it has as it is or, if that is more, at the size that fits best.

        mask: (R,) rows that count, if those are the only wrong ones
        """
        both = np.einsum("rk,rk->r", effect, self.values, dtype=np.float64)
        own = np.einsum("rk,rk->r", effect, effect, dtype=np.float64)
        square, noise = self.square, self.noise
        if mask is not None:
            both, own, square, noise = both[mask], own[mask], square[mask], noise[mask]
        weight = 1 / (square + noise)
        size = float(np.clip((weight * both).sum() / max((weight * own).sum(), 1e-30), -3, 3))

        def score(size: float) -> float:
            rest = np.maximum(square - 2 * size * both + size**2 * own, 0)
            return float(-0.5 * np.log((rest + noise) / (square + noise)).sum())

        plain, sized = score(1.0), score(size) - SIZED
        cost = (change.share != 1) * SIZED + (mask is not None or change.mask is not None) * MASKED
        best, share = (plain, change.share) if plain >= sized else (sized, change.share * size)
        return Trial(change, best - cost, share)


@cache
def directions(width: int) -> np.ndarray:
    """Return the matrix (width, WIDTH) by which rows are projected."""
    made = np.random.default_rng(44).standard_normal((width, WIDTH), np.float32)
    return made / np.float32(np.sqrt(WIDTH))


class _Bench:
    """Runs changes in parallel, one replay a thread, until time is over."""

    def __init__(self, engine: Engine, ids: Sequence[int], mode: str, until: float, cancel: Cancel):
        self._make = lambda: Replay(engine, ids, mode, beside=True)
        self._own, self._threads, self.until, self._cancel = local(), max(1, engine.threads), until, cancel
        self.only: int | None = None
        """The only layer that is still changed; None: any."""

    def effects(
        self, changes: Iterable[Change], of: _Difference, count: int | None = None, kept: Effects | None = None
    ) -> Iterator[tuple[Change, np.ndarray]]:
        """Yield (change, effect on the first ``count`` tokens), in order, of those that can be computed before time is
        over, and add them to ``kept``; before ``of.since`` only what makes rows of the cache is changed."""

        def work(change: Change) -> np.ndarray | None:
            if time.process_time() > self.until or self._cancel() or self.only not in (None, change.layer):
                return None
            if not hasattr(self._own, "replay"):
                self._own.replay = self._make()
            try:
                since = 0 if change.op.startswith(EARLIER) else of.since
                return of.effect(self._own.replay.run(change, count, since)[of.since - since :])
            except (IndexError, ValueError):  # an op refuses what the change gives it
                return None

        every = list(changes)
        with ThreadPoolExecutor(self._threads, "ds4ref-places") as pool:
            for change, effect in zip(every, pool.map(work, every), strict=True):
                if effect is not None:
                    if kept is not None:
                        kept.append((change, effect))
                    yield change, effect


def places(
    case: Case, mode: str, seconds: float | None = None, cancel: Cancel | None = None,
    kept: dict[int, Effects] | None = None,
) -> list[Place]:  # fmt: skip
    """Return places where the mistake behind an observation may be, the likeliest first; [] if nothing can be told.

    Nothing can be told of a model other than DeepSeek V4 and V4.1, one on a GPU, one of more than ``SMALL`` bytes, and
    one whose pass takes too long for hundreds of changes.

    mode     rounding set that the numbers are compared with
    seconds  most CPU time that is spent (None: ``SECONDS``)
    cancel   once it returns True, nothing more is tried
    kept     keeps effects for later observations of the same rows and full vocabulary
    """
    library, seen = case.library, case.seen
    seconds = SECONDS if seconds is None else seconds
    size = sum(tensor.nbytes for tensor in library.engine.source.tensors.values())
    if not (
        seconds and library.runner.has_points and library.engine.backend == "cpu" and size < SMALL and len(seen.rows)
    ):
        return []
    if (
        case.clean("exact").fit.rms < NEARER * case.clean(mode).fit.rms
    ):  # our rounding in a coarse set is noise of its own
        mode = "exact"
    start, begun = time.process_time(), time.monotonic()
    ids = library.ids.tolist()
    replay = Replay(library.engine, ids, mode, beside=True)
    before = time.thread_time()
    replay.run(Change("", 0, ""))
    if time.thread_time() - before > seconds / FEWEST:
        return []

    def over() -> bool:
        late = time.monotonic() - begun > PATIENCE * (bench.until - start)
        return late or (cancel is not None and cancel())

    bench = _Bench(library.engine, ids, mode, start + SCREENING * seconds, over)
    of = _difference(case, mode, np.arange(len(seen.rows)))
    first = case.first_beyond(case.clean(mode)) or int(seen.rows[0])
    masks = _masks(of, first, len(ids))
    since = first // STEP * STEP
    count = min(since + SCREENED, len(ids))
    rows = np.flatnonzero((seen.rows >= since) & (seen.rows < count))
    some, effects = _difference(case, mode, rows, since), [] if kept is None else kept.setdefault(since, [])
    trials, every = [], _shuffled(changes(replay.model))
    for change, effect in effects or bench.effects(every, some, count, effects):
        trials.append(some.trial(change, effect))
        if kept is None and trials[-1].score > ALL * some.total:
            bench.only = change.layer
        for mask in masks:
            trials.append(some.trial(replace(change, mask=mask), effect, mask[seen.rows[rows]]))
    tried = 1.0 if bench.only is not None else len(trials) / (len(every) * (1 + len(masks)))
    bench.until, bench.only = start + seconds, None
    final: list[Trial] = []
    again = [trial.change for trial in _leaders(trials, REFINED)]
    at = np.arange(len(ids))
    again += [replace(change, mask=(at >= first) & (at < first + n)) for change in every for n in RUNS
              if first > 1 and (change.op, change.says) in CACHED]  # fmt: skip
    done: set[Any] = set()
    for _ in range(3):  # the size that fits best is approached, as effects are not linear in it
        final += [of.trial(change, effect) for change, effect in bench.effects(again, of)]
        best = _leaders(final, RESIZED)
        again = [replace(t.change, share=t.share) for t in best if abs(t.share - t.change.share) > 1e-3]
        parts = {(c.op, c.layer, c.says, id(c.mask)): c for t in best for c in finer(t.change)}
        again += [change for key, change in parts.items() if key not in done]
        done |= parts.keys()
    if replay.model.shape.n_layers > 1:
        wide = {(t.change.op, t.change.says): everywhere(t.change) for t in _leaders(final, RESIZED)
                if t.change.layer not in (None, -1) and t.change.edits}  # fmt: skip
        final += [of.trial(change, effect) for change, effect in bench.effects(wide.values(), of)]
    return _ranked(final, of, len(ids), min(tried, 1.0))


def _shuffled(every: Iterable[Change]) -> list[Change]:
    """Return changes in an order in which the end may be missing: those of every place are spread over all of it."""
    listed = list(every)
    return [listed[i] for i in np.random.default_rng(44).permutation(len(listed))]


def _difference(case: Case, mode: str, rows: np.ndarray, since: int = 0) -> _Difference:
    """Return the difference at some observed rows (indices), explained by logits from position ``since`` on."""
    clean = case.clean(mode)
    with np.errstate(invalid="ignore"):
        values = case.values[rows] - clean.rows[rows]
    known = np.maximum(np.isfinite(values).sum(axis=1), 1)
    noise = case.reference(mode).expected_at(clean.fit.shift)[rows] * known
    return _Difference(case.seen.part(rows), clean.rows[rows], values, noise, case.library.columns, since)


def _masks(of: _Difference, first: int, tokens: int) -> list[np.ndarray]:
    """Return masks (T,) of the positions that may be the only wrong ones: from the first deviation on, those that
    deviate if many do not, and every n-th if these deviate much more than others."""
    at = np.arange(tokens)
    masks = [at >= first] if first > 1 else []
    if len(of.square) < tokens or first > tokens - 8:
        return masks
    wrong = of.square > 100 * of.noise
    if wrong[first:].mean() < 0.7:
        masks.append(wrong)
    level = 0.5 * np.log(of.square + of.noise)
    much = _louder(level, first)
    if much is not None:
        masks.append(much)
    contrast: list[tuple[float, np.ndarray]] = []
    for n in EVERY:
        for k in range(n):
            inside = (at % n == k) & (at >= first)
            others = (at % n != k) & (at >= first)
            if inside.sum() >= 2:
                more = level[inside].mean() - level[others].mean()
                contrast.append((float(more * np.sqrt(inside.sum())), inside))
    most, mask = max(contrast, key=lambda pair: pair[0], default=(0.0, at < 0))
    if most > 5 * float(level[first:].std()) / np.sqrt(2):
        masks.append(mask)
    return masks


def _louder(level: np.ndarray, first: int) -> np.ndarray | None:
    """Return the mask (T,) of rows whose level is in the higher of two groups; None if there are no two groups.

    A mistake at some tokens reaches later ones through attention, but much weaker.
    """
    known = np.sort(level[first:])
    n = np.arange(1, len(known))
    low = np.cumsum(known)[:-1] / n
    high = (known.sum() - np.cumsum(known)[:-1]) / (len(known) - n)
    between = n * (len(known) - n) * (high - low) ** 2 / len(known) ** 2
    at = int(between.argmax())
    if between[at] < APART * known.var() or min(at + 1, len(known) - at - 1) < FEW:
        return None
    return (level > known[at]) & (np.arange(len(level)) >= first)


def _leaders(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return the best trials, at most ``A_PLACE`` of one place."""
    taken: dict[Any, int] = {}
    out = []
    for trial in sorted(trials, key=lambda t: -t.score):
        kind = trial.place, trial.change.part is None  # a part that is too large explains little, but leads to its own
        if taken.setdefault(kind, 0) < A_PLACE:
            taken[kind] += 1
            out.append(trial)
    return out[:count]


def _ranked(trials: Sequence[Trial], whole: _Difference, tokens: int, tried: float) -> list[Place]:
    """Return the places of the best trials; ``tried``: share of all changes that there was time for."""
    best: dict[Any, Trial] = {}
    for trial in sorted(trials, key=lambda t: -t.score):
        best.setdefault(trial.place, trial)
    leaders = list(best.values())
    scores = np.array([trial.score for trial in leaders])
    chances = tried * probabilities(scores)
    out = []
    for trial, chance in list(zip(leaders, chances, strict=True))[:SHOWN]:
        change = trial.change
        at = np.arange(tokens) if change.mask is None else np.flatnonzero(change.mask)
        says = change.says if change.share == 1 else f"{change.says}, {change.share:.3g} of that"
        out.append(Place(change.op, change.layer, (int(at[0]), int(at[-1])), float(chance), says,
                         max(trial.score, 0) / max(whole.total, 1e-9), trial.score))  # fmt: skip
    return out


def probabilities(scores: np.ndarray, form: Mapping[str, float] = FORM) -> np.ndarray:
    """Return the probability of each place by the score of its best change; the rest is that it is none of them."""
    if not len(scores):
        return scores
    known = 1 - np.exp(-max(float(scores.max()) - form["chance"], 0) / form["blur"])
    odds = np.exp((scores - scores.max()) * form["sharpness"])
    return form["most"] * known * odds / odds.sum()
