"""Export of runs as one flat table, CSV or JSON.

The table has one line per row of a run, with the facts about the run in its first columns. A value that a row lacks,
and a number that is none (NaN, infinity), is empty in CSV and null in JSON; lists and objects are JSON in CSV.
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
    """Return the lines of runs, all with the same columns in the order in which they first occur; columns about a run
    are named ``run_...``, and a run without rows has one line."""
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
    """Write the runs as a table to ``path`` atomically, in the format of its suffix; return the number of lines."""
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
