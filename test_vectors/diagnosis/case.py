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
from functools import partial
from typing import Any

import numpy as np

from ds4ref.variants import EVERY, MODE_NAMES, SETS, Fault
from ds4ref.variants.families import Family
from ds4ref.variants.runner import AnyFault
from ds4ref.variants.scoped import ScopedFault, Where

from ..observation import Observation
from .evidence import (
    DRIFT,
    FLOAT_FLOOR,
    FOREIGN,
    LIMIT,
    SHORTEST,
    Fit,
    Reference,
    log_student,
    seen_through,
    smooth,
    squares,
    stretches,
    tail_cost,
)  # fmt: skip
from .onsets import change_point, onsets
from .outside import OutsideBug, outside_bugs
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
BEYOND = 5.0
"""A rounding set, alone or with a mistake, is ruled out where the data is this many times as far from it as the set is
from exact, or this many times nearer to exact than the set is: noise moves its runs by less than it rounds."""
IN_ONE = 2.0
"""A bug is not tried in single layers if all layers together move the numbers by less than the data divided by this."""
PROBES = 2
"""Number of noisy runs that rule out a candidate which is much further from the data than they are from it."""
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

    fit      distance of the prediction from the observation
    predict  returns ``rows``
    flipped  position at which ``rows`` come from a run that decided a top-k tie the other way; None otherwise
    """

    fit: Fit
    predict: Callable[[], np.ndarray]
    flipped: int | None = None

    @property
    def rows(self) -> np.ndarray:
        """Return the predicted log probabilities (R, K) at the observed rows and tokens, computed or read again."""
        return self.predict()


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
    tried    of short runs, by rounding set, name and number of tokens: mean square differences at an opening's rows
             (n,) from the data and from the set without a mistake
    refuted  by rounding set and name, the entries of ``tried`` of explanations that the first of these rows rule out
    poll     called between runs; may raise to end the work
    """

    def __init__(self, library: Signatures, seen: Observation, bos: int | None):
        self.library, self.seen, self.bos = library, seen, bos
        self.values = np.where(np.isposinf(seen.logprobs), np.nan, seen.logprobs)
        self.storage = np.zeros(len(seen.rows)) if seen.storage is None else np.nanmean(seen.storage, axis=1)
        self._references: dict[str, Reference] = {}
        self._openings: dict[str, Opening | None] = {}
        self.refused: dict[str, dict[str, float]] = {}
        self.tried: dict[tuple[str, str, int], tuple[np.ndarray, np.ndarray]] = {}
        self.refuted: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
        self.poll: Callable[[], None] = lambda: None

    # --- noise

    def rows_of(self, run: Pass, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the log probabilities (R, K) of a run at the observed rows and tokens; ``rows``: only at these."""
        return seen_through(self.seen if rows is None else self.seen.part(rows), self.library.of(run).logprobs)

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
            rows = np.arange(AHEAD)
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
        whole = any(fault.ahead for fault in idea.faults)
        return self.rows_of(idea.run if whole else replace(idea.run, until=opening.until), opening.rows)

    def at_opening(self, idea: Idea, opening: Opening) -> tuple[np.ndarray, np.ndarray]:
        """Return an explanation's entry of ``tried`` at the rows of ``opening``."""
        key = idea.mode, idea.name, opening.until
        if key not in self.tried:
            predicted, rows = self.opening_rows(idea, opening), opening.rows
            clean = self.rows_of(Pass(idea.mode))[rows]
            self.tried[key] = squares(self.values[rows], predicted), squares(clean, predicted)
        return self.tried[key]

    def _briefly(self, ideas: Sequence[Idea], opening: Opening) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the entries of ``tried`` of several explanations, computed in parallel."""
        self.library.ahead(
            replace(idea.run, until=opening.until)
            for idea in ideas
            if (idea.mode, idea.name, opening.until) not in self.tried and not any(fault.ahead for fault in idea.faults)
        )
        for idea in ideas:
            self.poll()
            yield self.at_opening(idea, opening)

    def gains(self, mode: str, ideas: Sequence[Idea]) -> list[float] | None:
        """Return how much log likelihood each explanation gains over rounding set ``mode`` without a mistake.

        Only the rows of the set's opening count, computed by short runs; None if these would not be short.
        """
        opening = self.opening(mode)
        if opening is None:
            return None
        before = self._refuted(mode, ideas, opening)
        here = iter(self._gained(mode, [idea for idea in ideas if idea.name not in before], opening))
        return [before[idea.name] if idea.name in before else next(here) for idea in ideas]

    def _gained(self, mode: str, ideas: Sequence[Idea], opening: Opening) -> list[float]:
        """Return how much log likelihood each explanation gains at the rows of ``opening``."""
        ref, rows = self.reference(mode), opening.rows
        clean = tail_cost(squares(self.values[rows], ref.predicted[rows]), ref.expected[rows])
        return [clean - tail_cost(r, ref.expected[rows]) for r, _ in self._briefly(ideas, opening)]

    def _refuted(self, mode: str, ideas: Sequence[Idea], opening: Opening) -> dict[str, float]:
        """Return the gains, by name, of explanations that a run of fewer tokens rules out: it moves rows before the
        first deviation, or is much further away at the first rows than the set without a mistake."""
        first = int(opening.rows[0])
        rows = np.arange(min(AHEAD, first)) if first >= AHEAD // 2 else opening.rows[:AHEAD]
        if not opening.deviates or self.seen.rows[rows[-1]] > opening.until // 2:
            return {}
        early = Opening(rows, int(self.seen.rows[rows[-1]]) + 1, first < AHEAD // 2)
        some = [i for i in ideas if i.since < early.until and not any(fault.ahead for fault in i.faults)]
        out = {i.name: gain for gain, i in zip(self._gained(mode, some, early), some, strict=True) if gain < -CLIP}
        self.refuted.setdefault(mode, {}).update((name, self.tried[mode, name, early.until]) for name in out)
        return out

    def within_reach(self, mode: str, ideas: Iterable[Idea]) -> list[Idea]:
        """Return those of ``ideas``, all in rounding set ``mode``, that their runs in "exact" do not rule out.

        An engine with a mistake and a rounding set is about as far from one with the mistake alone as the set is from
        exact. So where the data is further away than that, a mistake has to bring the run in exact nearer to it; and
        where the data is much nearer to exact than the set is, no mistake in the set explains it.
        """
        ideas, opening = list(ideas), self.opening("exact")
        if mode == "exact" or opening is None or not opening.deviates:
            return ideas
        rows, exact = opening.rows, self.reference("exact")
        clean, values = self.rows_of(Pass(mode))[rows], self.values[rows]
        usual = exact.expected_at(FOREIGN)[rows]
        reach = squares(exact.predicted[rows], clean) + usual
        away, plain = squares(values, clean), squares(values, exact.predicted[rows])
        with np.errstate(invalid="ignore"):
            if np.nanmedian((plain + usual) / reach) < BEYOND**-2:
                return []
            far = bool(np.nanmedian(away / reach) > BEYOND**2)
        before, refuted = tail_cost(away, reach), self.refuted.get("exact", {})
        known = {idea.name: self.tried.get(("exact", idea.name, opening.until)) for idea in ideas}
        if far:  # those that "exact" cannot have are tried in their set
            own = [idea for idea in ideas if known[idea.name] is None and idea.name not in refuted]
            known |= zip((idea.name for idea in own), self._briefly(own, opening), strict=True)

        def reaches(entry: tuple[np.ndarray, np.ndarray] | None) -> bool:
            if entry is None:
                return True
            with np.errstate(invalid="ignore"):
                near = np.nanmedian(entry[0] / reach) < BEYOND**2
            return before - tail_cost(entry[0], reach) > 1.0 if far else bool(near)

        kept = [idea for idea in ideas if idea.name not in refuted and reaches(known[idea.name])]
        for name in {idea.name for idea in ideas} - {idea.name for idea in kept}:
            moved = (refuted.get(name) or known[name] or (0, np.zeros(1)))[1]
            self.refused.setdefault(mode, {}).setdefault(name, float(np.sqrt(np.nanmean(moved))))
        return kept

    def too_small(self, mode: str, name: str) -> bool:
        """Return whether a short run showed that a known bug moves the numbers by much less than the data is away."""
        opening = self.opening(mode)
        entry = opening and self.tried.get((mode, name, opening.until))
        if opening is None or not entry:
            return False
        away = squares(self.values[opening.rows], self.reference(mode).predicted[opening.rows])
        return bool(np.nanmedian(entry[1]) * IN_ONE**2 < np.nanmedian(away))

    def excess(self, run: Pass, r: np.ndarray) -> float:
        """Return the median of ln sqrt(r / e) of mean square differences ``r`` (R,) from a run, with e of a few noisy
        runs."""
        quiet = self.rows_of(run)
        noisy = [
            squares(seen_through(self.seen, each.logprobs), quiet) for each in self.library.noisy(run, count=PROBES)
        ]
        usual = smooth(np.nan_to_num(np.mean(noisy, axis=0))) + self.storage + FLOAT_FLOOR**2
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.nanmedian(0.5 * np.log(r / usual)))

    def screened(self, mode: str, ideas: Iterable[Idea]) -> list[Idea]:
        """Return those of ``ideas``, all in rounding set ``mode``, that a run of the first tokens does not rule out.

        An explanation must hold where the set without a mistake begins to deviate. Except for the best ``KEPT``, those
        that gain less than one unit of log likelihood there, or much less than the best, are ruled out. If the set does
        not deviate, those that lose very much there are ruled out, and added to ``refused``.
        """
        ideas = self.within_reach(mode, ideas)
        gains, opening = self.gains(mode, ideas), self.opening(mode)
        if gains is None or opening is None or not ideas:
            return ideas
        order = np.argsort(gains)[::-1]
        bar, always = (max(1.0, max(gains) - 2 * CLIP), KEPT) if opening.deviates else (-CLIP, 0)
        passed = {int(i) for n, i in enumerate(order) if n < always or gains[i] > bar}
        if not opening.deviates:
            for i in set(range(len(ideas))) - passed:
                _, moved = self.at_opening(ideas[i], opening)
                self.refused.setdefault(mode, {})[ideas[i].name] = float(np.sqrt(np.nanmean(moved)))
            return self._unnoticed(mode, [idea for i, idea in enumerate(ideas) if i in passed])
        return [idea for i, idea in enumerate(ideas) if i in passed]

    def _unnoticed(self, mode: str, ideas: list[Idea]) -> list[Idea]:
        """Return those of ``ideas`` that would not be noticed if the mistake began where a part of the model does; add
        the others to ``refused``.

        A mistake in every token would be noticed even better, and this takes a run of a few tokens on a shared prefix.
        """
        ref, shape = self.reference(mode), self.library.engine.shape
        opening = self.opening(mode)
        if opening is None or not self.library.runner.own:
            return ideas
        usual = float(np.median(ref.expected[opening.rows]))
        effective = [idea for idea in ideas if np.nanmedian(self.at_opening(idea, opening)[1]) > usual]
        ideas, end = [idea for idea in ideas if idea not in effective], opening.until
        for at in sorted({at for at, _ in onsets(shape)}):
            rows = np.flatnonzero((self.seen.rows >= at) & (self.seen.rows < at + AHEAD))
            if at < end or len(rows) < AHEAD // 2 or not ideas:
                continue
            end = at + AHEAD
            late = Opening(rows, at + AHEAD, False)
            begun = [replace(idea, name=f"{idea.name} [from {at}]", since=at) for idea in ideas]
            clean = tail_cost(squares(self.values[rows], ref.predicted[rows]), ref.expected[rows])
            quiet = []
            for idea, (r, moved) in zip(ideas, self._briefly(begun, late), strict=True):
                if clean - tail_cost(r, ref.expected[rows]) > -CLIP:
                    quiet.append(idea)
                else:
                    self.refused.setdefault(mode, {})[idea.name] = float(np.sqrt(np.nanmean(moved)))
            ideas = quiet
        return effective + ideas

    # --- candidates

    def candidate(self, idea: Idea, predict: Callable[[], np.ndarray]) -> Candidate:
        """Return the candidate for an explanation ``idea``; ``predict`` returns its log probabilities (R, K)."""
        return Candidate(**vars(idea), predict=predict, fit=self.reference(idea.mode).fit(self.values, predict()))

    def clean(self, mode: str) -> Candidate:
        """Return the candidate "rounding set ``mode``, no mistake"."""
        ref = self.reference(mode)
        idea = Idea(
            kind="mode" if mode in MODE_NAMES else "rounding", mode=mode, name="", says=self.library.runner.says(mode)
        )
        return Candidate(**vars(idea), predict=lambda: ref.predicted, fit=ref.fit(self.values))

    def computed(self, ideas: Iterable[Idea]) -> Iterator[Candidate]:
        """Compute the predictions of several explanations in parallel, and yield the candidates in order."""
        ideas = list(ideas)
        self.library.ahead(idea.run for idea in ideas)
        for idea in ideas:
            yield self.candidate(idea, partial(self.rows_of, idea.run))

    def fault(self, mode: str, name: str) -> Idea:
        """Return the explanation (Idea) that the engine has the known bug ``name`` in rounding set ``mode``."""
        return Idea(kind="fault", mode=mode, name=name, says=EVERY[name].says, faults=(EVERY[name],))

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
        fault = ScopedFault(EVERY[name], part, where)
        return Idea(
            kind="part", mode=mode, name=fault.name, says=f"{EVERY[name].says}, in {part} only", faults=(fault,)
        )

    def late(self, mode: str, name: str, since: int) -> Idea:
        """Return the explanation (Idea) that the known bug ``name`` begins at position ``since``, such as in decode."""
        says = f"{EVERY[name].says}, from position {since} on (a path of its own, such as decode?)"
        return Idea(
            kind="late", mode=mode, name=f"{name} [from {since}]", says=says, faults=(EVERY[name],), since=since
        )

    def outside(self, mode: str, only: Sequence[str] | None = None) -> Iterator[Candidate]:
        """Yield candidates for mistakes outside the forward pass that predict at least one observed number.

        ``only``: names of the mistakes to try (None: all).
        """
        opening = self.opening(mode)
        for bug in outside_bugs(self.library, self.bos):
            if only is None or bug.name in only:
                idea = Idea(kind="outside", mode=mode, name=bug.name, says=bug.says)
                if opening is not None and self._ruled_out(bug, mode, opening):
                    continue
                if not np.isnan(self._outside(bug, mode)).all():
                    yield self.candidate(idea, partial(self._outside, bug, mode))

    def _ruled_out(self, bug: OutsideBug, mode: str, opening: Opening) -> bool:
        """Return whether the first tokens show that the data has not this mistake, though it changes them; if so and
        the set without a mistake fits, add the mistake to ``refused``."""
        until = opening.until
        part = self.seen.part(np.flatnonzero(self.seen.rows < until))
        if not bug.runs or len(part.rows) < AHEAD:
            return False
        rows, n = seen_through(part, bug.make(self.library.head(until), mode, part)), len(part.rows)
        r, moved = (squares(each, rows) for each in (self.values[:n], self.reference(mode).predicted[:n]))
        known = np.isfinite(r)
        if known.sum() < AHEAD // 2:
            return False
        ref = self.reference(mode)
        usual = ref.expected[:n][known]
        gain = tail_cost(squares(self.values[:n], ref.predicted[:n])[known], usual) - tail_cost(r[known], usual)
        if gain < -CLIP and not opening.deviates:
            self.refused.setdefault(mode, {})[bug.name] = float(np.sqrt(np.nanmean(moved)))
        return gain < -CLIP

    def _outside(self, bug: OutsideBug, mode: str) -> np.ndarray:
        return seen_through(self.seen, bug.make(self.library, mode, self.seen))

    # --- ties

    def untied(self, c: Candidate, own: Reference | None = None) -> Candidate:
        """Return the candidate with a top-k tie decided the other way, if that explains more; else unchanged.

        Which of two equal scores a top-k selects is not a mistake. So an exact tie where the misfit begins is decided
        the other way, and near ties are tried in runs with more noise, where they go either way. ``own``: noise that
        decides where the misfit begins (None: that of the rounding set). A rounding set without a mistake that fits is
        tried, too: its noise may be that large only because some of its noisy runs decide a tie the other way.
        """
        if c.coarse or c.kind == "outside":
            return c
        if c.fit.misfit < LIMIT:
            return self._decided(c) if c.clean and self.library.of(c.run).margin.min(initial=np.inf) <= TIE else c
        first = self.first_beyond(c, own)
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
            ties = Pass(c.mode, (*c.faults, EVERY["indexer_ties_high"]), f"{c.run.name} ties high", c.since)
            tried.append(self._flipped(c, ties, first))
        if tried[-1].fit.misfit >= LIMIT:
            runs = [replace(c.run, noise=i, louder=True) for i in range(REPLICAS)]
            self.library.ahead(runs)
            tried += [self._flipped(c, run, first) for run in runs]
        return max(tried, key=lambda one: one.fit.score)

    def _decided(self, c: Candidate) -> Candidate:
        """Return a rounding set that fits with the prediction of one of its noisy runs, if that explains more."""
        runs = [replace(c.run, noise=i, louder=louder) for louder in (False, True) for i in range(REPLICAS)]
        self.library.ahead(runs)
        moved = [np.nan_to_num(squares(self.rows_of(run), c.rows)) for run in runs]
        starts = [int(self.seen.rows[np.argmax(each > 1e-4 * each.max())]) for each in moved]
        tried = [self._flipped(c, run, first) for run, first in zip(runs, starts, strict=True)]
        return max([c, *tried], key=lambda one: one.fit.score)

    def _flipped(self, c: Candidate, run: Pass, first: int) -> Candidate:
        """Return the candidate with the prediction of another run, which decided a tie the other way."""
        fit = self.reference(c.mode).fit(self.values, self.rows_of(run))
        return replace(c, predict=partial(self.rows_of, run), fit=fit, flipped=first)

    # --- two candidates against each other

    def bayes_factor(self, a: Candidate, b: Candidate) -> float:
        """Return the log Bayes factor of ``a`` over ``b``, clipped to +-``CLIP``.

        In sets without quantization it is the difference of the log likelihoods. In sets that quantize, this difference
        varies by chance, so its distribution is measured on replicas of both candidates (Student's t for so few).
        """
        ref_a, ref_b = self.reference(a.mode), self.reference(b.mode)

        rows_a, rows_b = a.rows, b.rows

        def difference(values: np.ndarray) -> float:
            return ref_a.fit(values, rows_a).score - ref_b.fit(values, rows_b).score

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
            apart = np.subtract(c.rows, self.reference(c.mode).predicted, dtype=np.float64)
            return [run + apart for run in self.replicas(Pass(c.mode))]
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
