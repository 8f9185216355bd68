"""Which rounding set, or which mistake, explains another engine's numbers.

    diagnosis = diagnose(Signatures(engine, ids), observation)
    diagnosis.verdict    "exact", "qat", "ds4" or another rounding set; "fault"; "unknown"

Candidates are every rounding set, every fault in each of the three modes, and mistakes outside the model
(``variants``). Every candidate stands for two hypotheses: it is right, or it is right only until some position
(``evidence``). The posterior of all "right" hypotheses is compared with that of everything else, which is "unknown";
so a fault is named only when it explains every position to within noise, not when it is merely the nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ds4ref.variants import LIBRARY, MODE_NAMES, ROUNDING

from .evidence import TAU, Broad, Noise, Score, between, broad, log_distance, noise_model, row_margin, score
from .observation import Observation
from .signatures import Signatures
from .variants import variants

SURE = 0.9
PRIOR = {"mode": 0.0, "rounding": -2.0, "fault": -4.0, "quiet": -4.0, "variant": -4.0, "unknown": -3.0, "more": -9.0}
CLOSER = 0.3
"""How much smaller the mean x of a mistake must be than that of every clean set to be tried in other sets."""


@dataclass(frozen=True)
class Candidate:
    """One explanation with its evidence. ``kind`` is "mode", "rounding", "fault", "quiet" (a fault below the noise of
    its mode on this prompt) or "variant"."""

    kind: str
    mode: str
    name: str
    says: str
    x: np.ndarray
    score: Score

    @property
    def label(self) -> str:
        """How the ranking calls it."""
        return self.mode if self.kind in ("mode", "rounding") else f"{self.name}@{self.mode}"


@dataclass
class Diagnosis:
    """The outcome; ``ranking`` is best first. ``agrees_until`` is a position: the best candidate fits before it."""

    verdict: str
    fault: str | None
    confidence: float
    first_position: int | None
    mode: str
    says: str
    ranking: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    agrees_with: str | None = None
    agrees_until: int | None = None
    positions: int = 0

    def to_json(self) -> dict[str, Any]:
        """The machine-readable form."""
        return {
            "verdict": self.verdict, "fault": self.fault, "confidence": round(self.confidence, 4),
            "first_position": self.first_position, "ranking": self.ranking, "mode": self.mode, "says": self.says,
            "agrees_with": self.agrees_with, "agrees_until": self.agrees_until, "positions": self.positions,
            "notes": self.notes,
        }  # fmt: skip


class _Case:
    """One observation with its library, and the noise of every rounding set on it."""

    def __init__(self, library: Signatures, seen: Observation, bos: int | None):
        self.library, self.seen, self.bos = library, seen, bos
        self._noise: dict[str, tuple[Noise, Broad, np.ndarray]] = {}
        self._own: dict[str, list[float]] = {}
        self._gaps: dict[tuple[str, str], float] = {}

    def noise(self, mode: str) -> tuple[Noise, Broad, np.ndarray]:
        """Noise, the broad density, and the margins of the clean run."""
        if mode not in self._noise:
            clean = self.library.get(mode)
            model = noise_model(self.seen, clean, self.library.replicas(mode), ROUNDING[mode].coarse)
            self._noise[mode] = model, broad(self.seen, clean), row_margin(self.seen, clean.margin)
        return self._noise[mode]

    def judge(
        self, kind: str, mode: str, name: str, says: str, rows: np.ndarray, margin: np.ndarray | None
    ) -> Candidate:
        noise, differs, clean_margin = self.noise(mode)
        x = log_distance(self.seen, rows)
        close = clean_margin if margin is None else row_margin(self.seen, margin)
        return Candidate(kind, mode, name, says, x, score(x, noise, differs, close))

    def typical(self, mode: str, x: np.ndarray, strict: bool = False) -> bool:
        """Whether x looks like that of a replica of the rounding set against its clean run. ``strict`` is for giving a
        mistake's name: a similar mistake comes closer to the replicas than other sets do."""
        noise, differs, margin = self.noise(mode)
        if mode not in self._own:
            clean = self.library.get(mode).logprobs
            seen = (between(self.seen, clean, replica.logprobs) for replica in self.library.replicas(mode))
            self._own[mode] = [score(each, noise, differs, margin).right for each in seen]
        own = self._own[mode]
        slack = (2 if strict else 4) * float(np.std(own)) + (0.15 if strict else 0.3) * len(self.seen.rows) / TAU
        return score(x, noise, differs, margin).right > float(np.mean(own)) - slack

    def nearest(self, c: Candidate, found: list[Candidate]) -> bool:
        """Whether the data lies nearer to this coarse candidate than to other clean sets, as a right candidate's does.

        Noise of steps is wide, and a small fault of another set can hide in it; but an engine that really makes these
        steps shares most of them with our emulation, so that it is closer to it than to any set without them. How much
        closer is measured on the replicas; a quarter of that is demanded, of sets that are far enough apart to tell.
        """
        if not ROUNDING[c.mode].coarse:
            return True
        if c.kind in ("fault", "variant") and not self.typical(c.mode, c.x, strict=True):
            return False
        for other in found:
            clean = other.kind in ("mode", "rounding")
            if other.mode == c.mode or not (clean or other.name == c.name):
                continue
            gap = float(np.nanmean(other.x) - np.nanmean(c.x))
            usual = self._gap(c.mode, other.mode)
            # a fault is compared with the same fault in other sets; against clean sets it has to be the nearer one
            if usual > 0.25 and gap < (usual / 4 if other.name == c.name else 0.0):
                return False
        return True

    def _gap(self, mode: str, other: str) -> float:
        """How much nearer, in mean x, replicas of ``mode`` are to its clean run than to that of ``other``."""
        if (mode, other) not in self._gaps:
            home, away = self.library.get(mode).logprobs, self.library.get(other).logprobs
            self._gaps[mode, other] = float(
                np.mean([
                    np.nanmean(between(self.seen, away, r.logprobs) - between(self.seen, home, r.logprobs))
                    for r in self.library.replicas(mode)
                ])
            )  # fmt: skip
        return self._gaps[mode, other]

    def clean(self, mode: str) -> Candidate:
        """A rounding set without any fault."""
        signature = self.library.get(mode)
        kind = "mode" if mode in MODE_NAMES else "rounding"
        return self.judge(kind, mode, "", ROUNDING[mode].says, signature.logprobs, signature.margin)

    def faults(self, mode: str) -> Iterator[Candidate]:
        """Every fault that shows on this prompt in a mode. One that moves the numbers no more than noise does cannot
        be told from none: it is another replica of the clean set, and counts for that."""
        clean = self.library.get(mode).logprobs
        for fault in self.library.faults(mode):
            signature = self.library.get(mode, fault.name)
            kind = "quiet" if self.typical(mode, between(self.seen, clean, signature.logprobs)) else "fault"
            yield self.judge(kind, mode, fault.name, fault.says, signature.logprobs, signature.margin)

    def elsewhere(self, found: list[Candidate]) -> Iterator[Candidate]:
        """Mistakes outside the model that explain more than any clean set does, once more in the rounding sets that are
        no modes: a server may have roundings of its own and, say, an echo that is off by one.

        Not so for mistakes inside the model: the noise of those sets is wide enough for one that is merely similar."""
        clean = min(float(np.nanmean(c.x)) for c in found if c.kind in ("mode", "rounding"))
        wrong = sorted((c for c in found if c.kind == "variant"), key=lambda c: float(np.nanmean(c.x)))
        near = [c.name for c in wrong if np.nanmean(c.x) < clean - CLOSER][:3]
        for mode in ROUNDING:
            if mode not in MODE_NAMES and near:
                yield from self.variants(mode, near)

    def variants(self, mode: str, only: Sequence[str] | None = None) -> Iterator[Candidate]:
        """Mistakes outside the model."""
        for variant in variants(self.library, self.bos):
            if only is not None and variant.name not in only:
                continue
            rows = variant.make(self.library, mode, self.seen)
            if not np.isnan(rows[self.seen.rows]).all():  # it says something about the positions observed
                yield self.judge("variant", mode, variant.name, variant.says, rows, None)


