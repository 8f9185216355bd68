"""Choose which candidates are computed, and in what order; stop as soon as one explains the observation.

    posterior = search(case)

The rounding set "exact" comes first, with the mistakes in it: agreement to 1e-5 excludes any other explanation. If
another set is clearly nearer to the data than exact, that one comes first. Then come the other sets. If a set explains
the data, it is still compared with the mistakes in it, since one of these may be better. If none does, next come
mistakes in the other modes, mistakes in rounding sets that are not modes of ours, wrong constants (families), mistakes
from a position on, and mistakes in some kinds of layers only.

An explanation must hold where its rounding set begins to deviate, so most are ruled out by a run of the first tokens
(``Case.screened``). The constants here bound the work; no verdict depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from ds4ref.variants import EVERY, ROUNDING
from ds4ref.variants.families import FAMILIES
from ds4ref.variants.scoped import halves, scopes

from . import fitting
from .case import BEYOND, MUCH, Candidate, Case, Idea, parts_of
from .evidence import FOREIGN, LIMIT, squares
from .posterior import Posterior
from .signatures import REPLICAS, Pass

Progress = Callable[[int, str], None]
"""Called with the number of candidates so far, and what is being tried."""
Tell = Callable[[str], None]
"""Called with one sentence as soon as something is known: first whether a rounding set fits."""

NO_MISTAKE = frozenset({"indexer_ties_high"})
"""Faults of the library that are not mistakes: which of two equal scores a top-k selects (``Case.untied``)."""
LEADING, REFINED = 8, 3
"""LEADING: number of best faults that are tried in other rounding sets, too. REFINED: number of best candidates whose
constants are fitted, or which are tried with top-k ties decided the other way."""
EARLY = 8
"""Only for deviations that begin at this position or later, faults of a separate code path (decode) are tried."""
CLEARLY = 0.8
"""A rounding set is tried first if the data's distance from it is below this multiple of that from exact."""
FAR = 10.0
"""If a set without a mistake misfits by this much, a fault in it is large enough to rank first in other sets, too."""
IMPLAUSIBLE = 3.0
"""A rounding set is not tried if its distance from exact is this many times smaller or larger than the data's."""
GAIN, NEARER = 5.0, 0.1
"""A wrong constant is fitted if it gains over the set without a mistake: in log likelihood GAIN if the set quantizes,
else in ``Fit.core`` NEARER."""


def search(
    case: Case,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    tell: Tell | None = None,
) -> Posterior:
    """Compute candidates stage by stage until one explains the observation, and return their posterior.

    ``cancel`` is called again and again; once it returns True, the search ends with the candidates so far.
    """
    work = Search(case, progress, cancel, tell)
    try:
        for _ in work.stages():
            if work.answered():
                break
            work.sum_up()
        work.similar_sets()
    except _Cancelled:
        case.library.close()
    return work.posterior


class _Cancelled(Exception):
    """Raised inside a search that was cancelled, to end it."""


def touched(c: Candidate) -> frozenset[str]:
    """Return the names of the intermediates, ops and constants that a candidate's mistakes change."""
    return frozenset().union(*(fault.touches for fault in c.faults))


