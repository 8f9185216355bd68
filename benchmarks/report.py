"""Rows of the table of figures: value, range, bar."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A figure to measure, and its goal.

    bar       the value required, None for none
    stretch   a more ambitious value
    better    "higher" or "lower"
    """

    item: str
    unit: str
    bar: float | None = None
    stretch: float | None = None
    better: str = "higher"


@dataclass(frozen=True)
class Row:
    """One measured figure: median ``value`` and range over ``n`` rounds.

    ``value`` is None if it was not measured; ``note`` then says why.
    """

    item: str
    value: float | None
    bar: float | None
    stretch: float | None
    unit: str
    better: str
    low: float | None = None
    high: float | None = None
    n: int = 0
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the value reaches the bar; None without a value or a bar."""
        if self.value is None or self.bar is None:
            return None
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar


def row(goal: Goal, samples: Sequence[float], note: str = "") -> Row:
    """Return the row of a figure from one sample per round."""
    ordered = sorted(float(sample) for sample in samples)  # NumPy's own floats are no JSON
    if not ordered:
        return Row(goal.item, None, goal.bar, goal.stretch, goal.unit, goal.better, note=note or "not measured")
    middle = len(ordered) // 2
    value = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Row(
        goal.item, value, goal.bar, goal.stretch, goal.unit, goal.better, ordered[0], ordered[-1], len(ordered), note,
    )  # fmt: skip


def document(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """Return the rows as a JSON document; ``facts``: about the run, added to each row as ``run``."""
    return json.dumps([{**asdict(r), "met": r.met, "run": facts} for r in rows], allow_nan=False)


def print_table(rows: Sequence[Row], title: str = "CPU speed") -> None:
    """Print the rows as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("item", "value", "range", "bar", "stretch", "", "note"):
        table.add_column(name, justify="left" if name in ("item", "", "note") else "right")
    for r in rows:
        mark = {None: "", True: "[green]ok[/]", False: "[red]missed[/]"}[r.met]
        span = f"{_number(r.low)} - {_number(r.high)}" if r.n > 1 else ""
        value = f"{_number(r.value)} {r.unit}" if r.value is not None else "-"
        table.add_row(r.item, value, span, _number(r.bar), _number(r.stretch), mark, r.note)
    console = Console()
    # a file or a pipe has no width; the table should not be folded for one
    (console if console.is_terminal else Console(width=170)).print(table)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
