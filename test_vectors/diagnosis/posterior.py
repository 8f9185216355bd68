"""The posterior of the candidates of one case, and the rule that chooses among them.

    log posterior = log prior + log likelihood, up to a constant

The prior of a candidate is the share of its rounding set times the share of its kind of mistake (calibration.json),
each divided by the number of candidates that share it. ``Fit.score``, from one run, ranks candidates.
``Posterior.odds`` of two candidates, which measures the scatter of the scores on replicas, decides:

    fault       it fits, and its log odds are ACCUSED over every clean set and NAMED over every other mistake
    clean       it fits, and no mistake that fits has better odds than the best clean set
    otherwise   undecided or unknown (decide.py)

A candidate fits if its misfit is below ``LIMIT``, or if all that it leaves is small and uniform.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ds4ref.variants import LIBRARY, MODE_NAMES, ROUNDING
from ds4ref.variants.scoped import scopes

from .calibration import log_prior
from .case import CLIP, Candidate, Case, parts_of
from .evidence import FLOAT_FLOOR, LIMIT, WEIGHT, Fit, Reference, limit_of, log_student, projection, squares
from .fitting import value_of
from .outside import outside_bugs

ACCUSED = float(np.log(1000.0))
"""Log odds over every clean set required to name a mistake: one correct engine in a thousand may be called wrong."""
NAMED = float(np.log(8.0))
"""Log odds over every other mistake required to name one: one name in nine may be wrong, though the engine has a
mistake."""
CONTENDERS = 5
"""Number of best mistakes that are compared on replicas; each costs eight passes."""
BY_CHANCE = 0.01
"""Share of a rounding set's noise below which hundreds of numbers of a position do not agree with exact by chance."""
SAME = 0.5
"""Mean l below which two predictions count as equal: their distance is below e^0.5 times the noise of either."""


