"""Which candidates are computed, and in what order: only as far as the question is open.

    search = Search(case); search.run()
    search.found        every candidate that was tried
    search.bases        rounding sets whose whole library was tried

Float precision decides at once: a candidate that agrees to 1e-5 leaves no room for another. Then come the other
rounding sets, or before everything else if the data lies nearer to one of them than to exact; if one is the answer,
its own library is still held against the data, since a mistake may be a better explanation than none. What is still
open is tried with the mistakes in sets that are no modes, with families, and last with mistakes in a part of the
model, from a position on, or two at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ds4ref.variants import LIBRARY, MODE_NAMES, ROUNDING
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.scoped import scopes

from . import fitting
from .case import LIMIT, Candidate, Case, Idea
from .evidence import FLOAT_FLOOR, WEIGHT, Fit, Reference, projection, squares
from .signatures import REPLICAS, Pass

Progress = Callable[[int], None]

CONTENDERS = 8
OWN_RUNS = 6
NO_MISTAKE = frozenset({"indexer_ties_high"})
"""In the library for the sake of tests: which of two equal rows a top-k takes is nobody's mistake (``Case.untied``)."""
REFINED = 3
NAMED, CERTAIN = 6.0, 12.0
"""Log odds over the best clean set from which on a mistake is named, if that set is refused, and if it is not: about a
hundred mistakes are tried, so that some reach ln 100 by chance."""
RIVALS, CLOSE = 5, 15.0
"""Mistakes compared with each other by replicas, within so much of the best score."""
MANY = 8
RIVAL = 2.0
"""Log odds over the next best name below which neither is given."""
SAME = 0.5
"""Two predictions whose mean l is below this, as engine and prediction of each other, are one."""
EARLY = 8
"""A deviation that begins before this position does not suggest a path of its own for later ones."""
LAYERS = ("compressed layers", "layers without compression")
HALVES = ("attention halves", "FFN halves")
CLEARLY = 0.8
"""Ratio of distances from a rounding set and from exact below which that set is looked at first."""
FAR = 10.0
"""Misfit of a clean set from which on a mistake in it is large, so that it leads in other sets too."""
GAIN, NEARER = 5.0, 0.1
"""What a family must gain over the clean set, in score or in how near half of the positions are, to be refined."""


