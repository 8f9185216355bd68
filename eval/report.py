"""Format the report of a run: a table with one line per sample, then scores and costs.

Tables fit the given width without wrapping.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ds4ref.console.common import duration
from ds4ref.console.options import printable
from ds4ref.console.tables import Column, fitted

from .calls import call_parts
from .keep import notes as notes_of
from .log import Log, Sample
from .packs import Question
from .scores import is_exhausted, score_text, summarize

WORDS = {"right": "right", "wrong": "wrong", "ambiguous": "ambiguous", "missing": "no answer"}
COSTS = {
    "tokens_per_sample": "tokens", "median_tokens": "median", "reasoning_tokens_per_sample": "of them reasoning",
    "seconds_per_sample": "s", "tokens_per_second": "tokens/s",
}  # fmt: skip
LONGEST = 400
"""Maximum number of characters of a question's title in a table."""


def report(log: Log, width: int, samples: Sequence[Sample] | None = None, shown: Sequence[Sample] | None = None) -> str:
    """Format a table of the samples ``shown`` (None: all ``samples``), and a summary of ``samples`` (None: all of the
    log).

    A question's number is its position in the pack.
    """
    samples = log.samples if samples is None else samples
    shown = samples if shown is None else shown
    table = [sample_table(log.questions, shown, width)] if shown else ["no such sample"] if samples else []
    return "\n\n".join([*table, summary_text(log.questions, samples, width, notes_of(log))])


def sample_table(questions: Mapping[str, Question], samples: Sequence[Sample], width: int) -> str:
    """Format a table with one line per sample, sorted by number of the question and epoch."""
    numbers = {name: number for number, name in enumerate(questions, 1)}
    columns = (
        Column("#", right=True), Column("epoch", 3, right=True), Column("outcome"), Column("end", 4),
        Column("prompt", 7, right=True), Column("tokens", 5, right=True), Column("s", 8, right=True),
        Column("given", least=5), Column("expected", 2, least=8), Column("question", least=8 if width < 60 else 17),
        Column("title", 6, least=12),
    )  # fmt: skip
    epochs = any(sample.epoch > 1 for sample in samples)
    lines = []
    for sample in sorted(samples, key=lambda sample: (numbers[sample.id], sample.epoch)):
        given = "" if sample.grade is None else " ".join(sample.grade.given.split()) or "-"
        lines.append([
            str(numbers[sample.id]), str(sample.epoch) if epochs else "", outcome(sample), ending(sample),
            _count(sample.prompt_tokens), _count(sample.tokens), f"{sample.seconds:.1f}", printable(given),
            sample.expected, sample.id, printable(questions[sample.id].title, LONGEST),
        ])  # fmt: skip
    return fitted(columns, lines, width)


def outcome(sample: Sample) -> str:
    """Return the grade of a sample in a word or two; without a grade, its status."""
    return sample.status if sample.grade is None else WORDS[sample.grade.outcome]


def ending(sample: Sample) -> str:
    """Return how an answer ran out of tokens: "cut off" (at the limit), "closed" (its thinking was ended), or "" if it
    did not."""
    if sample.status != "done" or not is_exhausted(sample):
        return ""
    return "cut off" if sample.finish == "length" else "closed"


def summary_text(
    questions: Mapping[str, Question], samples: Sequence[Sample], width: int, notes: Sequence[str] = ()
) -> str:
    """Format scores with intervals, then exhausted token limits, failures, costs and ``notes``."""
    totals = summarize(questions, samples)
    outcomes = ", ".join(f"{totals[name]} {word}" for name, word in WORDS.items())
    guess = f", guessing {100 * totals['guess']:.1f} %" if "guess" in totals else ""
    parts = [_filled(f"score: {score_text(totals)}{guess}" + (f": {outcomes}" if totals["samples"] else ""), width)]
    groups = [group for group in (totals["per_source"], totals["per_difficulty"]) if len(group) > 1]
    scores = [_score(name, score) for group in (*groups, totals.get("per_depth", {})) for name, score in group.items()]
    if scores:
        columns = (
            Column("score", least=12), Column("%", right=True), Column("95 %"), Column("guessing", 1, right=True),
            Column("n", right=True),
            Column("right", 3, right=True), Column("wrong", 4, right=True), Column("ambiguous", 5, right=True),
            Column("no answer", 5, right=True),
        )  # fmt: skip
        parts.append(fitted(columns, scores, width))
    lines = "\n".join(_filled(line, width) for line in (*_lines(totals, questions, samples), *notes))
    return "\n\n".join([*parts, lines] if lines else parts)


def _filled(line: str, width: int) -> str:
    return textwrap.fill(line, max(20, width), subsequent_indent="  ")


def _score(name: str, score: Mapping[str, Any]) -> list[str]:
    low, high = score["ci95"]
    guess = f"{100 * score['guess']:.1f}" if "guess" in score else ""
    share, interval = f"{100 * score['score']:.1f}", f"{100 * low:.1f} to {100 * high:.1f}"
    return [name, share, interval, guess, str(score["n"]), *(str(score[outcome]) for outcome in WORDS)]


def _lines(totals: Mapping[str, Any], questions: Mapping[str, Question], samples: Sequence[Sample]) -> list[str]:
    """Return sentences on the questions asked, exhausted limits, failures, pass@k, tool calls and costs."""
    lines = []
    asked = len({sample.id for sample in samples})
    if asked < len(questions):
        lines.append(f"asked: {asked} of the {len(questions)} questions of the pack")
    if totals["samples"]:
        share = totals["exhausted"] / totals["samples"]
        lines.append(f"budget: {totals['exhausted']} of {totals['samples']} answers ({share:.0%}) hit the token or "
                     "reasoning limit")  # fmt: skip
    for what in ("failed", "stopped"):
        if count := totals[what]:
            lines.append(f"{what}: {count} sample{'' if count == 1 else 's'}, not in the score")
    if totals["pass_at"]:
        shares = (f"pass@{k} {100 * share:.1f} %" for k, share in totals["pass_at"].items())
        lines.append(f"right at least once: {', '.join(shares)}")
    if calls := _call_line(questions, samples):
        lines.append(calls)
    costs = [
        f"{value:,.0f} {what}" if value >= 100 else f"{value:.3g} {what}"
        for name, what in COSTS.items()
        if (value := totals[name]) is not None
    ]
    if costs:
        tokens, seconds = sum(sample.tokens or 0 for sample in samples), sum(sample.seconds for sample in samples)
        price = totals["tokens_per_right_answer"]
        lines.append(f"per answer: {', '.join(costs)}; total: {tokens:,} tokens, {duration(seconds)}"
                     + (f"; {price:,.0f} tokens per right answer" if price else ""))  # fmt: skip
    return lines


def _call_line(questions: Mapping[str, Question], samples: Sequence[Sample]) -> str:
    """Return a line on how many tool calls are right, have the right tool, and the right arguments; "" if no question
    asked for one."""
    asked = [s for s in samples if s.grade is not None and questions[s.id].kind == "call"]
    if not asked:
        return ""
    parts = [call_parts(s.grade.given, s.expected) for s in asked if s.grade is not None]
    tools, arguments = (sum(column) for column in zip(*parts, strict=True))
    right = sum(sample.right for sample in asked)
    return f"calls: {right} of {len(asked)} right; right tool {tools}, right arguments {arguments}"


def _count(value: int | None) -> str:
    return "" if value is None else str(value)
