"""The verdict: what the candidates found by a search allow to be said, and no more.

    diagnosis = diagnose(Signatures(engine, ids), observation)
    diagnosis.verdict    "exact", "qat", "ds4" or another rounding set; "fault"; "unknown"; "undecided"; "broken"

* Numbers that are none are reported as what they are; nothing is compared.
* A mistake is named if it fits to within the noise of engines that have it, and the odds against the best clean set,
  measured on replicas of both, are clear. What it leaves, if small and uniform, is told beside the name.
* A rounding set is named if it fits, no mistake fits better, and the data lies at it and not merely within its noise
  around a narrower set. It comes with what would have been seen.
* Something the size of a rounding, everywhere alike, that no set explains is undecided. Anything else is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ds4ref.variants import ROUNDING
from ds4ref.variants.families import FAMILIES

from ..observation import Observation
from . import fitting
from .calibration import confidence
from .case import LIMIT, Candidate, Case
from .search import Search, family_of
from .sight import sight
from .signatures import Signatures
from .verdict import Diagnosis

DOUBTED, DOUBTED_FIT = 2.0, 1.0
"""Log odds of a mistake, and misfit of the clean set, from which on the set is no longer the answer."""
ROUNDING_RATIO = 1.6
"""An engine this much further from a set than its own builds are may still round otherwise than we know; see
docs/vectors.md for where llama.cpp's decode and bfloat16 engines lie."""
SHOWN = 12


