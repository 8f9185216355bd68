"""``ds4-eval calibrate LOG...``: how hard each question is, and how well it tells engines apart."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from ds4ref.console.common import columns, is_tty, say
from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import parser
from ds4ref.errors import UsageError

from .calibrate import LEAST_ENGINES, LEAST_PAIRED, calibrate, document, text
from .log import read
from .plan import chosen
from .view import newest

PROG = "ds4-eval calibrate"
PIPE_WIDTH = 160


def calibrate_logs(argv: Sequence[str]) -> int:
    """Run ``ds4-eval calibrate LOG...``; return the exit code."""
    made = parser(
        PROG, "Difficulty and discrimination of questions, from logs of any number of engines.", "LOG... [options]",
        "runs/*.jsonl", "a.jsonl b.jsonl --only recall --json",
    )  # fmt: skip
    made.epilog = (made.epilog or "") + (
        "\n\nAn engine with its settings counts once, however many logs and epochs it has. Difficulty is the share of"
        "\nengines that are right, with Wilson's 95 % interval; discrimination the correlation of being right here with"
        f"\nthe score in the pack's other questions. Below {LEAST_ENGINES} and {LEAST_PAIRED} engines: unmeasured."
    )
    made.add_argument("logs", metavar="LOG", nargs="*", help="logs of ds4-eval, of any packs, or latest")
    add(
        made,
        "--only",
        metavar="WORDS",
        help="questions with one of these words in id, source or domain (maths,security)",
    )
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if not args.logs:
        raise UsageError("calibrate needs logs")
    logs = [read(newest(name)) for name in args.logs]
    for log in logs:
        if log.torn:
            say(PROG, f"{log.path}: the last line is incomplete (a crash?) and was skipped")
    found = calibrate(logs)
    if not found.items:
        raise UsageError("these logs have no graded answer")
    if args.only:  # after counting: the others tell how good an engine is
        kept = {q.digest for q in chosen([item.question for item in found.items], args.only)}
        found = replace(found, items=tuple(item for item in found.items if item.question.digest in kept))
    if args.json:
        print(json.dumps(document(found), ensure_ascii=False))
    else:
        print(text(found, columns(sys.stdout) if is_tty(sys.stdout) else PIPE_WIDTH))
    return 0
