"""Choose which candidates are computed, and in what order; stop as soon as one explains the observation.

    posterior = search(case)

The rounding set "exact" comes first: agreement to 1e-5 leaves no room for another explanation. Then come the other
rounding sets, or before everything else one that is clearly nearer to the data than exact. If a set explains the data,
the faults in it are still compared, since one may explain the data better. If none does, next come faults in the other
modes, in rounding sets that are no modes, families of faults, and last faults in a part of the model, faults from a
position on, and pairs of faults.

The constants here bound the work; no verdict depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ds4ref.variants import LIBRARY, MODE_NAMES, ROUNDING
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.scoped import scopes

from . import fitting
from .case import Candidate, Case, Idea, parts_of
from .evidence import LIMIT, squares
from .posterior import Posterior
from .signatures import REPLICAS, Pass

Progress = Callable[[int], None]

NO_MISTAKE = frozenset({"indexer_ties_high"})
"""Faults that serve tests only: which of two equal rows a top-k selects is no mistake (``Case.untied``)."""
LEADING, REFINED = 8, 3
"""LEADING: number of best faults tried in other rounding sets. REFINED: number of best candidates that are fitted,
tried with top-k ties the other way, or tried layer by layer."""
EARLY = 8
"""First position of a deviation from which on a separate code path (such as decode) is considered."""
CLEARLY = 0.8
"""A rounding set is tried first if its distance is below this multiple of the distance from exact."""
FAR = 10.0
"""Misfit of a clean set from which on a fault in it is large enough to rank first in other sets, too."""
GAIN, NEARER = 5.0, 0.1
"""A family is fitted if it gains GAIN in log likelihood over the clean set, or NEARER in ``Fit.core``."""


def search(case: Case, thorough: bool = False, progress: Progress | None = None) -> Posterior:
    """Compute candidates stage by stage until one explains the observation; compute all stages if ``thorough``."""
    work = Search(case, progress)
    for _ in work.stages():
        if work.answered() and not thorough:
            break
    work.similar_sets()
    return work.posterior


class Search:
    """Stages of a search over one case."""

    def __init__(self, case: Case, progress: Progress | None = None):
        self.case, self.posterior, self._progress = case, Posterior(case), progress
        self.bases: list[str] = []
        self.fitted: set[str] = set()

    def stages(self) -> Iterator[None]:
        """Compute candidates, likeliest explanations first; yield after each stage."""
        self._sets(["exact"])
        near = self._nearest_set()
        if near == "exact":
            self._library("exact")
            yield
            self._families("exact")
            yield
        self._sets(ROUNDING)
        answer = self.posterior.answer()
        first = near if answer is None else answer.mode
        self._library(first)
        yield
        if first != "exact":
            self._families(first)
            yield
        for mode in sorted(MODE_NAMES, key=lambda mode: -self.posterior.score(self.posterior.clean(mode))):
            self._library(mode)
            yield
        self._elsewhere()
        yield
        mode = self._best().mode
        if self.posterior.clean(mode).fit.misfit < FAR:
            self._library(mode)
            yield
        for mode in dict.fromkeys((self._best().mode, self._best_clean().mode)):
            self._families(mode, self._leading_families())
            yield
        yield from self._compounds()

    def answered(self) -> bool:
        """Return whether the search can stop.

        It can if a candidate fits to float precision, a mistake may be named, or a rounding set fits and was compared
        with all faults and families in it.
        """
        best = self._best()
        if not best.coarse and self.posterior.fits(best):
            return not best.clean or best.mode in self.fitted
        answer = self.posterior.answer()
        if answer is not None and answer.mode not in self.bases:
            return False
        return (answer is not None and answer.mode in self.fitted) or self.posterior.proven() is not None

    # --- what was computed

    def _best(self) -> Candidate:
        return self.posterior.ranked()[0]

    def _best_clean(self) -> Candidate:
        return self.posterior.ranked(clean=True)[0]

    def _add(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        new = []
        for c in candidates:
            new += self.posterior.extend([c])
            if self._progress is not None:
                self._progress(len(self.posterior.candidates))
        return new

    def _computed(self, ideas: Iterable[Idea]) -> list[Candidate]:
        return self._add(self.case.computed(ideas))

    # --- rounding sets

    def _sets(self, modes: Iterable[str]) -> None:
        """Rounding sets with nothing wrong."""
        present = {c.mode for c in self.posterior.candidates if c.clean}
        new = [mode for mode in modes if mode not in present]
        self.case.library.ahead(Pass(mode, noise=i) for mode in new for i in (None, *range(REPLICAS)))
        self._add(self.case.clean(mode) for mode in new)

    def _nearest_set(self) -> str:
        """The rounding set to which the data lies clearly nearer than to exact, else exact: what a mistake moves has no
        part of a rounding's direction."""
        best = self._best()
        if best.fit.misfit < LIMIT:
            return "exact"
        self.case.library.ahead(Pass(mode) for mode in ROUNDING)
        away = squares(self.case.values, best.rows)
        ratios = {"exact": CLEARLY**2}
        for mode in ROUNDING:
            with np.errstate(all="ignore"):
                ratio = squares(self.case.values, self.case.rows_of(Pass(mode))) / away
            if mode != "exact" and np.isfinite(ratio).any():
                ratios[mode] = float(np.nanmedian(ratio))
        return min(ratios, key=lambda mode: ratios[mode])

    def similar_sets(self) -> None:
        """Add rounding sets that predict nearly the same as the best explanation: one may flip the same top-k."""
        self.case.library.ahead(Pass(mode) for mode in ROUNDING)
        near = 3 * self._best().fit.rms
        distances = {mode: squares(self.case.values, self.case.rows_of(Pass(mode))) for mode in ROUNDING}
        self._sets(mode for mode, r in distances.items() if float(np.sqrt(np.nanmean(r))) < near)

    # --- mistakes

    def _library(self, mode: str) -> None:
        """Every single mistake in one rounding set."""
        if mode in self.bases:
            return
        self.bases.append(mode)
        self._add(self.case.slips(mode))
        self._computed(self.case.fault(mode, name) for name in self._names(mode))
        if not ROUNDING[mode].coarse:
            self._untie_library([c for c in self.posterior.candidates if c.mode == mode])

    def _names(self, mode: str) -> list[str]:
        """Faults of the library that can show here."""
        return [fault.name for fault in self.case.library.faults(mode) if fault.name not in NO_MISTAKE]

    def _untie_library(self, here: Sequence[Candidate]) -> None:
        """Try ties of the nearest candidates and of the clean set the other way."""
        nearest = sorted(here, key=lambda c: c.fit.core)[:LEADING]
        nearest += [c for c in here if c.clean and c not in nearest]
        if min(c.fit.misfit for c in nearest) < LIMIT:
            return
        self._untie(nearest[1:])
        if not self._untie(nearest[:1]) and nearest[0].faults:
            # of a mistake that amplifies noise, only its own noise tells where the misfit begins
            self._untie(nearest[:1], own=True)
        if self.posterior.clean(here[0].mode).flipped is not None:
            # then faults that hardly move anything need the same tie
            self._untie([c for c in here if c.name in LIBRARY and LIBRARY[c.name].quiet and c not in nearest])

    def _untie(self, candidates: Sequence[Candidate], own: bool = False) -> bool:
        """Replace candidates by versions with a tie decided the other way, where that explains more; whether any was.
        ``own``: judge by the noise of engines that have the mistake."""
        changed = False
        for c in candidates:
            better = self.case.untied(c, self.case.reference_of(c.run) if own else None)
            changed |= better is not c
            self.posterior.replace(c, better)
        return changed

    def _untie_nearest(self, new: Sequence[Candidate]) -> None:
        self._untie(sorted(new, key=lambda c: c.fit.core)[:REFINED])

    def _elsewhere(self) -> None:
        """What explains most, once more in the rounding sets that are no modes."""
        wrong = [c for c in self.posterior.ranked(clean=False) if c.kind in ("fault", "slip")]
        names = list(dict.fromkeys(c.name for c in wrong))[:LEADING]
        for mode in ROUNDING:
            if mode not in self.bases:
                self._add(self.case.slips(mode, names))
                self._computed(self.case.fault(mode, name) for name in names if name in self._names(mode))

    def _families(self, mode: str, only: Sequence[str] | None = None) -> None:
        """Constants of a wrong size; the best of them are fitted."""
        if mode in self.fitted:
            return
        self.fitted.add(mode)
        clean, coarse = self.case.clean(mode), ROUNDING[mode].coarse
        families = list(FAMILIES.values()) if only is None else [FAMILIES[name] for name in only]
        shape = self.case.library.engine.shape
        self.case.library.ahead(self.case.member(mode, f, value).run for f in families for value in f.grid(shape))
        if not coarse:
            self.case.library.ahead(fitting.tiny(self.case, mode, f).run for f in families if not f.whole)
        tried = self._add(fitting.best_of_grid(self.case, mode, family) for family in families)
        tried.sort(key=lambda c: -fitting.closeness(c))
        for c in tried[:REFINED]:
            if c.fit.score > clean.fit.score + GAIN if coarse else c.fit.core < clean.fit.core - NEARER:
                better = fitting.refined(self.case, mode, FAMILIES[c.family], fitting.value_of(c))
                self._add([self.case.untied(better)])

    def _leading_families(self) -> list[str]:
        """The families that explain most over the clean set where they were tried, best first."""
        gains: dict[str, float] = {}
        for c in self.posterior.candidates:
            if c.kind == "family":
                gain = c.fit.score - self.posterior.clean(c.mode).fit.score
                gains[c.family] = max(gain, gains.get(c.family, -np.inf))
        return sorted(gains, key=lambda name: -gains[name])[:LEADING]

    # --- less likely kinds

    def _compounds(self) -> Iterator[None]:
        """Mistakes from a position on, in a part of the model, and pairs, made of the faults that explain most."""
        best = self._best().mode
        modes = [mode for mode in dict.fromkeys((best, self._best_clean().mode, *MODE_NAMES)) if mode in self.bases]
        starts = {mode: self.case.first_beyond(self.posterior.clean(mode)) or 0 for mode in modes}
        for mode in sorted(modes, key=lambda mode: -starts[mode])[:2]:
            if starts[mode] >= EARLY:
                self._untie_nearest(
                    self._computed(self.case.late(mode, name, starts[mode]) for name in self._names(mode))
                )
                yield
        begins = max(modes, key=lambda mode: self.posterior.explained(self.posterior.clean(mode))[0])
        names = list(LIBRARY)
        for mode in dict.fromkeys(("exact", best, begins)):  # exact first: float precision decides
            parts = self._parts(mode, names)
            yield
            names = list(dict.fromkeys(c.name.partition(" [")[0] for c in parts))[:LEADING]
            for name in names[:REFINED]:
                self._layers(mode, name)
            yield
        least = self.posterior.clean(best).fit.score + 1
        inside = [c for c in self.posterior.candidates if c.kind == "fault" and c.mode == best and c.fit.score > least]
        for c in sorted(inside, key=lambda c: -c.fit.score)[:2]:
            others = [name for name in self._names(best) if name != c.name and not LIBRARY[name].quiet]
            self._untie_nearest(self._computed(self.case.pair(best, c.name, other) for other in others))
            yield

    def _parts(self, mode: str, names: Sequence[str]) -> list[Candidate]:
        """Faults in one kind of layers or of halves, best first."""
        ideas = [idea for name in self._names(mode) if name in names for idea in self._in_parts(mode, name, False)]
        new = sorted(self._computed(ideas), key=lambda c: -self.posterior.score(c))
        self._untie_nearest(new)
        return new

    def _layers(self, mode: str, name: str) -> None:
        """One fault in one layer at a time."""
        self._untie_nearest(self._computed(self._in_parts(mode, name, True)))

    def _in_parts(self, mode: str, name: str, single: bool) -> list[Idea]:
        """One fault in each single layer, or in each larger part."""
        parts = parts_of(LIBRARY[name], scopes(self.case.library.engine.shape)).items()
        return [self.case.part(mode, name, part, where) for part, where in parts if part.startswith("layer ") is single]
