"""Compare an engine with recorded vectors, step by step.

The engine is fed the expected tokens, whatever it would have chosen itself (teacher forcing), so one different token
does not spoil later steps. A target that cannot be forced answers greedily; its answer is compared up to the first
different token (the fork), and the steps after it are incomparable.

    match         the expected token is the engine's most likely one
    flip          it is not, but the engine prefers another token by less than the noise, which is the larger of the
                  source's own run-to-run spread and the rounding floor of the engine's numerics mode (``FLOORS``)
    mismatch      it is not, by more than the noise
    incomparable  no conclusion: no probabilities, or a prefix that cannot be forced

The profile "ds4" uses ds4's own rule instead: same bytes, every official token among the 20 best, log probabilities
within 4 nats (docs/reference/vectors.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ds4ref.errors import TargetError, UsageError
from ds4ref.targets import Ability, Prompt, Request, Step, Target, Token

from .capture import spread
from .schema import ExpectedDivergence, RecordedCase, StepRecord, TokenRecord

FLOORS = {"exact": 1e-3, "qat": 0.05, "ds4": 0.3}
"""By numerics mode: two tokens whose log probabilities differ by less than this, in nats, may change places by rounding
alone. Set by hand; the noise of a model with random weights is larger, see docs/reference/vectors.md."""

DEFAULT_FLOOR = 0.3
_API_EOS, _EOS = (f"<{bar}end\u2581of\u2581sentence{bar}>".encode() for bar in ("\uff5c\uff5c", "\uff5c"))
"""The hosted API doubles the bars of the end token."""

PROFILES = ("margin", "ds4")
_SHOWN = ("verdict", "rank", "margin", "delta", "overlap", "kl", "why", "logprob")
DS4_NATS = 4.0


@dataclass(frozen=True)
class StepResult:
    """Comparison of one step.

    index     number of the step, from 0
    verdict   "match", "flip", "mismatch" or "incomparable" (see the top of this module)
    expected  bytes of the expected token
    got       bytes of the engine's best token, None if unknown
    rank      rank of the expected token in the engine's list (1 is best; None: not listed)
    margin    nats by which the engine prefers another token (0 on a match)
    delta     engine's log probability of the expected token minus the recorded one
    overlap   share of the recorded alternatives that the engine lists
    kl        KL(expected || engine) on the shared alternatives, nats
    why       reason of the verdict
    logprob   engine's log probability of the expected token
    lead      nats by which the engine's best token leads: over the second best on a match, else over the expected one
              (a lower bound if that is not listed); None if unknown
    """

    index: int
    verdict: str
    expected: bytes
    got: bytes | None
    rank: int | None = None
    margin: float | None = None
    delta: float | None = None
    overlap: float | None = None
    kl: float | None = None
    why: str = ""
    logprob: float | None = None
    lead: float | None = None


@dataclass
class CaseResult:
    """Comparison of one case: a prompt and its expected tokens.

    verdict  worst verdict of its steps, or "error". If correct engines are known to diverge on this case: "expected",
             or "unexpected match" (not a failure) for an engine that does not diverge
    noise    margin in nats up to which a flip is allowed
    forced   whether the engine was forced along the expected tokens
    reason   why the verdict is an error or incomparable
    """

    id: str
    verdict: str
    steps: list[StepResult] = field(default_factory=list)
    noise: float = 0.0
    forced: bool = True
    reason: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Return whether this case makes a check fail."""
        return self.verdict in ("mismatch", "error")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for the report."""
        steps = [
            {"step": s.index, **{name: vars(s)[name] for name in _SHOWN}, "expected": s.expected.hex(),
             "got": None if s.got is None else s.got.hex()}
            for s in self.steps
        ]  # fmt: skip
        return {"id": self.id, "verdict": self.verdict, "noise": self.noise, "forced": self.forced,
                "reason": self.reason, "steps": steps}  # fmt: skip


def floor_of(target: Target) -> float:
    """Return the entry of ``FLOORS`` (nats) for the target's numerics mode; the largest one if the mode is unknown."""
    return FLOORS.get(str(target.identity().get("numerics")), DEFAULT_FLOOR)


