"""``ds4-eval view LOG [QUESTION]``: show the answers of a log and their grades."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from ds4ref.console.common import columns, is_tty, say
from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import parser
from ds4ref.errors import UsageError

from .log import read
from .report import log_report
from .view import OUTCOMES, about, detail, document, find, newest, of_outcome

PROG = "ds4-eval view"
PIPE_WIDTH = 160


def view(argv: Sequence[str]) -> int:
    """Run ``ds4-eval view LOG [QUESTION]``; return the exit code."""
    made = parser(
        PROG, "Show the report of a log, or one question in full.", "LOG [QUESTION] [options]",
        "run.jsonl", "latest --outcome wrong,ambiguous", "run.jsonl 17", "run.jsonl maths-1f0c2a9e --json",
    )  # fmt: skip
    made.add_argument("names", metavar="NAME", nargs="*",
                      help="a log, or latest; then a question: its number, its id or the beginning of it")  # fmt: skip
    add(made, "--only", metavar="WORDS", help="sources (maths,security), or words in id, source or domain")
    made.add_argument("--outcome", metavar="LIST", help=f"only these: {', '.join(OUTCOMES)}")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if not 1 <= len(args.names) <= 2:
        raise UsageError(f"view needs a log and at most one question, {len(args.names)} names given")
    log = read(newest(args.names[0]))
    question = find(log, args.names[1]) if len(args.names) == 2 else None
    samples = about(log, args.only) if question is None else [s for s in log.samples if s.id == question.id]
    shown = of_outcome(samples, args.outcome)
    if log.torn:
        say(PROG, f"{log.path}: the last line is incomplete (a crash?) and was skipped")
    if args.json:
        print(json.dumps(document(log, samples, shown, question is not None), ensure_ascii=False))
    elif question is not None:
        width = columns(sys.stdout) if is_tty(sys.stdout) else None
        print(detail(log, question, sorted(shown, key=lambda sample: sample.epoch), width))
        if not shown:
            say(PROG, f"{question.id} has no sample with this outcome")
    else:
        print(log_report(log, samples, shown, columns(sys.stdout) if is_tty(sys.stdout) else PIPE_WIDTH))
    return 0
