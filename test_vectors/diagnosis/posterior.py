"""The posterior of the candidates of one case, and the rule that chooses among them.

    log posterior = log prior + log likelihood, up to a constant

A candidate is a rounding set, alone (a clean set) or with one mistake. Its prior is the share of its rounding set times
the share of its kind of mistake among simulated engines (calibration.json), each divided by the number of candidates
that share it. ``score``, which needs one run, ranks candidates. ``odds`` of two candidates, which measures on noisy
runs (replicas) how much scores vary by chance, decides the verdict:

    fault       a mistake that fits, with log odds of ACCUSED over every clean set and NAMED over every other mistake
    clean       a clean set that fits, if no mistake that fits has better odds than the best clean set
    otherwise   undecided or unknown (decide.py)

A candidate fits if its misfit is below ``LIMIT``, or if what it leaves unexplained is small and uniform.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ds4ref.variants import MODE_NAMES, ROUNDING
from ds4ref.variants.scoped import scopes

from .calibration import log_prior
from .case import CLIP, MUCH, Candidate, Case, parts_of
from .evidence import FLOAT_FLOOR, FOREIGN, LIMIT, WEIGHT, Fit, Reference, limit_of, log_student, projection
from .fitting import value_of
from .outside import outside_bugs

ACCUSED = float(np.log(1000.0))
"""Log odds over every clean set that a mistake needs to be named: one correct engine in a thousand may be accused."""
NAMED = float(np.log(8.0))
"""Log odds over every other mistake that a mistake needs to be named: in one wrong engine of nine, the named mistake
may not be the real one."""
CONTENDERS = 5
"""Number of best mistakes that are compared on replicas; each costs eight forward passes."""
BY_CHANCE = 0.01
"""If a position's numbers agree with "exact" to less than this share of a rounding set's noise, that is not chance."""
ALONE = 2.5
"""Factor by which a mistake must be nearer to the data than any other explanation if its rounding set is not clear:
real engines round a little differently from our sets, and a mistake may amplify that."""
SAME = 0.5
"""Mean level (``evidence``) below which two predictions count as equal: their distance is less than e^0.5 times the
noise."""


class Posterior:
    """Candidate explanations of one observation, and their posterior odds."""

    def __init__(self, case: Case):
        self.case = case
        self.candidates: list[Candidate] = []
        shape = case.library.engine.shape
        known = case.library.runner.library
        faults, around = len(known), len(outside_bugs(case.library, case.bos))
        parts = sum(len(parts_of(fault, scopes(shape))) for fault in known.values())
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
        """Return a candidate's misfit by the noise of its rounding set, or of its own replicas if that is smaller."""
        if c.clean or c.kind == "outside" or c.fit.misfit < LIMIT:
            return c.fit.misfit
        return min(c.fit.misfit, self.own(c).misfit)

    def _own(self, c: Candidate) -> Fit:
        """Measure the fit by the noise of the candidate's own replicas, if it is near enough for them to matter."""
        noise = float(np.sqrt(self.case.reference(c.mode).expected.mean()))
        nearest = min(each.fit.rms for each in self.candidates if each.clean)
        near = c.fit.rms < (max(3 * noise, nearest / 4) if c.coarse else nearest / 5)
        near = near and self.case.excess(c.run, c.fit.r) < MUCH + (0.0 if c.coarse else FOREIGN)
        return self.case.reference_of(c.run).fit(self.case.values, c.rows) if near else c.fit

    def fits(self, c: Candidate) -> bool:
        """Return whether a candidate explains the observation to within noise, or up to a small uniform difference."""
        return self.misfit(c) < LIMIT or self.residue(c) is not None

    def residue(self, c: Candidate) -> float | None:
        """Return the rms in nats that a mistake leaves unexplained, if small and uniform like a rounding; else None.

        Small means less than a tenth of what any other mistake leaves.
        """
        if c.clean or c.coarse or not np.isfinite(c.fit.level).all():
            return None
        r = c.fit.level + 0.5 * np.log(self.case.reference(c.mode).expected) + c.fit.shift
        others = [self.median(other) for other in self.candidates if other.family != c.family]
        small = bool(others) and self.median(c) < 0.1 * min(others)
        return c.fit.rms if small and float(r.std()) <= 0.5 else None

    def _median(self, c: Candidate) -> float:
        """Median over positions of the rms difference in nats.

        The median, as a top-k tie that the engine decided otherwise may make half of the positions equally wrong for
        all candidates.
        """
        r = c.fit.r[np.isfinite(c.fit.r)]
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
        """Return the best clean set that fits and that the data distinguishes from less noisy sets; None if none."""
        return next((c for c in self.ranked(clean=True) if c.fit.misfit < LIMIT and self.told_apart(c)), None)

    def champion(self) -> Candidate | None:
        """Return the best mistake that fits; None if there is none.

        In rounding sets that quantize, scores vary by chance, so the best few are compared by odds.
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

        Mistakes of one set whose predictions differ no more than correct engines do count as the same.
        """
        ref = self.case.reference(c.mode)
        for other in self.ranked(clean=False):
            if other.family != c.family and not (other.mode == c.mode and ref.level(other.rows, c.rows) < SAME):
                return other, self.odds(c, other)
        return None, CLIP

    def proven(self) -> Candidate | None:
        """Return the mistake with enough evidence to be named (see the top of this module); None if there is none."""
        c = self.champion()
        certain = c is not None and self.over(c) >= ACCUSED and self.rival(c)[1] >= NAMED
        return c if certain and c is not None and (self.told_apart(c) or self._alone(c)) else None

    def _alone(self, c: Candidate) -> bool:
        """Return whether a mistake is ``ALONE`` times nearer to the data than all sets without one, and than everything
        that predicts other numbers: which rounding set it is in does not matter then."""
        ref = self.case.reference(c.mode)
        near = (o for o in self.candidates if o.family != c.family and o.fit.rms < c.fit.rms * ALONE)
        return c.kind in ("fault", "family", "outside") and all(
            not o.clean and ref.level(o.rows, c.rows) < SAME for o in near
        )

    # --- wide and narrow sets

    def told_apart(self, c: Candidate) -> bool:
        """Return whether the data distinguishes a candidate from the same one in every narrower (less noisy) set.

        The data is projected onto the line from the narrower set's prediction (0) to this one's (1), as are replicas of
        this candidate; both must lie at the same place. A set whose replicas are not clearly away from 0 can never be
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
        """Whether a mistake moves all engines that have it away from the correct prediction in the same direction.

        A mistake as small as float noise only flips roundings, different ones in each run; one of these runs may be
        near the data by chance, as any noisy run may.
        """
        usual = self._places(c, self.clean(c.mode).rows, 1 / ref.expected)
        return float(usual.mean()) > LIMIT * max(float(usual.std(ddof=1)), 0.01)

    def _places(self, c: Candidate, base: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Where the candidate's replicas lie on the line from ``base`` (0) to its prediction (1), rows weighted."""
        return np.array([projection(run, base, c.rows, weight) for run in self.case.runs(c)])

    def _narrower(self, mode: str, ref: Reference) -> bool:
        """Whether rounding set ``mode`` has less than half of the noise of ``ref``."""
        return bool(np.mean(np.log(ref.expected / self.case.reference(mode).expected)) > np.log(2.0))

    def _lies_at(self, c: Candidate, ref: Reference, narrower: np.ndarray, limit: float) -> bool:
        """Whether data and replicas lie at the same place on the line from ``narrower`` to this candidate's prediction.

        ``limit``: standard deviations of the replicas that the data may be away from their mean.
        """
        weight = 1 / ref.expected
        usual = self._places(c, narrower, weight)
        here = projection(self.case.values, narrower, c.rows, weight)
        spread = max(float(usual.std(ddof=1)), 0.01) * np.sqrt(1 + 1 / len(usual))
        mean = float(usual.mean())
        return mean > LIMIT * spread and here > 0.5 * min(mean, 1.0) and abs(here - mean) < limit * spread + 0.1 * mean

    # --- the beginning

    def explained(self, c: Candidate) -> tuple[float, int | None]:
        """Return (log posterior odds of a candidate over "no known explanation", first position that it does not fit).

        The odds use only the rows before that position, or all rows if it is None.
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
        """Return the clean set that the report compares with: the answer, else one that fits, else the one that
        explains the first positions best.

        It is "exact" if the first positions agree with that far better than the chosen set's noise allows, though later
        ones do not: nothing agrees to float precision by chance, so what is wrong begins later.
        """
        sets = self.ranked(clean=True)
        base = self.answer() or next((c for c in sets if c.fit.misfit < LIMIT), None) or self._beginning(sets)
        exact = self.clean("exact")
        first = self.case.first_beyond(exact)
        if first is None or first == self.case.seen.rows[0] or exact.fit.misfit < LIMIT:
            return base
        own, wide = (self.case.reference(mode).expected[0] for mode in ("exact", base.mode))
        return exact if own < BY_CHANCE**2 * wide else base

    def leans(self, c: Candidate, until: int) -> bool:
        """Return whether the rows before position ``until`` are nearer to a set's prediction than to that of exact.

        Else the set explains them only as its noise hides whatever is wrong there.
        """
        n, ref = int(np.searchsorted(self.case.seen.rows, until)), self.case.reference(c.mode)
        exact = self.case.reference("exact").predicted[:n]
        place = projection(self.case.values[:n], exact, c.rows[:n], 1 / ref.expected[:n])
        return not place <= 0.5

    def _beginning(self, sets: list[Candidate]) -> Candidate:
        """The clean set that explains the first positions best; the first of ``sets`` if none explains any."""
        begin = int(self.case.seen.rows[0])
        ways = [(*self.explained(c), c) for c in sets]
        explained = [(value, c) for value, until, c in ways if value > 0 and until != begin]
        return max(explained, key=lambda way: way[0])[1] if explained else sets[0]

    def replace(self, old: Candidate, new: Candidate) -> None:
        """Replace a candidate by a better version of the same explanation."""
        self.candidates[self.candidates.index(old)] = new
