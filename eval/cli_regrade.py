"""``ds4-eval regrade LOG``: grade old answers again, by our rule or by ds4's."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from ds4ref.console.common import columns, is_tty
from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import parser
from ds4ref.errors import UsageError

from .log import read
from .regrade import document, regrade_log, text, write
from .view import newest

PIPE_WIDTH = 160


def regrade(argv: Sequence[str]) -> int:
    """Run ``ds4-eval regrade LOG``; return the exit code."""
    made = parser(
        "ds4-eval regrade", "Grade all answers of a log again and say what changed; the log stays as it is.",
        "LOG [-o NEW.jsonl] [--grader NAME] [--json]", "run.jsonl", "run.jsonl --grader ds4",
        "run.jsonl -o regraded.jsonl",
    )  # fmt: skip
    made.add_argument("logs", metavar="LOG", nargs="*", help="a log of ds4-eval, or latest")
    add(made, "--output", metavar="NEW.jsonl", help="write a new log with the new grades")
    add(made, "--grader")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if len(args.logs) != 1:
        raise UsageError(f"regrade needs one log, {len(args.logs)} given")
    found = regrade_log(read(newest(args.logs[0])), args.grader)
    if args.output is not None:
        write(found, args.output)
    if args.json:
        print(json.dumps(document(found, args.output), ensure_ascii=False))
    else:
        print(text(found, columns(sys.stdout) if is_tty(sys.stdout) else PIPE_WIDTH))
        if args.output is not None:
            print(f"written to {args.output}")
    return 0
