"""Grade a log again with the current graders; report which grades and scores changed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.console.common import check_output
from ds4ref.console.options import printable
from ds4ref.console.tables import Column, fitted
from ds4ref.errors import UsageError
from ds4ref.files import atomic_write
from ds4ref.runs.provenance import now

from . import runner
from .log import Grade, Log, LogHeader, Sample
from .scores import Score, summarize


@dataclass(frozen=True)
class Regraded:
    """A log with new grades.

    log      the log as read
    grader   rule of the new grades: "ours" or "ds4"
    samples  the samples with their new grades
    changed  (before, after) of samples with another outcome or another given answer; another reason is no change
    before   score by the old grades
    after    score by the new grades
    """

    log: Log
    grader: str
    samples: tuple[Sample, ...]
    changed: tuple[tuple[Sample, Sample], ...]
    before: Score
    after: Score


def regrade_log(log: Log, grader: str = "ours") -> Regraded:
    """Grade every finished sample again, by our rule or (``grader`` "ds4") by ds4's."""
    questions = log.questions
    samples: list[Sample] = []
    changed = []
    for old in log.samples:
        new = msgspec.structs.replace(old)
        if new.status == "done":
            runner.regrade(new, questions[new.id])
            if grader == "ds4":
                new.grade = new.ds4
            if _verdict(new.grade) != _verdict(old.grade):
                changed.append((old, new))
        samples.append(new)
    before, after = (summarize(questions, side).whole for side in (log.samples, samples))
    return Regraded(log, grader, tuple(samples), tuple(changed), before, after)


def _verdict(grade: Grade | None) -> tuple[str, str] | None:
    return None if grade is None else (grade.outcome, grade.given)


def write(found: Regraded, path: str) -> None:
    """Write the regraded log as a new file, atomically; UsageError if the file exists."""
    goal = Path(path)
    if goal.exists():
        same = os.path.samefile(goal, found.log.path)
        raise UsageError(f"{path} is the log itself: choose another file with -o" if same else f"{path} exists")
    check_output(path)
    with atomic_write(goal.resolve()) as out:
        for entry in (header_of(found), *found.samples):
            out.write(msgspec.json.encode(entry) + b"\n")


def header_of(found: Regraded) -> LogHeader:
    """Return the log's header with a note on which grader was used and when."""
    facts = {**found.log.header.facts, "grader": found.grader, "regraded": now()}
    return msgspec.structs.replace(found.log.header, facts=facts)


# ----------------------------------------------------------------------------------------------------- for people


def text(found: Regraded, width: int) -> str:
    """Format a table of the changes, then the scores before and after."""
    graded = sum(sample.status == "done" for sample in found.samples)
    outcomes = Counter((_word(old.grade), _word(new.grade)) for old, new in found.changed)
    moved = {pair: count for pair, count in outcomes.items() if pair[0] != pair[1]}
    parts = []
    if found.changed:
        columns = (
            Column("question", least=8), Column("epoch", 2, right=True), Column("before", least=6),
            Column("now", least=6), Column("expected", 1, least=8), Column("why", 3, least=12),
        )  # fmt: skip
        parts.append(fitted(columns, [_line(old, new) for old, new in found.changed], width))
    ways = ", ".join(f"{count} {one} -> {other}" for (one, other), count in sorted(moved.items()))
    other = len(found.changed) - sum(moved.values())
    kept = f"{other} with the same outcome" if other else ""
    details = "; ".join(part for part in (ways, kept) if part)
    parts.append(
        f"{len(found.changed)} of {graded} answers are graded differently{': ' + details if details else ''}\n"
        f"before: {found.before.said()}\nnow:    {found.after.said()}"
    )
    return "\n\n".join(parts)


def _line(old: Sample, new: Sample) -> Sequence[str]:
    why = new.grade.why if new.grade else ""
    epoch = str(new.epoch) if new.epoch > 1 else ""
    return [new.id, epoch, _given(old.grade), _given(new.grade), new.expected, printable(why, 400)]


def _given(grade: Grade | None) -> str:
    given = printable(" ".join(grade.given.split())) if grade else ""
    return f"{_word(grade)} {given}".strip()


def _word(grade: Grade | None) -> str:
    return "ungraded" if grade is None else grade.outcome


def document(found: Regraded, written: str | None) -> dict[str, Any]:
    """Return the changes and scores as plain data; ``written``: path of the new log, None without one."""
    return {
        "log": found.log.path, "grader": found.grader, "written": written,
        "before": found.before.to_json(), "after": found.after.to_json(),
        "changed": [
            {"id": new.id, "epoch": new.epoch, "expected": new.expected,
             "before": msgspec.to_builtins(old.grade), "after": msgspec.to_builtins(new.grade)}
            for old, new in found.changed
        ],
    }  # fmt: skip
