"""Format a run's report: one line a sample, then scores and costs.

Tables fit the given width without wrapping.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence

from ds4ref.console.common import duration
from ds4ref.console.options import printable
from ds4ref.console.tables import Column, fitted

from .calls import call_parts
from .keep import notes as notes_of
from .log import Log, Sample
from .packs import Question
from .scores import Score, Summary, is_exhausted, summarize, summary

WORDS = {"right": "right", "wrong": "wrong", "ambiguous": "ambiguous", "missing": "no answer"}
LONGEST = 400
"""Largest number of characters of a title in a table."""


def report(log: Log, width: int) -> str:
    """Format the report of a whole log."""
    return report_text(log.questions, log.samples, width, notes_of(log))


def report_text(
    questions: Mapping[str, Question], samples: Sequence[Sample], width: int, notes: Sequence[str] = ()
) -> str:
    """Format the table of ``samples`` and the summary.

    ``questions``: the whole pack by id; a question's number is its position there. ``notes``: further lines.
    """
    parts = [sample_table(questions, samples, width)] if samples else []
    return "\n\n".join([*parts, summary_text(summarize(questions, samples), questions, samples, width, notes)])


def log_report(log: Log, samples: Sequence[Sample], shown: Sequence[Sample], width: int) -> str:
    """Format a log's report: a table of the samples ``shown``, and the summary of ``samples``."""
    questions = log.questions
    parts = [sample_table(questions, shown, width)] if shown else ["no such sample"]
    found = summary(log) if samples is log.samples else summarize(questions, samples)
    return "\n\n".join([*parts, summary_text(found, questions, samples, width, notes_of(log))])


def sample_table(questions: Mapping[str, Question], samples: Sequence[Sample], width: int) -> str:
    """Format a table with one line a sample, sorted by number of the question and epoch."""
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
    """Return the grade in a word or two; the status of a sample without a grade."""
    return sample.status if sample.grade is None else WORDS[sample.grade.outcome]


def ending(sample: Sample) -> str:
    """Return how an answer ran out of tokens: "cut off", "closed", or "" if it did not."""
    if sample.status != "done" or not is_exhausted(sample):
        return ""
    return "cut off" if sample.finish == "length" else "closed"


def summary_text(
    found: Summary, questions: Mapping[str, Question], samples: Sequence[Sample], width: int, notes: Sequence[str] = ()
) -> str:  # fmt: skip
    """Format scores with intervals, then exhausted token limits, failures, costs and ``notes``."""
    outcomes = ", ".join(f"{found.whole.outcomes.get(name, 0)} {word}" for name, word in WORDS.items())
    guess = "" if found.whole.guess is None else f", guessing {100 * found.whole.guess:.1f} %"
    parts = [_filled(f"score: {found.whole.said()}{guess}" + (f": {outcomes}" if found.whole.samples else ""), width)]
    groups = [group for group in (found.sources, found.difficulties) if len(group) > 1]
    every = [*itertools.chain.from_iterable(groups), *found.depths]
    if every:
        columns = (
            Column("score", least=12), Column("%", right=True), Column("95 %"), Column("guessing", 1, right=True),
            Column("n", right=True),
            Column("right", 3, right=True), Column("wrong", 4, right=True), Column("ambiguous", 5, right=True),
            Column("no answer", 5, right=True),
        )  # fmt: skip
        parts.append(fitted(columns, [_score(score) for score in every], width))
    lines = "\n".join(_filled(line, width) for line in (*_lines(found, questions, samples), *notes))
    return "\n\n".join([*parts, lines] if lines else parts)


def _filled(line: str, width: int) -> str:
    return textwrap.fill(line, max(20, width), subsequent_indent="  ")


def _score(score: Score) -> list[str]:
    i = score.interval
    counts = [str(score.outcomes.get(name, 0)) for name in WORDS]
    if i is None:
        return [score.name, "-", "", "", "0", *counts]
    guess = "" if score.guess is None else f"{100 * score.guess:.1f}"
    interval = f"{100 * i.low:.1f} to {100 * i.high:.1f}"
    return [score.name, f"{100 * i.estimate:.1f}", interval, guess, str(i.n), *counts]


def _lines(found: Summary, questions: Mapping[str, Question], samples: Sequence[Sample]) -> list[str]:
    lines = []
    asked = len({sample.id for sample in samples})
    if asked < len(questions):
        lines.append(f"asked: {asked} of the {len(questions)} questions of the pack")
    if found.whole.samples:
        share = found.exhausted / found.whole.samples
        lines.append(f"budget: {found.exhausted} of {found.whole.samples} answers ({share:.0%}) hit the token or "
                     "reasoning limit")  # fmt: skip
    for count, what in ((found.failed, "failed"), (found.stopped, "stopped")):
        if count:
            lines.append(f"{what}: {count} sample{'' if count == 1 else 's'}, not in the score")
    if found.passes:
        lines.append("right at least once: " + ", ".join(f"pass@{k} {100 * v:.1f} %" for k, v in found.passes.items()))
    if calls := _call_line(questions, samples):
        lines.append(calls)
    costs = [
        f"{value:,.0f} {what}" if value >= 100 else f"{value:.3g} {what}"
        for value, what in (
            (found.tokens, "tokens"), (found.median, "median"), (found.reasoning, "of them reasoning"),
            (found.seconds or None, "s"), (found.rate, "tokens/s"),
        )
        if value is not None
    ]  # fmt: skip
    if costs:
        tokens, seconds = sum(sample.tokens or 0 for sample in samples), sum(sample.seconds for sample in samples)
        lines.append(f"per answer: {', '.join(costs)}; total: {tokens:,} tokens, {duration(seconds)}"
                     + (f"; {found.price:,.0f} tokens per right answer" if found.price else ""))  # fmt: skip
    return lines


def _call_line(questions: Mapping[str, Question], samples: Sequence[Sample]) -> str:
    """Tell how many calls have the right tool, and the right arguments; "" if none was asked for."""
    asked = [s for s in samples if s.grade is not None and questions[s.id].kind == "call"]
    if not asked:
        return ""
    parts = [call_parts(s.grade.given, s.expected) for s in asked if s.grade is not None]
    tools, arguments = (sum(column) for column in zip(*parts, strict=True))
    right = sum(sample.right for sample in asked)
    return f"calls: {right} of {len(asked)} right; right tool {tools}, right arguments {arguments}"


def _count(value: int | None) -> str:
    return "" if value is None else str(value)
