"""Turn the posterior of an observation into a verdict that claims no more than the data supports.

    diagnosis = diagnose(Signatures(engine, ids), observation)
    diagnosis.verdict    "exact", "qat", "ds4" or another rounding set; "fault"; "unknown"; "undecided"; "broken"

* Numbers that are not finite log probabilities never come here (``diagnose.run_diagnosis`` reports them as "broken").
* The rule of ``posterior`` names a mistake or a rounding set. If a mistake leaves a small and uniform difference
  unexplained, its size is stated, too; a rounding set comes with its detection limit.
* If neither is named: a difference no larger than a rounding, and the same at all positions, is "undecided"; any other
  is "unknown".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ds4ref.nano.diagnostic import DIAGNOSTIC
from ds4ref.variants import COMPUTING, ROUNDING

from ..observation import Observation
from . import fitting
from .calibration import confidence
from .case import CLIP, Candidate, Case
from .evidence import LIMIT, tail_cost
from .limit import detection_limit
from .onsets import change_point, narrowed
from .places import places
from .posterior import ACCUSED, Posterior
from .search import Progress, Tell, search
from .signatures import Signatures
from .verdict import Diagnosis

ROUNDING_RATIO = 1.6
"""Largest distance from a rounding set that may still be an unknown rounding, in units of the distance between correct
engines of that set: llama.cpp's decode and bfloat16 engines are at 1.0 to 1.5 (docs/reference/vectors.md)."""
LESS = 0.2
"""Smallest distance, in any eighth of the positions, of an engine that computes in a 16-bit type, in units of the
distance between two such engines: numbers that agree better were not computed in that type."""
SHOWN, HOPELESS = 12, 30.0
"""Most candidates in a ranking, and the log odds below the best one from which only the first three are shown."""


def diagnose(
    library: Signatures,
    seen: Observation,
    bos: int | None = None,
    *,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    computes: str | None = None,
    seconds: float | None = None,
    tell: Tell | None = None,
) -> Diagnosis:
    """Explain the observation ``seen`` by a rounding set or a mistake, or say that neither does.

    library   runs of our model on the observed tokens
    bos       id of the beginning-of-sentence token, None without a tokenizer
    progress  called with the number of candidates so far, and what is tried now
    cancel    called again and again; once it returns True, the search ends with the best answer so far
    computes  type that the engine computes in, "bfloat16" or "float16" (None: the type in which the numbers seem to be
              stored)
    seconds   most CPU time to look for places of a mistake without a name, 0 for none (None: ``places.SECONDS``)
    tell      called with one sentence as soon as it is known whether a rounding set fits, and whether a name explains
              the numbers
    """
    case = Case(library, seen, bos)
    try:
        posterior = search(case, progress, cancel, tell)
        result = _Judge(case, posterior, computes or seen.stored).verdict()
        if result.verdict in ("unknown", "undecided") and not (cancel is not None and cancel()):
            if progress is not None:
                progress(len(posterior.candidates), "places in the pass")
            if tell is not None:
                tell(f"{result.verdict}: {result.says}; places in the pass are tried next")
            result.places = [place.to_json() for place in places(case, result.mode, seconds, cancel)]
    finally:
        library.close()
    if cancel is not None and cancel():
        result.stopped = len(posterior.candidates)
    result.confidence = confidence(result)
    if result.stored:
        result.notes.append(f"the numbers are stored as {result.stored}; that rounding counts as noise")
    if result.mode in ROUNDING and ROUNDING[result.mode].coarse and result.verdict in ("unknown", "fault"):
        result.notes.append(f"{result.mode} quantizes: a mistake smaller than its noise cannot be detected")
    return result