def check_case(
    target: Target, prompt: Prompt, case: RecordedCase, *, ctx: int | None = None, profile: str = "margin",
    floor: float | None = None, top: int = 20, divergence: ExpectedDivergence | None = None,
) -> CaseResult:  # fmt: skip
    """Compare one case; an error of the target becomes the verdict "error", so that other cases are still checked.

    ctx         context size in tokens to request (None: the target's own)
    profile     rule that judges each step: "margin" or "ds4" (see the top of this module)
    floor       smallest noise in nats to allow (None: ``floor_of`` the target)
    top         number of alternatives to request per token
    divergence  known divergence of correct engines on this case
    """
    if profile not in PROFILES:
        raise UsageError(f"unknown profile {profile!r}: choose from {', '.join(PROFILES)}")
    expected_steps = case.repetitions[0].steps
    noise = max(spread(case) or 0.0, floor_of(target) if floor is None else floor)
    result = CaseResult(case.id, "match", noise=noise)
    top = min(top, target.max_top_logprobs)
    # a server that returns text instead of bytes loses the bytes of tokens that end inside a character
    with_bytes = next((i for i, step in enumerate(expected_steps) if not step.token.raw), len(expected_steps))
    try:
        steps, result.forced = (
            _answers(target, prompt, expected_steps[:with_bytes], ctx, top) if with_bytes else ([], True)
        )
    except TargetError as error:
        result.verdict, result.reason = "error", str(error)
        return result
    for index, expected in enumerate(expected_steps):
        if index < len(steps):
            judge = _ds4_step if profile == "ds4" else _margin_step
            result.steps.append(judge(index, expected, steps[index], noise, result.forced))
        else:
            why = "after a fork" if index < with_bytes else "after a token without bytes in the source"
            result.steps.append(StepResult(index, "incomparable", expected.token.raw, None, why=why))
    result.verdict = _worst(result.steps)
    if divergence is not None:
        result.reason = divergence.reason
        at = [s for s in result.steps if divergence.step is None or s.index == divergence.step]
        if any(s.verdict == "mismatch" for s in at):
            others = [s for s in result.steps if s.verdict == "mismatch" and s not in at]
            result.verdict = "mismatch" if others else "expected"
        elif result.verdict in ("match", "flip"):
            result.verdict = "unexpected match"
    return result


def forced_case(name: str, steps: Sequence[Step], noise: float) -> CaseResult:
    """Judge ``steps``, at which the target was fed given tokens: is each given token the most likely one at its step?

    ``noise``: margin in nats up to which another token may be preferred.
    """
    judged = []
    for index, step in enumerate(steps):
        expected = StepRecord(TokenRecord(list(step.token.raw)))
        judged.append(_margin_step(index, expected, step, noise, True))
    return CaseResult(name, _worst(judged), judged, noise)


def _worst(steps: Sequence[StepResult]) -> str:
    verdicts = {step.verdict for step in steps}
    order = ("mismatch", "incomparable", "flip", "match")
    return next(v for v in order if v in verdicts) if verdicts else "incomparable"


def _answers(
    target: Target, prompt: Prompt, expected_steps: list[StepRecord], ctx: int | None, top: int
) -> tuple[list[Step], bool]:
    """Return the engine's steps, and whether it was fed the expected tokens; if not, they end with the first fork."""
    if target.can(Ability.SCORE):
        try:
            return target.score(prompt, [_raw(step.token) for step in expected_steps], top), True
        except TargetError as error:
            if not any(text in str(error) for text in ("cannot continue", "is not a token")):
                raise
    target.require(Ability.TOP_LOGPROBS, needed_for="check")
    free = target.complete(Request(prompt, len(expected_steps), top_logprobs=top, ctx=ctx)).steps
    steps: list[Step] = []
    for expected, step in zip(expected_steps, free, strict=False):
        steps.append(step)
        if _raw(step.token) != _raw(expected.token):
            break
    return steps, False


def _raw(token: Token | TokenRecord) -> bytes:
    """Return a token's bytes; the hosted API's spelling of the end token is replaced by the vocabulary's."""
    return _EOS if token.raw == _API_EOS else token.raw


