"""Judge whether the tokens that an engine committed are those of greedy decoding, and if not, what is at fault.

Two engines that are right differ by noise, and noise reverses two tokens the more rarely, the further they lie apart. A
verifier that accepts wrong drafts does not care how far apart they are. So two explanations of the tokens that are not
the best are compared by their likelihood: noise alone, P(not the best) = exp(-lead / 3) / 2 / (1 + lead / scale), which
allows for rare jumps as an expert chosen otherwise makes them (a logistic curve does not, and accuses right engines:
docs/LOG.md); and noise with a share of tokens that are wrong whatever the lead (the lapses of psychometric functions).
Leads and scale are in nats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .verdicts import CaseResult

ODDS = math.log(1e4)
"""Log likelihood ratio from which tokens are called wrong and not noise."""

PERIODS = range(2, 17)
RARE = 1e-3
FEWEST = 5
"""Fewest wrong tokens of which a place in the pass is told."""

_SCALES = np.geomspace(1e-4, 3.0, 60)
_REACH = 3.0
"""Nats over which even rare jumps become rarer by a factor e."""


@dataclass(frozen=True)
class Lapses:
    """What explains the tokens that are not the best.

    scale       scale of the noise in nats, fitted with ``share``
    share       share of tokens that are wrong whatever the lead
    odds        log likelihood ratio of noise and wrong tokens against noise alone
    noise_alone scale of the noise that would explain them without wrong tokens
    """

    scale: float
    share: float
    odds: float
    noise_alone: float


@dataclass(frozen=True)
class Place:
    """Counts by row in the pass: row r of ``rows`` has ``tokens[r]`` tokens, ``wrong[r]`` of them wrong.

    told  whether the engine told its passes; else ``rows`` was found, counted from each answer's first token
    p     probability of such a table by chance, all tries together; 1 for fewer than FEWEST wrong tokens
    """

    rows: int
    tokens: list[int]
    wrong: list[int]
    told: bool
    p: float

    @property
    def shows(self) -> bool:
        """Return whether wrong tokens keep to places in the pass, beyond chance."""
        return self.p < RARE


@dataclass(frozen=True)
class Judgement:
    """The verdict over all answers.

    verdict  "right"; "verifier" (wrong, and where drafts are); "elsewhere" (wrong before any draft, and at no place of
             a pass more than at others); "undecided" (noise would explain it); "nothing" (nothing could be compared)
    says     the verdict in words, with what could not be seen
    tokens   tokens compared; ``first`` of them are the first of an answer, which no draft precedes
    best     tokens that are the judge's best
    flips    tokens below it by no more than the floor
    wrong    tokens below it by more; ``wrong_first`` of them are the first of an answer
    close    tokens at which the judge's best leads by no more than the floor, where a wrong token is no mistake
    worst    (answer, index, nats) of the widest gap; nats are the least if the token is not listed; None without a gap
    """

    verdict: str
    says: str
    tokens: int
    first: int
    best: int
    flips: int
    wrong: int
    wrong_first: int
    close: int
    worst: tuple[str, int, float] | None
    lapses: Lapses
    place: Place | None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the verdict."""
        return asdict(self)


def weigh(
    results: Sequence[CaseResult], floor: float, passes: Mapping[str, Sequence[int]] | None = None, known: bool = False
) -> Judgement:
    """Judge forced cases.

    floor   gap in nats that is no mistake, the one the cases were judged with
    passes  number of tokens of each pass by case id
    known   whether noise is known to stay below the floor: then any token below it is wrong
    """
    compared = [(r.id, s) for r in results for s in r.steps if s.verdict != "incomparable"]
    steps = [s for _, s in compared]
    first = [s for s in steps if s.index == 0]
    wrong = [s for s in steps if s.verdict == "mismatch"]
    off = [(name, s) for name, s in compared if s.verdict != "match"]
    top = max(off, key=lambda pair: pair[1].lead or 0.0, default=None)
    where: Place | None = None
    lapses = fit([s.lead for s in steps], [s.verdict != "match" for s in steps])
    counted = {
        "tokens": len(steps), "first": len(first), "best": len(steps) - len(off), "flips": len(off) - len(wrong),
        "wrong": len(wrong), "wrong_first": sum(s.verdict == "mismatch" for s in first),
        "close": sum(s.lead is not None and s.lead <= floor for s in steps),
        "worst": None if top is None else (top[0], top[1].index, top[1].lead or 0.0),
    }  # fmt: skip
    if not steps:
        verdict = "nothing"
    elif not wrong:
        verdict = "right"
    elif lapses.odds < ODDS and not known:
        verdict = "undecided"
    else:
        where = place(results, passes or {})
        by_place = where is not None and where.shows
        verdict = "elsewhere" if counted["wrong_first"] and not by_place else "verifier"
    made = Judgement(verdict, "", **counted, lapses=lapses, place=where)  # type: ignore[arg-type]
    return Judgement(**{**vars(made), "says": _words(made, floor, known)})


