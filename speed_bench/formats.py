"""Formats results as a Markdown table like llama-bench's, or as CSV like ds4's.

Markdown has one line per test: ``pp2048 @ d4096`` is the prefill of 2048 tokens after 4096, ``tg128 @ d6144`` the
decode of 128 tokens after 6144, both as mean and standard deviation over repetitions, with their warnings.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ds4ref.runs.columns import COLUMNS, Row, csv_text, grouped, shown

if TYPE_CHECKING:
    from .runner import MeasuredTarget

FORMATS = ("csv", "md")
_SHOWN = ("warnings", "gen_tokens", "asked_tokens", "streams", "ttft_ms", "ttft_p95_ms", "tpot_p50_ms", "total_tps",
          "request_rps", "goodput_rps", "failed")  # fmt: skip
SHOWN = sorted((column for column in COLUMNS if column.name in _SHOWN), key=lambda column: column.rank)
"""Columns that the Markdown table has in addition to llama-bench's, if they have values."""


def render(kind: str, targets: Sequence[MeasuredTarget]) -> str:
    """Return the results as text in the format ``kind`` ("csv" or "md"), with a final newline."""
    return markdown(targets) if kind == "md" else "".join(csv_text(target.rows) for target in targets)


def markdown(targets: Sequence[MeasuredTarget]) -> str:
    """Return a Markdown table like llama-bench's, with a column for the target if there are several.

    Columns in ``SHOWN`` are added if they have values.
    """
    visible = shown([row for target in targets for row in target.rows])
    more = [column for column in SHOWN if column in visible]
    named = ["target"] if len(targets) > 1 and any(target.name for target in targets) else []
    heads = ["model", "backend", "threads", *named, "test", *(column.heading for column in more), "t/s, mean ± SD"]
    text = ("model", "backend", *named) + (("test",) if named else ())
    lines = [heads, ["---" if head in text else "---:" for head in heads]]
    for target in targets:
        model, threads = target.facts["model"], target.facts["threads"] or ""
        first = [
            model["name"] or model["file"],
            target.facts["backend"],
            str(threads),
            *([target.name] if named else []),
        ]
        for test, column, group in _tests(target.rows):
            values = [c.display({c.name: c.combine(c.name, group)}) for c in more]
            lines.append([cell.replace("|", "\\|") for cell in (*first, test, *values, _spread(group, column))])
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    rows[1] = "|" + "|".join(lines[1]) + "|"
    return "\n".join(rows) + "\n"


def _tests(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield (name, column that has its speed, rows of its repetitions) for each test, in llama-bench's sense."""
    for (depth, name), group in grouped(rows).items():
        if "requests" in group[0]:
            yield name, "total_tps", group
            continue
        done, decoded = group[0]["prefill_tokens"], group[0].get("asked_tokens") or group[0]["gen_tokens"]
        parts = ((f"pp{done}", depth - done, "prefill_tps"), (f"tg{decoded}", depth, "gen_tps"))
        for test, behind, column in parts:
            if group[0][column] > 0 or not name:
                yield name or (f"{test} @ d{behind}" if behind else test), column, group


def _spread(group: Sequence[Row], column: str) -> str:
    values = [row[column] for row in group]
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.fmean(values):.2f} \u00b1 {statistics.stdev(values):.2f}"
