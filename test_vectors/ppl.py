"""``ds4-vectors ppl``: perplexity by depth, with standard errors.

Short vectors cannot reveal bugs at long contexts, so a text is scored in windows that end at several depths: the tokens
of a window are predicted from everything before them. The values of neighbouring tokens are correlated, so standard
errors are computed from means of blocks of 64 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ds4ref.console.common import EXIT_INTERRUPTED, Progress, read_text, say
from ds4ref.console.flags import add
from ds4ref.console.options import integer, parsed
from ds4ref.console.tool import add_target, finish, parser, report_notes, rows, target_of
from ds4ref.errors import DataError, TargetError, UsageError
from ds4ref.nano.prose import prose
from ds4ref.targets import Ability, Step, Target
from ds4ref.targets.local import LocalTarget

from .elicit import is_early, probed_echo
from .record import PROG, add_store, describe, keep, opened, text_digest

DEPTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
ECHO_NOTE = (
    "\nunreliable: the log probabilities this server echoes differ from those it returns for the same "
    "prefixes (docs/reference/vectors.md)"
)
BLOCK = 64
ECHO_TOP = 5
"""Number of alternatives to request with an echo, which show whether it is off by one (``echo_agrees``)."""
WARM = 32
"""Number of tokens at the start of the text that are not scored, as in ds4's perplexity (docs/reference/ds4.md)."""


def block_error(values: np.ndarray, block: int = BLOCK) -> float:
    """Return the standard error of the mean of correlated ``values`` from means of blocks of ``block`` values.

    Blocks are shorter if there would be fewer than two; NaN if there still are.
    """
    count = len(values) // block
    if count < 2:
        block = max(1, len(values) // 8)
        count = len(values) // block
    if count < 2:
        return math.nan
    means = values[: count * block].reshape(count, block).mean(axis=1)
    return float(means.std(ddof=1) / math.sqrt(count))


def by_depth(nll: np.ndarray, depths: Sequence[int], window: int) -> list[dict[str, Any]]:
    """Average negative log likelihoods over the window before every depth that the text reaches.

    nll     (n,) nats of token i + 1 given the tokens up to i
    depths  where windows end, in tokens
    window  length of a window in tokens

    Return per depth: number of tokens, mean and perplexity (infinite on overflow), both with standard errors.
    TargetError if a token in a window has no finite value, as leaving it out would flatter the engine.
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
            mean, error = float(part.mean()), block_error(part)
            ppl = math.exp(mean) if mean < 700 else math.inf
            scores.append({"depth": depth, "tokens": len(part), "nll": mean, "nll_stderr": error, "ppl": ppl,
                           "ppl_stderr": ppl * error})  # fmt: skip
    return scores


def score(
    target: Target, text: str, limit: int | None, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[list[Step], int]:
    """Score the first ``limit`` tokens of ``text`` (None: all); return (their steps, number of tokens to score).

    After Ctrl-C there are fewer steps: those that a local engine has scored. An endpoint returns all steps at once.
    ``progress`` is called with (tokens scored, all tokens).
    """
    target.require(Ability.SCORE, needed_for="ppl")
    if not isinstance(target, LocalTarget):
        steps = target.score_text(text, ECHO_TOP)[:limit]
        return steps, len(steps)
    ids = target.tokenizer.encode(text)[:limit]
    if len(ids) < 2:
        raise DataError("the text has fewer than two tokens")
    steps = []
    with suppress(KeyboardInterrupt):
        for piece in target.score_pieces(ids):
            steps += piece
            progress(len(steps), len(ids))
    return steps, len(ids)


def echo_agrees(target: Target) -> bool | None:
    """Return whether the target echoes each token with the distribution that predicts it; None if unknown.

    Some servers give each token the distribution after it (docs/reference/vectors.md); a perplexity from such an echo
    is wrong.
    """
    if target.continues_text() is False:
        return None
    steps, after = probed_echo(target, ECHO_TOP)
    return None if after is None else not is_early(steps, after)


# ------------------------------------------------------------------------------------------------------- the command


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors ppl``; return the exit code."""
    flags = parser("ds4-vectors ppl", "Perplexity of a text at several depths.", "[--text FILE] [options]",
                   "--target local:model.gguf --depths all",
                   "--text book.txt --depths 512,8192 --target http://127.0.0.1:8080/v1")  # fmt: skip
    add(flags, "--text", help="text to score (generated prose)")
    add(
        flags,
        "--depths",
        default="512,1024,2048,4096",
        help=("comma-separated depths in tokens, or all: 512 to 64k (512,1024,2048,4096)"),
    )
    flags.add_argument("--window", metavar="N", type=integer(8), default=256, help="tokens scored at each depth (256)")
    add(flags, "--json")
    add_store(flags)
    add_target(flags)
    args = parsed(flags, argv)
    if args is None:
        return 0
    depths = read_depths(args.depths)
    with opened(args) as store, target_of(args, args.target) as target, Progress("scored") as progress:
        limit = min(depths[-1], args.ctx or depths[-1])
        text = prose(limit * 6) if args.text is None else read_text(args.text, "text")
        steps, length = score(target, text, limit, progress)
        progress.clear()
        agrees = None if isinstance(target, LocalTarget) else echo_agrees(target)
        identity = target.identity()
        report_notes(PROG, target)
        known = [step.token.logprob for step in steps[1:]]
        nats = np.array([math.nan if value is None else -value for value in known])
        scores = by_depth(nats, depths, args.window)
        reached, stopped = len(steps), len(steps) < length
        missing = [depth for depth in depths if depth > reached]
        why = "stopped" if stopped else f"--ctx is {limit}" if reached == limit else f"the text has {reached} tokens"
        if missing:
            say(PROG, f"{why}: depths not reached: {', '.join(map(str, missing))}")
        if not scores and not stopped:
            raise UsageError(f"{why}, fewer than the smallest depth {depths[0]}")
        if scores:
            kept = [{"id": f"depth {d['depth']}", "verdict": f"ppl {d['ppl']:.4f}", "passed": True,
                     "tokens": d["tokens"], "nll": d["nll"] * d["tokens"]} for d in scores]  # fmt: skip
            keep(store, ["ppl", *argv], describe(target, store), kept, prompt_sha256=text_digest([text]),
                 label=args.label or "ppl", status="stopped" if stopped else "complete")  # fmt: skip
    table = [(str(d["depth"]), str(d["tokens"]), *(f"{d[name]:.4f}" for name in ("nll", "nll_stderr", "ppl")))
             for d in scores]  # fmt: skip
    finish({"target": identity, "depths": scores, "tokens": reached, "not_reached": missing, "stopped": stopped,
            "echo_agrees": agrees}, args.json,
           rows(("depth", "tokens", "nll", "+-", "ppl"), table) + (ECHO_NOTE if agrees is False else ""))  # fmt: skip
    return EXIT_INTERRUPTED if stopped else 0


def read_depths(text: str) -> list[int]:
    """Parse "all" or comma-separated token counts into ascending distinct numbers; UsageError if malformed."""
    if text == "all":
        return [*DEPTHS]
    try:
        depths = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"--depths is a comma-separated list of token counts, not {text[:40]!r}") from None
    if depths[0] < 40 or depths[-1] > 1 << 20:
        raise UsageError("depths must be 40 to 1048576 tokens")
    return depths
