"""Judge whether an engine's answers (its committed tokens) are those of greedy decoding, and if not, what is wrong.

In speculative decoding, a verifier decides which drafted tokens are accepted; one with a bug accepts wrong ones. Our
engine (the judge) computes by how much its best token leads, in nats, wherever the engine committed a token. Two
correct engines differ by noise, which reverses two tokens the more rarely, the larger the lead is; a verifier with a
bug accepts wrong tokens whatever the lead. So two explanations of the tokens that are not the best are compared by
their likelihood: noise alone, P(not the best) = exp(-lead / 3) / 2 / (1 + lead / scale), or noise and a share of tokens
that are wrong whatever the lead (as the lapses of psychometric functions). The formula allows for rare large changes,
such as by another choice of experts; a logistic curve does not, and accuses correct engines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .verdicts import CaseResult

ODDS = math.log(1e4)
"""Smallest log likelihood ratio at which tokens are called wrong instead of explained by noise."""

_SCALES = np.geomspace(1e-4, 3.0, 60)
_REACH = 3.0
"""If the lead is larger by this many nats, rare large changes become rarer by a factor e."""


@dataclass(frozen=True)
class Lapses:
    """The fitted explanations of the tokens that are not the judge's best.

    scale       scale of the noise in nats, fitted together with ``share``
    share       share of tokens that are wrong whatever the lead
    odds        log likelihood ratio of noise and wrong tokens against noise alone
    noise_alone scale of the noise that would explain them without wrong tokens
    """

    scale: float
    share: float
    odds: float
    noise_alone: float


@dataclass
class Judgement:
    """The verdict over all answers; counts are of tokens.

    verdict  "right"; "verifier": tokens are wrong, but no first token of an answer, which is never drafted;
             "elsewhere": first tokens are wrong, too; "undecided": noise may explain it; "nothing": nothing could be
             compared
    tokens   compared tokens; ``first`` of them are the first of an answer
    best     tokens that are the judge's best
    flips    tokens below the judge's best by no more than the floor
    wrong    tokens below it by more; ``wrong_first`` of them are the first of an answer
    close    tokens at which the judge's best leads by no more than the floor, so that another one is not a mistake
    worst    (answer, index, nats) of the token furthest below the best; a lower bound if it is not listed; None if all
             are best
    lapses   the explanations that were fitted
    says     the verdict in words, with what was not tested
    """

    verdict: str
    tokens: int
    first: int
    best: int
    flips: int
    wrong: int
    wrong_first: int
    close: int
    worst: tuple[str, int, float] | None
    lapses: Lapses
    says: str = ""


def weigh(results: Sequence[CaseResult], floor: float, known: bool = False) -> Judgement:
    """Return the verdict over ``results``, the comparisons of answers with the judge (``verdicts.forced_case``).

    floor  a token may be this many nats below the best; the value with which the cases were judged
    known  whether noise is known to be smaller than the floor: then any token further below is wrong
    """
    compared = [(r.id, s) for r in results for s in r.steps if s.verdict != "incomparable"]
    steps = [s for _, s in compared]
    wrong = [s for s in steps if s.verdict == "mismatch"]
    off = [(name, s) for name, s in compared if s.verdict != "match"]
    top = max(off, key=lambda pair: pair[1].lead or 0.0, default=None)
    lapses = fit([s.lead for s in steps], [s.verdict != "match" for s in steps])
    wrong_first = sum(s.index == 0 for s in wrong)
    if not wrong:
        verdict = "right" if steps else "nothing"
    elif lapses.odds < ODDS and not known:
        verdict = "undecided"
    else:
        verdict = "elsewhere" if wrong_first else "verifier"
    made = Judgement(
        verdict, len(steps), sum(s.index == 0 for s in steps), len(steps) - len(off), len(off) - len(wrong), len(wrong),
        wrong_first, sum(s.lead is not None and s.lead <= floor for s in steps),
        None if top is None else (top[0], top[1].index, top[1].lead or 0.0), lapses,
    )  # fmt: skip
    made.says = _words(made, floor, known)
    return made


def fit(leads: Sequence[float | None], off: Sequence[bool]) -> Lapses:
    """Fit both explanations, noise alone and noise with wrong tokens, by maximum likelihood.

    leads  lead of the judge's best token at each token, nats; None (unknown) is left out
    off    whether the token is not the judge's best
    """
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
    chance = (1.0 - j.wrong / j.tokens) ** j.first
    return (
        f"{start} The first tokens, before any draft, are right in all {j.first} answers (p without draft "
        f"influence: {chance:.2g}). Either it accepts wrong drafts, or decode differs from prefill: rerun with drafts "
        "off; if that passes, the verifier is at fault."
    )