def diagnose(
    library: Signatures,
    seen: Observation,
    bos: int | None = None,
    *,
    thorough: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Diagnosis:
    """Explain ``seen``. ``bos`` is the id of the beginning-of-sentence token; ``thorough`` computes every stage."""
    broken = _broken(seen)
    if broken is not None:
        return broken
    search = Search(Case(library, seen, bos), progress)
    try:
        search.run(thorough)
        result = _Judge(search).verdict()
    finally:
        library.close()
    result.confidence = confidence(result)
    _explain(search, result)
    return result


def _broken(seen: Observation) -> Diagnosis | None:
    """Positions that hold no usable numbers: that is the finding."""
    given = np.ones(seen.logprobs.shape, bool) if seen.support is None else seen.support >= 0
    bad = given & (np.isnan(seen.logprobs) | np.isposinf(seen.logprobs))
    rows = np.flatnonzero(bad.any(axis=1))
    if not len(rows):
        return None
    first = int(seen.rows[rows[0]])
    says = f"{int(bad.sum())} values are not finite, at {len(rows)} of {len(seen.rows)} positions"
    whole = int(bad.all(axis=1).sum())
    notes = [f"positions {_listed(seen.rows[rows])}; {whole} of them have no finite value at all"]
    return Diagnosis(
        "broken", None, 1.0, first, "", says, notes=notes, positions=len(seen.rows), stored=seen.stored,
        next=["find what overflows there: ds4-vectors trace, or a dump of the streams at that position"],
    )  # fmt: skip


def _listed(rows: np.ndarray) -> str:
    shown = ", ".join(map(str, rows[:8]))
    return shown + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")


class _Judge:
    """Turns what a search found into a verdict."""

    def __init__(self, search: Search):
        self.search, self.case = search, search.case

    def verdict(self) -> Diagnosis:
        """The decision, with ranking and sight, without confidence."""
        search = self.search
        wrong, over = search.champion()
        if wrong is not None and search.proven(wrong, over):
            return self.named(wrong, over, search.own(wrong).misfit, search.residue(wrong))
        answer = search.answer()
        if answer is not None:
            found = next(c for c in search.found if c.clean and c.mode == answer)
            doubtful = (over >= DOUBTED and found.fit.misfit >= DOUBTED_FIT) or self.otherwise(answer)
            return self.open(found, wrong, over) if doubtful else self.cleared(found, over)
        within = [c for c in search.clean() if c.fit.misfit < LIMIT]
        return self.open(within[0] if within else self.base(), wrong, over)

    def otherwise(self, answer: str) -> bool:
        """Whether a mistake in a set of float precision says what this rounding set says: too little was seen."""
        return any(
            not c.clean and c.mode != answer and not self.case.reference(c.mode).coarse and c.fit.misfit < LIMIT
            for c in self.search.found
        )

    # --- outcomes

    def named(self, c: Candidate, over: float, own: float, residue: float | None) -> Diagnosis:
        """A mistake."""
        rival, gap = self.search.rival(c)
        if c.kind == "family" and c.parameter is None:
            family = FAMILIES[family_of(c)]
            sized = fitting.refined(self.case, c.mode, family, fitting.value_of(c))
            c = sized if sized.fit.score >= c.fit.score else replace(c, parameter=sized.parameter)
        name = c.parameter["name"] if c.parameter is not None else c.name.partition(" [")[0]
        says = c.says
        result = self.result("fault", self.clean_of(c.mode), says)
        result.fault, result.mode = name, c.mode
        result.faults = name.split(" + ")
        result.parameter = c.parameter and {k: _rounded(v) for k, v in c.parameter.items()}
        if c.kind == "scoped":
            result.notes.append(c.name.partition(" [")[2].rstrip("]") + " only")
        if residue is not None and own >= LIMIT:
            result.residue = float(f"{residue:.3g}")
            result.notes.append(f"leaves {residue:.2g} nats (rms), the same everywhere: rounding on the way, or a "
                                "small mistake besides")  # fmt: skip
        if rival is not None and gap < 6:
            result.notes.append(f"next best is {rival.label} ({rival.says}): log odds {gap:.1f} against it")
        if c.flipped is not None:
            result.notes.append(f"a tie of a top-k at position {c.flipped} fell the other way, which is no mistake")
        result.features = {"odds": over, "gap": gap, "misfit": own}
        return result

    def cleared(self, c: Candidate, over: float) -> Diagnosis:
        """A rounding set, with what it could have shown."""
        result = self.result(c.mode, c, c.says)
        result.first_position = None
        others = [
            o for o in self.search.found if not o.clean and o.mode == c.mode and o.kind in ("fault", "family", "slip")
        ]
        found = sight(self.case, c, others)
        result.sight = found.to_json()
        result.notes += found.sentences()
        if c.flipped is not None:
            result.notes.append(f"a tie of a top-k at position {c.flipped} fell the other way, which is no mistake")
        if c.fit.shift > np.log(3):
            result.notes.append(f"float noise is {np.exp(c.fit.shift):.0f} times ours: another order of sums, or a "
                                "mistake of that size")  # fmt: skip
        if found.hidden:
            result.next.append(_more(self.case.seen, found.wanted))
        result.features = {"odds": -over, "misfit": c.fit.misfit, "hidden": float(len(found.hidden))}
        return result

    def open(self, base: Candidate, wrong: Candidate | None, over: float) -> Diagnosis:
        """Nothing fits, or nothing can be told."""
        undecided = self.like_rounding(base)
        says = "cannot tell a rounding of its own from a small mistake here" if undecided else "none of these"
        result = self.result("undecided" if undecided else "unknown", base, says)
        ratio = base.fit.rms / float(np.sqrt(self.case.reference(base.mode).expected.mean()))
        if undecided:
            result.notes.append(f"nearest is {base.mode}: {base.fit.rms:.2g} nats (rms), {ratio:.2f} times what its "
                                "own builds differ by")  # fmt: skip
            if wrong is not None and (over > 0 or self.otherwise(base.mode)):
                result.notes.append(
                    f"or {wrong.label} ({wrong.says}): odds {np.exp(over):.1f} to 1, too few to name it"
                )
            result.next.append(_more(self.case.seen, None))
        else:
            self.agreement(result)
        result.features = {"misfit": base.fit.misfit, "ratio": ratio, "odds": over}
        return result

    def like_rounding(self, base: Candidate) -> bool:
        """Whether what is left has the size of a rounding somewhere and no beginning: then a mistake is not proven."""
        own = self.case.reference(base.mode)
        if base.fit.misfit < LIMIT:
            return True
        above = float(np.nanmean(base.fit.level)) - float(own.own.mean())
        if own.coarse and np.exp(above) < ROUNDING_RATIO and self.flat(base):
            return True
        exact = next(c for c in self.search.found if c.mode == "exact" and c.clean)
        widest = max(
            float(np.sqrt(np.median(self.case.reference(c.mode).expected))) for c in self.search.found if c.clean
        )
        r = exact.fit.level + 0.5 * np.log(self.case.reference("exact").expected) + exact.fit.shift
        return float(np.nanmedian(r)) < np.log(widest) and self.flat(exact) and exact.fit.rms < 2 * widest

    def flat(self, c: Candidate) -> bool:
        """Whether no eighth of the positions agrees much better, or worse, than the rest: roundings are everywhere,
        while a window, a threshold or a chunk edge begins somewhere. The scale is how the set's own replicas vary."""
        own = self.case.reference(c.mode).own
        level = c.fit.level[np.isfinite(c.fit.level)]
        if len(level) < 16:
            return True
        parts = np.array([part.mean() for part in np.array_split(level, 8)])
        usual = np.array([[part.mean() for part in np.array_split(row, 8)] for row in own]).std()
        return float(parts.max() - parts.min()) < 4 * float(usual) + 1.0

    def agreement(self, result: Diagnosis) -> None:
        """What explains the beginning, and until where. What is so wide that nothing is beyond it explains none."""
        ways = [(found, c) for c in self.search.found if (found := self.search.prefix(c))[1] is not None]
        (value, until), best = max(ways, key=lambda item: item[0][0], default=((0.0, None), None))
        if value > 0 and best is not None:
            result.agrees_with, result.agrees_until = best.label, until
            result.mode = best.mode
            if best.clean:
                result.first_position = until

    def base(self) -> Candidate:
        """The clean set to tell against: the one that explains the beginning best, the nearest if none does."""
        ways = [(self.search.prefix(c)[0], self.search.score(c), c) for c in self.search.clean()]
        begin = int(self.case.seen.rows[0])
        explained = [way for way in ways if way[0] > 0 and self.case.first_beyond(way[2]) != begin]
        if explained:
            return max(explained, key=lambda way: way[0])[2]
        return max(ways, key=lambda way: way[1])[2]

    def clean_of(self, mode: str) -> Candidate:
        """The clean set of a mode."""
        return next((c for c in self.search.found if c.clean and c.mode == mode), self.search.clean()[0])

    def result(self, verdict: str, base: Candidate, says: str) -> Diagnosis:
        """The common part."""
        ordered = sorted(self.search.found, key=self.search.score, reverse=True)
        best: dict[tuple[str, str], Candidate] = {}
        for c in ordered:
            best.setdefault((family_of(c), c.mode), c)
        top = self.search.score(ordered[0])
        ranking = [
            {
                "name": c.label, "kind": c.kind, "odds": float(f"{max(self.search.score(c) - top, -99.0):.2f}"),
                "distance": float(f"{c.fit.rms:.4g}"), "misfit": float(f"{self.search.known(c).misfit:.2f}"),
                "fits_until": self.case.first_beyond(c),
            }
            for c in list(best.values())[:SHOWN]
        ]  # fmt: skip
        return Diagnosis(
            verdict, None, 0.0, self.case.first_beyond(base), base.mode, says, ranking,
            positions=len(self.case.seen.rows), stored=self.case.seen.stored,
        )  # fmt: skip


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _more(seen: Observation, wanted: int | None) -> str:
    """What to send for a sharper view."""
    if seen.support is not None:
        return "send full logits, not only the best tokens: more numbers at every position"
    if wanted is not None and wanted > len(seen.rows):
        return f"send about {wanted} positions instead of {len(seen.rows)}: what is below sight now begins to show"
    return "send the prompt long of the diagnostic set (--prompt long): later windows, chunk edges, more rows"


def _explain(search: Search, result: Diagnosis) -> None:
    if result.stored:
        result.notes.append(f"the numbers were stored as {result.stored}; that rounding counts as noise")
    if result.mode in ROUNDING and ROUNDING[result.mode].coarse and result.verdict in ("unknown", "fault"):
        result.notes.append(f"{result.mode} rounds in steps: what is smaller than its own noise cannot be seen")
