"""``ds4-vectors drafter``: does an engine's DSpark drafter accept as many tokens as it should, and if not, why?

A wrong drafter changes no output, so nobody notices it. Our drafter runs along the text that the engine decoded, right
and with every mistake of ``variants.drafters``; the likelihoods of the engine's acceptance by position say which of
them fits. Confidence thresholds and adaptive widths are not modelled: measure with a fixed number of drafted tokens.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ds4ref.console.common import Progress, read_text
from ds4ref.console.flags import add
from ds4ref.console.options import integer, number, parsed
from ds4ref.console.tool import finish, parser, rows
from ds4ref.errors import DataError, UsageError

from .reading import Answer, read_answers

if TYPE_CHECKING:
    from ds4ref.variants.drafters import Mistake

PROG = "ds4-vectors drafter"
SURE = 100.0
"""Odds against every other explanation that a name needs."""
UNLIKELY = 1e-3
"""An explanation fits unless acceptance as far from it is less probable than this."""
SAME, OTHER = 0.5, 20.0
"""How many times the variance of independent drafts to expect: on the engine's own text, where only near ties and the
drafter's storage format differ, and on another text."""
LOSS = 0.02
"""Share of the tokens a pass up to which a mistake is said to cost nothing."""
RATES = re.compile(r"(?:per-position acceptance rate|acceptance rate per position|acc rate/pos)\s*[:=]\s*\(?([\d., ]+)",
                   re.IGNORECASE)  # fmt: skip
DRAFTED = re.compile(
    r"drafted:\s*(\d+)\s*tokens|accepted\s*/\s*(\d+)\s*generated|gen tokens\s*=\s*(\d+)", re.IGNORECASE
)
COUNTER = re.compile(
    r'^\S*spec_decode_num_accepted_tokens_per_pos(?:_total)?\{[^}]*position="(\d+)"[^}]*\}\s+(\S+)', re.M
)
LENGTH = re.compile(r"accept len:\s*([\d.]+)|^sglang:spec_accept_length(?:\{[^}]*\})?\s+(\S+)", re.M)
DRAFTS = re.compile(r"^\S*spec_decode_num_drafts(?:_total)?(?:\{[^}]*\})?\s+(\S+)", re.M)


class Acceptance(NamedTuple):
    """What an engine reports: number of drafts, and for each position of a draft the number of drafts accepted up to
    it; or only the tokens that a pass adds in the mean, ``length`` (then there is no more, but the number of drafts
    may be known)."""

    drafts: int
    reached: list[int]
    length: float | None = None

    @property
    def tokens_per_pass(self) -> float:
        """Return the mean number of tokens that a pass adds."""
        return 1 + sum(self.reached) / self.drafts if self.length is None else self.length

    def lengths(self, width: int) -> np.ndarray:
        """Return how many drafts had 0, 1, .. ``width`` tokens accepted."""
        survived = [self.drafts, *(self.reached + [0] * width)[:width], 0]
        return -np.diff(survived).astype(float)


def read_log(text: str) -> Acceptance:
    """Read acceptance from logs of vLLM or llama.cpp's server (all of their lines together), from Prometheus counters
    as vLLM names them, or, of SGLang, the mean tokens a pass; DataError if there is none."""
    counters = {int(place): float(value) for place, value in COUNTER.findall(text)}
    if counters and (total := DRAFTS.search(text)):
        return Acceptance(round(float(total[1])), [round(counters.get(i, 0)) for i in range(max(counters) + 1)])
    drafts, reached = 0, Counter[int]()
    for line in text.splitlines():
        rates, drafted = RATES.search(line), DRAFTED.search(line)
        if rates and drafted:
            shares = [float(part) for part in rates[1].replace(",", " ").split()]
            count = round(int(next(group for group in drafted.groups() if group)) / max(1, len(shares)))
            drafts += count
            reached.update({place: round(share * count) for place, share in enumerate(shares)})
    if not drafts:
        if means := [float(one or other) for one, other in LENGTH.findall(text)]:
            return Acceptance(0, [], sum(means) / len(means))
        raise DataError("no acceptance in this log: wanted vLLM's 'Per-position acceptance rate' with 'Drafted', "
                        "llama.cpp's 'acceptance rate per position', SGLang's 'accept len', or /metrics of vLLM or "
                        "SGLang; or use --rates and --drafts, or --tokens-per-pass")  # fmt: skip
    return Acceptance(drafts, [reached[i] for i in range(max(reached) + 1)])


