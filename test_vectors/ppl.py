"""Perplexity by depth, and likelihood of given continuations, with standard errors.

Short vectors cannot reveal long-context faults, so a text is scored in windows that end at several depths: the tokens
of a window are predicted from everything before them. Errors of neighbouring tokens are correlated, so standard errors
are computed from blocks of 64 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.targets import Ability, Prompt, Request, Step, Target
from ds4ref.targets.local import LocalTarget

if TYPE_CHECKING:
    from ds4ref.runs.stats import Interval

BLOCK = 64
TIE = 1e-9
"""Largest difference in nats at which two cases count as tied."""
ECHO_TOP, PROBES = 5, 5
"""An echo is verified at PROBES places of the text, by ECHO_TOP alternatives each."""
WARM = 32
"""Number of tokens at the start that are context only, as in ds4's perplexity (docs/reference/ds4.md)."""


@dataclass(frozen=True)
class DepthScore:
    """Mean NLL of the tokens in (depth - window, depth].

    depth   in tokens
    tokens  number of scored tokens
    nll     mean negative log likelihood, nats per token
    stderr  standard error of ``nll``
    """

    depth: int
    tokens: int
    nll: float
    stderr: float

    @property
    def ppl(self) -> float:
        """Return exp(nll); infinite where that overflows."""
        return math.exp(self.nll) if self.nll < 700 else math.inf

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for the report; the standard error of ppl is derived from that of nll."""
        return {"depth": self.depth, "tokens": self.tokens, "nll": self.nll, "nll_stderr": self.stderr,
                "ppl": self.ppl, "ppl_stderr": self.ppl * self.stderr}  # fmt: skip


def block_error(values: np.ndarray, block: int = BLOCK) -> float:
    """Return the standard error of the mean of a correlated series, from means of blocks; NaN with fewer than two."""
    count = len(values) // block
    if count < 2:
        block = max(1, len(values) // 8)
        count = len(values) // block
    if count < 2:
        return math.nan
    means = values[: count * block].reshape(count, block).mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(count))


def by_depth(nll: np.ndarray, depths: Sequence[int], window: int) -> list[DepthScore]:
    """Average ``nll`` over the window before every depth that the text reaches.

    ``nll`` (n,): nats of token i + 1 given the tokens up to i; depths and ``window`` are in tokens. TargetError if a
    token in a window has no finite value, as leaving it out would flatter the engine.
    """
    scores = []
    for depth in depths:
        if depth > len(nll) + 1:
            continue
        part = nll[max(WARM - 1, depth - 1 - window) : depth - 1]
        lost = int((~np.isfinite(part)).sum())
        if lost:
            raise TargetError(f"{lost} of the {len(part)} tokens before depth {depth} have no log probability")
        if len(part):
            scores.append(DepthScore(depth, len(part), float(part.mean()), block_error(part)))
    return scores


class ScoredText(NamedTuple):
    """A scored text.

    nll          nats of every token but the first (n,), NaN where the target gave none
    echo_agrees  result of ``echo_agrees`` for an endpoint, None for a local engine
    length       tokens of the text, up to the limit; fewer are scored if scoring was stopped
    stopped      whether Ctrl-C ended the scoring
    """

    nll: np.ndarray
    echo_agrees: bool | None
    length: int
    stopped: bool = False


def score(
    target: Target, text: str, limit: int | None, progress: Callable[[int, int], None] | None = None
) -> ScoredText:
    """Score the first ``limit`` tokens of ``text``.

    After Ctrl-C the tokens scored so far by a local engine are returned; an endpoint returns all tokens at once or
    none.
    """
    target.require(Ability.SCORE, needed_for="ppl")
    agrees, stopped = None, False
    if isinstance(target, LocalTarget):
        ids = target.tokenizer.encode(text)[:limit]
        if len(ids) < 2:
            raise DataError("the text has fewer than two tokens")
        steps: list[Step] = []
        try:
            for piece in target.score_pieces(ids):
                steps += piece
                if progress is not None:
                    progress(len(steps), len(ids))
        except KeyboardInterrupt:
            stopped = True
        length = len(ids)
    else:
        steps = target.score_text(text, ECHO_TOP)[:limit]
        agrees, length = echo_agrees(target, steps), len(steps)
    values = [step.token.logprob for step in steps[1:]]
    return ScoredText(np.array([math.nan if v is None else -v for v in values]), agrees, length, stopped)


def echo_agrees(target: Target, steps: Sequence[Step]) -> bool | None:
    """Return whether echoed alternatives equal those that the target gives after the same prefix; None if unknown.

    Some servers list each token with the distribution after it (docs/reference/vectors.md), which makes every
    perplexity computed from their echo wrong.
    """
    shares: list[float] = []
    if target.continues_text() is False:
        return None
    for at in np.linspace(1, len(steps) - 1, PROBES).astype(int).tolist() if len(steps) > PROBES else []:
        try:
            prefix = b"".join(step.token.raw for step in steps[:at]).decode()
        except UnicodeDecodeError:
            continue
        listed = {t.raw for t in steps[at].top}
        steps_again = target.complete(Request(Prompt.plain(prefix), 1, top_logprobs=ECHO_TOP)).steps
        if len(listed) > 1 and steps_again and len(steps_again[0].top) > 1:
            shares.append(len(listed & {t.raw for t in steps_again[0].top}) / len(listed))
    return float(np.median(shares)) >= 0.5 if shares else None


@dataclass(frozen=True)
class PairedScores:
    """Paired NLL of two targets A and B on the same continuations, in nats per token; lower is better.

    Cases are the independent samples (tokens of one answer are not).

    cases     number of cases
    tokens    number of tokens in all cases
    a, b      mean NLL of each target
    interval  B - A with its 95 % interval
    wins      numbers of cases that B wins, A wins, and ties
    sign_p    p-value of the sign test over cases
    """

    cases: int
    tokens: int
    a: float
    b: float
    interval: Interval
    wins: tuple[int, int, int]
    sign_p: float

    @property
    def delta(self) -> float:
        """Return the mean difference B - A, in nats per token."""
        return self.interval.estimate

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for the report; an unknown interval is null."""
        ci95 = [self.interval.low, self.interval.high] if self.interval.known else None
        return {"cases": self.cases, "tokens": self.tokens, "avg_nll_a": self.a, "avg_nll_b": self.b,
                "delta": self.delta, "ci95": ci95, "method": self.interval.method, "wins_b_a_ties": list(self.wins),
                "sign_p": self.sign_p}  # fmt: skip