class _Judge:
    """Make a Diagnosis of the posterior of one case; ``computes``: type that the engine computes in, "" if unknown."""

    def __init__(self, case: Case, posterior: Posterior, computes: str = ""):
        self.case, self.posterior, self.computes = case, posterior, computes

    def verdict(self) -> Diagnosis:
        """Return the diagnosis with ranking and detection limit; its confidence is not yet set."""
        mistake = self.posterior.proven()
        if mistake is not None:
            # seen from a rounding set with little noise, a right 16-bit engine can look like one with a small mistake
            half = self.computing()
            return self.named(mistake) if half is None else self.cleared(*half)
        fits = self.posterior.champion()
        wrong = fits or next(iter(self.posterior.ranked(clean=False)), None)
        over = -CLIP if wrong is None else self.posterior.over(wrong)
        base = self.posterior.base()
        answer = base if base is self.posterior.answer() else None
        # another engine's float noise resembles one of the mistakes of its size a little: that is no reason for doubt
        bar = 0.0 if answer is None or answer.coarse else ACCUSED
        if answer is not None and (fits is None or over < bar):
            result = self.cleared(answer, over)
            if fits is not None and over > 0:
                result.notes.append(f"{fits.label} ({fits.says}) fits slightly better, by less than float noise: odds "
                                    f"{np.exp(over):.1f} to 1, and a mistake is named from 1000 to 1")  # fmt: skip
            return result
        half = self.computing()
        return self.open(base, wrong, over) if half is None else self.cleared(*half)

    def computing(self) -> tuple[Candidate, float] | None:
        """Return (candidate "a correct engine that computes in a 16-bit type", log odds of the best mistake over it).

        None unless it explains the numbers better than every mistake, and the numbers are stored in that type or the
        user named it: a small mistake in float32 makes differences of the same size.
        """
        if self.computes not in COMPUTING:
            return None
        half = self.case.clean(self.computes)
        level = half.fit.level
        parts = np.array_split(level, 8)
        if half.fit.misfit >= LIMIT or len(level) < 16 or not min(np.nanmean(part) for part in parts) > np.log(LESS):
            return None
        expected = self.case.reference(half.mode).expected

        def score(c: Candidate) -> float:
            return self.posterior.log_prior(c) - tail_cost(c.fit.r, expected)

        wrong = [score(c) for c in self.posterior.candidates if not c.clean]
        over = float(np.clip(max(wrong, default=-np.inf) - score(half), -CLIP, CLIP))
        return (half, over) if over < 0 else None

    # --- outcomes

    def named(self, c: Candidate) -> Diagnosis:
        """Return the diagnosis that the engine has the mistake ``c``."""
        over, (rival, gap) = self.posterior.over(c), self.posterior.rival(c)
        misfit, residue = self.posterior.misfit(c), self.posterior.residue(c)
        if c.kind == "family" and c.parameter is None:
            sized = fitting.refined(self.case, c.mode, self.case.library.families[c.family], fitting.value_of(c))
            c = sized if sized.fit.score >= c.fit.score else replace(c, parameter=sized.parameter)
        result = self.result("fault", self.posterior.clean(c.mode), c.says)
        result.fault = c.parameter["name"] if c.parameter is not None else c.name.partition(" [")[0]
        result.faults = result.fault.split(" + ")
        result.parameter = c.parameter and {k: _rounded(v) for k, v in c.parameter.items()}
        if c.kind == "part":
            result.notes.append(c.name.partition(" [")[2].rstrip("]") + " only")
        if residue is not None and misfit >= LIMIT:
            result.residue = float(f"{residue:.3g}")
            result.notes.append(f"{residue:.2g} nats (rms) remain, the same everywhere: a rounding, or a second small "
                                "mistake")  # fmt: skip
        if rival is not None and gap < 6:
            result.notes.append(f"second best: {rival.label} ({rival.says}), log odds {gap:.1f} lower")
        _note_tie(result, c)
        result.features = {"odds": over, "gap": gap, "misfit": misfit}
        return result

    def cleared(self, c: Candidate, over: float) -> Diagnosis:
        """Return the diagnosis "rounding set ``c``, no mistake" with its detection limit.

        ``over``: log odds of the best mistake over it.
        """
        result = self.result(c.mode, c, c.says)
        result.first_position = None
        mode = "exact" if c.mode in COMPUTING else c.mode  # mistakes are tried in "exact" for 16-bit engines
        others = [o for o in self.posterior.candidates if o.mode == mode and o.kind in ("fault", "family", "outside")]
        result.limit = limit = detection_limit(self.case, c, others)
        result.notes += limit["says"]
        _note_tie(result, c)
        if c.fit.shift > np.log(3):
            result.notes.append(f"float noise is {np.exp(c.fit.shift):.0f} times ours: another summation order, or a "
                                "mistake of that size")  # fmt: skip
        if limit["not_seen"]:
            result.next.append(_more(self.case))
        result.features = {"odds": -over, "misfit": c.fit.misfit, "hidden": float(len(limit["not_seen"]))}
        return result

    def open(self, base: Candidate, wrong: Candidate | None, over: float) -> Diagnosis:
        """Return the diagnosis "undecided" or "unknown", with the closest explanations.

        base   rounding set to compare with
        wrong  best mistake, with log odds ``over`` over the best rounding set
        """
        undecided = self.like_rounding(base)
        if undecided and base.fit.misfit >= LIMIT:
            base = self.posterior.ranked(clean=True)[0]
        says = ("an unknown rounding or a small mistake: these numbers cannot tell which" if undecided
                else "no rounding or mistake known here explains the numbers")  # fmt: skip
        result = self.result("undecided" if undecided else "unknown", base, says)
        ratio = base.fit.rms / float(np.sqrt(self.case.reference(base.mode).expected.mean()))
        if undecided:
            result.notes.append(f"closest rounding set: {base.mode}, {base.fit.rms:.2g} nats (rms) away, {ratio:.2f} "
                                "times as far as correct engines of that set are from each other")  # fmt: skip
            if wrong is not None and over > 0:
                result.notes.append(
                    f"possible: {wrong.label} ({wrong.says}), odds {np.exp(over):.1f} to 1, too low to name it"
                )
            result.next.append(_more(self.case))
        else:
            self.agreement(result, base)
        result.features = {"misfit": base.fit.misfit, "ratio": ratio, "odds": over}
        return result

    def like_rounding(self, base: Candidate) -> bool:
        """Whether the difference from ``base`` may be an unknown rounding: no larger than one, and at all positions."""
        own = self.case.reference(base.mode)
        if base.fit.misfit < LIMIT:
            return True
        above = float(np.nanmean(base.fit.level)) - float(own.own.mean())
        if own.coarse and np.exp(above) < ROUNDING_RATIO and self.flat(base):
            return True
        exact = self.posterior.clean("exact")
        sets = [c.mode for c in self.posterior.candidates if c.clean]
        widest = max(float(np.sqrt(np.median(self.case.reference(mode).expected))) for mode in sets)
        r = exact.fit.level + 0.5 * np.log(self.case.reference("exact").expected) + exact.fit.shift
        return float(np.nanmedian(r)) < np.log(widest) and self.flat(exact) and exact.fit.rms < 2 * widest

    def flat(self, c: Candidate) -> bool:
        """Whether no eighth of the positions agrees much better or worse than the rest.

        Roundings are everywhere, while a mistake in a window, a threshold or a chunk edge begins somewhere. Differences
        are compared with those of the set's own replicas: the range of eight normal variables exceeds 4 standard
        deviations in one of ten cases.
        """
        own = self.case.reference(c.mode).own
        level = c.fit.level[np.isfinite(c.fit.level)]
        if len(level) < 16:
            return True
        parts = np.array([part.mean() for part in np.array_split(level, 8)])
        usual = np.array([[part.mean() for part in np.array_split(row, 8)] for row in own]).std()
        return float(parts.max() - parts.min()) < 4 * float(usual) + 1.0

    def agreement(self, result: Diagnosis, base: Candidate) -> None:
        """Add to ``result`` up to which position ``base`` explains the numbers, and what may be wrong from there on."""
        first = self.case.first_beyond(base)
        if first is None:
            return
        known = np.isfinite(base.fit.level)
        excess = base.fit.level[known] - self.case.reference(base.mode).own.mean(axis=0)[known]
        step = change_point(excess)
        if step is not None:  # the set's noise may hide that the first positions after a step deviate
            first = min(first, int(self.case.seen.rows[known][step]))
        result.first_position = first
        starts = first > self.case.seen.rows[0] and self.posterior.explained(base)[0] > 0
        if starts and self.posterior.leans(base, first):
            result.agrees_with, result.agrees_until = base.label, first
        shape = self.case.library.engine.shape
        result.notes += [f"possible cause: {what}" for what in narrowed(shape, first, not base.coarse)]

    def result(self, verdict: str, base: Candidate, says: str) -> Diagnosis:
        """Return a Diagnosis with the fields that all verdicts have: ranking, first deviating position and so on.

        base  rounding set (without a mistake) that the numbers are compared with
        says  the verdict in one sentence
        """
        posterior = self.posterior
        ordered = posterior.ranked()
        best: dict[tuple[str, str], Candidate] = {}
        for c in ordered:
            best.setdefault((c.family, c.mode), c)
        top = posterior.score(ordered[0])
        ranked = [c for n, c in enumerate(best.values()) if n < 3 or posterior.score(c) > top - HOPELESS]
        ranking = [
            {
                "name": c.label, "kind": c.kind, "odds": float(f"{max(posterior.score(c) - top, -99.0):.2f}"),
                "distance": float(f"{c.fit.rms:.4g}"), "misfit": float(f"{c.fit.misfit:.2f}"),
                "fits_until": self.case.first_beyond(c),
            }
            for c in ranked[:SHOWN]
        ]  # fmt: skip
        return Diagnosis(
            verdict, None, 0.0, self.case.first_beyond(base), base.mode, says, ranking,
            positions=len(self.case.seen.rows), stored=self.case.seen.stored,
        )  # fmt: skip


def _note_tie(result: Diagnosis, c: Candidate) -> None:
    if c.flipped is not None:
        result.notes.append(f"a top-k tie at position {c.flipped} was decided the other way, which is not a mistake")


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _more(case: Case) -> str:
    """Return what to provide so that smaller mistakes can be detected."""
    if case.seen.support is not None:
        return "send full logits instead of the top tokens: more numbers at every position"
    own = " (--prompt long)" if case.library.engine.shape.name == DIAGNOSTIC.name else ""
    return f"send a longer prompt{own}: more windows, chunk edges and rows"
