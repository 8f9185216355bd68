"""One observation, the noise expected in it, and the candidate explanations (a rounding set, perhaps with a mistake).

case = Case(library, observation, bos)
case.reference("ds4")                noiseless and noisy runs of a correct engine in rounding set "ds4"
case.clean("ds4")                    the candidate "rounding set ds4, no mistake"
case.computed(ideas)                 yield further candidates as they are computed
case.bayes_factor(a, b)              log Bayes factor of candidate a over candidate b
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ds4ref.variants import LIBRARY, MODE_NAMES, SETS, Fault
from ds4ref.variants.families import Family
from ds4ref.variants.runner import AnyFault
from ds4ref.variants.scoped import ScopedFault, Where

from ..observation import Observation
from .evidence import DRIFT, LIMIT, SHORTEST, Fit, Reference, log_student, seen_through, squares, stretches, tail_cost
from .onsets import change_point
from .outside import outside_bugs
from .signatures import REPLICAS, Pass, Signatures

TIE = 1e-4
"""If the scores at the edge of a top-k choice differ by less than this, in standard deviations of all its scores,
another engine's float noise may choose otherwise. That noise is up to 30 times ours (``FOREIGN``); ours is 2.4e-7 at a
block's input and grows tenfold and more through the layers."""
FIRST = 2.5
"""A deviation begins where the level exceeds the mean of a correct engine's largest level by this many standard
deviations: 2 in 100 correct engines exceed it somewhere (Gumbel)."""
AHEAD, KEPT = 16, 6
"""AHEAD: number of observed rows, from the first deviation on, that screen explanations. KEPT: this many of the best
always pass the screening."""
MUCH = 1.0
"""A deviation has become much larger if its level has risen by more than this, that is, if it is 2.7 times as large."""
CLIP = 20.0
"""Bound on log Bayes factors, as eight replicas support no larger ones."""
WORTH = 0.6
"""A screening run saves enough time only if it needs less than this share of the tokens."""
HALVES = ("attention halves", "FFN halves")
LAYERS = ("compressed layers", "layers without compression")


@dataclass(frozen=True, eq=False, kw_only=True)
class Idea:
    """A possible explanation whose run is not yet computed.

    kind        "mode" or "rounding": a rounding set without a mistake; "fault": a known mistake in the forward pass,
                "part": in some layers only, "late": from some position on; "family": a wrong constant; "outside": a
                mistake outside the forward pass
    mode        name of the rounding set, with or without a mistake
    name        name of the mistake, "" without one
    says        one line that describes the mistake, or the rounding set without one
    faults      the faults (bugs) that are injected into the run
    since       first position at which the faults apply
    parameter   of a mistake with a numeric parameter (family): {"name", "value", "low", "high", "right"}
    """

    kind: str
    mode: str
    name: str
    says: str
    faults: tuple[AnyFault, ...] = ()
    since: int = 0
    parameter: dict[str, Any] | None = None

    @property
    def run(self) -> Pass:
        """Return the run of the model that predicts the log probabilities of this explanation."""
        return Pass(self.mode, self.faults, self.name or "clean", self.since)

    @property
    def clean(self) -> bool:
        """Return whether this explanation is a rounding set without a mistake."""
        return self.kind in ("mode", "rounding")

    @property
    def coarse(self) -> bool:
        """Return whether the rounding set quantizes, so that float noise moves values to other quantization steps."""
        return SETS[self.mode].coarse

    @property
    def family(self) -> str:
        """Return the name of the mistake without its parameter's value."""
        return self.name.partition("=")[0]

    @property
    def label(self) -> str:
        """Return the name shown in tables, such as "no_sink@ds4"."""
        return self.mode if self.clean else f"{self.name}@{self.mode}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidate(Idea):
    """A possible explanation (Idea) with its computed prediction.

    rows     (R, K) predicted log probabilities at the observed rows and tokens
    fit      distance of the prediction from the observation
    flipped  position at which ``rows`` come from a run that decided a top-k tie the other way; None otherwise
    """

    rows: np.ndarray
    fit: Fit
    flipped: int | None = None


@dataclass(frozen=True)
class Opening:
    """The early rows on which explanations are screened, so that most need only a short run.

    rows      indices of observed rows: ``AHEAD`` from the first deviation on, and as many from where it becomes much
              larger; without a deviation, the first rows of all
    until     number of tokens that a run needs to reach them
    deviates  whether the rounding set without a mistake deviates there
    """

    rows: np.ndarray
    until: int
    deviates: bool


