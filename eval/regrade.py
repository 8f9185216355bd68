"""``ds4-eval regrade LOG``: grade the answers of a log again; report which grades and scores changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ds4ref.console.common import atomic_output
from ds4ref.console.flags import add
from ds4ref.console.options import parsed, printable
from ds4ref.console.tool import parser, rows
from ds4ref.errors import UsageError
from ds4ref.runs.provenance import now

from . import runner
from .log import Log, Sample
from .scores import said, summarize
from .view import opened

PROG = "ds4-eval regrade"


def regrade(argv: Sequence[str]) -> int:
    """Run ``ds4-eval regrade LOG``; return the exit code."""
    made = parser(
        PROG, "Grade all answers of a log again and say what changed; the log stays as it is.",
        "LOG [-o NEW.jsonl]", "run.jsonl", "run.jsonl -o regraded.jsonl",
    )  # fmt: skip
    made.add_argument("logs", metavar="LOG", nargs="*", help="a log of ds4-eval, or latest")
    add(made, "--output", metavar="NEW.jsonl", help="write a new log with the new grades")
    args = parsed(made, argv)
    if args is None:
        return 0
    if len(args.logs) != 1:
        raise UsageError(f"regrade needs one log, {len(args.logs)} given")
    if args.output is not None and Path(args.output).exists():
        raise UsageError(f"{args.output} exists: choose another file with -o")
    log = opened(args.logs[0], PROG)
    again = regraded(log)
    changed = [
        [new.id, str(new.epoch), _given(old), _given(new), new.expected, printable(new.grade.why if new.grade else "")]
        for old, new in zip(log.samples, again, strict=True)
        if _given(old) != _given(new)
    ]
    if changed:
        print(rows(("question", "epoch", "before", "now", "expected", "why"), changed) + "\n")
    print(f"{len(changed)} of {len(log.done)} answers are graded differently")
    for name, samples in (("before:", log.samples), ("now:   ", again)):
        print(f"{name} {said(summarize(log.questions, samples))}")
    if args.output is not None:
        header = msgspec.structs.replace(log.header, facts={**log.header.facts, "regraded": now()})
        with atomic_output(args.output) as out:
            out.write(msgspec.json.Encoder().encode_lines([header, *again]))
        print(f"written to {args.output}")
    return 0


def regraded(log: Log) -> list[Sample]:
    """Return the samples, those that were answered graded again; another reason alone is no other grade."""
    samples = [msgspec.structs.replace(sample) for sample in log.samples]
    for sample in samples:
        if sample.status == "done":
            runner.regrade(sample, log.questions[sample.id])
    return samples


def _given(sample: Sample) -> str:
    if sample.grade is None:
        return "ungraded"
    return f"{sample.grade.outcome} {printable(' '.join(sample.grade.given.split()))}".strip()
