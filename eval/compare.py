"""``ds4-eval compare A B``: test whether log B is better or worse than log A (``ds4ref.runs.compare``), and show which
answers changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ds4ref.console.comparison import text as comparison_text
from ds4ref.console.flags import add
from ds4ref.console.options import parsed, printable
from ds4ref.console.tables import stdout_width
from ds4ref.console.tool import parser
from ds4ref.errors import UsageError
from ds4ref.runs.compare import compare
from ds4ref.runs.pairs import Change
from ds4ref.runs.statements import INCOMPARABLE, Comparison
from ds4ref.runs.store import Measured, Run

from .keep import about, rows_of
from .log import Log, Sample
from .report import LONGEST
from .scores import by_question
from .view import PIPED, opened

EXIT_WORSE, EXIT_INCOMPARABLE = 1, 4
PROG = "ds4-eval compare"


def compare_command(argv: Sequence[str]) -> int:
    """Run ``ds4-eval compare A B``; return the exit code."""
    made = parser(
        PROG, "Compare two logs question by question: scores, the difference, and the smallest\n"
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
    a, b = (opened(name, PROG) for name in args.logs)
    comparison = compare_logs(a, b)
    if args.json:
        print(json.dumps(document(comparison), ensure_ascii=False))
    else:
        print(text(comparison, a, b, stdout_width(PIPED)))
    if comparison.verdict == INCOMPARABLE:
        return EXIT_INCOMPARABLE
    return EXIT_WORSE if args.fail and comparison.verdict == "worse" else 0


def compare_logs(a: Log, b: Log) -> Comparison:
    """Compare log ``b`` with log ``a`` question by question; raise UsageError if no question is in both."""
    one, other = (
        Measured(Run(0, "", "eval", "", log.path, "complete", about(log)), rows_of(log)) for log in (a, b)
    )  # fmt: skip
    comparison = compare(one, other)
    if comparison.pairs is None or not comparison.pairs.shared:
        packs = (log.header.pack.get("pack") for log in (a, b))
        raise UsageError(f"{a.path} and {b.path} have no question in common ({' and '.join(map(str, packs))})")
    return comparison


def text(comparison: Comparison, a: Log, b: Log, width: int) -> str:
    """Format the comparison of logs ``a`` and ``b`` in lines of at most ``width`` characters."""
    answers = [by_question(log.done) for log in (a, b)]

    def cells(change: Change) -> list[str]:
        question = a.questions[change.id]
        given = [_given(side.get(name, [])) for side, name in zip(answers, (change.id, change.id_b), strict=True)]
        return [question.answer, *given, printable(question.title, LONGEST)]

    return comparison_text(comparison, width, cells)


def _given(samples: Sequence[Sample]) -> str:
    """Return the answer given in one sample; for several samples of a question, how many were right."""
    if len(samples) > 1:
        return f"{sum(sample.right for sample in samples)} of {len(samples)}"
    grade = samples[0].grade if samples else None
    if grade is None or grade.outcome in ("missing", "ambiguous"):
        return "-" if grade is None else f"({grade.outcome})"
    return printable(" ".join(grade.given.split()))


def document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data: scores are shares, differences are percentage points."""
    assert comparison.pairs is not None
    differs = {name: values for name, *values in comparison.differs}
    names = {"a": comparison.a, "b": comparison.b, "verdict": comparison.verdict, "says": comparison.says()[0]}
    return {**names, **comparison.pairs.as_json(), "differs": differs, "notes": list(comparison.notes)}
