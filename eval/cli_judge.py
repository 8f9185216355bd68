"""``ds4-eval judge FILE`` and ``ds4-eval export LOG``: answers of other programs in, logs for inspect_ai out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ds4ref.console.common import columns, is_tty, say
from ds4ref.console.flags import add
from ds4ref.console.options import parsed, printable
from ds4ref.console.tool import parser
from ds4ref.errors import UsageError

from . import library
from .judge.export import write as write_export
from .judge.judged import document, judge, text, write
from .judge.sources import read_all
from .log import read
from .report import report
from .scores import summary
from .view import newest

PROG = "ds4-eval judge"
PIPE_WIDTH = 160
SHOWN = 20
"""Largest number of refused answers that are named; --json has all."""


def judge_file(argv: Sequence[str]) -> int:
    """Run ``ds4-eval judge FILE``; return the exit code."""
    made = parser(
        PROG, "Grade the answers in another program's log by the rules of a pack: logs of inspect_ai, samples of\n"
        "lm-evaluation-harness, traces of ds4. Answers to questions outside the pack are refused by name.",
        "FILE... --pack NAME [-o LOG.jsonl] [--json]", "logs/2026-01-31_task.json --pack ds4ref -o judged.jsonl",
        "samples_task_2026-01-31T09-30-00.jsonl --pack nano", "trace.txt --pack ds4_eval.pack.jsonl",
    )  # fmt: skip
    made.epilog = (made.epilog or "") + "\n\nexit codes: 0 done, 1 if an answer was refused, 2 usage"
    made.add_argument("files", metavar="FILE", nargs="*", help="logs of other programs")
    add(made, "--pack", help=f"{', '.join(library.names())}, or a file of questions")
    add(made, "--output", metavar="LOG.jsonl", help="write the answers and grades as a log of ds4-eval")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if not args.files or not args.pack:
        raise UsageError("judge needs a file and --pack")
    paths, pack = [Path(file) for file in args.files], library.load(args.pack)
    found = judge(paths, read_all(paths), pack, [PROG, *argv])
    if args.output is not None:
        write(found, args.output)
    if args.json:
        print(json.dumps({**document(found, args.output), "summary": summary(found.log).to_json()}, ensure_ascii=False))
    else:
        width = columns(sys.stdout) if is_tty(sys.stdout) else PIPE_WIDTH
        print(f"{report(found.log, width)}\n\n{text(found, width)}")
        if args.output is not None:
            print(f"written to {args.output}")
    for where, name, why in found.refused[:SHOWN]:
        say(PROG, f"refused: {where} ({printable(name, 60)}): {why}")
    if len(found.refused) > SHOWN:
        say(PROG, f"refused: {len(found.refused) - SHOWN} more")
    return 1 if found.refused else 0


def export(argv: Sequence[str]) -> int:
    """Run ``ds4-eval export LOG``; return the exit code."""
    made = parser(
        "ds4-eval export", "Convert a log to inspect_ai's format, for its viewer and analysis.",
        "LOG -o NEW.json", "run.jsonl -o run.json", "latest -o logs/run.json",
    )  # fmt: skip
    made.add_argument("logs", metavar="LOG", nargs="*", help="a log of ds4-eval, or latest")
    add(made, "--output", metavar="NEW.json", help="the file to write")
    args = parsed(made, argv)
    if args is None:
        return 0
    if len(args.logs) != 1 or not args.output:
        raise UsageError(f"export needs one log and -o, {len(args.logs)} logs given")
    log = read(newest(args.logs[0]))
    write_export(log, args.output)
    print(f"{len(log.samples)} samples written to {args.output}")
    return 0
