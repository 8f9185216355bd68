"""Export of runs as one flat table: CSV, JSON, JSON lines, Parquet.

The table has one line per row of a run, with the facts about the run in its first columns. A value that a row lacks,
and a number that is none (NaN, infinity), is empty in CSV and null elsewhere; lists and objects are JSON in CSV.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds4ref.console.common import atomic_output
from ds4ref.errors import DataError, UsageError

from .sources import Measured, model_name

SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")


def check_suffix(path: str) -> str:
    """Return the suffix of an export's path; raises UsageError for an unknown one."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot export to {path}: the name must end in {', '.join(SUFFIXES)}")
    return suffix


def table(runs: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return the lines of runs, all with the same columns in the order in which they first occur; columns about a run
    are named ``run_...``, and a run without rows has one line."""
    lines: list[dict[str, Any]] = []
    for measured in runs:
        about = _about(measured)
        lines += [about | row for row in measured.rows] or [about]
    empty = dict.fromkeys(name for line in lines for name in line)
    return [empty | {name: _finite(value) for name, value in line.items()} for line in lines]


def _finite(value: Any) -> Any:
    """Return a value without NaN and infinities, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


def export(runs: Sequence[Measured], path: str) -> int:
    """Write the runs as a table to ``path`` atomically, in the format of its suffix; return the number of lines.

    Raise DataError where Parquet cannot be written.
    """
    suffix = check_suffix(path)
    lines = table(runs)
    data = _parquet(lines) if suffix == ".parquet" else _text(lines, suffix).encode("utf-8", "surrogateescape")
    with atomic_output(path) as out:
        out.write(data)
    return len(lines)


def _text(lines: Sequence[dict[str, Any]], suffix: str) -> str:
    if suffix == ".json":
        return json.dumps(lines, ensure_ascii=False) + "\n"
    if suffix == ".jsonl":
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    out = io.StringIO()
    writer = csv.DictWriter(out, lines[0], lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({name: json.dumps(x) if isinstance(x, (list, dict)) else x for name, x in line.items()})
    return out.getvalue()


def _parquet(lines: Sequence[dict[str, Any]]) -> bytes:
    try:
        import pyarrow
        from pyarrow.parquet import write_table
    except ImportError:
        raise DataError("Parquet needs pyarrow: pip install 'ds4ref[parquet]', or export to .csv") from None
    out = io.BytesIO()
    try:
        write_table(pyarrow.Table.from_pylist(lines), out)
    except (pyarrow.ArrowException, OverflowError, UnicodeError) as error:
        raise DataError(f"these rows do not fit Parquet ({' '.join(str(error).split())}): export to .jsonl") from None
    return out.getvalue()


def _about(measured: Measured) -> dict[str, Any]:
    run = measured.run
    return {
        "run_id": run.id,
        "run_uid": run.uid,
        "run_kind": run.kind,
        "run_created": run.created,
        "run_label": run.label,
        "run_status": run.status,
        "run_tags": " ".join(run.tags),
        "run_model": model_name(run.facts),
        "run_model_sha256": run.fact("model", "sha256"),
        "run_prompt_sha256": run.fact("prompt_sha256"),
        "run_backend": run.fact("backend"),
        "run_numerics": run.fact("numerics"),
        "run_threads": run.fact("threads"),
        "run_commit": run.fact("commit"),
        "run_cpu": run.fact("machine", "cpu"),
    }
