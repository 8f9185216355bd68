"""The section of a report on graded runs: scores with intervals, and what answers cost in tokens and time.

Scores are given for all questions, and by source, difficulty, depth and domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

from ds4ref.console.page import Section, Table
from ds4ref.errors import DataError
from ds4ref.runs import scored, thinking
from ds4ref.runs.columns import rounded
from ds4ref.runs.scored import Answered, score_of
from ds4ref.runs.stats import Interval
from ds4ref.runs.store import Measured

from .figures import finite, score_picture

OUTCOMES = ("right", "wrong", "ambiguous", "missing")
NOTE = (
    "Counts are samples, one for each epoch. Cut or closed: answers that hit the token or reasoning limit. Tokens are "
    "those of an answer: mean, median, and of all answers for each right one; tokens/s after the first."
)


def graded_sentences(measured: Measured) -> list[str]:
    """Return sentences for the top of a report: a run's score, and notes on its thinking.

    Raises DataError if no question of the run is graded.
    """
    whole = scored.share(scored.answered(measured.rows).values())
    if whole is None:
        raise DataError(f"{measured.name} has no questions with a grade")
    score = f"{whole.estimate:.1%} of {whole.n} questions ({whole.low:.1%} to {whole.high:.1%})."
    notes = thinking.notes(measured.rows, measured.run.facts)
    return [f"{measured.name}: {score}", *(f"{measured.name}: {note}." for note in notes)]


def graded_section(runs: Sequence[Measured]) -> list[Any]:
    """Return the parts of a report's section on graded runs (plot, tables, notes), [] if there are no such runs."""
    if not runs:
        return []
    questions = [list(scored.answered(measured.rows).values()) for measured in runs]
    by_source = [_groups(q, lambda q: q.source) for q in questions]
    names = list(dict.fromkeys(name for groups in by_source for name in groups))
    pictured = {"all": [scored.share(q) for q in questions]}
    pictured |= {name: [scored.share(groups.get(name, ())) for groups in by_source] for name in names}
    sides = [{"all": q, **groups} for q, groups in zip(questions, by_source, strict=True)]
    guesses = {name: g for side in reversed(sides) for name, q in side.items() if (g := scored.guessed(q)) is not None}
    scores = [row for measured, q in zip(runs, questions, strict=True) for row in _score_rows(measured, q)]
    blocks: list[Any] = [
        score_picture(pictured, [measured.name for measured in runs], guesses),
        Table(("run", "questions", "score", "interval", *(["guessing"] if guesses else [])),
              [row if guesses else row[:4] for row in scores]),
        Table(("answers of", "epochs", "right", "wrong", "ambiguous", "none", "not graded", "cut or closed", "tokens",
               "median", "per right answer", "tokens/s"),
              [_answers_row(measured, q) for measured, q in zip(runs, questions, strict=True)]),
        NOTE,
    ]  # fmt: skip
    for measured, q in zip(runs, questions, strict=True):
        domains = _groups(q, lambda q: q.domain.partition("/")[0] or "?")
        known = {name: group for name, group in domains.items() if len(group) > 1 and scored.share(group)}
        if known:
            table = Table(("domain", "questions", "score", "interval"), [_row(*item)[:4] for item in known.items()])
            blocks.append(Section(f"{measured.name} by domain", [table], False))
    return blocks


def _groups(questions: Sequence[Answered], name: Callable[[Answered], str]) -> dict[str, list[Answered]]:
    """Group questions by what ``name`` returns for them; return {} if there is only one group."""
    groups: dict[str, list[Answered]] = {}
    for question in questions:
        groups.setdefault(name(question), []).append(question)
    return groups if len(groups) > 1 else {}


def _row(name: str, questions: Sequence[Answered]) -> list[str]:
    """Return the cells of a table row: name, number of questions, score, interval, score of guessing.

    At least one question must be graded.
    """
    i, guess = scored.share(questions), scored.guessed(questions)
    assert i is not None
    return [name, str(i.n), *_scores(i), "" if guess is None else f"{guess:.1%}"]


def _scores(i: Interval) -> list[str]:
    return [f"{i.estimate:.1%}", f"{100 * i.low:.1f} to {100 * i.high:.1f}"]


def _score_rows(measured: Measured, questions: Sequence[Answered]) -> list[list[str]]:
    """Return a table row for a run, followed by rows for its sources, difficulties and depths, if it has several."""
    status = "" if measured.run.status == "complete" else f" ({measured.run.status})"
    groups = {
        **_groups(questions, lambda q: q.source),
        **_groups(questions, lambda q: q.difficulty or "difficulty not stated"),
        **{f"{depth:,} tokens back": [q for q in questions if q.depth == depth]
           for depth in sorted({q.depth for q in questions if q.depth})},
    }  # fmt: skip
    rows = [_row(f"· {name}", group) for name, group in groups.items() if scored.share(group) is not None]
    return [_row(measured.name + status, questions), *rows]


def _answers_row(measured: Measured, questions: Sequence[Answered]) -> list[str]:
    rows = [row for row in measured.rows if score_of(row) is not None]
    outcomes = Counter(str(row["outcome"]) for row in rows if row.get("outcome"))
    cut = sum(row.get("finish") == "length" or row.get("close") in ("soft", "hard", "open") for row in rows)
    tokens = [q.tokens for q in questions if q.tokens is not None]
    counted = [row for row in rows if finite(row.get("tokens"))]
    right = sum(score_of(row) or 0 for row in counted)

    def figure(value: float | None, form: Callable[[float], str] = lambda value: f"{value:.0f}") -> str:
        return "" if value is None else form(value)

    return [
        measured.name, str(max((int(row.get("epoch") or 1) for row in measured.rows), default=1)),
        *(str(outcomes[name]) if outcomes else "" for name in OUTCOMES), str(sum(q.ungraded for q in questions)),
        f"{cut / len(rows):.0%}" if outcomes else "", figure(fmean(tokens) if tokens else None),
        figure(median(row["tokens"] for row in counted) if counted else None),
        figure(sum(row["tokens"] for row in counted) / right if right else None),
        figure(scored.rate(measured.rows), rounded),
    ]  # fmt: skip
