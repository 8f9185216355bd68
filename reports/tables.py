"""Runs and comparisons as text for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ds4ref.runs.store import Run

from .compare import Comparison, signed, spanned
from .sources import model_name


def print_runs(runs: Sequence[Run]) -> None:
    """One line a run."""
    table = _table("id", "kind", "created (UTC)", "label", "model", "machine", "rows", "status", "tags")
    for run in runs:
        table.add_row(
            str(run.id),
            run.kind,
            run.created.replace("T", " ").rstrip("Z"),
            printable(run.label),
            printable(model_name(run.facts) or ""),
            printable(run.fact("machine", "cpu") or ""),
            str(run.rows),
            run.status,
            " ".join(run.tags),
        )
    _print(table)


def print_run(run: Run, rows: Sequence[dict[str, Any]]) -> None:
    """Facts, then rows."""
    print(f"run {run.id}  {run.uid}")
    for name in ("kind", "created", "label", "status"):
        print(f"  {name:<22}{printable(str(getattr(run, name)))}")
    print(f"  {'tags':<22}{' '.join(run.tags)}")
    for name, value in _flat(run.facts):
        print(f"  {name:<22}{printable(value)}")
    columns = [c for c in dict.fromkeys(c for row in rows for c in row) if not c.endswith("_s") or c == "prefill_s"]
    if not columns:
        return
    print()
    table = _table(*columns)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    _print(table)


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
    for note in found.notes:
        print(f"note: {printable(note)}")
    for fail in found.fails:
        print(f"gate: {printable(fail)}")


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

    # A pipe has no width: nothing is to be cut or wrapped there.
    width = None if sys.stdout.isatty() else 400
    Console(file=sys.stdout, highlight=False, markup=False, width=width).print(table)
