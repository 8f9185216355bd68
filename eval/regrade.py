"""``ds4-eval regrade LOG``: grade the answers of a log again; report which grades and scores changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ds4ref.console.common import check_output
from ds4ref.console.flags import add
from ds4ref.console.options import parsed, printable
from ds4ref.console.tables import Column, fitted
from ds4ref.console.tool import finish, parser
from ds4ref.errors import UsageError
from ds4ref.files import atomic_write
from ds4ref.runs.provenance import now

from . import runner
from .log import Log, LogHeader, Sample
from .scores import Score, summarize
from .view import opened, width

PROG = "ds4-eval regrade"


def regrade(argv: Sequence[str]) -> int:
    """Run ``ds4-eval regrade LOG``; return the exit code."""
    made = parser(
        PROG, "Grade all answers of a log again and say what changed; the log stays as it is.",
        "LOG [-o NEW.jsonl] [--json]", "run.jsonl", "run.jsonl -o regraded.jsonl",
    )  # fmt: skip
    made.add_argument("logs", metavar="LOG", nargs="*", help="a log of ds4-eval, or latest")
    add(made, "--output", metavar="NEW.jsonl", help="write a new log with the new grades")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if len(args.logs) != 1:
        raise UsageError(f"regrade needs one log, {len(args.logs)} given")
    found = regrade_log(opened(args.logs[0], PROG))
    if args.output is not None:
        header = found.log.header
        write(args.output, msgspec.structs.replace(header, facts={**header.facts, "regraded": now()}), found.samples)
    finish(document(found, args.output), args.json, text(found, args.output))
    return 0


@dataclass(frozen=True)
class Regraded:
    """A log with new grades.

    log      the log as read
    samples  the samples with their new grades
    changed  (before, after) of samples with another outcome or another given answer; another reason is no change
    before   score by the old grades
    after    score by the new grades
    """

    log: Log
    samples: tuple[Sample, ...]
    changed: tuple[tuple[Sample, Sample], ...]
    before: Score
    after: Score


def regrade_log(log: Log) -> Regraded:
    """Grade every finished sample again."""
    questions, samples = log.questions, [msgspec.structs.replace(sample) for sample in log.samples]
    for sample in samples:
        if sample.status == "done":
            runner.regrade(sample, questions[sample.id])
    pairs = zip(log.samples, samples, strict=True)
    changed = tuple((old, new) for old, new in pairs if _given(old) != _given(new))
    before, after = (summarize(questions, side).whole for side in (log.samples, samples))
    return Regraded(log, tuple(samples), changed, before, after)


def _given(sample: Sample) -> str:
    if sample.grade is None:
        return "ungraded"
    return f"{sample.grade.outcome} {printable(' '.join(sample.grade.given.split()))}".strip()


def write(path: str, header: LogHeader, samples: Iterable[Sample]) -> None:
    """Write a log as a new file, atomically; UsageError if the file exists."""
    if Path(path).exists():
        raise UsageError(f"{path} exists: choose another file with -o")
    check_output(path)
    with atomic_write(Path(path).resolve()) as out:
        for entry in (header, *samples):
            out.write(msgspec.json.encode(entry) + b"\n")


def text(found: Regraded, written: str | None) -> str:
    """Format a table of the changes, then the scores before and after."""
    columns = (
        Column("question", least=8), Column("epoch", 2, right=True), Column("before", least=6), Column("now", least=6),
        Column("expected", 1, least=8), Column("why", 3, least=12),
    )  # fmt: skip
    lines = [
        [
            new.id,
            str(new.epoch),
            _given(old),
            _given(new),
            new.expected,
            printable(new.grade.why if new.grade else "", 400),
        ]
        for old, new in found.changed
    ]
    table = fitted(columns, lines, width()) + "\n\n" if lines else ""
    return (
        f"{table}{len(lines)} of {len(found.log.done)} answers are graded differently\n"
        f"before: {found.before.said()}\nnow:    {found.after.said()}" + (f"\nwritten to {written}" if written else "")
    )


def document(found: Regraded, written: str | None) -> dict[str, Any]:
    """Return the changes and scores as plain data; ``written``: path of the new log, None without one."""
    return {
        "log": found.log.path, "written": written, "before": found.before.to_json(), "after": found.after.to_json(),
        "changed": [
            {"id": new.id, "epoch": new.epoch, "expected": new.expected,
             "before": msgspec.to_builtins(old.grade), "after": msgspec.to_builtins(new.grade)}
            for old, new in found.changed
        ],
    }  # fmt: skip
