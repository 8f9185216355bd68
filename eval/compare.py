"""Compare two logs of the same questions: which answers changed, and whether the difference is significant.

``ds4ref.runs.scored`` pairs the questions and does the statistics, as for ``ds4-report compare``; this module adds the
answers and the text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ds4ref.console.options import printable
from ds4ref.console.tables import Column, fitted
from ds4ref.errors import UsageError
from ds4ref.runs import scored
from ds4ref.runs.scored import Contrast, Cost, Pairing
from ds4ref.runs.speed import judge
from ds4ref.runs.speed import said as told
from ds4ref.runs.stats import Interval, p_said

from .keep import about, rows_of
from .keep import notes as notes_of
from .log import Log, Sample
from .report import LONGEST
from .scores import by_question

INCOMPARABLE = "incomparable"
CHANGES = ("right -> wrong", "wrong -> right")


@dataclass(frozen=True)
class Comparison:
    """Result of ``compare_logs``.

    a, b      the logs
    pairs     paired questions with their statistics
    verdict   "better", "worse", "same", "unclear" or "incomparable"
    says      sentence that states the verdict
    differs   (name, A's value, B's value) of settings and provenance in which the runs differ
    notes     warnings for the reader
    """

    a: Log
    b: Log
    pairs: Pairing
    verdict: str
    says: str
    differs: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]


def compare_logs(a: Log, b: Log) -> Comparison:
    """Pair the questions and judge the difference; UsageError if no question is in both logs."""
    pairs, facts = scored.pair(rows_of(a), rows_of(b)), (about(a), about(b))
    if not pairs.shared:
        raise UsageError(f"{a.path} and {b.path} have no question in common ({a.header.pack.get('pack')} and "
                         f"{b.header.pack.get('pack')})")  # fmt: skip
    notes = scored.remarks(pairs, facts)
    notes += [f"{name}: {note}" for name, log in (("A", a), ("B", b)) for note in notes_of(log)]
    differs = tuple(scored.differences(*facts))
    if pairs.whole is None:
        says = f"not comparable: none of {scored.counted(pairs.shared, 'question')} has a grade in both"
        return Comparison(a, b, pairs, INCOMPARABLE, says, differs, tuple(notes))
    call = scored.close_call(pairs.whole)
    notes += [call] if call else []
    return Comparison(
        a, b, pairs, scored.verdict(pairs.whole), scored.sentence(pairs.whole), differs, tuple(notes)
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- for people


def text(found: Comparison, width: int) -> str:
    """Format the comparison in lines of at most ``width`` characters; only the paths may be longer."""
    parts = [f"A = {found.a.path}\nB = {found.b.path}", _filled(found.says, width)]
    pairs = found.pairs
    if pairs.whole is not None:
        parts += [_scores(pairs, width), _filled(_tally(found), width), *_changes(found, width)]
    costs = [
        line for line in (_cost("tokens", pairs.tokens), _cost("seconds", pairs.seconds), _speed(pairs.seconds)) if line
    ]
    if costs:
        parts.append("\n".join(_filled(line, width) for line in costs))
    if found.differs:
        columns = (Column("differs", least=8), Column("A", least=8), Column("B", least=8))
        parts.append(fitted(columns, found.differs, width))
    if found.notes:
        parts.append("\n".join(_filled(f"note: {note}", width) for note in found.notes))
    return "\n\n".join(parts)


def _filled(line: str, width: int) -> str:
    return textwrap.fill(line, max(20, width), subsequent_indent="  ", break_long_words=False)


def _scores(pairs: Pairing, width: int) -> str:
    columns = (
        Column("score, %", least=6), Column("n", 2, right=True), Column("A", right=True), Column("95 %", 4),
        Column("B", right=True), Column("95 %", 4), Column("B - A", right=True), Column("95 %", 1),
        Column("p", 3, right=True), Column("would find", 5, right=True),
    )  # fmt: skip
    assert pairs.whole is not None
    every = (pairs.whole, *(pairs.sources if len(pairs.sources) > 1 else ()))
    return fitted(columns, [_line(contrast) for contrast in every], width)


def _line(c: Contrast) -> list[str]:
    i = c.points
    return [
        c.name, str(i.n), f"{100 * c.a.estimate:.1f}", _span(c.a), f"{100 * c.b.estimate:.1f}", _span(c.b),
        f"{i.estimate:+.1f}", f"{i.low:+.1f} to {i.high:+.1f}" if i.known else "too few", p_said(c.p),
        "" if i.detectable is None else scored.brief(i.detectable),
    ]  # fmt: skip


def _span(i: Interval) -> str:
    return f"{100 * i.low:.0f} to {100 * i.high:.0f}"


def _tally(found: Comparison) -> str:
    """Count the questions that changed in each direction."""
    pairs = found.pairs
    lost, gained = len(pairs.lost), len(pairs.gained)
    assert pairs.whole is not None
    same = pairs.whole.difference.n - lost - gained
    if _repeated(pairs):
        return f"{same} questions equally often right, {lost} less often in B, {gained} more often"
    right = round(pairs.whole.a.estimate * pairs.whole.difference.n) - lost
    return f"right in both: {right}, only in A: {lost}, only in B: {gained}, in neither: {same - right}"


def _repeated(pairs: Pairing) -> bool:
    """Whether a question was asked more than once."""
    return pairs.whole is not None and max(pairs.samples) > pairs.whole.difference.n


def _changes(found: Comparison, width: int) -> list[str]:
    answers = [by_question(log.done) for log in (found.a, found.b)]
    columns = (
        Column("question", least=8), Column("expected", 2, least=8), Column("A", least=6), Column("B", least=6),
        Column("title", 1, least=12),
    )  # fmt: skip
    questions, parts = found.a.questions, []
    headings = ("less often right in B", "more often right in B") if _repeated(found.pairs) else CHANGES
    for heading, changes in zip(headings, (found.pairs.lost, found.pairs.gained), strict=True):
        if changes:
            lines = []
            for change in changes:
                question, names = questions[change.name], (change.name, change.other)
                given = [_given(side.get(name, [])) for side, name in zip(answers, names, strict=True)]
                lines.append([change.label, question.answer, *given, printable(question.title, LONGEST)])
            parts.append(f"{heading} ({len(changes)})\n{fitted(columns, lines, width)}")
    return parts


def _given(samples: Sequence[Sample]) -> str:
    """The answer given; of several samples how many were right."""
    if len(samples) > 1:
        return f"{sum(sample.right for sample in samples)} of {len(samples)}"
    grade = samples[0].grade if samples else None
    if grade is None or grade.outcome in ("missing", "ambiguous"):
        return "-" if grade is None else f"({grade.outcome})"
    return printable(" ".join(grade.given.split()))


def _cost(name: str, cost: Cost | None) -> str:
    if cost is None:
        return ""
    i = cost.change
    said = f"{name} per question: {_figure(cost.a)} in A, {_figure(cost.b)} in B"
    if not i.known:
        return said + (f"; {i.estimate:+.1f} % in each" if i.method == "no spread" and i.estimate else "")
    return f"{said}; typically {i.estimate:+.1f} % ({i.low:+.1f} to {i.high:+.1f})"


def _speed(seconds: Cost | None) -> str:
    """Return how fast B answers as a sentence, "" if unknown."""
    if seconds is None or not seconds.change.known:
        return ""

    def faster(change: float) -> float:
        return 100 * (100 / (100 + change) - 1)

    i = seconds.change
    speed = replace(i, estimate=faster(i.estimate), low=faster(i.high), high=faster(i.low), detectable=None)
    return told("answers", speed, judge(speed))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# -------------------------------------------------------------------------------------------------- for programs


def document(found: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data: scores are shares, differences are percentage points."""
    return {
        "a": found.a.path, "b": found.b.path, "verdict": found.verdict, "says": found.says, **found.pairs.as_json(),
        "differs": {name: [one, other] for name, one, other in found.differs}, "notes": list(found.notes),
    }  # fmt: skip
