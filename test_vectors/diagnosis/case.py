"""One observation and everything it can be held against: predictions, their references, and how each one fits.

A candidate is a rounding set, alone or with something wrong: a fault of the library, a member of a family, a fault in
a part of the model or from a position on, two faults, or a mistake outside the model. All of them are predictions
(R, K) of what was observed, made by the engine itself (``signatures``), and are judged alike (``evidence``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ds4ref.variants import LIBRARY, MODE_NAMES, ROUNDING
from ds4ref.variants.families import Family
from ds4ref.variants.runner import AnyFault
from ds4ref.variants.scoped import ScopedFault, Where

from ..observation import Observation
from .evidence import SHORTEST, Fit, Reference, seen_through, stretches
from .outside import slips
from .signatures import Pass, Signatures

LIMIT = 3.0
"""A right engine's misfit (standard deviations, the largest of three) is above this in a few of a hundred cases."""
TIE = 1e-4
"""Gap of a top-k decision, in units of its scores' spread, below which float noise of another engine may decide it."""
LOUD_RUNS = 12


@dataclass(frozen=True)
class Idea:
    """One explanation that was not looked at yet; fields as in ``Candidate``."""

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
        return Pass(self.mode, self.faults, self.name, self.since)


@dataclass(frozen=True)
class Candidate:
    """One explanation.

    kind        mode, rounding (clean sets); fault, family, scoped, late, pair (inside the model); variant (outside)
    mode        the rounding set it is in
    name, says  of what is wrong; "" and the set's own words for clean sets
    faults      what makes it, for replicas; ``since`` the position from which on it is in force
    rows        (R, K) predicted log probabilities
    parameter   of a family: {"name", "value", "low", "high", "right"}
    flipped     position of a top-k tie that fell the other way in ``rows``, if one was looked for and found
    """

    kind: str
    mode: str
    name: str
    says: str
    rows: np.ndarray
    fit: Fit
    faults: tuple[AnyFault, ...] = ()
    since: int = 0
    parameter: dict[str, Any] | None = None
    flipped: int | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong in it."""
        return self.kind in ("mode", "rounding")

    @property
    def run(self) -> Pass:
        """The run of the model that predicts it."""
        return Pass(self.mode, self.faults, self.name or "clean", self.since)

    @property
    def label(self) -> str:
        """How tables call it."""
        return self.mode if self.clean else f"{self.name}@{self.mode}"


class Case:
    """One observation with its library. Everything is computed when it is first asked for."""

    def __init__(self, library: Signatures, seen: Observation, bos: int | None):
        self.library, self.seen, self.bos = library, seen, bos
        self.values = np.where(np.isposinf(seen.logprobs), np.nan, seen.logprobs)
        self.storage = np.zeros(len(seen.rows)) if seen.storage is None else np.nanmean(seen.storage, axis=1)
        self._references: dict[tuple[str, str], Reference] = {}
        self._clean: dict[str, Candidate] = {}
        self._plain: dict[str, Fit] = {}

    # --- references

    def rows_of(self, logprobs: np.ndarray) -> np.ndarray:
        """A prediction (T, V) where it was observed."""
        return seen_through(self.seen, logprobs)

    def reference(self, mode: str) -> Reference:
        """What right engines of a rounding set show here."""
        key = mode, ""
        if key not in self._references:
            self.library.ahead([Pass(mode)])
            runs = [self.rows_of(each.logprobs) for each in self.library.replicas(mode)]
            clean = self.rows_of(self.library.get(mode).logprobs)
            self._references[key] = Reference(clean, runs, self.storage, ROUNDING[mode].coarse, self.seen.shared)
        return self._references[key]

    def own_reference(self, c: Candidate, count: int) -> Reference:
        """The same for engines with a candidate's mistake: its own runs with float noise."""
        key = c.mode, c.name
        if key not in self._references:
            runs = [self.rows_of(each.logprobs) for each in self.library.noisy(c.run, count)]
            rows = self.rows_of(self.library.of(c.run).logprobs)  # as it is with no tie fallen the other way
            self._references[key] = Reference(rows, runs, self.storage, ROUNDING[c.mode].coarse, self.seen.shared)
        return self._references[key]

    # --- candidates

    def clean(self, mode: str) -> Candidate:
        """A rounding set with nothing wrong."""
        if mode not in self._clean:
            ref = self.reference(mode)
            kind = "mode" if mode in MODE_NAMES else "rounding"
            self._clean[mode] = Candidate(kind, mode, "", ROUNDING[mode].says, ref.predicted, ref.fit(self.values))
        return self._clean[mode]

    def plain(self, c: Candidate) -> Fit:
        """The fit of a clean set measured as other candidates' are, from one run: comparable in ``score``."""
        if c.mode not in self._plain:
            self._plain[c.mode] = self.reference(c.mode).fit(self.values, self.reference(c.mode).predicted)
        return self._plain[c.mode]

    def judged(self, idea: Idea, rows: np.ndarray) -> Candidate:
        """A prediction (R, K) as candidate."""
        found = self.reference(idea.mode).fit(self.values, rows)
        return Candidate(
            idea.kind, idea.mode, idea.name, idea.says, rows, found, idea.faults, idea.since, idea.parameter
        )

    def made(self, *ideas: Idea) -> Iterator[Candidate]:
        """Ideas as candidates, one after the other, computed several at a time."""
        self.library.ahead(idea.run for idea in ideas)
        for idea in ideas:
            yield self.judged(idea, self.rows_of(self.library.of(idea.run).logprobs))

    def fault(self, mode: str, name: str) -> Idea:
        """One fault of the library."""
        return Idea("fault", mode, name, LIBRARY[name].says, (LIBRARY[name],))

    def member(self, mode: str, family: Family, value: float, parameter: dict[str, Any] | None = None) -> Idea:
        """One member of a family."""
        fault = family.fault(value)
        shape = self.library.engine.shape
        return Idea("family", mode, fault.name, family.describe(value, shape), (fault,), 0, parameter)

    def scoped(self, mode: str, name: str, part: str, where: Where) -> Idea:
        """A fault of the library in a part of the model."""
        one = ScopedFault(LIBRARY[name], part, where)
        return Idea("scoped", mode, one.name, f"{LIBRARY[name].says}, in {part} only", (one,))

    def late(self, mode: str, name: str, since: int) -> Idea:
        """A fault of the library from a position on, as one that decode has and prefill has not."""
        says = f"{LIBRARY[name].says}, from position {since} on (a path of its own, such as decode?)"
        return Idea("late", mode, f"{name} [from {since}]", says, (LIBRARY[name],), since)

    def pair(self, mode: str, one: str, two: str) -> Idea:
        """Two faults of the library at once."""
        says = f"{LIBRARY[one].says}; and {LIBRARY[two].says}"
        return Idea("pair", mode, f"{one} + {two}", says, (LIBRARY[one], LIBRARY[two]))

    def outside(self, mode: str, only: Sequence[str] | None = None) -> list[Candidate]:
        """Mistakes outside the model that say something about what was observed."""
        found = []
        for slip in slips(self.library, self.bos):
            if only is not None and slip.name not in only:
                continue
            rows = self.rows_of(slip.make(self.library, mode, self.seen))
            if not np.isnan(rows).all():
                found.append(self.judged(Idea("slip", mode, slip.name, slip.says), rows))
        return found

    # --- ties

    def untied(self, c: Candidate, own: Reference | None = None) -> Candidate:
        """The candidate with a top-k tie decided the other way, if its misfit begins at one and that explains more.

        Which of two equal rows a top-k takes is nobody's mistake. Exact ties are tried in the other order; near ones
        fall either way in runs with more noise than usual. Where the misfit begins is told by ``own``, if given.
        """
        first = None if self.reference(c.mode).coarse or c.kind == "slip" else self.first_beyond(c, own)
        if first is None or c.fit.misfit < LIMIT:
            return c
        at = int(np.searchsorted(self.seen.rows, first))
        start, end = int(self.seen.rows[at - 1]) + 1 if at else 0, first + 1
        if any(fault.ahead for fault in c.faults):
            start, end = 0, len(self.library.ids)
        margin = self.library.of(c.run).margin[start:end]
        if not len(margin) or margin.min() > TIE:
            return c
        found = [c]
        if margin.min() == 0:
            ties = LIBRARY["indexer_ties_high"]
            signature = self.library.of(Pass(c.mode, (*c.faults, ties), f"{c.run.name} ties high", c.since))
            found.append(self._again(c, signature.logprobs, first))
        if found[-1].fit.misfit >= LIMIT:
            for signature in self.library.noisy(c.run, LOUD_RUNS, louder=True):
                found.append(self._again(c, signature.logprobs, first))
        return max(found, key=lambda one: one.fit.score)

    def _again(self, c: Candidate, logprobs: np.ndarray, first: int) -> Candidate:
        rows = self.rows_of(logprobs)
        return replace(c, rows=rows, fit=self.reference(c.mode).fit(self.values, rows), flipped=first)

    # --- two candidates against each other

    def odds(self, a: Candidate, b: Candidate, count: int = 4) -> float:
        """Log odds of ``a`` over ``b``, at most 20 either way, from the difference of their scores: held against what
        engines that are a, and engines that are b, show of it (replicas of both)."""
        ref_a, ref_b = self.reference(a.mode), self.reference(b.mode)

        def difference(values: np.ndarray) -> float:
            return ref_a.fit(values, a.rows).score - ref_b.fit(values, b.rows).score

        here = difference(self.values)
        if not (ref_a.coarse or ref_b.coarse):
            return float(np.clip(here, -20, 20))
        densities = []
        for c in (a, b):
            runs = self.runs(c, count)
            usual = np.array([difference(run) for run in runs])
            spread = max(float(usual.std(ddof=1)), 0.5) * np.sqrt(1 + 1 / len(usual))
            z = (here - float(usual.mean())) / spread
            # few runs: Student's tails
            dof = len(usual) - 1
            densities.append(-np.log(spread) - 0.5 * (dof + 1) * np.log1p(z * z / dof))
        return float(np.clip(densities[0] - densities[1], -20, 20))

    def runs(self, c: Candidate, count: int) -> list[np.ndarray]:
        """What engines that are this candidate show, (R, K) each, storage rounding left out."""
        if c.clean:
            return [self.rows_of(each.logprobs) for each in self.library.replicas(c.mode)]
        if c.kind == "slip":
            shift = c.rows - self.reference(c.mode).predicted
            return [self.rows_of(each.logprobs) + shift for each in self.library.replicas(c.mode)]
        return [self.rows_of(each.logprobs) for each in self.library.noisy(c.run, count)]

    def first_beyond(self, c: Candidate, ref: Reference | None = None) -> int | None:
        """First observed position that the candidate does not fit; None if there is none. The bar is what the largest
        of all positions reaches in a right engine, or of all short stretches, which begin there. ``ref`` if that is not
        a clean engine of its set but one with its mistake."""
        own = self.reference(c.mode).own if ref is None else ref.own
        found = c.fit.level if ref is None else ref.fit(self.values, c.rows).level
        most = own.max(axis=1)
        bar = float(most.mean()) + 2.5 * max(float(most.std(ddof=1)), float(own.std()) / 2)
        with np.errstate(invalid="ignore"):
            bad = np.flatnonzero(found > bar)
        if len(bad) or len(found) < 2 * SHORTEST:
            return int(self.seen.rows[bad[0]]) if len(bad) else None
        usual = np.array([stretches(row, SHORTEST, 1) for row in own])
        most = usual.max(axis=1)
        bar = float(most.mean()) + 2.5 * max(float(most.std(ddof=1)), float(usual.std()) / 2)
        level = np.where(np.isfinite(found), found, float(np.median(own)))
        bad = np.flatnonzero(stretches(level, SHORTEST, 1) > bar)
        return int(self.seen.rows[bad[0]]) if len(bad) else None
