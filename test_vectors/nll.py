"""``ds4-vectors nll``: likelihood of recorded continuations under two engines, paired."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ds4ref.console.common import EXIT_INTERRUPTED, Progress, say
from ds4ref.console.flags import add
from ds4ref.console.options import number, parsed
from ds4ref.console.tool import add_target, finish, parser, report_notes, required, rows, target_of
from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.targets import Prompt, Target

from .cases import VectorCase, read_cases
from .record import PROG, add_store, describe, keep, opened, text_digest

if TYPE_CHECKING:
    from ds4ref.runs.stats import Interval

TIE = 1e-9
"""Largest difference in nats at which two cases count as tied."""


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


# ------------------------------------------------------------------------------------------------------- the command


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors nll VECTORS``; return the exit code."""
    flags = parser("ds4-vectors nll", "Compare the NLL of recorded continuations under two engines, paired.",
                   "VECTORS --target A --other B [options]",
                   "vectors/official --target local:a.gguf --other local:b.gguf --fail-above 0.01")  # fmt: skip
    flags.add_argument("path", nargs="*", metavar="VECTORS", help="a directory of vectors, official.vec, JSON captures")
    flags.add_argument("--other", metavar="SPEC", help="second engine, B")
    add(
        flags,
        "--fail-above",
        metavar="NATS",
        type=number(-100, 100),
        help="exit 1 if B is worse than A by more than this, with 95 %% certainty",
    )
    add(flags, "--json")
    add_store(flags)
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    if len(args.path) != 1:
        raise UsageError("name the vectors with the continuations to score")
    required(args, "other")
    from ds4ref.runs.stats import LEAST

    cases = read_cases(args.path[0])
    if args.fail_above is not None and len(cases) < LEAST:
        raise UsageError(f"--fail-above needs at least {LEAST} cases: {args.path[0]} has {len(cases)}")
    for item in cases:
        if not all(item.tokens):
            raise DataError(f"case {item.case.id} has a token whose bytes are missing from its source")
    sides: list[list[tuple[float, int]]] = []
    for name, spec in (("A", args.target), ("B", args.other)):
        side: list[tuple[float, int]] = []
        sides.append(side)
        if not _scored(args, argv, name, spec, cases, side):
            break
    a, b = sides[0], sides[1] if len(sides) > 1 else []
    scored = min(len(a), len(b))
    stopped = scored < len(cases)
    if stopped:
        say(PROG, f"stopped: {len(a)} cases of A, {len(b)} of B, of {len(cases)}")
    if not scored:
        return EXIT_INTERRUPTED
    result = paired(a[:scored], b[:scored])
    worse = args.fail_above is not None and result.interval.low > args.fail_above
    i = result.interval
    lines = [("cases", str(result.cases)), ("tokens", str(result.tokens)), ("avg nll A", f"{result.a:.6f}"),
             ("avg nll B", f"{result.b:.6f}"), ("B - A", f"{result.delta:+.6f}"),
             ("95 % interval", f"{i.low:+.6f} {i.high:+.6f}" if i.known else f"none: {i.method}"),
             ("B better, worse, tied", " ".join(map(str, result.wins))),
             ("sign test p", f"{result.sign_p:.3g}")]  # fmt: skip
    finish({"a": args.target, "b": args.other, **result.to_json(), "stopped": stopped, "passed": not worse}, args.json,
           rows(("measure", "value"), lines))  # fmt: skip
    return EXIT_INTERRUPTED if stopped else 1 if worse else 0


def _scored(
    args: Namespace,
    argv: Sequence[str],
    name: str,
    spec: str,
    cases: Sequence[VectorCase],
    side: list[tuple[float, int]],
) -> bool:
    """Append (nats, tokens) of every case to ``side`` and record them in the store, also those before a failure.

    Return False if Ctrl-C interrupted the scoring.
    """
    texts = text_digest(text for item in cases for text in (item.case.id, item.system, item.prompt))
    with opened(args) as store, target_of(args, spec) as target, Progress(f"scoring {spec}") as progress:
        if store is not None:
            describe(target, store)  # hash a large file now, not after Ctrl-C
        status = "failed"
        try:
            for item in cases:
                progress(len(side), len(cases))
                side.append(continuation_nll(target, item.chat, item.tokens))
            status = "complete"
        except KeyboardInterrupt:
            status = "stopped"
        finally:
            progress.clear()
            report_notes("ds4-vectors", target)
            store_rows = [{"id": item.case.id, "verdict": "scored", "passed": True, "tokens": tokens, "nll": nats}
                          for item, (nats, tokens) in zip(cases, side, strict=False)]  # fmt: skip
            if store_rows:
                keep(store, ["nll", *argv], describe(target, store), store_rows, prompt_sha256=texts,
                     label=f"{args.label or 'nll'}, {name}", status=status)  # fmt: skip
    return status == "complete"