def diagnose(
    library: Signatures,
    seen: Observation,
    bos: int | None = None,
    *,
    thorough: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Diagnosis:
    """Explain ``seen``. Candidates are computed only as far as the question is open: a rounding set that fits as well
    as its own replicas do is the answer, unless ``thorough``. ``bos`` is the id of the beginning-of-sentence token."""
    case = _Case(library, seen, bos)
    found: list[Candidate] = []

    def settled() -> bool:
        best = max(found, key=lambda c: c.score.right + PRIOR[c.kind])
        if best.score.right < best.score.more + PRIOR["unknown"] + 5:
            return False
        # float precision decides: nothing computed later could explain the data as well
        if np.nanmedian(best.x) < np.log(1e-4) and np.nanmean(best.x > case.noise(best.mode)[0].ceiling) < 0.5:
            return True
        floats_done = any(c.mode == "exact" and c.kind == "fault" for c in found)
        return (
            floats_done and not thorough and best.kind in ("mode", "rounding")
            and case.typical(best.mode, best.x) and case.nearest(best, found)
        )  # fmt: skip

    def stages() -> Iterator[Iterator[Candidate]]:
        yield iter([case.clean("exact")])
        yield (case.clean(mode) for mode in MODE_NAMES if mode != "exact")
        yield case.variants("exact")
        yield case.faults("exact")
        yield (case.clean(mode) for mode in ROUNDING if mode not in MODE_NAMES)
        yield case.elsewhere(found)
        for mode in MODE_NAMES:
            if mode != "exact" and _plausible(found, mode):
                yield case.variants(mode)
                yield case.faults(mode)

    for stage in stages():
        for candidate in stage:
            found.append(candidate)
            if progress is not None:
                progress(len(found))
        if settled():
            break
    return _conclude(case, found)


def _plausible(found: list[Candidate], mode: str) -> bool:
    """Whether a fault in ``mode`` is worth computing: the start of the data does not speak for another mode."""
    scores = {c.mode: c.score.more for c in found if c.kind == "mode"}
    return scores[mode] > max(scores.values()) - 25


def _conclude(case: _Case, found: list[Candidate]) -> Diagnosis:
    faults = max(1, len(LIBRARY))
    logs: list[tuple[float, str, Candidate]] = []
    for c in found:
        spread = np.log(faults) - np.log(40) if c.name else 0.0
        if case.nearest(c, found):
            logs.append((c.score.right + PRIOR[c.kind] - spread, "right", c))
        unknown = PRIOR["unknown"] if c.kind in ("mode", "rounding") else PRIOR["more"]
        logs.append((c.score.more + unknown, "more", c))
    total = np.logaddexp.reduce([value for value, _, _ in logs])
    weight: dict[tuple[str, str], float] = {}
    for value, kind, c in logs:
        named = c.kind in ("fault", "variant")
        key = ("unknown", "") if kind == "more" else (("fault", c.name) if named else ("clean", c.mode))
        weight[key] = weight.get(key, 0.0) + float(np.exp(value - total))
    by_label = {id(c): float(np.exp(value - total)) for value, kind, c in logs if kind == "right"}

    ordered = sorted(found, key=lambda c: -(c.score.right + PRIOR[c.kind]))
    (what, name), confidence = max(weight.items(), key=lambda item: item[1])
    closest = max(found, key=lambda c: max(c.score.right, c.score.more + PRIOR["more"]))
    base = _base_mode(found) if what == "unknown" else None
    if what == "clean":
        base = name
    elif what == "fault":
        base = max((c for c in found if c.name == name), key=lambda c: c.score.right).mode
    assert base is not None
    clean = next(c for c in found if c.label == base)
    first = None if what == "clean" else _first_position(case, clean)
    ranking = [
        {
            "name": c.label, "kind": c.kind, "probability": round(by_label.get(id(c), 0.0), 6),
            "distance": round(float(np.exp(np.nanmean(c.x))), 9), "fits_until": _fits_until(case, c),
        }
        for c in [c for c in ordered if c.kind != "quiet"][:12]
    ]  # fmt: skip
    result = Diagnosis(
        "unknown", None, min(confidence, 0.9999), first, base, "none of these", ranking, positions=len(case.seen.rows)
    )
    if what == "clean":
        result.verdict, result.says = name, ROUNDING[name].says
    elif what == "fault":
        winner = max((c for c in found if c.name == name), key=lambda c: c.score.right)
        result.verdict, result.fault, result.says = "fault", name, winner.says
    else:
        until = _fits_until(case, closest)
        if until is None or until > (case.seen.rows[0] if len(case.seen.rows) else 0):
            result.agrees_with, result.agrees_until = closest.label, until
    _explain(case, result, clean, weight)
    return result


def _base_mode(found: list[Candidate]) -> str:
    """The rounding set that fits longest, nearest on a tie."""
    clean = [c for c in found if c.kind in ("mode", "rounding")]
    return max(clean, key=lambda c: c.score.more + PRIOR[c.kind]).mode


def _first_position(case: _Case, clean: Candidate) -> int | None:
    noise, _, _ = case.noise(clean.mode)
    bad = np.flatnonzero(clean.x > noise.ceiling)
    return int(case.seen.rows[bad[0]]) if len(bad) else None


def _fits_until(case: _Case, c: Candidate) -> int | None:
    """First observed position beyond this candidate's noise, None if there is none."""
    return _first_position(case, c)


def _explain(case: _Case, result: Diagnosis, clean: Candidate, weight: dict[tuple[str, str], float]) -> None:
    notes = result.notes
    if result.confidence < SURE:
        second = sorted(weight.items(), key=lambda item: -item[1])[1] if len(weight) > 1 else None
        if second is not None:
            notes.append(f"not certain: {' '.join(filter(None, second[0]))} has probability {second[1]:.2f}")
    if result.verdict == clean.mode:
        late = _first_position(case, clean)
        if late is not None:
            notes.append(f"from position {late} on a near-tie fell the other way, or single values are off")
    if ROUNDING[clean.mode].coarse and result.verdict in ("unknown", "fault"):
        notes.append(f"{clean.mode} rounds in steps: faults smaller than its own noise cannot be seen")
    if not np.isfinite(case.seen.logprobs[~np.isnan(case.seen.logprobs)]).all() or (
        case.seen.support is None and np.isnan(case.seen.logprobs).any()
    ):
        notes.append("some of the numbers are infinite or not numbers")
