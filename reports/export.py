"""Exports runs as one flat table, CSV or JSON.

The table has one line per row of a run, with metadata of the run in its first columns. Missing values, NaN and infinity
are empty in CSV and null in JSON. Lists and objects are written as JSON in a CSV cell.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from ds4ref.console.common import atomic_output
from ds4ref.runs.store import Measured
from ds4ref.runs.store.runs import plain

from .sources import model_name

FACTS = {
    "model_sha256": ("model", "sha256"), "prompt_sha256": ("prompt_sha256",), "backend": ("backend",),
    "numerics": ("numerics",), "threads": ("threads",), "commit": ("commit",), "cpu": ("machine", "cpu"),
}  # fmt: skip


def table(runs: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the lines of the table as dicts from column to value, all with the same columns.

    Columns with metadata of a run are named ``run_...``. A run without rows has one line.
    """
    lines: list[dict[str, Any]] = []
    for measured in runs:
        run = measured.run
        about = {name: getattr(run, name) for name in ("id", "uid", "kind", "created", "label", "status")}
        about |= {"tags": " ".join(run.tags), "model": model_name(run.facts)}
        about |= {name: run.fact(*keys) for name, keys in FACTS.items()}
        about = {f"run_{name}": value for name, value in about.items()}
        lines += [about | row for row in measured.rows] or [about]
    empty = dict.fromkeys(name for line in lines for name in line)
    return [empty | {name: plain(value) for name, value in line.items()} for line in lines]


def export(runs: Sequence[Measured], path: str) -> int:
    """Write the runs as a table to ``path`` (.csv or .json) and return the number of lines.

    The file is replaced atomically.
    """
    lines, out = table(runs), io.StringIO()
    if path.lower().endswith(".json"):
        out.write(json.dumps(lines, ensure_ascii=False) + "\n")
    else:
        writer = csv.DictWriter(out, lines[0], lineterminator="\n")
        writer.writeheader()
        for line in lines:
            writer.writerow({name: json.dumps(x) if isinstance(x, (list, dict)) else x for name, x in line.items()})
    with atomic_output(path) as file:
        file.write(out.getvalue().encode("utf-8", "surrogateescape"))
    return len(lines)
