"""Runs and comparisons as text for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ds4ref.cli.common import columns as terminal_columns
from ds4ref.cli.tables import Column, fitted
from ds4ref.runs import scored
from ds4ref.runs.store import Run

from .compare import Comparison, signed, spanned
from .sources import model_name

PIPE_WIDTH = 400
"""A pipe has no width: nothing is to be cut or wrapped there."""


def print_runs(runs: Sequence[Run]) -> None:
    """One line a run."""
    results = [result(run) for run in runs]
    shown = ["result"] if any(results) else []
    table = _table("id", "kind", "created (UTC)", "label", *shown, "model", "machine", "rows", "status", "tags")
    for run, found in zip(runs, results, strict=True):
        table.add_row(
            str(run.id),
            run.kind,
            run.created.replace("T", " ").rstrip("Z"),
            printable(run.label),
            *([found] if shown else []),
            printable(model_name(run.facts) or ""),
            printable(run.fact("machine", "cpu") or ""),
            str(run.rows),
            run.status,
            " ".join(run.tags),
        )
    _print(table)


def result(run: Run) -> str:
    """What a graded run came to, in a few characters; nothing for other runs."""
    score, ends = run.fact("summary", "score"), run.fact("summary", "ci95")
    if run.kind != "eval" or not isinstance(score, (int, float)):
        return ""
    span = f" ({100 * ends[0]:.0f} to {100 * ends[1]:.0f})" if isinstance(ends, list) and len(ends) == 2 else ""
    return f"{100 * score:.1f} %{span}"


def print_run(run: Run, rows: Sequence[dict[str, Any]]) -> None:
    """Facts, then rows."""
    print(f"run {run.id}  {run.uid}")
    for name in ("kind", "created", "label", "status"):
        print(f"  {name:<22}{printable(str(getattr(run, name)))}")
    print(f"  {'tags':<22}{' '.join(run.tags)}")
    facts = run.facts
    if run.kind == "eval" and isinstance(facts.get("summary"), dict):  # the tables below say the rest of it
        facts = {**facts, "summary": {k: v for k, v in facts["summary"].items() if not k.startswith("per_")}}
    for name, value in _flat(facts):
        print(f"  {name:<22}{printable(value)}")
    if run.kind == "eval":
        _print_graded(rows)
        return
    columns = [c for c in dict.fromkeys(c for row in rows for c in row) if not c.endswith("_s") or c == "prefill_s"]
    if not columns:
        return
    print()
    table = _table(*columns)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    _print(table)


GRADED = (
    Column("id", least=12), Column("source", 4, least=8), Column("epoch", 3, right=True), Column("outcome"),
    Column("given", least=5), Column("expected", 1, least=8), Column("ds4", 5), Column("tokens", 2, right=True),
    Column("seconds", 6, right=True), Column("finish", 7), Column("close", 7),
)  # fmt: skip


def _print_graded(rows: Sequence[dict[str, Any]]) -> None:
    """Scores, then a line a sample."""
    questions = list(scored.answered(rows).values())
    whole = scored.share(questions)
    if whole is not None:
        groups = {"all": whole, **scored.shares(questions, lambda q: q.source)}
        columns = (Column("score", least=8), Column("%", right=True), Column("95 %"), Column("n", right=True))
        lines = [
            [printable(name), f"{100 * i.estimate:.1f}", f"{100 * i.low:.1f} to {100 * i.high:.1f}", str(i.n)]
            for name, i in groups.items()
        ]
        print(f"\n{fitted(columns, lines if len(lines) > 2 else lines[:1], _width())}")
    cells = [{**row, "outcome": row.get("outcome") or row.get("status") or _cell(row.get("score"))} for row in rows]
    lines = [[_cell(row.get(column.heading)) for column in GRADED] for row in cells]
    print(f"\n{fitted(GRADED, lines, _width())}")


def print_comparison(found: Comparison) -> None:
    """Verdict, findings, notes."""
    print(f"B = {printable(found.b)} against A = {printable(found.a)}: {found.verdict}")
    if found.findings:
        table = _table("metric", "A", "B", "difference", "interval", "verdict", "n", "method", "would find")
        for f in found.findings:
            i = f.interval
            table.add_row(
                f.metric,
                "" if f.a is None else f"{f.a:.4g}",
                "" if f.b is None else f"{f.b:.4g}",
                f"{signed(i.estimate)} {f.unit}",
                spanned(i),
                f"same within {f.margin:g} {f.unit}" if f.verdict == "same" else f.verdict,
                str(i.n),
                i.method,
                "" if i.detectable is None else f"{i.detectable:.2g} {f.unit}",
            )
        _print(table)
    if found.depths:
        metrics = list(dict.fromkeys(metric for _, metric, _ in found.depths))
        table = _table("context", *(f"{metric} B/A" for metric in metrics))
        by_depth: dict[int, dict[str, float]] = {}
        for depth, metric, ratio in found.depths:
            by_depth.setdefault(depth, {})[metric] = ratio
        for depth, ratios in by_depth.items():
            table.add_row(f"{depth:,}", *(f"{ratios[m]:.4f}" if m in ratios else "" for m in metrics))
        _print(table)
    if found.pairs is not None:
        _print_pairs(found.pairs)
    for note in found.notes:
        print(f"note: {printable(note)}")
    for fail in found.fails:
        print(f"gate: {printable(fail)}")


def _print_pairs(pairs: scored.Pairing) -> None:
    """Sources, and the questions that changed."""
    if len(pairs.sources) > 1:
        columns = (
            Column("source", least=8), Column("n", 2, right=True), Column("A", right=True), Column("B", right=True),
            Column("points", right=True), Column("interval", 1), Column("p", 3, right=True),
        )  # fmt: skip
        lines = [
            [printable(c.name), str(c.difference.n), f"{100 * c.a.estimate:.1f}", f"{100 * c.b.estimate:.1f}",
             signed(c.points.estimate), spanned(c.points), f"{c.p:.2g}"]
            for c in pairs.sources
        ]  # fmt: skip
        print(fitted(columns, lines, _width()))
    for what, changes in (("worse", pairs.lost), ("better", pairs.gained)):
        if changes:
            names = ", ".join(printable(change.label) for change in changes)
            print(f"{len(changes)} answered {what} by B: {names}")


def printable(text: str) -> str:
    """Without control characters: labels and facts may come from anywhere."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


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
    text = printable(str(value))
    return text if len(text) <= 40 else text[:37] + "..."


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _print(table: Any) -> None:
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(file=sys.stdout, highlight=False, markup=False, width=width).print(table)


def _width() -> int:
    return terminal_columns(sys.stdout) if sys.stdout.isatty() else PIPE_WIDTH