def fit(
    seen: Acceptance, simulated: Mapping[str, Sequence[int]], width: int, spread: float
) -> dict[str, dict[str, float]]:
    """Compare the engine's acceptance with that of each explanation, simulated as accepted tokens of each draft.

    spread: see ``SAME``. Return by name: probability among the explanations, "fits" (probability that acceptance is as
    far from it by chance) and expected tokens a pass.
    """
    from scipy.stats import chi2

    results: dict[str, dict[str, float]] = {}
    for name, lengths in simulated.items():
        kept = np.minimum(lengths, width).astype(int)
        mean = 1 + float(kept.mean())
        if seen.length is None:
            counts, mine = seen.lengths(width), np.bincount(kept, minlength=width + 1).astype(float)
            share = (mine + 0.5) / (mine + 0.5).sum()
            both = (counts + mine) / (counts.sum() + mine.sum())
            # likelihood ratio of two samples from one distribution against two of their own
            own = sum(float((n * np.log(np.maximum(n / n.sum(), 1e-12) / np.maximum(both, 1e-12))).sum())
                      for n in (counts, mine))  # fmt: skip
            log, freedom = float((counts * np.log(share)).sum()), width
        else:
            variance = float(kept.var()) + 0.01
            gap, freedom = (seen.length - mean) ** 2 / variance / 2, 1
            log, own = -gap * seen.drafts - math.log(variance) / 2, gap / (1 / seen.drafts + 1 / len(lengths))
        results[name] = {
            "log": log / spread,
            "fits": float(chi2.sf(2 * own / spread, freedom)),
            "tokens_per_pass": mean,
        }
    best = max(one["log"] for one in results.values())
    total = sum(math.exp(one["log"] - best) for one in results.values())
    for one in results.values():
        one["probability"] = math.exp(one.pop("log") - best) / total
    return dict(sorted(results.items(), key=lambda item: -item[1]["probability"]))


def verdict(results: dict[str, dict[str, float]]) -> str:
    """Return the name of the explanation that fits with enough odds; "lossless" if several are left, the right drafter
    and what costs next to nothing; "undecided"; "unknown" if none fits."""
    name, best = next(iter(results.items()))
    likely = [each for each, one in results.items() if one["probability"] * SURE >= best["probability"]]
    if best["fits"] < UNLIKELY:
        return "unknown" if not any(one["fits"] >= UNLIKELY for one in results.values()) else "undecided"
    if best["probability"] >= SURE * (1 - best["probability"]):
        return name
    least = (1 - LOSS) * results["right"]["tokens_per_pass"] if "right" in likely else math.inf
    return "lossless" if all(results[each]["tokens_per_pass"] >= least for each in likely) else "undecided"


