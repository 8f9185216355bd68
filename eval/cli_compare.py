"""``ds4-eval compare A B``: test whether B is better or worse than A."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from ds4ref.console.common import columns, is_tty
from ds4ref.console.flags import add
from ds4ref.console.options import parsed
from ds4ref.console.tool import parser
from ds4ref.errors import UsageError
from ds4ref.runs.compare import INCOMPARABLE

from .compare import compare_logs, document, text
from .log import read
from .view import newest

EXIT_WORSE, EXIT_INCOMPARABLE = 1, 4
PIPE_WIDTH = 160


def compare(argv: Sequence[str]) -> int:
    """Run ``ds4-eval compare A B``; return the exit code."""
    made = parser(
        "ds4-eval compare", "Compare two logs question by question: scores, the difference, and the smallest\n"
        "difference that such logs can show.",
        "A B [--fail] [--json]", "before.jsonl after.jsonl", "before.jsonl latest --fail || exit 1",
    )  # fmt: skip
    made.epilog = (made.epilog or "") + (
        "\n\nQuestions are paired by their text; epochs of a question are averaged first. Questions without a grade "
        "on\neither side are excluded and counted."
        f"\n\nexit codes: 0 done, {EXIT_WORSE} with --fail if B is worse, 2 usage, {EXIT_INCOMPARABLE} not comparable"
    )
    made.add_argument("logs", metavar="LOG", nargs="*", help="logs of ds4-eval, or latest")
    add(made, "--fail", help="exit 1 if B is worse: 95 %% interval below zero, difference of a point or more")
    add(made, "--json")
    args = parsed(made, argv)
    if args is None:
        return 0
    if len(args.logs) != 2:
        raise UsageError(f"compare needs two logs, {len(args.logs)} given")
    a, b = (read(newest(name)) for name in args.logs)
    found = compare_logs(a, b)
    if args.json:
        print(json.dumps(document(found), ensure_ascii=False))
    else:
        print(text(found, a, b, columns(sys.stdout) if is_tty(sys.stdout) else PIPE_WIDTH))
    if found.verdict == INCOMPARABLE:
        return EXIT_INCOMPARABLE
    return EXIT_WORSE if args.fail and found.verdict == "worse" else 0