def parts_of(fault: Fault, scopes: Mapping[str, Where]) -> dict[str, Where]:
    """Return the parts of a model, by name, in which a bug may occur alone; none for some bugs.

    Parts are kinds of layers, single layers, and for a step that each layer computes twice, its attention or FFN half.
    Bugs of storage or of chunk edges belong to no layer, and bugs too small for any but float comparisons are not tried
    in parts.
    """
    if fault.quiet or fault.fmt or fault.tokens:
        return {}
    kinds = HALVES if fault.name.startswith(("hc_", "sinkhorn")) else LAYERS
    return {name: where for name, where in scopes.items() if name in kinds or name.startswith("layer ")}


class Case:
    """One observation, and the runs of our model that may explain it; every run is computed on first use.

    refused  by rounding set, names of explanations that a short run ruled out, with their effect there in nats
    poll     called between runs; may raise to end the work
    """

    def __init__(self, library: Signatures, seen: Observation, bos: int | None):
        self.library, self.seen, self.bos = library, seen, bos
        self.values = np.where(np.isposinf(seen.logprobs), np.nan, seen.logprobs)
        self.storage = np.zeros(len(seen.rows)) if seen.storage is None else np.nanmean(seen.storage, axis=1)
        self._references: dict[str, Reference] = {}
        self._openings: dict[str, Opening | None] = {}
        self.refused: dict[str, dict[str, float]] = {}
        self.poll: Callable[[], None] = lambda: None

    # --- noise

    def rows_of(self, run: Pass) -> np.ndarray:
        """Return the log probabilities (R, K) of a run at the observed rows and tokens."""
        return seen_through(self.seen, self.library.of(run).logprobs)

    def reference(self, mode: str) -> Reference:
        """Return prediction and noise of an engine that computes rounding set ``mode`` without a mistake."""
        return self.reference_of(Pass(mode))

    def reference_of(self, run: Pass) -> Reference:
        """Return prediction and noise of an engine that computes ``run``; the noise comes from noisy replicas."""
        if run.key not in self._references:
            self.library.ahead([run])
            self._references[run.key] = Reference(
                self.rows_of(run), self.replicas(run), self.storage, SETS[run.mode].coarse, self.seen.shared,
                DRIFT if SETS[run.mode].step else 0.0,
            )  # fmt: skip
        return self._references[run.key]

    def replicas(self, run: Pass) -> list[np.ndarray]:
        """Return the log probabilities of ``run`` repeated with float noise, (R, K) each, without storage rounding."""
        return [seen_through(self.seen, each.logprobs) for each in self.library.noisy(run)]

    # --- screening

    def opening(self, mode: str) -> Opening | None:
        """Return the rows on which explanations in rounding set ``mode`` are screened; None if a run that reaches them
        takes most of the tokens.

        They are the first rows at which the set without a mistake deviates, or the first of all if it does not. The
        rounding alone may deviate from the beginning, and a mistake begin later; so the rows from which on the
        deviation is much larger are used, too.
        """
        if mode not in self._openings:
            clean = self.clean(mode)
            first = self.first_beyond(clean)
            rows = np.arange(2 * AHEAD)
            if first is not None:
                at = int(np.searchsorted(self.seen.rows, first))
                later = self._step(clean, at)
                starts = [at] if later is None or later < at + AHEAD else [at, later]
                rows = np.concatenate([start + np.arange(AHEAD) for start in starts])
            rows, end = rows[rows < len(self.seen.rows)], int(rows[-1]) + 1
            until = int(self.seen.rows[end]) if end < len(self.seen.rows) else len(self.library.ids)
            short = until < WORTH * len(self.library.ids)
            self._openings[mode] = Opening(rows, until, first is not None) if short else None
        return self._openings[mode]

    def _step(self, c: Candidate, at: int) -> int | None:
        """Return the index of the row after ``at`` from which on the deviation is ``MUCH`` larger; None if none is."""
        excess = (c.fit.level - self.reference(c.mode).own.mean(axis=0))[at:]
        step = change_point(excess) if np.isfinite(excess).all() else None
        return at + step if step is not None and excess[step:].mean() > excess[:step].mean() + MUCH else None

    def opening_rows(self, idea: Idea, opening: Opening) -> np.ndarray:
        """Return the log probabilities (n, K) that an explanation predicts at an opening's rows, from a short run."""
        part = self.seen.part(opening.rows)
        whole = any(fault.ahead for fault in idea.faults)
        return seen_through(
            part, self.library.of(idea.run if whole else replace(idea.run, until=opening.until)).logprobs
        )

    def gains(self, mode: str, ideas: Sequence[Idea]) -> list[float] | None:
        """Return how much log likelihood each explanation gains over rounding set ``mode`` without a mistake.

        Only the rows of the set's opening count, computed by short runs; None if these would not be short.
        """
        opening = self.opening(mode)
        if opening is None:
            return None
        ref, rows = self.reference(mode), opening.rows
        self.library.ahead(
            replace(idea.run, until=opening.until) for idea in ideas if not any(fault.ahead for fault in idea.faults)
        )

        def cost(predicted: np.ndarray) -> float:
            return tail_cost(squares(self.values[rows], predicted), ref.expected[rows])

        clean, out = cost(ref.predicted[rows]), []
        for idea in ideas:
            self.poll()
            out.append(clean - cost(self.opening_rows(idea, opening)))
        return out

    def screened(self, mode: str, ideas: Iterable[Idea]) -> list[Idea]:
        """Return those of ``ideas``, all in rounding set ``mode``, that a run of the first tokens does not rule out.

        An explanation must hold where the set without a mistake begins to deviate. Except for the best ``KEPT``, those
        that gain less than one unit of log likelihood there, or much less than the best, are ruled out. If the set does
        not deviate, those that lose very much there are ruled out, and added to ``refused``.
        """
        ideas = list(ideas)
        gains, opening = self.gains(mode, ideas), self.opening(mode)
        if gains is None or opening is None or not ideas:
            return ideas
        order = np.argsort(gains)[::-1]
        bar, always = (max(1.0, max(gains) - 2 * CLIP), KEPT) if opening.deviates else (-2 * CLIP, 0)
        passed = {int(i) for n, i in enumerate(order) if n < always or gains[i] > bar}
        if not opening.deviates:
            clean = self.reference(mode).predicted[opening.rows]
            for i in set(range(len(ideas))) - passed:
                moved = squares(clean, self.opening_rows(ideas[i], opening))
                self.refused.setdefault(mode, {})[ideas[i].name] = float(np.sqrt(np.nanmean(moved)))
        return [idea for i, idea in enumerate(ideas) if i in passed]

    # --- candidates

    def candidate(self, idea: Idea, rows: np.ndarray) -> Candidate:
        """Return the candidate for an explanation ``idea`` and its predicted log probabilities ``rows`` (R, K)."""
        return Candidate(**vars(idea), rows=rows, fit=self.reference(idea.mode).fit(self.values, rows))

    def clean(self, mode: str) -> Candidate:
        """Return the candidate "rounding set ``mode``, no mistake"."""
        ref = self.reference(mode)
        idea = Idea(kind="mode" if mode in MODE_NAMES else "rounding", mode=mode, name="", says=SETS[mode].says)
        return Candidate(**vars(idea), rows=ref.predicted, fit=ref.fit(self.values))

    def computed(self, ideas: Iterable[Idea]) -> Iterator[Candidate]:
        """Compute the predictions of several explanations in parallel, and yield the candidates in order."""
        ideas = list(ideas)
        self.library.ahead(idea.run for idea in ideas)
        for idea in ideas:
            yield self.candidate(idea, self.rows_of(idea.run))

    def fault(self, mode: str, name: str) -> Idea:
        """Return the explanation (Idea) that the engine has the known bug ``name`` in rounding set ``mode``."""
        return Idea(kind="fault", mode=mode, name=name, says=LIBRARY[name].says, faults=(LIBRARY[name],))

    def member(self, mode: str, family: Family, value: float, parameter: dict[str, Any] | None = None) -> Idea:
        """Return the explanation (Idea) that a constant of the model (``family``) has the wrong value ``value``.

        ``parameter``: the fitted value with its interval, as in ``Idea``.
        """
        fault, says = family.fault(value), family.describe(value, self.library.engine.shape)
        return Idea(kind="family", mode=mode, name=fault.name, says=says, faults=(fault,), parameter=parameter)

    def part(self, mode: str, name: str, part: str, where: Where) -> Idea:
        """Return the explanation (Idea) that the engine has the known bug ``name`` only in one part of the model.

        ``part``: name of the part; ``where``: function that selects its layers, and attention or FFN halves of layers.
        """
        fault = ScopedFault(LIBRARY[name], part, where)
        return Idea(
            kind="part", mode=mode, name=fault.name, says=f"{LIBRARY[name].says}, in {part} only", faults=(fault,)
        )

    def late(self, mode: str, name: str, since: int) -> Idea:
        """Return the explanation (Idea) that the known bug ``name`` begins at position ``since``, such as in decode."""
        says = f"{LIBRARY[name].says}, from position {since} on (a path of its own, such as decode?)"
        return Idea(
            kind="late", mode=mode, name=f"{name} [from {since}]", says=says, faults=(LIBRARY[name],), since=since
        )

    def outside(self, mode: str, only: Sequence[str] | None = None) -> Iterator[Candidate]:
        """Yield candidates for mistakes outside the forward pass that predict at least one observed number.

        ``only``: names of the mistakes to try (None: all).
        """
        for bug in outside_bugs(self.library, self.bos):
            if only is None or bug.name in only:
                rows = seen_through(self.seen, bug.make(self.library, mode, self.seen))
                if not np.isnan(rows).all():
                    yield self.candidate(Idea(kind="outside", mode=mode, name=bug.name, says=bug.says), rows)

    # --- ties

    def untied(self, c: Candidate, own: Reference | None = None) -> Candidate:
        """Return the candidate with a top-k tie decided the other way, if that explains more; else unchanged.

        Which of two equal scores a top-k selects is not a mistake. So an exact tie where the misfit begins is decided
        the other way, and near ties are tried in runs with more noise, where they go either way. ``own``: noise that
        decides where the misfit begins (None: that of the rounding set).
        """
        first = None if c.coarse or c.kind == "outside" or c.fit.misfit < LIMIT else self.first_beyond(c, own)
        if first is None:
            return c
        at = int(np.searchsorted(self.seen.rows, first))
        start, end = int(self.seen.rows[at - 1]) + 1 if at else 0, first + 1
        if any(fault.ahead for fault in c.faults):
            start, end = 0, len(self.library.ids)
        closest = self.library.of(c.run).margin[start:end].min(initial=np.inf)
        if closest > TIE:
            return c
        tried = [c]
        if closest == 0:
            ties = Pass(c.mode, (*c.faults, LIBRARY["indexer_ties_high"]), f"{c.run.name} ties high", c.since)
            tried.append(self._flipped(c, self.rows_of(ties), first))
        if tried[-1].fit.misfit >= LIMIT:
            tried += [
                self._flipped(c, seen_through(self.seen, run.logprobs), first)
                for run in self.library.noisy(c.run, louder=True)
            ]
        return max(tried, key=lambda one: one.fit.score)

    def _flipped(self, c: Candidate, rows: np.ndarray, first: int) -> Candidate:
        return replace(c, rows=rows, fit=self.reference(c.mode).fit(self.values, rows), flipped=first)

    # --- two candidates against each other

    def bayes_factor(self, a: Candidate, b: Candidate) -> float:
        """Return the log Bayes factor of ``a`` over ``b``, clipped to +-``CLIP``.

        In sets without quantization it is the difference of the log likelihoods. In sets that quantize, this difference
        varies by chance, so its distribution is measured on replicas of both candidates (Student's t for so few).
        """
        ref_a, ref_b = self.reference(a.mode), self.reference(b.mode)

        def difference(values: np.ndarray) -> float:
            return ref_a.fit(values, a.rows).score - ref_b.fit(values, b.rows).score

        here = difference(self.values)
        if not (ref_a.coarse or ref_b.coarse):
            return float(np.clip(here, -CLIP, CLIP))
        densities = []
        for c in (a, b):
            usual = np.array([difference(run) for run in self.runs(c)])
            # at least half a unit, as smaller differences decide nothing
            spread = max(float(usual.std(ddof=1)), 0.5) * np.sqrt(1 + 1 / REPLICAS)
            densities.append(log_student((here - float(usual.mean())) / spread) - np.log(spread))
        return float(np.clip(densities[0] - densities[1], -CLIP, CLIP))

    def runs(self, c: Candidate) -> list[np.ndarray]:
        """Return runs with float noise of our engine with the candidate's mistake: (R, K) each, without storage
        rounding."""
        if c.kind == "outside":
            return [run + c.rows - self.reference(c.mode).predicted for run in self.replicas(Pass(c.mode))]
        return self.replicas(c.run)

    def first_beyond(self, c: Candidate, ref: Reference | None = None) -> int | None:
        """Return the first observed position that the candidate does not fit; None if it fits all of them.

        A position (or a short stretch that begins there) does not fit if its level exceeds the largest level that any
        position (or stretch) has in a correct engine. ``ref``: noise to use (None: that of the rounding set).
        """
        noise = self.reference(c.mode) if ref is None else ref
        own = noise.own
        level = c.fit.level if ref is None else ref.fit(self.values, c.rows).level
        filled = np.where(np.isfinite(level), level, float(np.median(own)))
        for length in (1, SHORTEST):
            if length > 1 and len(level) < 2 * length:
                break
            usual = np.array([stretches(row, length, 1) for row in own])
            largest = usual.max(axis=1)
            scatter = max(float(largest.std(ddof=1)), float(usual.std()) / 2)
            bar = float(largest.mean()) + FIRST * float(np.hypot(scatter, noise.usual.drift))
            beyond = np.flatnonzero(stretches(filled, length, 1) > bar)
            if len(beyond):
                return int(self.seen.rows[beyond[0]])
        return None
