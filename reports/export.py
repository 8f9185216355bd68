"""Export of runs as one flat table, through pandas: CSV, JSON, JSON lines, Parquet.

The table has one line per row of a run, with the facts about the run in its first columns.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4ref.console.common import atomic_output
from ds4ref.errors import DataError, UsageError

from .sources import Measured, model_name

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".json", ".jsonl", ".parquet")


def check_suffix(path: str) -> str:
    """Return the suffix of an export's path; raises UsageError for an unknown one."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot export to {path}: the name must end in {', '.join(SUFFIXES)}")
    return suffix


def frame(runs: Sequence[Measured]) -> pd.DataFrame:
    """Return the table of runs; columns about a run are named ``run_...``, and a run without rows has one line."""
    import pandas as pd

    lines: list[dict[str, Any]] = []
    for measured in runs:
        about = _about(measured)
        lines += [about | row for row in measured.rows] or [about]
    return pd.DataFrame(lines)


def export(runs: Sequence[Measured], path: str) -> int:
    """Write the runs as a table to ``path`` atomically, in the format of its suffix; return the number of lines."""
    suffix = check_suffix(path)
    table = frame(runs)
    with atomic_output(path) as out:
        out.write(_encode(table, suffix))
    return len(table)


def _encode(table: pd.DataFrame, suffix: str) -> bytes:
    if suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise DataError("Parquet needs pyarrow: pip install 'ds4ref[parquet]', or export to .csv") from None
        buffer = io.BytesIO()
        table.to_parquet(buffer, engine="pyarrow", index=False)
        return buffer.getvalue()
    if suffix == ".csv":
        flat = table.map(lambda cell: json.dumps(cell) if isinstance(cell, (list, dict)) else cell)
        return str(flat.to_csv(index=False, lineterminator="\n")).encode("utf-8", "surrogateescape")
    text = table.to_json(orient="records", lines=suffix == ".jsonl", double_precision=15)
    return (text.rstrip("\n") + "\n").encode("utf-8", "surrogateescape")


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