class Posterior:
    """Candidate explanations of one observation, and their posterior odds."""

    def __init__(self, case: Case):
        self.case = case
        self.candidates: list[Candidate] = []
        shape = case.library.engine.shape
        faults, around = len(LIBRARY), len(outside_bugs(case.library, case.bos))
        parts = sum(len(parts_of(fault, scopes(shape))) for fault in LIBRARY.values())
        members = sum(len(family.grid(shape)) for family in case.library.families.values())
        self._counts = {
            "clean": 1, "fault": faults, "outside": around, "family": members, "part": parts,
            "late": faults * len(case.library.ids),
        }  # fmt: skip
        # computed at most once for each candidate
        self.own, self.median, self.odds = cache(self._own), cache(self._median), cache(self._odds)

    # --- prior and likelihood

    def log_prior(self, c: Candidate) -> float:
        """Return the log prior of a candidate: of its rounding set plus of its kind of mistake."""
        modes = len(MODE_NAMES)
        mode = ("mode", modes) if c.mode in MODE_NAMES else ("rounding", len(ROUNDING) - modes)
        kind = "clean" if c.clean else c.kind
        return log_prior("sets", *mode) + log_prior("kinds", kind, self._counts[kind])

    def score(self, c: Candidate) -> float:
        """Return the log posterior of a candidate from one run, up to a constant; used for ranking."""
        return self.log_prior(c) + c.fit.score

    def _odds(self, a: Candidate, b: Candidate) -> float:
        """Log posterior odds of ``a`` over ``b``, clipped."""
        prior = self.log_prior(a) - self.log_prior(b)
        scatter = log_student(max(self.misfit(a), 0.0)) - log_student(max(self.misfit(b), 0.0))
        return float(np.clip(prior + scatter + self.case.bayes_factor(a, b), -CLIP, CLIP))

    def misfit(self, c: Candidate) -> float:
        """Return a candidate's misfit by the noise of its rounding set or of its own runs, whichever is smaller."""
        if c.clean or c.kind == "outside" or c.fit.misfit < LIMIT:
            return c.fit.misfit
        return min(c.fit.misfit, self.own(c).misfit)

    def _own(self, c: Candidate) -> Fit:
        """Fit by the candidate's own replicas, if it is near enough for them to matter."""
        noise = float(np.sqrt(self.case.reference(c.mode).expected.mean()))
        nearest = min(each.fit.rms for each in self.candidates if each.clean)
        near = c.fit.rms < (3 * noise if c.coarse else nearest / 5)
        return self.case.reference_of(c.run).fit(self.case.values, c.rows) if near else c.fit

    def fits(self, c: Candidate) -> bool:
        """Return whether a candidate explains the observation to within noise, or up to a small uniform difference."""
        return self.misfit(c) < LIMIT or self.residue(c) is not None

    def residue(self, c: Candidate) -> float | None:
        """Return the rms in nats that a mistake leaves unexplained, if small and uniform like a rounding; else None.

        Small is a tenth of what any other mistake leaves.
        """
        if c.clean or c.coarse or not np.isfinite(c.fit.level).all():
            return None
        r = c.fit.level + 0.5 * np.log(self.case.reference(c.mode).expected) + c.fit.shift
        others = [self.median(other) for other in self.candidates if other.family != c.family]
        small = bool(others) and self.median(c) < 0.1 * min(others)
        return c.fit.rms if small and float(r.std()) <= 0.5 else None

    def _median(self, c: Candidate) -> float:
        """Median over positions of the root mean square difference, nats: a tie that fell the other way makes half of
        the positions of every candidate alike."""
        r = squares(self.case.values, c.rows)
        r = r[np.isfinite(r)]
        return float(np.sqrt(np.median(r))) if len(r) else np.inf

    # --- the best

    def ranked(self, clean: bool | None = None) -> list[Candidate]:
        """Return the candidates, best first; ``clean``: only those without (True) or with a mistake (False)."""
        chosen = [c for c in self.candidates if clean is None or c.clean is clean]
        return sorted(chosen, key=self.score, reverse=True)

    def clean(self, mode: str) -> Candidate:
        """Return the candidate "rounding set ``mode``, no mistake"."""
        return next(c for c in self.candidates if c.clean and c.mode == mode)

    def answer(self) -> Candidate | None:
        """Return the best candidate without a mistake that fits and is distinct from narrower rounding sets; None if
        none."""
        return next((c for c in self.ranked(clean=True) if c.fit.misfit < LIMIT and self.told_apart(c)), None)

    def champion(self) -> Candidate | None:
        """Return the best mistake that fits; None if there is none.

        In sets that quantize scores scatter, so the best few are compared by odds.
        """
        wrong = self.ranked(clean=False)[:CONTENDERS]
        near = [c for c in wrong if self.score(c) > self.score(wrong[0]) - CLIP and self.fits(c)]
        if len(near) > 1 and near[0].coarse:
            return max(near, key=self.over)
        return near[0] if near else None

    def over(self, c: Candidate) -> float:
        """Return the log odds of a candidate with a mistake over the best one without."""
        return self.odds(c, self.ranked(clean=True)[0])

    def rival(self, c: Candidate) -> tuple[Candidate | None, float]:
        """Return the best mistake with another name, in any rounding set, and the log odds of ``c`` over it.

        Mistakes whose predictions are no further apart than correct engines count as the same.
        """
        ref = self.case.reference(c.mode)
        for other in self.ranked(clean=False):
            if other.family != c.family and not (other.mode == c.mode and ref.level(other.rows, c.rows) < SAME):
                return other, self.odds(c, other)
        return None, CLIP

    def proven(self) -> Candidate | None:
        """Return the mistake that the evidence allows to name; None if there is none."""
        c = self.champion()
        certain = c is not None and self.over(c) >= ACCUSED and self.rival(c)[1] >= NAMED and self.told_apart(c)
        return c if certain else None

    # --- wide and narrow sets

    def told_apart(self, c: Candidate) -> bool:
        """Return whether the data distinguishes a candidate from the same one in a narrower rounding set (less noise).

        The data's projection on the line from the narrower prediction (0) to this one (1) is compared with the
        projections of engines of this candidate. A set whose own engines do not lie apart from 0 can never be
        distinguished.
        """
        ref = self.case.reference(c.mode)
        if not ref.coarse:
            return True
        modes = [each.mode for each in self.candidates if each.clean and self._narrower(each.mode, ref)]
        same = [o for o in self.candidates if (o.kind, o.name) == (c.kind, c.name) and o.mode in modes]
        missing = [mode for mode in modes if mode not in {o.mode for o in same}]
        if c.clean:
            same = [self.clean(mode) for mode in modes]
        elif c.kind == "fault":
            able = [m for m in missing if c.name in {fault.name for fault in self.case.library.faults(m)}]
            same += self.case.computed(self.case.fault(mode, c.name) for mode in able)
        elif c.kind == "family":
            family, value = self.case.library.families[c.family], value_of(c)
            same += self.case.computed(self.case.member(mode, family, value) for mode in missing)
        if not c.clean and c.mode not in MODE_NAMES and modes and not same:
            return False
        if not c.clean and c.kind != "outside" and not self._moves(c, ref):
            return False
        limit = limit_of(max(len(same), 1))
        return all(self._lies_at(c, ref, other.rows, limit) for other in same)

    def _moves(self, c: Candidate, ref: Reference) -> bool:
        """Whether a mistake moves its own engines off the right prediction, and not only roundings of one of its runs.

        A mistake of the size of float noise turns other roundings in each engine that makes it; one such run can lie
        near the data as any other draw of noise can.
        """
        usual = self._places(c, self.clean(c.mode).rows, 1 / ref.expected)
        return float(usual.mean()) > LIMIT * max(float(usual.std(ddof=1)), 0.01)

    def _places(self, c: Candidate, base: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Where a candidate's own engines lie on the line from ``base`` (0) to its prediction (1)."""
        return np.array([projection(run, base, c.rows, weight) for run in self.case.runs(c)])

    def _narrower(self, mode: str, ref: Reference) -> bool:
        """Whether a set's noise is less than half of another's."""
        return bool(np.mean(np.log(ref.expected / self.case.reference(mode).expected)) > np.log(2.0))

    def _lies_at(self, c: Candidate, ref: Reference, narrower: np.ndarray, limit: float) -> bool:
        """Whether the data's place on the line from ``narrower`` to this candidate is that of its own engines."""
        weight = 1 / ref.expected
        usual = self._places(c, narrower, weight)
        here = projection(self.case.values, narrower, c.rows, weight)
        spread = max(float(usual.std(ddof=1)), 0.01) * np.sqrt(1 + 1 / len(usual))
        mean = float(usual.mean())
        return mean > LIMIT * spread and here > 0.5 and abs(here - mean) < limit * spread + 0.1 * mean

    # --- the beginning

    def explained(self, c: Candidate) -> tuple[float, int | None]:
        """Return log posterior odds of a candidate over "no known explanation", and its first misfit's position.

        The odds use only the rows before that position, or all if it is None.
        """
        until = self.case.first_beyond(c)
        rows = self.case.seen.rows
        n = len(rows) if until is None else int(np.searchsorted(rows, until))
        prior = self.log_prior(c) - log_prior("kinds", "none")
        if n == 0:
            return prior, until
        e = self.case.reference(c.mode).expected
        spread = float(np.nanstd(self.case.values[:n])) + FLOAT_FLOOR
        return WEIGHT * float(np.sum(np.log(spread) - 0.5 * np.log(e[:n]))) + prior, until

    def base(self) -> Candidate:
        """Return the clean set to tell against: the answer, or one that fits, or that explains the beginning best.

        Where the beginning agrees with exact, the rest does not, and that set has far more noise there, it is exact: no
        rounding agrees to float precision by chance, so whatever is wrong begins later.
        """
        sets = self.ranked(clean=True)
        base = self.answer() or next((c for c in sets if c.fit.misfit < LIMIT), None) or self._beginning(sets)
        exact = self.clean("exact")
        first = self.case.first_beyond(exact)
        if first is None or first == self.case.seen.rows[0] or exact.fit.misfit < LIMIT:
            return base
        own, wide = (self.case.reference(mode).expected[0] for mode in ("exact", base.mode))
        return exact if own < BY_CHANCE**2 * wide else base

    def _beginning(self, sets: list[Candidate]) -> Candidate:
        """The set that explains the beginning best; the first of ``sets`` if none does."""
        begin = int(self.case.seen.rows[0])
        ways = [(*self.explained(c), c) for c in sets]
        explained = [(value, c) for value, until, c in ways if value > 0 and until != begin]
        return max(explained, key=lambda way: way[0])[1] if explained else sets[0]

    def replace(self, old: Candidate, new: Candidate) -> None:
        """Replace a candidate by a better version."""
        self.candidates[self.candidates.index(old)] = new