def run(argv: Sequence[str]) -> int:
    """Run ``ds4-vectors drafter``; return the exit code."""
    flags = parser(PROG, "Compare an engine's DSpark acceptance by position with our drafter's, right and with one "
                   "mistake at a time. Give the text that the engine decoded greedily, with drafts of a fixed width.",
                   "-m MODEL --mtp DRAFTER --token-ids IDS.json --engine-log FILE|URL [options]",
                   "-m flash.gguf --mtp dspark.gguf --token-ids ids.json --start 40 --engine-log http://HOST:8000/metrics",
                   "-m flash.gguf --mtp dspark.gguf --text answer.txt --rates 0.58,0.45,0.32 --drafts 900")  # fmt: skip
    add(flags, "--model")
    add(flags, "--mtp", metavar="FILE", help="file, or published folder, of the DSpark drafter")
    add(flags, "--token-ids", help='JSON list of the tokens of prompt and answer, or [{"ids": [..], "start": 40}, ..]')
    add(flags, "--text", help="the same as text")
    flags.add_argument("--start", metavar="N", type=integer(1), default=1, help="tokens before the answer (1)")
    flags.add_argument("--engine-log", metavar="FILE|URL", help="log of the engine, or its /metrics")
    flags.add_argument("--rates", metavar="A,B,..", help="share of drafts accepted up to each position, with --drafts")
    flags.add_argument("--drafts", metavar="N", type=integer(1), help="number of drafts that --rates is of")
    flags.add_argument("--tokens-per-pass", metavar="X", type=number(1.0, 100.0),
                       help="tokens that a pass adds in the mean, if nothing else is known")  # fmt: skip
    flags.add_argument("--other-text", action="store_true", help="the engine decoded another text of the same kind")
    add(flags, "--json")
    args = parsed(flags, argv)
    if args is None:
        return 0
    seen = _acceptance(args)
    if (args.token_ids is None) == (args.text is None):
        raise UsageError("give the text that was decoded: --token-ids FILE or --text FILE")

    from ds4ref.engine import Engine
    from ds4ref.nano.trained import dspark_path, embedded_path
    from ds4ref.variants.drafters import MISTAKES, accepted, observe, of_width, opened

    if args.mtp is None and args.model is not None:
        raise UsageError("which drafter? --mtp FILE")
    with Engine.open(args.model or embedded_path()) as engine, opened(args.mtp or dspark_path(), engine) as drafter:
        answers = _answers(args, engine)
        with Progress("evaluated") as progress:
            texts = []
            for done, answer in enumerate(answers):
                texts.append(observe(engine, drafter, answer.ids))
                progress(done + 1, len(answers))
        block = drafter.settings.block
        width = len(seen.reached) or block
        if seen.length is not None:
            seen = seen._replace(drafts=round(sum(len(one.ids) - one.start for one in answers) / seen.length))
        if width > block:
            mistakes: dict[str, Mistake] = {"width": of_width(width)}
        else:
            mistakes = MISTAKES | ({"width": of_width(width)} if width < block else {})
        tried: dict[str, Mistake | None] = {"right": None} if width <= block else {}
        tried |= mistakes
        with Progress("mistakes tried") as progress:
            simulated = {}
            for done, (name, mistake) in enumerate(tried.items()):
                simulated[name] = [count for text, answer in zip(texts, answers, strict=True)
                                   for count in accepted(drafter, text, mistake, answer.start, width)]  # fmt: skip
                progress(done + 1, len(tried))
    results = fit(seen, simulated, width, OTHER if args.other_text else SAME)
    name = verdict(results)
    says = {"right": "the drafter accepts what it should", "undecided": "several explanations fit",
            "lossless": "the drafter accepts what it should; what it could still have costs next to nothing",
            "unknown": "no known mistake explains this acceptance"}.get(name) or mistakes[name].says  # fmt: skip
    table = [(each, f"{one['probability']:.3g}", "yes" if one["fits"] >= UNLIKELY else "no",
              f"{one['tokens_per_pass']:.2f}") for each, one in results.items()]  # fmt: skip
    finish({"verdict": name, "says": says, "drafts": seen.drafts, "accepted": seen.reached,
            "tokens_per_pass": seen.tokens_per_pass, "explanations": results}, args.json,
           f"{name}: {says}. Measured: {seen.tokens_per_pass:.2f} tokens a pass in {seen.drafts} drafts.\n\n"
           + rows(("explanation", "probability", "fits", "tokens a pass"), table))  # fmt: skip
    return 0 if name in ("right", "lossless") else 1


def _acceptance(args: Any) -> Acceptance:
    if args.engine_log is not None:
        if args.engine_log.startswith(("http://", "https://")):
            import httpx2

            try:
                reply = httpx2.get(args.engine_log, timeout=30)
                reply.raise_for_status()
            except httpx2.HTTPError as error:
                raise DataError(f"cannot read {args.engine_log}: {error}") from None
            return read_log(reply.text)
        return read_log(read_text(args.engine_log, "log"))
    if args.tokens_per_pass is not None:
        return Acceptance(0, [], args.tokens_per_pass)
    if args.rates is None or args.drafts is None:
        raise UsageError("give the engine's acceptance: --engine-log FILE, --rates A,B,.. with --drafts N, or "
                         "--tokens-per-pass X")  # fmt: skip
    try:
        rates = [float(part) for part in args.rates.split(",")]
    except ValueError:
        raise UsageError(f"--rates is a comma-separated list of shares, not {args.rates[:40]!r}") from None
    if any(not 0 <= rate <= 1 for rate in rates) or rates != sorted(rates, reverse=True):
        raise UsageError("--rates are shares of all drafts accepted up to each position: 0 to 1, not rising")
    return Acceptance(args.drafts, [round(rate * args.drafts) for rate in rates])


def _answers(args: Any, engine: Any) -> list[Answer]:
    if args.text is not None:
        answers = [Answer(engine.tokenizer.encode(read_text(args.text, "text")), args.start)]
    else:
        answers = read_answers(args.token_ids, args.start)
    if not all(0 <= i < engine.shape.vocab for answer in answers for i in answer.ids):
        raise DataError(f"token ids must be below {engine.shape.vocab}, the size of the model's vocabulary")
    count = sum(max(0, len(answer.ids) - answer.start) for answer in answers)
    if count < 32:
        raise UsageError(f"{count} tokens after --start are too few to draft along: at least 32")
    return answers