def _margin_step(index: int, expected: StepRecord, step: Step, noise: float, forced: bool) -> StepResult:
    """Compare one step: the verdict depends on how far the expected token is below the engine's best.

    noise   margin in nats up to which another token may be preferred
    forced  whether the engine was fed the expected tokens
    """
    raw = _raw(expected.token)
    values = {_raw(t): t.logprob for t in step.top if t.logprob is not None}
    if not values:
        if forced or _raw(step.token) == raw:
            verdict = "incomparable" if forced else "match"
            return StepResult(index, verdict, raw, step.token.raw, why="no log probabilities")
        return StepResult(index, "mismatch", raw, step.token.raw, why="different token, no log probabilities")
    ordered = sorted(values.items(), key=lambda item: -item[1])
    best, best_logprob = ordered[0]
    rank = next((i + 1 for i, (token, _) in enumerate(ordered) if token == raw), None)
    logprob = values.get(raw, step.token.logprob if forced else None)
    kl, overlap = _distribution(expected, values)
    delta = None if logprob is None or expected.token.logprob is None else logprob - expected.token.logprob
    fields: dict[str, Any] = {"rank": rank, "delta": delta, "overlap": overlap, "kl": kl, "logprob": logprob}
    if best == raw or (logprob is not None and logprob >= best_logprob):
        others = [value for token, value in ordered if token != raw]
        lead = max(0.0, logprob - others[0]) if logprob is not None and others else None
        return StepResult(index, "match", raw, best, margin=0.0, lead=lead, **fields)
    if logprob is None:
        least = best_logprob - ordered[-1][1]
        why = f"not among the {len(ordered)} most likely (margin above {least:.3g})"
        return StepResult(index, "mismatch", raw, best, margin=None, lead=least, why=why, **fields)
    margin = best_logprob - logprob
    verdict = "flip" if margin <= noise else "mismatch"
    why = f"margin {margin:.3g}, noise {noise:.3g}"
    return StepResult(index, verdict, raw, best, margin=margin, lead=margin, why=why, **fields)


def _distribution(expected: StepRecord, values: dict[bytes, float]) -> tuple[float | None, float | None]:
    """Return (KL over the tokens that both list, renormalised over these; share of expected tokens the engine lists).

    ``values``: the engine's log probabilities by token bytes. None where too few tokens are known.
    """
    known = {_raw(t): t.logprob for t in expected.top if t.logprob is not None}
    if len(known) < 2:
        return None, None  # the hosted API may list only the chosen token, with 0: no distribution to compare
    shared = [raw for raw in known if raw in values]
    if len(shared) < 2:
        return None, len(shared) / len(known)
    p_total = math.log(sum(math.exp(known[r]) for r in shared))
    q_total = math.log(sum(math.exp(values[r]) for r in shared))
    kl = sum(math.exp(known[r] - p_total) * (known[r] - p_total - values[r] + q_total) for r in shared)
    return max(kl, 0.0), len(shared) / len(known)


def _ds4_step(index: int, expected: StepRecord, step: Step, noise: float, forced: bool) -> StepResult:
    """Judge a step by ds4's rule: same token, and every expected alternative listed, within ``DS4_NATS``."""
    raw = _raw(expected.token)
    values = {_raw(t): t.logprob for t in step.top if t.logprob is not None}
    best = max(values, key=lambda token: values[token]) if values else _raw(step.token)
    reasons = []
    if best != raw:
        reasons.append("different token")
    for token in expected.top:
        listed = _raw(token)
        if listed not in values:
            reasons.append(f"{listed!r} is not among the {len(values)} best")
        elif token.logprob is not None and abs(values[listed] - token.logprob) > DS4_NATS:
            reasons.append(f"{listed!r} differs by {abs(values[listed] - token.logprob):.3g} nats")
    logprob = values.get(raw)
    delta = None if logprob is None or expected.token.logprob is None else logprob - expected.token.logprob
    verdict = "mismatch" if reasons else "match"
    return StepResult(index, verdict, raw, best, delta=delta, why="; ".join(reasons), logprob=logprob)
