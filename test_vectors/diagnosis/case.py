"""One observation, its noise model, and the candidates that may explain it.

case = Case(library, observation, bos)
case.reference("ds4")                what right engines of a rounding set look like here
case.clean("ds4")                    a rounding set with nothing wrong, as candidate
case.computed(ideas)                 further candidates, one after the other
case.bayes_factor(a, b)              how much better one candidate explains the observation than another
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ds4ref.variants import LIBRARY, MODE_NAMES, ROUNDING, Fault
from ds4ref.variants.families import Family
from ds4ref.variants.runner import AnyFault
from ds4ref.variants.scoped import ScopedFault, Where

from ..observation import Observation
from .evidence import LIMIT, SHORTEST, Fit, Reference, log_student, seen_through, stretches
from .outside import slips
from .signatures import REPLICAS, Pass, Signatures

TIE = 1e-4
"""Gap of a top-k decision, in units of its scores' spread, that float noise of another engine may close: 30 times ours
(``FOREIGN``), which is 2.4e-7 at a block's input and grows tenfold and more through the layers."""
FIRST = 2.5
"""Standard deviations beyond the mean largest position at which a deviation begins: 2 in 100 right engines reach it
somewhere (Gumbel)."""
CLIP = 20.0
"""Log Bayes factors are clipped here: eight replicas support no larger ones."""
HALVES = ("attention halves", "FFN halves")
LAYERS = ("compressed layers", "layers without compression")


@dataclass(frozen=True, eq=False, kw_only=True)
class Idea:
    """An explanation that was not computed yet.

    kind        mode, rounding (clean sets); fault, family, part, late, pair (in the model); slip (around it)
    mode        the rounding set that it is in
    name, says  of what is wrong; "" and the set's own words for clean sets
    faults      what makes it; ``since`` the position from which on it is in force
    parameter   of a fitted family: {"name", "value", "low", "high", "right"}
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
        """The run of the model that predicts it."""
        return Pass(self.mode, self.faults, self.name or "clean", self.since)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong in it."""
        return self.kind in ("mode", "rounding")

    @property
    def coarse(self) -> bool:
        """Whether its rounding set has steps that float noise flips."""
        return ROUNDING[self.mode].coarse

    @property
    def family(self) -> str:
        """The name, without the size of a family's member."""
        return self.name.partition("=")[0]

    @property
    def label(self) -> str:
        """The name in tables."""
        return self.mode if self.clean else f"{self.name}@{self.mode}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidate(Idea):
    """A computed explanation.

    rows     (R, K) predicted log probabilities
    flipped  position of a top-k tie that ``rows`` decide the other way, if one was found
    """

    rows: np.ndarray
    fit: Fit
    flipped: int | None = None


def parts_of(fault: Fault, scopes: Mapping[str, Where]) -> dict[str, Where]:
    """Select the parts of a model that may have a fault of their own: a kind of layers, or of halves if each layer does
    it twice, or one layer. Storage and chunk edges are no layer's; what only float comparisons see is in none."""
    if fault.quiet or fault.fmt or fault.tokens:
        return {}
    kinds = HALVES if fault.name.startswith(("hc_", "sinkhorn")) else LAYERS
    return {name: where for name, where in scopes.items() if name in kinds or name.startswith("layer ")}