class Search:
    """The search for what explains one case; ``stages`` runs it."""

    def __init__(
        self,
        case: Case,
        progress: Progress | None = None,
        cancel: Callable[[], bool] | None = None,
        tell: Tell | None = None,
    ):
        self.case, self.posterior, self._progress, self._cancel = case, Posterior(case), progress, cancel
        self._tell = tell
        self.bases: list[str] = []
        self.fitted: set[str] = set()
        self._doing = self._so_far = ""
        case.poll = lambda: self._say(self._doing)

    def stages(self) -> Iterator[None]:
        """Compute candidates, likeliest explanations first; yield after each stage."""
        self._sets(["exact"])
        near = self._usual() or self._nearest_set()
        self._tell_sets(near)
        for mode in self.case.library.runner.usual:  # a dense model has only mistakes outside the pass here, few runs
            self._library(mode)
            yield
        if near == "exact":
            self._library("exact")
            yield
            self._families("exact")
            yield
        self._sets([near])
        self._sets(self._possible(self._plausible([self.posterior.clean("exact")])))
        answer = self.posterior.answer()
        first = near if answer is None else answer.mode
        self._library(first)
        yield
        if first != "exact":
            self._families(first)
            yield
        ours = [mode for mode in self.case.library.modes if mode not in self.bases]
        computed = {c.mode: self.posterior.score(c) for c in self.posterior.candidates if c.clean}
        for mode in sorted(ours, key=lambda mode: -computed.get(mode, -np.inf)):
            self._library(mode)
            yield
        self._families("exact")
        yield
        self._elsewhere()
        yield
        mode = self._best().mode
        if self._clean(mode).fit.misfit < FAR:
            self._library(mode)
            yield
        for mode in dict.fromkeys((self._best().mode, self._best_clean().mode)):
            self._families(mode, self._leading_families())
            yield
        yield from self._late()
        for mode in dict.fromkeys(("exact", self._best().mode)):  # exact first: float precision decides
            self._parts(mode)
            yield

    def answered(self) -> bool:
        """Return whether the search can stop.

        It can if a candidate fits to float precision, if there is enough evidence to name a mistake, or if a rounding
        set fits and was compared with all known faults and wrong constants in it.
        """
        best = self._best()
        if not best.coarse and self.posterior.fits(best):
            # a small rest may mean a similar mistake: a constant with another wrong value than this mistake gives it
            whole = not best.clean and self.posterior.misfit(best) < LIMIT
            return whole or best.mode in self.fitted
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
            self.posterior.candidates.append(c)
            new.append(c)
            self._say(self._doing)
        return new

    def _computed(self, ideas: Iterable[Idea]) -> list[Candidate]:
        """Compute and return the candidates for explanations that pass the screening, reporting progress."""
        new: list[Candidate] = []
        by_mode: dict[str, list[Idea]] = {}
        for idea in ideas:
            by_mode.setdefault(idea.mode, []).append(idea)
        for mode, same in by_mode.items():
            self._say(f"{same[0].kind} in {mode}")
            new += self._add(self.case.computed(self.case.screened(mode, same)))
        return new

    def _say(self, doing: str) -> None:
        """Report to progress what is tried now; end the search if it was cancelled and has at least one candidate."""
        self._doing = doing
        if self._cancel is not None and self._cancel() and self.posterior.candidates:
            raise _Cancelled
        if self._progress is not None:
            self._progress(len(self.posterior.candidates), doing + self._so_far)

    def sum_up(self) -> None:
        """Update what progress shows as the result so far: which rounding set fits up to which position."""
        base = self.posterior.base()
        until = self.case.first_beyond(base)
        fits = f"; {base.mode} up to position {until}" if until else ""
        self._so_far = "" if until is None else f" (nothing fits yet{fits})"

    def _tell_sets(self, near: str) -> None:
        """Tell whether a rounding set fits; ``near``: the one that is nearest."""
        if self._tell is None:
            return
        best, count = self._clean(near), len(self.case.seen.rows)
        if best.fit.misfit < LIMIT and not best.coarse:
            self._tell(f"no mistake seen: {near} fits at all {count} positions; known mistakes are compared next")
            return
        first = self.case.first_beyond(best)
        beyond = "" if first is None else f", first at position {first}"
        fits = "fits" if best.fit.misfit < LIMIT else "does not fit"
        self._tell(f"{near}, the nearest rounding set, {fits}: {best.fit.rms:.2g} nats (rms) away{beyond}; other sets "
                   "and known mistakes are compared next")  # fmt: skip

    def _clean(self, mode: str) -> Candidate:
        """Return the candidate "rounding set ``mode``, no mistake", computing it if necessary."""
        self._sets([mode])
        return self.posterior.clean(mode)

    # --- rounding sets

    def _sets(self, modes: Iterable[str]) -> None:
        """Add the candidates "rounding set, no mistake" for those of ``modes`` that are missing."""
        new = [mode for mode in modes if mode not in self._present()]
        if new:
            self._say(f"rounding {', '.join(new) if len(new) < 3 else 'sets'}")
        self.case.library.ahead(Pass(mode, noise=i) for mode in new for i in (None, *range(REPLICAS)))
        self._add(self.case.clean(mode) for mode in new)

    def _usual(self) -> str | None:
        """Return the rounding set beside our modes that such engines usually have, if it explains the data; else
        None."""
        self._sets(self.case.library.runner.usual)
        answer = self.posterior.answer()
        return None if answer is None else answer.mode

    def _present(self) -> set[str]:
        """Return the rounding sets that are candidates."""
        return {c.mode for c in self.posterior.candidates if c.clean}

    def _possible(self, modes: Iterable[str]) -> list[str]:
        """Return those of ``modes`` that are not candidates, and that the data may come from without a mistake.

        It does not if it is much further from a set than the set is from exact, or than a few noisy runs are.
        """
        exact, possible = self.case.reference("exact"), []
        for mode in modes:
            if mode in self._present():
                continue
            rows = self.case.rows_of(Pass(mode))
            r = squares(self.case.values, rows)
            reach = squares(exact.predicted, rows) + exact.expected_at(FOREIGN)
            with np.errstate(invalid="ignore"):
                away = float(np.nanquantile(r / reach, 0.25)) > BEYOND**2
            if not away and self.case.excess(Pass(mode), r) < MUCH:
                possible.append(mode)
        return possible

    def _nearest_set(self) -> str:
        """Return the rounding set to which the data is clearly nearer than to "exact", else "exact".

        A mistake's effect does not resemble that of a rounding, so it makes no other set nearer.
        """
        best = self._best()
        if best.fit.misfit < LIMIT:
            return "exact"
        away = best.fit.r
        ratios = {"exact": CLEARLY**2}
        for mode, rows in self._set_rows().items():
            with np.errstate(all="ignore"):
                ratio = squares(self.case.values, rows) / away
            if mode != "exact" and np.isfinite(ratio).any():
                ratios[mode] = float(np.nanmedian(ratio))
        return min(ratios, key=lambda mode: ratios[mode])

    def _plausible(self, leaders: Sequence[Candidate]) -> list[str]:
        """Return the rounding sets that may explain what one of ``leaders`` leaves unexplained.

        Such a set is about as far from the leader's set as the data is from the leader, noise included.
        """
        clean, near = self._set_rows(), set()
        for c in leaders:
            left, noise = c.fit.r, self.case.reference(c.mode).expected_at(c.fit.shift)
            for mode, rows in clean.items():
                with np.errstate(all="ignore"):
                    ratio = np.nanmedian(left / (squares(clean[c.mode], rows) + noise))
                if 1 / IMPLAUSIBLE**2 < ratio < IMPLAUSIBLE**2:
                    near.add(mode)
        return [mode for mode in clean if mode in near]

    def _set_rows(self) -> dict[str, np.ndarray]:
        """Return the predictions of all rounding sets without a mistake, by name: (R, K) each."""
        self.case.library.ahead(Pass(mode) for mode in self.case.library.sets)
        return {mode: self.case.rows_of(Pass(mode)) for mode in self.case.library.sets}

    def similar_sets(self) -> None:
        """Add rounding sets that are near to the data: one may decide the same top-k otherwise as the engine does."""
        near = 3 * self._best().fit.rms
        modes = [mode for mode in self.case.library.sets if mode not in self._present()]
        opening = self.case.opening("exact")
        if opening is not None and self._best().mode == "exact" and self.posterior.fits(self._best()):
            runs = {mode: Pass(mode, until=opening.until) for mode in modes}
            self.case.library.ahead(runs.values())
            early = self.case.values[opening.rows]
            away = {mode: squares(early, self.case.rows_of(run, opening.rows)) for mode, run in runs.items()}
            modes = [mode for mode in modes if float(np.sqrt(np.nanmedian(away[mode]))) < near]
        self.case.library.ahead(Pass(mode) for mode in modes)
        distances = {mode: squares(self.case.values, self.case.rows_of(Pass(mode))) for mode in modes}
        self._sets(self._possible(mode for mode, r in distances.items() if float(np.sqrt(np.nanmean(r))) < near))

    # --- mistakes

    def _library(self, mode: str) -> None:
        """Add all known mistakes, in and outside the forward pass, in one rounding set."""
        if mode in self.bases:
            return
        self.bases.append(mode)
        ideas = self.case.within_reach(mode, [self.case.fault(mode, name) for name in self._names(mode)])
        outside = self._outside(mode)
        if not ideas and outside == [] and mode not in self._present() and not self._possible([mode]):
            return
        self._clean(mode)
        self._say(f"mistakes outside the pass in {mode}")
        self._add(self.case.outside(mode, outside))
        self._computed(ideas)
        if not ROUNDING[mode].coarse:
            self._untie_library([c for c in self.posterior.candidates if c.mode == mode])

    def _outside(self, mode: str) -> list[str] | None:
        """Return the mistakes outside the pass that may explain the data in rounding set ``mode``; None: all."""
        tried = [c for c in self.posterior.candidates if c.kind == "outside" and c.mode == "exact"]
        if mode == "exact" or "exact" not in self.bases:
            return None
        rows, exact = self._set_rows()[mode], self.case.reference("exact")
        reach = squares(exact.predicted, rows) + exact.expected_at(FOREIGN)
        with np.errstate(invalid="ignore"):
            return [c.name for c in tried if float(np.nanquantile(c.fit.r / reach, 0.25)) < BEYOND**2]

    def _names(self, mode: str) -> list[str]:
        """Return the names of the known faults that can change the numbers on these tokens in rounding set ``mode``."""
        return [fault.name for fault in self.case.library.faults(mode) if fault.name not in NO_MISTAKE]

    def _untie_library(self, here: Sequence[Candidate]) -> None:
        """Try the nearest candidates of ``here``, and the one without a mistake, with top-k ties decided the other way.

        ``here``: candidates of one rounding set.
        """
        nearest = sorted(here, key=lambda c: c.fit.core)[:LEADING]
        nearest += [c for c in here if c.clean and c not in nearest]
        if min(c.fit.misfit for c in nearest) < LIMIT:
            # a mistake as small as float noise may fit only because it decides a tie as the engine does
            self._untie([c for c in nearest if c.clean])
            return
        self._untie(nearest[1:])
        if not self._untie(nearest[:1]) and nearest[0].faults:
            # if a mistake amplifies noise, only noise measured with the mistake shows where the misfit begins
            self._untie(nearest[:1], own=True)
        if self.posterior.clean(here[0].mode).flipped is not None:
            # then faults with tiny effects need the same tie decided the other way
            self._untie([c for c in here if c.name in EVERY and EVERY[c.name].quiet and c not in nearest])

    def _untie(self, candidates: Sequence[Candidate], own: bool = False) -> bool:
        """Replace candidates by versions with a top-k tie decided the other way where that explains more.

        Return whether any was replaced. ``own``: measure noise on engines that have the candidate's mistake.
        """
        changed = False
        for c in candidates:
            better = self.case.untied(c, self.case.reference_of(c.run) if own else None)
            changed |= better is not c
            self.posterior.replace(c, better)
        return changed

    def _untie_nearest(self, new: Sequence[Candidate]) -> None:
        self._untie(sorted(new, key=lambda c: c.fit.core)[:REFINED])

    def _elsewhere(self) -> None:
        """Add the best mistakes so far once more in rounding sets that are not modes of ours, where plausible."""
        wrong = [c for c in self.posterior.ranked(clean=False) if c.kind in ("fault", "outside", "family")]
        names = list(dict.fromkeys(c.name for c in wrong if c.kind != "family"))[:LEADING]
        best: dict[str, Candidate] = {}
        for c in wrong:
            if c.fit.rms < self.posterior.clean(c.mode).fit.rms / 2:
                best.setdefault(c.family, c)
        leaders = list(best.values())[:REFINED]
        constants = [c for c in leaders if c.kind == "family"]
        families = self.case.library.families
        for mode in self._plausible([self.posterior.clean("exact"), *leaders]):
            ideas: list[Idea] = []
            outside: Sequence[str] = []
            if mode not in self.bases:
                allowed = self._outside(mode)
                outside = [name for name in names if allowed is None or name in allowed]
                ideas += [self.case.fault(mode, name) for name in names if name in self._names(mode)]
            if mode not in self.fitted:
                ideas += [self.case.member(mode, families[c.family], fitting.value_of(c)) for c in constants]
            ideas = self.case.within_reach(mode, ideas)
            if ideas or mode in self._present() or self._possible([mode]):
                self._sets([mode])  # a mistake is always compared with its set without a mistake
                self._add(self.case.outside(mode, outside))
                self._computed(ideas)
        for c in constants[:1]:
            # a value fitted in another rounding set is a little off: fit it again in the two nearest sets
            nearest: dict[str, Candidate] = {}
            for other in sorted(self.posterior.candidates, key=lambda other: other.fit.rms):
                if other.family == c.family:
                    nearest.setdefault(other.mode, other)
            for other in list(nearest.values())[:2]:
                self._fit(other)

    def _families(self, mode: str, only: Sequence[str] | None = None) -> None:
        """Add candidates with a wrong constant of the model in rounding set ``mode``, and fit the best of them.

        ``only``: names of the constants' families to try (None: all).
        """
        if mode in self.fitted:
            return
        self.fitted.add(mode)
        clean, coarse = self._clean(mode), ROUNDING[mode].coarse
        library = self.case.library
        known = FAMILIES if library.runner.own else library.families
        families = [library.families[name] for name in (known if only is None else only) if name in library.families]
        self._say(f"constants in {mode}")
        tried = self._add(fitting.nearest(self.case, mode, families))
        best: dict[str, Candidate] = {}
        for c in sorted(tried, key=lambda c: -fitting.closeness(c)):
            best.setdefault(c.family, c)
        better = [
            c
            for c in best.values()
            if (c.fit.score > clean.fit.score + GAIN if coarse else c.fit.core < clean.fit.core - NEARER)
        ]
        leader = self.posterior.champion()
        beside = touched(leader) if leader is not None and leader.mode == mode else frozenset()
        for n, c in enumerate(better):
            if n < REFINED or beside & touched(c):
                self._fit(c)

    def _fit(self, c: Candidate) -> None:
        """Fit the value of a wrong constant, beginning at the value in candidate ``c``, and add the result."""
        self._say(f"{c.family} in {c.mode}")
        family = self.case.library.families[c.family]
        start = fitting.approached(self.case, c.mode, family, fitting.value_of(c))
        if start is not None:
            self._add([self.case.untied(fitting.refined(self.case, c.mode, family, start))])

    def _leading_families(self) -> list[str]:
        """Return the names of the families that gained most over the set without a mistake, best first."""
        gains: dict[str, float] = {}
        for c in self.posterior.candidates:
            if c.kind == "family":
                gain = c.fit.score - self.posterior.clean(c.mode).fit.score
                gains[c.family] = max(gain, gains.get(c.family, -np.inf))
        return sorted(gains, key=lambda name: -gains[name])[:LEADING]

    # --- less likely kinds

    def _late(self) -> Iterator[None]:
        """Add known faults that begin at the position where the numbers begin to deviate; yield after each set."""
        modes = [mode for mode in self._compared() if mode in self._present()]
        starts = {mode: self.case.first_beyond(self.posterior.clean(mode)) or 0 for mode in modes}
        for mode in sorted(starts, key=lambda mode: -starts[mode])[:2]:
            if starts[mode] >= EARLY:
                self._untie_nearest(
                    self._computed(self.case.late(mode, name, starts[mode]) for name in self._names(mode))
                )
                yield

    def _compared(self) -> list[str]:
        """Return the rounding sets in which all known faults were tried, the most likely first."""
        order = dict.fromkeys((self._best().mode, self._best_clean().mode, *self.case.library.modes))
        return [mode for mode in order if mode in self.bases]

    def _parts(self, mode: str) -> None:
        """Add known faults that are only in some kind of layers, or only in the attention or the FFN halves."""
        self._clean(mode)
        if mode != "exact" and self.case.first_beyond(self.posterior.clean(mode)) is None:
            return  # what is off alike everywhere is in no part
        shape = self.case.library.engine.shape
        changed: set[tuple[str, frozenset[int]]] = set()  # what each fault changes in the parts that were tried
        for single in (False, True):
            ideas = []
            for name in self._names(mode):
                changed |= {(name, frozenset()), (name, halves(EVERY[name], shape))}
                for part, where in parts_of(EVERY[name], scopes(shape)).items():
                    if part.startswith("layer ") is single and not (single and self.case.too_small(mode, name)):
                        idea = self.case.part(mode, name, part, where)
                        inside = name, halves(idea.faults[0], shape)
                        ideas += [] if inside in changed else [idea]
                        changed.add(inside)
            self._untie_nearest(sorted(self._computed(ideas), key=lambda c: -self.posterior.score(c)))
            if self.answered():
                return
