"""Prints runs as text, for ``ds4-report list`` and ``show``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ds4ref.console.page import printable
from ds4ref.console.tables import Column, fitted, stdout_width
from ds4ref.runs import scored, thinking
from ds4ref.runs.store import Run

from .sources import model_name


def print_runs(runs: Sequence[Run]) -> None:
    """Print a table with one line per run."""
    body = [
        (
            str(run.id),
            run.kind,
            run.created.replace("T", " ").rstrip("Z"),
            printable(run.label),
            result(run),
            printable(model_name(run.facts) or ""),
            printable(run.fact("machine", "cpu") or ""),
            str(run.rows),
            run.status,
            " ".join(run.tags),
        )
        for run in runs
    ]
    print(fitted(RUNS, body, stdout_width()))


RUNS = (
    Column("id", right=True), Column("kind", 2), Column("created (UTC)", 4, least=10), Column("label", least=8),
    Column("result", 1), Column("model", 3, least=10), Column("machine", 8, least=8), Column("rows", 7, right=True),
    Column("status", 5), Column("tags", 6, least=6),
)  # fmt: skip


def result(run: Run) -> str:
    """Return the score of a graded run with its interval as text, "" for other runs."""
    score, ends = run.fact("summary", "score"), run.fact("summary", "ci95")
    if run.kind != "eval" or not isinstance(score, (int, float)):
        return ""
    span = f" ({100 * ends[0]:.0f} to {100 * ends[1]:.0f})" if isinstance(ends, list) and len(ends) == 2 else ""
    return f"{100 * score:.1f} %{span}"


def print_run(run: Run, rows: Sequence[dict[str, Any]]) -> None:
    """Print the metadata of a run, then its rows as a table."""
    print(f"run {run.id}  {run.uid}")
    for name in ("kind", "created", "label", "status"):
        print(f"  {name:<22}{printable(str(getattr(run, name)))}")
    print(f"  {'tags':<22}{' '.join(run.tags)}")
    facts = run.facts
    if run.kind == "eval" and isinstance(facts.get("summary"), dict):  # scores by group are in the tables below
        facts = {**facts, "summary": {k: v for k, v in facts["summary"].items() if not k.startswith("per_")}}
    for name, value in _flat(facts):
        print(f"  {name:<22}{printable(value)}")
    if run.kind == "eval":
        for note in thinking.notes(rows, run.facts):
            print(f"  {printable(note)}")
        _print_graded(rows)
        return
    columns = [c for c in dict.fromkeys(c for row in rows for c in row) if not c.endswith("_s") or c == "prefill_s"]
    if not columns:
        return
    print()
    table_columns = [Column(name, rank, right=True) for rank, name in enumerate(columns)]
    print(fitted(table_columns, [[_cell(row.get(name)) for name in columns] for row in rows], stdout_width()))


GRADED = (
    Column("id", least=12), Column("source", 4, least=8), Column("epoch", 3, right=True), Column("outcome"),
    Column("given", least=5), Column("expected", 1, least=8), Column("tokens", 2, right=True),
    Column("seconds", 6, right=True), Column("finish", 7), Column("close", 7),
)  # fmt: skip


def _print_graded(rows: Sequence[dict[str, Any]]) -> None:
    """Print the scores of a graded run by source, then one line per sample."""
    questions = list(scored.answered(rows).values())
    whole = scored.share(questions)
    if whole is not None:
        groups = {"all": whole, **scored.shares(questions, lambda q: q.source)}
        columns = (Column("score", least=8), Column("%", right=True), Column("95 %"), Column("n", right=True))
        lines = [
            [printable(name), f"{100 * i.estimate:.1f}", f"{100 * i.low:.1f} to {100 * i.high:.1f}", str(i.n)]
            for name, i in groups.items()
        ]
        print(f"\n{fitted(columns, lines if len(lines) > 2 else lines[:1], stdout_width())}")
    cells = [{**row, "outcome": row.get("outcome") or row.get("status") or _cell(row.get("score"))} for row in rows]
    lines = [[_cell(row.get(column.heading)) for column in GRADED] for row in cells]
    print(f"\n{fitted(GRADED, lines, stdout_width())}")


def _flat(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield prefix + key, " ".join(map(str, value)) if key == "command" else json.dumps(value)[:200]
        elif value is not None:
            yield prefix + key, str(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = printable(" ".join(value) if isinstance(value, dict) else str(value))
    return text if len(text) <= 40 else text[:37] + "..."
