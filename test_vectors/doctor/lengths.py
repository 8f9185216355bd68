"""Prompts of many lengths: is what they say repeated at every length, residue and distance, and with the right numbers?

What fails is explained by ``patterns``. A model that recalls nothing in short prompts can only be judged by its log
probabilities, against our engine's. Without our engine's answers a loss that grows with depth may be the model's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.errors import Ds4Error

from ..finding import Outcome, counted
from .case import ExamContext
from .examination import Stage
from .limits import OutOfTime
from .patterns import FAMILIES, NONE, Constants, Fit, Pattern
from .probes import COPIES, FEW, KINDS, Prober, Record, expected, given
from .trials import Trial, explained
from .yardstick import Yardstick, fallback, level, measure

SURE, SURER = 0.99, 0.9999
"""Least probability of a family for it to be named, and of residues if all numbers differ from ours."""
SHORT = (44, 50, 57)
"""Tokens of the prompts that show what the model can repeat at all."""
DEPTHS, DEEPEST = (1000, 2000, 4000, 8000, 16_000), (32_000, 64_000)
CHUNKS = (512, 1024)
"""Tokens that many engines prefill at once."""
ROUNDS = 3
"""Times that more prompts are sent like those whose items were lost."""
TRIED, TRIALS = (150, 1100), 100
"""Tokens of the prompts on which known bugs are tried; passes of the engine that this takes."""
ERRORS = 6
"""Errors in a row after which nothing more is sent."""
SHARE = 0.25
"""Largest share of the time left that one request may be expected to take."""
KNOWN = ("Compare with a known-good engine on the same model (-m MODEL.gguf): a model may be that weak by itself",)
LOOK = {
    "groups": "Look at the compressor's state between prefill and decode, and at the last, incomplete group",
    "window": "Look at the mask of the sliding window: it counts the token itself",
    "rows": "Look at what attention sees beyond the window: compressed rows and their visibility",
    "topk": "Look at the indexer: the number of rows that it keeps, its scores, the order of ties",
    "rope": "Look at YaRN's factor, betas, original context and base, and at positions of compressed rows",
    "cut": "Look for a context limit in the server or a proxy that drops text silently",
    "onset": "Look at positions and cache rows after that length: chunks of prefill, a ring buffer, a prefix",
}  # fmt: skip


def plan(constants: Constants, quick: bool, long: bool) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, length, distance) of the prompts to send, the most telling first and the deepest last.

    The kind "item" stands for a word or an identifier, "copy" for words or digits at the end.
    """
    for residue in range(4):
        yield "item", 200 + residue, 170
        yield "copy", 200 + residue, 0
        yield "copy", 260 + residue, 0
    for residue, distance in enumerate((0, 960, 500, 0)):
        yield "item" if distance else "copy", 1000 + residue, distance
    if quick:
        for depth in DEPTHS[1:3]:
            yield "item", depth, depth - 40
            yield "copy", depth + 3, 0
        return
    window = constants.window
    marks = {*constants.edges, *constants.ratios[1:], 64, 128, *CHUNKS}
    near = sorted({mark + i for mark in marks if 60 <= mark <= 2100 for i in (-1, 0, 1)})
    for length in (*(each for each in near if each < 600), 640, 641, 703, 766, 767):
        yield "item", length, max(length - 40, 20) if length < 600 else 560
        yield "copy", length, 0
    for distance in (window - 2, window - 1, window, window + 1, 2 * window) if window else ():
        yield "item", 600, distance
    for depth in (*DEPTHS, *(DEEPEST if long else ())):
        for residue, part in enumerate((0.95, 0.5, 0.7, 0.2)):
            yield "item", depth + residue, int(depth * part)
        for residue in (0, 3) if depth < 8000 else (3,):
            yield "copy", depth + residue, 0
            yield "item", depth + residue, 60 + 30 * residue
        for length in near:
            if depth / 2 < length <= depth and length >= 600:
                yield "item", length, length - 40
                yield "copy", length, 0


