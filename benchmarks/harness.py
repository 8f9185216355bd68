"""What benchmarks share: running targets in turn, rows of figures with bars, a time budget, printing a table or JSON.

A *target* does the work once and returns its time; a *bar* is the value that a figure must reach. On a shared machine
only ratios within a round are reliable, so ``interleave`` runs the targets of a comparison in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ds4ref.runs.provenance import stamp

Target = Callable[[], float]
"""Type of a target: a function that does the work to be measured once and returns its seconds, or another figure."""


class OutOfTime(Exception):
    """Raised when less is left of the time budget than the next measurement needs."""


class Budget:
    """The time budget of a run: ``seconds`` from now on; None means no limit."""

    def __init__(self, seconds: float | None):
        self.seconds, self._start = seconds, time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self._start

    def need(self, seconds: float) -> None:
        """Raise OutOfTime unless ``seconds`` are left."""
        if self.seconds is not None and self.spent + seconds > self.seconds:
            raise OutOfTime(f"skipped: {self.spent:.0f} of {self.seconds:.0f} s were used")


def clocked(work: Callable[[], object], repeat: int = 1) -> Target:
    """Return a target that measures the wall time of ``work`` in seconds: the best of ``repeat`` runs in a row.

    Work of a few milliseconds is either undisturbed or interrupted for longer than it takes, so the best of a few runs
    is undisturbed. Run longer work once.
    """

    def once() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return lambda: min(once() for _ in range(repeat))


def interleave(targets: Mapping[str, Target], rounds: int, warm: bool = True) -> dict[str, list[float]]:
    """Run all targets once per round, in alternating order (AB BA), for ``rounds`` rounds; return each one's results by
    name.

    warm: run a round first whose results are dropped
    """
    names = list(targets)
    if warm:
        for name in names:
            targets[name]()
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            samples[name].append(targets[name]())
    return samples


def ratios(above: Sequence[float], below: Sequence[float], factor: float = 1.0) -> list[float]:
    """Return ``factor * above / below`` for each round."""
    return [factor * a / b for a, b in zip(above, below, strict=True)]


@dataclass(frozen=True)
class Row:
    """One figure of a benchmark, a row of its table: the median ``value`` over ``n`` rounds, and the range.

    ``value`` is None if it was not measured, and ``note`` then says why. ``bar`` is the value that it must reach, None
    if there is none; ``better`` says which values are better, "higher" or "lower".
    """

    item: str
    value: float | None = None
    unit: str = ""
    bar: float | None = None
    better: str = "higher"
    low: float | None = None
    high: float | None = None
    n: int = 1
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Return whether the value reaches the bar; None if there is no value or no bar."""
        if self.value is None or self.bar is None:
            return None
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar


def row(
    item: str, samples: Sequence[float], unit: str = "", bar: float | None = None, better: str = "higher",
    note: str = "",
) -> Row:  # fmt: skip
    """Return the row of a figure from one sample per round."""
    if not len(samples):
        return Row(item, None, unit, bar, better, n=0, note=note or "not measured")
    values = [float(sample) for sample in samples]  # NumPy's own floats cannot be written as JSON
    middle, low, high = statistics.median(values), min(values), max(values)
    return Row(item, middle, unit, bar, better, low, high, len(values), note)


class Results:
    """Results by name, kept as JSON lines in a file from which a stopped run goes on; without a file, in memory."""

    def __init__(self, path: Path | None = None):
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.entries: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in map(json.loads, lines)}

    def get(self, name: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of this name, that of ``run`` if there is none yet, with the seconds that it took."""
        if name not in self.entries:
            start, clock = time.monotonic(), time.process_time()
            entry = {"name": name, **run()}
            entry |= {"wall_s": round(time.monotonic() - start), "cpu_s": round(time.process_time() - clock)}
            self.entries[name] = entry
            if self.path is not None:
                with open(self.path, "a") as file:
                    file.write(json.dumps(entry) + "\n")
        return self.entries[name]


def document(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """Return the rows as a JSON document, with ``facts`` (information about the run) added to each as ``run``."""
    return json.dumps([{**asdict(r), "met": r.met, "run": facts} for r in rows], allow_nan=False)


def show(rows: Sequence[Row], title: str, as_json: bool, **facts: Any) -> None:
    """Print the rows of a benchmark as a table with this title or, if ``as_json``, as JSON with ``facts``."""
    if as_json:
        print(document(rows, facts | stamp()))
    else:
        print_table(rows, title)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of the table")


def print_table(rows: Sequence[Row], title: str) -> None:
    """Print the rows as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("item", "value", "range", "bar", "", "note"):
        table.add_column(name, justify="left" if name in ("item", "", "note") else "right")
    for r in rows:
        met = {None: "", True: "[green]ok[/]", False: "[red]missed[/]"}[r.met]
        span = f"{_number(r.low)} - {_number(r.high)}" if r.n > 1 else ""
        value = f"{_number(r.value)} {r.unit}" if r.value is not None else "-"
        table.add_row(r.item, value, span, _number(r.bar), met, r.note)
    console = Console()
    # a file or a pipe has no width to which the table would have to be folded
    (console if console.is_terminal else Console(width=170)).print(table)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