class Case:
    """One observation with its library; everything is computed on first use."""

    def __init__(self, library: Signatures, seen: Observation, bos: int | None):
        self.library, self.seen, self.bos = library, seen, bos
        self.values = np.where(np.isposinf(seen.logprobs), np.nan, seen.logprobs)
        self.storage = np.zeros(len(seen.rows)) if seen.storage is None else np.nanmean(seen.storage, axis=1)
        self._references: dict[str, Reference] = {}

    # --- noise

    def rows_of(self, run: Pass) -> np.ndarray:
        """Log probabilities of a run where the engine was observed, (R, K)."""
        return seen_through(self.seen, self.library.of(run).logprobs)

    def reference(self, mode: str) -> Reference:
        """Noise of right engines of a rounding set."""
        return self.reference_of(Pass(mode))

    def reference_of(self, run: Pass) -> Reference:
        """Noise of engines that compute ``run``, from its replicas."""
        if run.key not in self._references:
            self.library.ahead([run])
            self._references[run.key] = Reference(
                self.rows_of(run), self.replicas(run), self.storage, ROUNDING[run.mode].coarse, self.seen.shared
            )
        return self._references[run.key]

    def replicas(self, run: Pass) -> list[np.ndarray]:
        """``run`` with float noise, (R, K) each, storage rounding left out."""
        return [seen_through(self.seen, each.logprobs) for each in self.library.noisy(run)]

    # --- candidates

    def candidate(self, idea: Idea, rows: np.ndarray) -> Candidate:
        """An idea and its prediction (R, K)."""
        return Candidate(**vars(idea), rows=rows, fit=self.reference(idea.mode).fit(self.values, rows))

    def clean(self, mode: str) -> Candidate:
        """A rounding set with nothing wrong."""
        ref = self.reference(mode)
        idea = Idea(kind="mode" if mode in MODE_NAMES else "rounding", mode=mode, name="", says=ROUNDING[mode].says)
        return Candidate(**vars(idea), rows=ref.predicted, fit=ref.fit(self.values))

    def computed(self, ideas: Iterable[Idea]) -> Iterator[Candidate]:
        """Ideas as candidates, one after the other, computed several at a time."""
        ideas = list(ideas)
        self.library.ahead(idea.run for idea in ideas)
        for idea in ideas:
            yield self.candidate(idea, self.rows_of(idea.run))

    def fault(self, mode: str, name: str) -> Idea:
        """One fault of the library."""
        return Idea(kind="fault", mode=mode, name=name, says=LIBRARY[name].says, faults=(LIBRARY[name],))

    def member(self, mode: str, family: Family, value: float, parameter: dict[str, Any] | None = None) -> Idea:
        """One member of a family."""
        fault, says = family.fault(value), family.describe(value, self.library.engine.shape)
        return Idea(kind="family", mode=mode, name=fault.name, says=says, faults=(fault,), parameter=parameter)

    def part(self, mode: str, name: str, part: str, where: Where) -> Idea:
        """A fault of the library in a part of the model."""
        fault = ScopedFault(LIBRARY[name], part, where)
        return Idea(
            kind="part", mode=mode, name=fault.name, says=f"{LIBRARY[name].says}, in {part} only", faults=(fault,)
        )

    def late(self, mode: str, name: str, since: int) -> Idea:
        """A fault of the library from a position on, as one that decode has and prefill has not."""
        says = f"{LIBRARY[name].says}, from position {since} on (a path of its own, such as decode?)"
        return Idea(
            kind="late", mode=mode, name=f"{name} [from {since}]", says=says, faults=(LIBRARY[name],), since=since
        )

    def pair(self, mode: str, one: str, two: str) -> Idea:
        """Two faults of the library at once."""
        says = f"{LIBRARY[one].says}; and {LIBRARY[two].says}"
        return Idea(kind="pair", mode=mode, name=f"{one} + {two}", says=says, faults=(LIBRARY[one], LIBRARY[two]))

    def slips(self, mode: str, only: Sequence[str] | None = None) -> Iterator[Candidate]:
        """Mistakes outside the model that predict something of what was observed."""
        for slip in slips(self.library, self.bos):
            if only is None or slip.name in only:
                rows = seen_through(self.seen, slip.make(self.library, mode, self.seen))
                if not np.isnan(rows).all():
                    yield self.candidate(Idea(kind="slip", mode=mode, name=slip.name, says=slip.says), rows)

    # --- ties

    def untied(self, c: Candidate, own: Reference | None = None) -> Candidate:
        """The candidate with a top-k tie decided the other way, if its misfit begins at one and that explains more.

        Which of two equal rows a top-k takes is nobody's mistake. Exact ties are tried in the other order; near ones
        fall either way in runs with more noise than usual. ``own`` replaces the clean set's noise in telling where the
        misfit begins.
        """
        first = None if c.coarse or c.kind == "slip" or c.fit.misfit < LIMIT else self.first_beyond(c, own)
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
        """Log Bayes factor of ``a`` over ``b``, clipped.

        In float precision it is the difference of the log likelihoods. Where steps flip, that difference scatters: it
        is held against the same difference on replicas of both candidates, with Student's density for their number.
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
            # at least half a unit: differences below that decide nothing
            spread = max(float(usual.std(ddof=1)), 0.5) * np.sqrt(1 + 1 / REPLICAS)
            densities.append(log_student((here - float(usual.mean())) / spread) - np.log(spread))
        return float(np.clip(densities[0] - densities[1], -CLIP, CLIP))

    def runs(self, c: Candidate) -> list[np.ndarray]:
        """What engines that are this candidate show, (R, K) each, storage rounding left out."""
        if c.kind == "slip":
            return [run + c.rows - self.reference(c.mode).predicted for run in self.replicas(Pass(c.mode))]
        return self.replicas(c.run)

    def first_beyond(self, c: Candidate, ref: Reference | None = None) -> int | None:
        """First observed position that the candidate does not fit; None if there is none.

        The bar is what the largest of all positions reaches in a right engine, or of all short stretches, which begin
        there. ``ref`` replaces the noise of the candidate's clean set.
        """
        own = self.reference(c.mode).own if ref is None else ref.own
        level = c.fit.level if ref is None else ref.fit(self.values, c.rows).level
        filled = np.where(np.isfinite(level), level, float(np.median(own)))
        for length in (1, SHORTEST):
            if length > 1 and len(level) < 2 * length:
                break
            usual = np.array([stretches(row, length, 1) for row in own])
            largest = usual.max(axis=1)
            bar = float(largest.mean()) + FIRST * max(float(largest.std(ddof=1)), float(usual.std()) / 2)
            beyond = np.flatnonzero(stretches(filled, length, 1) > bar)
            if len(beyond):
                return int(self.seen.rows[beyond[0]])
        return None