class Search:
    """Candidates of one case."""

    def __init__(self, case: Case, progress: Progress | None = None):
        self.case, self._progress = case, progress
        self.found: list[Candidate] = []
        self.bases: list[str] = []
        self.sets: list[str] = []
        self.refined: set[str] = set()
        self._own: dict[tuple[str, str, int | None], Fit] = {}
        self._median: dict[tuple[str, str, int | None], float] = {}
        self._over: dict[tuple[str, str, int | None], float] = {}

    # --- order

    def run(self, thorough: bool = False) -> None:
        """Fill ``found``."""
        self._set("exact")
        near = None if thorough or self._settled() else self._nearer()
        if near is None or not self._rounded(near):
            self._everything(thorough)

    def _nearer(self) -> str | None:
        """A rounding set to which the data lies clearly nearer than to exact, as nothing wrong in exact does: what a
        mistake moves has no part of a rounding's direction."""
        library, exact = self.case.library, self.case.rows_of(self.case.library.get("exact").logprobs)
        library.ahead(Pass(mode) for mode in ROUNDING)
        away = squares(self.case.values, exact)
        apart = {}
        for mode in ROUNDING:
            with np.errstate(all="ignore"):
                ratio = squares(self.case.values, self.case.rows_of(library.get(mode).logprobs)) / away
            apart[mode] = float(np.nanmedian(ratio)) if np.isfinite(ratio).any() else np.inf
        best = min(apart, key=lambda mode: apart[mode])
        return best if apart[best] < CLEARLY**2 else None

    def _rounded(self, near: str) -> bool:
        """Whether a rounding set, alone or with a mistake in it, answers the question; ``near`` is tried first."""
        self._sets()
        answer = self.answer()
        self._library(answer or near)
        if answer is not None:
            self._families(answer)
            return self.answer() == answer
        self._elsewhere()
        if not self.convinced():
            self._families(near)
        return self.convinced()

    def _everything(self, thorough: bool) -> None:
        """Exact first, whose float precision decides, then whatever the question needs."""
        self._library("exact")
        if not self._settled() or thorough:
            self._families("exact")
        if self._settled() and not thorough:
            if self.answer() == "exact":
                self._families("exact")
            self._alike()
            return
        self._sets()
        answer = self.answer()
        if answer is not None and answer != "exact":
            self._library(answer)
            self._families(answer)
        if answer is None or thorough:
            self._unexplained()

    def _alike(self) -> None:
        """Rounding sets that lie as near as the best explanation: one flip of a top-k may be a rounding's as well as a
        mistake's."""
        library, near = self.case.library, self.best().fit.rms
        library.ahead(Pass(mode) for mode in ROUNDING)
        for mode in ROUNDING:
            r = squares(self.case.values, self.case.rows_of(library.get(mode).logprobs))
            if mode not in self.sets and float(np.sqrt(np.nanmean(r))) < 3 * near:
                self._set(mode)

    def _unexplained(self) -> None:
        """No set fits: mistakes in all of them, then less likely kinds of mistakes."""
        for mode in sorted(MODE_NAMES, key=lambda mode: -self.score(self._base(mode))):
            self._library(mode)
            if self.convinced():
                return
        self._elsewhere()
        best = self.best().mode
        if best not in self.bases and self._base(best).fit.misfit < FAR and not self.convinced():
            self._library(best)
        if not self.convinced():
            for mode in dict.fromkeys((self.best().mode, self.nearest_set())):
                self._families(mode, self._leading_families())
        if not self.convinced():
            self._compounds()

    def fits(self, c: Candidate) -> bool:
        """Whether a candidate explains everything to within its noise, or all but a uniform residue."""
        return c.fit.misfit < LIMIT or self.own(c).misfit < LIMIT or self.residue(c) is not None

    def own(self, c: Candidate) -> Fit:
        """The fit by the noise of engines that have the mistake: one that amplifies has more. Looked at only where it
        could change the answer."""
        if c.clean or c.kind == "slip":
            return c.fit
        key = c.mode, c.name, c.flipped
        if key not in self._own:
            usual = self.case.reference(c.mode)
            near = c.fit.rms < (
                3 * float(np.sqrt(usual.expected.mean())) if usual.coarse else 0.2 * self.nearest_clean()
            )
            self._own[key] = self.case.own_reference(c, OWN_RUNS).fit(self.case.values, c.rows) if near else c.fit
        return self._own[key]

    def known(self, c: Candidate) -> Fit:
        """``own`` if it was asked for before, else the plain fit."""
        return self._own.get((c.mode, c.name, c.flipped), c.fit)

    def nearest_clean(self) -> float:
        """Smallest root mean square distance of a clean set."""
        return min(c.fit.rms for c in self.found if c.clean)

    def _settled(self) -> bool:
        """Whether something fits to float precision."""
        best = self.best()
        return not ROUNDING[best.mode].coarse and self.fits(best)

    # --- what was found

    def best(self) -> Candidate:
        """The candidate of the highest score; of clean ones the score from one run counts, as for all others."""
        return max(self.found, key=self.score)

    def score(self, c: Candidate) -> float:
        """Comparable between candidates. A mistake has to be worth its being one of many."""
        price = {"mode": 0.0, "rounding": 0.5, "fault": 1.5, "slip": 1.5, "family": 2.0}.get(c.kind, 4.0)
        return (self.case.plain(c).score if c.clean and c.flipped is None else c.fit.score) - price

    def clean(self) -> list[Candidate]:
        """Clean sets, best first."""
        return sorted((c for c in self.found if c.clean), key=self.score, reverse=True)

    def answer(self) -> str | None:
        """The clean set that fits, is the best of all, and can be told from narrower ones; None if there is none."""
        for c in self.clean():
            if c.fit.misfit < LIMIT and self.told_apart(c):
                return c.mode
        return None

    def nearest_set(self) -> str:
        """The clean set of the best score."""
        return self.clean()[0].mode

    def told_apart(self, c: Candidate) -> bool:
        """Whether the data lies at this set, not merely within its noise around a narrower one.

        The data's place on the line from the narrower set's prediction (0) to this one's (1) is compared with where
        engines of this set lie on it. A set whose own engines do not lie apart from 0 can never be told.
        """
        ref = self.case.reference(c.mode)
        if not ref.coarse:
            return True
        for other in self.found:
            if not other.clean or other.mode == c.mode or not self._narrower(other.mode, ref):
                continue
            if not self._lies_at(c, ref, self.case.reference(other.mode).predicted):
                return False
        return True

    def _lies_at(self, c: Candidate, ref: Reference, narrower: np.ndarray) -> bool:
        """Whether the data's place on the line from ``narrower`` to this candidate is that of its own engines."""
        weight = 1 / ref.expected
        runs = self.case.runs(c, OWN_RUNS)
        usual = np.array([projection(run, narrower, c.rows, weight) for run in runs])
        here = projection(self.case.values, narrower, c.rows, weight)
        spread = max(float(usual.std(ddof=1)), 0.01) * np.sqrt(1 + 1 / len(usual))
        mean = float(usual.mean())
        # nearer to this than to the narrower one, as its own engines are, and not by more or less than they
        return mean > 4 * spread and here > 0.5 and abs(here - mean) < 4 * spread + 0.1 * mean

    def champion(self) -> tuple[Candidate | None, float]:
        """The mistake that explains most, and its log odds over the best clean set. In sets that flip steps scores
        scatter, so that the best few are compared by odds."""
        wrong = sorted((c for c in self.found if not c.clean), key=self.score, reverse=True)
        if not wrong:
            return None, -20.0
        best = wrong[0]
        if not self.case.reference(best.mode).coarse:
            return best, self.over(best)
        near = [c for c in wrong[:RIVALS] if self.score(c) > self.score(best) - CLOSE]
        best = max(near, key=lambda c: (self.over(c), self.score(c)))
        return best, self.over(best)

    def over(self, c: Candidate) -> float:
        """Log odds of a mistake over the best clean set; close calls are looked at with more replicas."""
        key = c.mode, c.name, c.flipped
        if key not in self._over:
            clean = self.clean()[0]
            odds = self.case.odds(c, clean)
            if abs(odds) < CERTAIN and self.case.reference(c.mode).coarse:
                odds = self.case.odds(c, clean, MANY)
            self._over[key] = odds
        return self._over[key]

    def proven(self, c: Candidate, over: float) -> bool:
        """Whether a mistake may be named: it fits, and nothing wrong does not, or is out of the question."""
        clean = self.clean()[0]
        refused = clean.fit.misfit >= LIMIT
        if not refused and self.case.reference(clean.mode).coarse:
            # one that the set could not have shown is not seen, whichever steps it happens to share with the data
            if self.case.reference(clean.mode).fit(c.rows).misfit < LIMIT:
                return False
        if over < (NAMED if refused else CERTAIN) or not self.fits(c):
            return False
        if self.case.reference(c.mode).coarse and self.own(c).misfit > LIMIT + 1:
            return False
        return self.rival(c)[1] >= RIVAL and self.told_apart_from(c)

    def prefix(self, c: Candidate) -> tuple[float, int | None]:
        """How much the rows before the first misfit say for a candidate, against numbers that agree with nothing, and
        where that misfit is."""
        until = self.case.first_beyond(c)
        rows = self.case.seen.rows
        n = len(rows) if until is None else int(np.searchsorted(rows, until))
        if n == 0:
            return 0.0, until
        e = self.case.reference(c.mode).expected
        spread = float(np.nanstd(self.case.values[:n])) + FLOAT_FLOOR
        price = {"mode": 0.0, "rounding": 0.5}.get(c.kind, float(np.log(len(LIBRARY)))) + 0.5 * ROUNDING[c.mode].coarse
        return float(np.sum(np.log(spread) - 0.5 * np.log(e[:n]))) * WEIGHT - price, until

    def convinced(self) -> bool:
        """Whether some mistake may be named."""
        c, over = self.champion()
        return c is not None and self.proven(c, over)

    def residue(self, c: Candidate) -> float | None:
        """Root mean square of what a candidate leaves, if that is small and the same everywhere: what rounding on the
        way to us does and a mistake does not. None otherwise."""
        if ROUNDING[c.mode].coarse or not np.isfinite(c.fit.level).all():
            return None
        r = c.fit.level + 0.5 * np.log(self.case.reference(c.mode).expected) + c.fit.shift
        # medians: a tie that fell the other way makes half of the positions of every candidate alike
        others = [self.median(o) for o in self.found if family_of(o) != family_of(c)]
        if c.clean or not others or self.median(c) > 0.1 * min(others) or float(r.std()) > 0.5:
            return None
        return c.fit.rms

    def median(self, c: Candidate) -> float:
        """Median over positions of the root mean square difference, nats."""
        key = c.mode, c.name, c.flipped
        if key not in self._median:
            r = squares(self.case.values, c.rows)
            r = r[np.isfinite(r)]
            self._median[key] = float(np.sqrt(np.median(r))) if len(r) else np.inf
        return self._median[key]

    def told_apart_from(self, c: Candidate) -> bool:
        """The same question for a mistake in a set that flips steps: does the data lie at the mistake in this set, or
        only within the set's noise around the same mistake in a narrower one?"""
        ref = self.case.reference(c.mode)
        if not ref.coarse:
            return True
        others = [mode for mode in self.sets if self._narrower(mode, ref)]
        same = [o for o in self.found if o.name == c.name and o.mode in others and o.kind == c.kind]
        if c.kind == "fault":
            known = {o.mode for o in same}
            same += self._made(self.case.fault(m, c.name) for m in others if m not in known and c.name in self.names(m))
        if c.mode not in MODE_NAMES and not same:
            return False
        return all(self._lies_at(c, ref, other.rows) for other in same)

    def _narrower(self, mode: str, than: Reference) -> bool:
        return bool(np.mean(np.log(than.expected) - np.log(self.case.reference(mode).expected)) > 0.7)

    def rival(self, c: Candidate) -> tuple[Candidate | None, float]:
        """The best explanation by another name, in any set, and the log odds over it. Names whose predictions cannot
        be told apart are one."""
        ref = self.case.reference(c.mode)
        near = [
            o for o in sorted(self.found, key=self.score, reverse=True)[: 4 * RIVALS]
            if not o.clean and family_of(o) != family_of(c) and not self.same(ref, o, c)
        ]  # fmt: skip
        if not near:
            return None, 20.0
        best = near[0]
        odds = self.case.odds(c, best)
        return best, self.case.odds(c, best, MANY) if abs(odds) < NAMED and ref.coarse else odds

    def same(self, ref: Reference, a: Candidate, b: Candidate) -> bool:
        """Whether two predictions lie no further apart than right engines do."""
        return a.mode == b.mode and float(np.nanmean(_level(ref, a.rows, b.rows))) < SAME

    # --- stages

    def _add(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        new = []
        for c in candidates:
            new.append(c)
            self.found.append(c)
            if self._progress is not None:
                self._progress(len(self.found))
        return new

    def _made(self, ideas: Iterable[Idea]) -> list[Candidate]:
        return self._add(self.case.made(*ideas))

    def _set(self, mode: str) -> None:
        if mode not in self.sets:
            self.sets.append(mode)
            self._add([self.case.clean(mode)])

    def _sets(self) -> None:
        """All rounding sets."""
        self.case.library.ahead(
            Pass(mode, noise=i) for mode in ROUNDING if mode not in self.sets for i in (None, *range(REPLICAS))
        )
        for mode in ROUNDING:
            self._set(mode)

    def _library(self, mode: str) -> None:
        if mode in self.bases:
            return
        self.bases.append(mode)
        self._set(mode)
        self._add(self.case.outside(mode))
        self._made(self.case.fault(mode, name) for name in self.names(mode))
        self._untie(mode)

    def names(self, mode: str) -> list[str]:
        """Faults of the library that can show here."""
        return [fault.name for fault in self.case.library.faults(mode) if fault.name not in NO_MISTAKE]

    def _untie(self, mode: str) -> None:
        """Try ties of the nearest candidates and of the clean set the other way."""
        if self.case.reference(mode).coarse:
            return
        here = sorted((c for c in self.found if c.mode == mode), key=lambda c: c.fit.core)[:CONTENDERS]
        here += [c for c in self.found if c.mode == mode and c.clean and c not in here]
        if min(c.fit.misfit for c in here) < LIMIT:
            return
        for c in here:
            again = self.case.untied(c)
            if again is c and c is here[0] and not c.clean and c.kind != "slip":
                # of a mistake that amplifies noise, only its own noise tells where the misfit begins
                again = self.case.untied(c, self.case.own_reference(c, OWN_RUNS))
            if again is not c:
                self.found[self.found.index(c)] = again
        quiet = {fault.name for fault in LIBRARY.values() if fault.quiet}
        base = next(c for c in self.found if c.mode == mode and c.clean)
        if base.flipped is not None:  # then faults that hardly move anything need the same tie
            for i, c in enumerate(self.found):
                if c.mode == mode and c.name in quiet and c.flipped is None:
                    self.found[i] = self.case.untied(c)

    def _untied(self, new: list[Candidate]) -> None:
        """Ties of the nearest of some new candidates, tried the other way."""
        for c in sorted(new, key=lambda c: c.fit.core)[:REFINED]:
            again = self.case.untied(c)
            if again is not c:
                self.found[self.found.index(c)] = again

    def _elsewhere(self) -> None:
        """What explains most, once more in the rounding sets that are no modes."""
        wrong = sorted((c for c in self.found if c.kind in ("fault", "slip")), key=lambda c: -self.score(c))
        names = list(dict.fromkeys(c.name for c in wrong))[:CONTENDERS]
        for mode in ROUNDING:
            if mode in self.bases:
                continue
            self._add(self.case.outside(mode, names))
            self._made(self.case.fault(mode, name) for name in names if name in self.names(mode))

    def _base(self, mode: str) -> Candidate:
        """A rounding set with nothing wrong, as candidate."""
        return next(c for c in self.found if c.clean and c.mode == mode)

    def _leading_families(self) -> list[str]:
        """The families that explain most in the sets where they were tried, best first."""
        gains: dict[str, float] = {}
        for c in self.found:
            if c.kind == "family":
                gain = c.fit.score - self.score(self._base(c.mode))
                gains[family_of(c)] = max(gain, gains.get(family_of(c), -np.inf))
        return sorted(gains, key=lambda name: -gains[name])[:CONTENDERS]

    def _families(self, mode: str, only: Sequence[str] | None = None) -> None:
        if mode in self.refined:
            return
        only = tuple(FAMILIES) if only is None else only
        self.refined.add(mode)
        clean = self.case.clean(mode)
        shape, families = self.case.library.engine.shape, [FAMILIES[name] for name in only]
        self.case.library.ahead(
            self.case.member(mode, family, value).run for family in families for value in family.grid(shape)
        )
        if not self.case.reference(mode).coarse:
            self.case.library.ahead(fitting.tiny(self.case, mode, f).run for f in families if not f.whole)
        tried = []
        for name in only:
            tried += self._add([fitting.best_of_grid(self.case, mode, FAMILIES[name])])
        tried.sort(key=lambda c: -fitting.closeness(self.case, c))
        coarse = self.case.reference(mode).coarse
        for c in tried[:REFINED]:
            if c.fit.score > clean.fit.score + GAIN if coarse else c.fit.core < clean.fit.core - NEARER:
                family = FAMILIES[c.name.partition("=")[0]]
                better = fitting.refined(self.case, mode, family, fitting.value_of(c))
                self._add([self.case.untied(better)])

    def _compounds(self) -> None:
        """Mistakes from a position on, in a part of the model, and pairs, made of the faults that explain most."""
        best = self.best().mode
        modes = [mode for mode in dict.fromkeys((best, self.nearest_set(), *MODE_NAMES)) if mode in self.bases]
        if not modes:
            return
        starts = {mode: self.case.first_beyond(self.case.clean(mode)) for mode in modes}
        for mode in sorted(modes, key=lambda mode: -(starts[mode] or 0))[:2]:
            first = starts[mode]
            if first is not None and first >= EARLY:
                self._untied(self._made(self.case.late(mode, name, first) for name in self.names(mode)))
                if self.convinced():
                    return
        begins = max(modes, key=lambda mode: self.prefix(self.case.clean(mode))[0])
        # exact first: where it is the set, its float precision decides
        names: Sequence[str] = tuple(LIBRARY)
        for mode in dict.fromkeys(("exact", best, begins)):
            names = self._parts(mode, names)[:CONTENDERS]
            if self.convinced():
                return
        for c in self._leading(best)[:2]:
            others = [name for name in self.names(best) if name != c.name and not LIBRARY[name].quiet]
            self._untied(self._made(self.case.pair(best, c.name, other) for other in others))
            if self.convinced():
                return

    def _parts(self, mode: str, names: Sequence[str]) -> list[str]:
        """Faults in a kind of layers or of halves, then the nearest of them in single layers; their names, best
        first."""
        parts = scopes(self.case.library.engine.shape)
        single = {part: where for part, where in parts.items() if part.startswith("layer ")}
        ideas = []
        for name in self.names(mode):
            fault = LIBRARY[name]
            # storage and chunk edges are not a layer's own
            if name in names and not (fault.quiet or fault.fmt or fault.tokens):
                kinds = HALVES if name.startswith(("hc_", "sinkhorn")) else LAYERS
                ideas += [self.case.scoped(mode, name, part, parts[part]) for part in kinds]
        new = sorted(self._made(ideas), key=lambda c: -self.score(c))
        self._untied(new)
        order = list(dict.fromkeys(c.name.partition(" [")[0] for c in new))
        if not self.convinced():
            for name in order[:REFINED]:
                self._untied(self._made(self.case.scoped(mode, name, part, where) for part, where in single.items()))
        return order

    def _leading(self, mode: str) -> list[Candidate]:
        """Faults of a set that explain more than nothing wrong does, best first."""
        base = self.case.clean(mode).fit.score
        inside = [c for c in self.found if c.kind == "fault" and c.mode == mode and c.fit.score > base + 1]
        return sorted(inside, key=lambda c: -c.fit.score)


def family_of(c: Candidate) -> str:
    """A candidate's name without the size of a family's member."""
    return c.name.partition("=")[0]


def _level(ref: Reference, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return 0.5 * np.log((squares(a, b) + 1e-300) / ref.expected)