def fit(leads: Sequence[float | None], off: Sequence[bool]) -> Lapses:
    """Fit noise, and noise with lapses, to tokens that are ``off`` the best; unknown leads are left out."""
    known = [(lead, wrong) for lead, wrong in zip(leads, off, strict=True) if lead is not None]
    lead = np.array([pair[0] for pair in known])
    missed = np.array([pair[1] for pair in known], bool)
    if not missed.any():
        return Lapses(0.0, 0.0, 0.0, 0.0)
    shares = np.concatenate([[0.0], np.geomspace(0.3 / len(lead), 0.95, 40)])
    table = np.empty((len(_SCALES), len(shares)))
    for i, scale in enumerate(_SCALES):
        flip = 0.5 * np.exp(-lead / _REACH) / (1.0 + lead / scale)
        with np.errstate(divide="ignore"):
            p = shares[:, None] + (1.0 - shares[:, None]) * flip
            table[i] = np.where(missed, np.log(p), np.log1p(-p)).sum(axis=1)
    both, alone = np.unravel_index(int(table.argmax()), table.shape), int(table[:, 0].argmax())
    return Lapses(
        float(_SCALES[both[0]]), float(shares[both[1]]), float(table[both] - table[alone, 0]), float(_SCALES[alone])
    )


def place(results: Sequence[CaseResult], passes: Mapping[str, Sequence[int]]) -> Place | None:
    """Return where in the pass wrong tokens sit; None if passes are not told and no period stands out.

    Periods of 2 to 16 tokens are tried, which show where every draft is accepted.
    """
    told = {name: [at for size in sizes for at in range(size)] for name, sizes in passes.items()}
    if told and all(len(told.get(r.id, ())) == len(r.steps) for r in results):
        return _counted(results, max(map(max, filter(None, told.values())), default=0) + 1, told, 1)
    periods = (_counted(results, period, None, len(PERIODS)) for period in PERIODS)
    return min((found for found in periods if found.shows), key=lambda found: found.p, default=None)


def _counted(results: Sequence[CaseResult], rows: int, told: Mapping[str, Sequence[int]] | None, tries: int) -> Place:
    tokens, wrong = [0] * rows, [0] * rows
    for result in results:
        for step in result.steps:
            if step.verdict != "incomparable":
                row = step.index % rows if told is None else told[result.id][step.index]
                tokens[row] += 1
                wrong[row] += step.verdict == "mismatch"
    return Place(rows, tokens, wrong, told is not None, _chance(tokens, wrong, tries))


def _chance(tokens: Sequence[int], wrong: Sequence[int], tries: int) -> float:
    """Return the probability of so uneven a spread by chance (chi-square), in one of ``tries`` tables."""
    from scipy.stats import chi2_contingency

    table = np.array([(all_ - bad, bad) for all_, bad in zip(tokens, wrong, strict=True) if all_])
    if len(table) < 2 or sum(wrong) < FEWEST or sum(wrong) == sum(tokens):
        return 1.0
    return min(1.0, float(chi2_contingency(table, correction=False).pvalue) * tries)


def _words(j: Judgement, floor: float, known: bool) -> str:
    """Return the verdict in words."""
    if j.verdict == "nothing":
        return "Nothing could be compared."
    worst = "" if j.worst is None else f"{j.worst[2]:.3g} nats at token {j.worst[1]} of {j.worst[0]}"
    if j.verdict == "right":
        rate = min(1.0, 3.0 / max(1, j.tokens - j.first))
        below = f" ({j.flips} are not the best, by at most {worst})" if j.flips else ""
        return (
            f"Each of {j.tokens} committed tokens is the judge's best, or within {floor:g} nats of it{below}. "
            f"A verifier wrong at more than {rate:.2g} of the tokens would have been detected (95 %). Not tested: "
            "bugs that these drafts did not trigger, and whether speculative decoding was on at all. At "
            f"{j.close} of {j.tokens} tokens the best leads by at most {floor:g} nats: too close to judge."
        )
    if j.verdict == "undecided":
        return (
            f"{j.wrong} of {j.tokens} committed tokens are more than {floor:g} nats below the best (worst: "
            f"{worst}), but noise of {j.lapses.noise_alone:.2g} nats between engines explains them. Use the engine as "
            "its own judge, or request more tokens; if its noise is known to be smaller, set --floor."
        )
    noise = f"--floor {floor:g} nats" if known else f"log odds against noise: {j.lapses.odds:.3g}"
    start = f"{j.wrong} of {j.tokens} committed tokens are not the greedy choice ({noise}). Worst: {worst}."
    if j.verdict == "elsewhere":
        return (
            f"{start} {j.wrong_first} of {j.first} answers begin with one, before any draft: the model, the prompt's "
            "tokens, sampling or the forward pass differ. Fix that first; this run cannot judge the verifier."
        )
    where = ""
    if j.place is not None:
        at = ", ".join(f"{bad} of {tokens}" for bad, tokens in zip(j.place.wrong, j.place.tokens, strict=True))
        kind = "By position in the pass" if j.place.told else f"They repeat every {j.place.rows} tokens, by place"
        where = f" {kind}: {at} (chance: {j.place.p:.2g})."
    if not j.wrong_first:
        chance = (1.0 - j.wrong / j.tokens) ** j.first
        where += (
            f" The first tokens, before any draft, are right in all {j.first} answers (p without draft "
            f"influence: {chance:.2g})."
        )
    return (
        f"{start}{where} Either it accepts wrong drafts, or decode differs from prefill: rerun with drafts off; "
        "if that passes, the verifier is at fault."
    )