def lengths(case: ExamContext, stage: Stage) -> None:
    """Send the prompts, then judge answers and log probabilities."""
    if not case.kinds & {"chat", "text"}:
        stage.add("answers", Outcome.IMPOSSIBLE, "the target takes neither chats nor text")
        return
    known = case.same_model is True or given(case) and case.same_model is not False
    constants = Constants.of(case.engine.shape if known else FLASH)
    prober, able = Prober(case), ["word"]
    refused, ended = "", False
    missing: list[int] = []
    try:
        able, refused = _able(case, prober)
        if prober.records:
            later, missing = _send(case, prober, able, list(plan(constants, case.quick, case.long)), 7)
            refused = later or refused
        for round_ in range(ROUNDS):
            _send(case, prober, able, follow_up(prober.records), 1000 + 100 * round_)
    except OutOfTime:
        ended = True
    if not prober.records:
        stage.add("answers", Outcome.FAILED, refused or "nothing was answered in time")
        return
    answers(case, stage, prober, constants, able)
    numbers(case, stage, prober, constants)
    depths(stage, prober, refused, missing)
    if ended:
        raise OutOfTime


def _send(
    case: ExamContext, prober: Prober, able: Sequence[str], wanted: Sequence[tuple[str, int, int]], seed: int
) -> tuple[str, list[int]]:
    """Send prompts that do not take too long; return (message if lengths are refused, lengths not sent)."""
    items = {"item": [kind for kind in ("code", "word") if kind in able] or ["word"],
             "copy": [kind for kind in COPIES if kind in able] or [COPIES[0]]}  # fmt: skip
    refused, most, errors = "", math.inf, 0
    missing = []
    for i, (kind, length, distance) in enumerate(wanted):
        if length >= most or errors == ERRORS:
            continue
        if expected(prober.longest, length) > SHARE * (case.limit.seconds_left - prober.spare):
            missing.append(length)
            continue
        case.progress(f"{length:,} tokens, request {i + 1} of {len(wanted)}")
        try:
            prober.ask(items[kind][i // 2 % len(items[kind])], length, distance, seed + i)
            errors = 0
        except Ds4Error as error:
            errors += 1
            if refused and length < most:
                most = length  # the second refusal, so not by accident
            refused = refused or f"{length:,} tokens: {error}"
    return refused, [length for length in missing if length < most]


def follow_up(records: Sequence[Record]) -> list[tuple[str, int, int]]:
    """Return more prompts like those whose items were lost: other residues, and distances between lost and repeated."""
    lost = [r for r in records if not r.match and r.expected is not False]
    ends = {r.length: r for r in sorted(lost, key=lambda r: r.length)[:: max(len(lost) - 1, 1)]}
    more = [("copy" if r.kind in COPIES else "item", r.length - r.length % 4 + residue, r.distance)
            for r in ends.values() for residue in range(4)]  # fmt: skip
    far = [r for r in lost if r.kind not in COPIES]
    if far:
        least, longest = min(r.distance for r in far), max(r.length for r in far)
        near = max((r.distance for r in records if r.match and r.distance < least), default=0)
        more += [("item", longest + i, near + (least - near) * i // 4) for i in (1, 2, 3)]
    return more


def _able(case: ExamContext, prober: Prober) -> tuple[list[str], str]:
    """Ask about short prompts; return the kinds of items that the target repeats, and a message if it refused any."""
    refused = ""
    for kind in KINDS:
        for i, length in enumerate(SHORT[: 2 if case.quick else 3]):
            case.progress(f"what it can repeat: {kind}")
            try:
                prober.ask(kind, length, 12, seed=100 + i)
            except Ds4Error as error:
                refused = str(error)
    if not prober.agrees() and case.same_model is not True:
        prober.reference = None  # another model than ours
    done: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for record in prober.records:
        done[record.kind].append(record.match if record.expected is None else record.expected)
    return [kind for kind, each in done.items() if each and all(each)], refused


def answers(case: ExamContext, stage: Stage, prober: Prober, constants: Constants, able: Sequence[str]) -> None:
    """Add a finding about which items were repeated."""
    short = {kind: [r.match for r in prober.records if r.kind == kind and r.length < 64] for kind in KINDS}
    figures: dict[str, Any] = {f"short prompts, {kind}": f"{sum(each)} of {len(each)}" for kind, each in short.items()}
    figures["records"] = [record.figure() for record in prober.records]
    if not able:
        says = "it repeats nothing from short prompts: the model cannot do it, or the engine is wrong already there"
        stage.add("answers", Outcome.UNSURE, says, figures=figures, limit="answers tell nothing about lengths")
        return
    records = [r for r in prober.records if r.kind in able]
    countable = [r for r in records if r.expected is not False]
    fails = [r for r in countable if not r.match]
    lost_for_sure = [r for r in fails if r.expected]
    fit = Fit(records, constants, numbers=False)
    chances = fit.families()
    family, chance = next(iter(chances.items()))
    figures |= {"wrong": f"{len(fails)} of {len(countable)}", "probabilities": _shown(chances)}
    says = f"{len(fails)} of {len(countable)} items not repeated"
    longest = max((r.length for r in countable), default=0)
    if family == NONE and not fails:
        far = any(r.kind not in COPIES for r in countable)
        more = "" if far else "; only from the end of the prompt, as nothing else is repeated from short ones either"
        stage.add("answers", Outcome.OK if far else Outcome.UNSURE, f"{len(countable)} items repeated, in up to "
                  f"{longest:,} tokens{more}", figures=figures,
                  limit="an error that leaves the items' tokens best is not seen here")  # fmt: skip
    elif family == NONE and len(lost_for_sure) > 0.3 * len(countable):
        stage.add("answers", Outcome.WRONG, f"{says}, though our engine repeats them: {FAMILIES['constant']}",
                  figures=figures | {"family": "constant"}, next=["See the stage numbers"])  # fmt: skip
    elif family == NONE or chance < SURE:
        second = [name for name in list(chances)[:2] if name != NONE]
        more = "no pattern" if family == NONE else f"{' or '.join(FAMILIES[name] for name in second)}: cannot tell"
        stage.add("answers", Outcome.UNSURE, f"{says}: {more}", figures=figures, next=[*KNOWN])
    else:
        _name(case, stage, prober, fit, family, says, figures)


def _name(
    case: ExamContext, stage: Stage, prober: Prober, fit: Fit, family: str, says: str, figures: dict[str, Any]
) -> None:
    """Add a finding that names the family of what was lost; wrong only if the model itself cannot be the reason."""
    pattern = fit.best[family]
    lost = [r for r, z in zip(fit.records, pattern.answers, strict=True) if z and r.expected is not False]
    missed = sum(not r.match for r in lost)
    known = prober.reference is not None and any(r.expected for r in lost)
    figures |= {"lost": f"{missed} of {len(lost)}"}
    sure = known or (family == "groups" and missed >= 4 and missed >= 0.5 * len(lost))
    more = f"{FAMILIES[family]} ({pattern.says}: {missed} of {len(lost)})"
    figures["family" if sure else "resembles"] = family
    stage.add("answers", Outcome.WRONG if sure else Outcome.UNSURE, f"{says}: {more}", figures=figures,
              next=[LOOK[family]] if sure else [*KNOWN])  # fmt: skip


def numbers(case: ExamContext, stage: Stage, prober: Prober, constants: Constants) -> None:
    """Add a finding about the differences of log probabilities from our engine's."""
    seen = [r for r in prober.records if r.first is not None]
    if len(seen) < 4:
        why = "the target's model is not known: give it with -m" if case.logprobs else "there are none"
        stage.add("log probabilities", Outcome.IMPOSSIBLE, f"not compared: {why}")
        return
    values = np.array([v for r in seen for v in (r.first, r.later) if v is not None])
    yard = _yard(case, prober)
    outcome, noise = yard.judge(values)
    fit = Fit(seen, constants, numbers=True)
    chances = fit.families()
    family, chance = next(iter(chances.items()))
    figures: dict[str, Any] = {
        "prompts": len(seen),
        "largest, nats rms": float(values.max()),
        "probabilities": _shown(chances),
    }
    limit = yard.limit(len(values))
    if outcome is Outcome.OK:
        stage.add("log probabilities", Outcome.OK, f"our engine's: {noise}", figures=figures, limit=limit)
        return
    pattern = fit.best.get(family) if chance >= SURE else None
    if outcome is not Outcome.WRONG and family != "groups":
        pattern = None  # noise makes steps, and grows with depth, but knows no residues
    if pattern is not None and (family == "groups" and chance >= SURER or _agrees(case, yard, seen, pattern)):
        says, steps = f"{FAMILIES[family]} ({pattern.says}); {noise}", [LOOK[family]]
        figures["family"] = family
    elif trial := _trial(case, prober):
        outcome, figures["family"] = Outcome.WRONG, trial.family
        says, steps = (f"{FAMILIES[trial.family]}: with {trial.bug} our engine differs by {trial.after:.2g} nats rms, "
                       f"without by {trial.before:.2g}; {noise}"), [LOOK[trial.family]]  # fmt: skip
    elif family == NONE:
        says, steps = f"{FAMILIES['constant']}: {noise}", ["See the stage numbers: it names a mistake at all lengths"]
        outcome = Outcome.UNSURE
    else:
        either = " or ".join(FAMILIES[name] for name in list(chances)[:2] if name != NONE)
        unlike = outcome is Outcome.WRONG and case.rounding is not None
        outcome = Outcome.UNEXPLAINED if unlike else Outcome.UNSURE
        says, steps = f"{either}, or rounding: cannot tell; {noise}", []
    stage.add("log probabilities", outcome, says, figures=figures, limit=limit, next=steps)


def _trial(case: ExamContext, prober: Prober) -> Trial | None:
    """Return the bug that explains large differences of two short prompts, if there is time to find out."""
    there = [(len(ids), level(np.nan_to_num(r.gaps)), ids, steps) for r, ids, steps in prober.compared
             if TRIED[0] <= r.length <= TRIED[1]]  # fmt: skip
    large = sorted((n, ids, steps) for n, gap, ids, steps in there if gap >= 0.5 * max(each[1] for each in there))
    if not large or TRIALS * prober.seconds(large[0][0]) > case.limit.seconds_left:
        return None
    with suppress(OutOfTime):
        return explained(case, [(ids, steps) for _, ids, steps in large[:2]])
    return None


def _agrees(case: ExamContext, yard: Yardstick, seen: Sequence[Record], pattern: Pattern) -> bool:
    """Return whether rounding cannot be the reason of a pattern: where it does not hold the numbers are ours.

    What grows with depth holds everywhere: it must be far beyond noise at the deepest prompts, of a known rounding.
    """
    if pattern.slope:
        deep = sorted(seen, key=lambda r: r.length)[len(seen) * 2 // 3 :]
        values = np.array([v for r in deep for v in (r.first, r.later) if v is not None])
        return case.rounding is not None and level(values) > 3 * yard.far(len(values))
    tokens = [(i, place, gap) for i, r in enumerate(seen) for place, gap in enumerate(r.gaps) if math.isfinite(gap)]
    rows, places, gaps = map(np.array, zip(*tokens, strict=True))
    at = np.array([r.length for r in seen])[rows] + places
    rest = gaps[~np.where(places > 0, *(pattern.affects(name, rows, at) for name in ("later", "first")))]
    return len(rest) > 0 and (yard.judge(rest)[0] is Outcome.OK or case.rounding is not None)


def _yard(case: ExamContext, prober: Prober) -> Yardstick:
    """Measure the noise of right engines on one of the prompts."""
    ours = case.tokenizer
    if ours is None or case.same_model is not True:
        return fallback()
    case.progress("measuring what float noise makes")
    text = "".join(prober.compose("words", 300, 0, 3)[:2])
    return measure(case.engine, ours.encode(text), case.rounding, case.top or None)


def depths(stage: Stage, prober: Prober, refused: str, missing: Sequence[int]) -> None:
    """Add findings about the largest prompt, and about text that the target did not count."""
    longest = max((r.length for r in prober.records), default=0)
    few = [r for r in prober.records if r.counted is not None and r.length > 300 and r.counted < FEW * r.length]
    if few:
        worst = max(few, key=lambda r: r.length)
        says = f"of {worst.length:,} tokens sent it counts {worst.counted:,}, without an error"
        stage.add("prompt cut", Outcome.WRONG, says, figures={"family": "cut"}, next=[LOOK["cut"]])
    says = f"takes {longest:,} tokens" + (f"; refused {refused}" if refused else "")
    stage.add("largest prompt", Outcome.OK, says, figures={"tokens": longest})
    if missing:
        says = f"out of time: {counted(len(missing), 'prompt')} of {min(missing):,} to {max(missing):,} tokens"
        stage.add("longer prompts", Outcome.SKIPPED, says, next=["use --budget S for longer prompts"])


def _shown(chances: dict[str, float]) -> dict[str, float]:
    """Return the probabilities worth showing."""
    return {name: round(chance, 4) for name, chance in chances.items() if chance > 0.001}