def paired(a: Sequence[tuple[float, int]], b: Sequence[tuple[float, int]]) -> PairedScores:
    """Compare (summed nll, tokens) of each case under A and B; UsageError unless cases and token counts agree."""
    if len(a) != len(b) or not a or any(x[1] != y[1] for x, y in zip(a, b, strict=True)):
        raise UsageError("the two sides must score the same tokens of the same cases")
    from ds4ref.runs.stats import sign_test, weighted_interval

    counts = np.array([n for _, n in a], float)
    sums = np.array([[x for x, _ in a], [y for y, _ in b]])
    difference = sums[1] - sums[0]
    b_better, b_worse = int((difference < -TIE).sum()), int((difference > TIE).sum())
    total = counts.sum()
    return PairedScores(
        len(a),
        int(total),
        float(sums[0].sum() / total),
        float(sums[1].sum() / total),
        weighted_interval(difference, counts),
        (b_better, b_worse, len(a) - b_better - b_worse),
        sign_test(difference, TIE),
    )


def continuation_nll(target: Target, prompt: Prompt, continuation: Sequence[bytes]) -> tuple[float, int]:
    """Return (summed nll, tokens) of a continuation; TargetError if the target does not give a token's probability."""
    steps = target.score(prompt, continuation, 20)
    values = [step.token.logprob for step in steps]
    if any(value is None for value in values):
        at = values.index(None)
        raise TargetError(f"{target.name} returned no log probability for step {at}: the token is not in its top list")
    return -sum(v for v in values if v is not None), len(values)
