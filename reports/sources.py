"""Loads runs from the store or from files, as users name them.

name                     meaning
m3_max.csv               a CSV of ds4-bench, ours or ds4's; metadata come from NAME.json next to it, if it exists
check.json               output of ds4-vectors check --out
run.jsonl                a log of ds4-eval
17, latest, good, ...    a run of the store (Store.find)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ds4ref.errors import DataError
from ds4ref.runs.columns import COLUMNS, place
from ds4ref.runs.results import check_objects, read_rows, sample_rows
from ds4ref.runs.store import Measured, Run, Store
from ds4ref.runs.store.rows import vector_row

PERCENTILE = re.compile(r"_p\d+_ms$")


def load(name: str, store: Store | None) -> Measured:
    """Return the run that ``name`` means, from a file or from the store; raises DataError if there is none.

    ``store`` is None if there is no store to look in.
    """
    if is_file(name):
        return read_file(name)
    if store is None:
        raise DataError(f"{name}: no such CSV, and there is no run store to look it up in")
    run = store.find(name)
    rows = store.rows(run.id)
    if run.kind == "bench":
        sample_rows(rows, f"run store {store.path}, run {run.id}")
    return Measured(run, rows)


def is_file(name: str) -> bool:
    """Return whether ``name`` means a file and not a run of the store, judging by its suffix or a path separator."""
    return name.lower().endswith((".csv", ".json", ".jsonl")) or os.sep in name


def read_file(path: str | os.PathLike[str]) -> Measured:
    """Read a results file as a run; its suffix (.csv, .json or .jsonl) decides of which kind."""
    name = os.fspath(path).lower()
    return (
        read_check(path) if name.endswith(".json") else read_eval(path) if name.endswith(".jsonl") else read_csv(path)
    )


def read_csv(path: str | os.PathLike[str]) -> Measured:
    """Read a CSV of ds4-bench as a run, with metadata and single repetitions from NAME.json, if that exists."""
    path = Path(path)
    rows = read_rows(path)
    beside = path.with_suffix(".json")
    why = f"not a JSON object (it should tell where {path.name} came from)"
    facts = _json_object(beside, why) if beside.exists() else {}
    samples = facts.pop("samples", None)
    if isinstance(samples, list) and samples and all(isinstance(row, dict) for row in samples):
        sample_rows(samples, beside)
        rows = _with_percentiles(samples, rows)
    facts.pop("columns", None)
    check_objects(facts, beside)
    return _from_file(path, "bench", facts, rows)


def _with_percentiles(samples: list[dict[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples (single repetitions) with the latency percentiles of the CSV's ``rows``.

    Those are computed over the single times of all repetitions. The samples do not have these times, and the median of
    their own percentiles would be a different number.
    """
    stated = {place(row): row for row in rows}
    names = [column.name for column in COLUMNS if PERCENTILE.search(column.name)]
    return [
        sample | {name: row[name] for name in names if (row := stated.get(place(sample), {})).get(name) is not None}
        for sample in samples
    ]


def read_check(path: str | os.PathLike[str]) -> Measured:
    """Read the output of ``ds4-vectors check --out`` as a run with one row per test vector (``vector_row``).

    Raises DataError if the file is not such an output.
    """
    path = Path(path)
    facts = _json_object(path, "not a JSON object")
    cases: Any = facts.pop("results", None)
    failed: Any = facts.get("failed")
    try:
        rows = [vector_row(case, failed) for case in cases]
    except (TypeError, KeyError, AttributeError):
        raise DataError(f"{path}: not the result of ds4-vectors check --out") from None
    return _from_file(path, "vectors", facts, rows)


def read_eval(path: str | os.PathLike[str]) -> Measured:
    """Read a log of ds4-eval as a run with one row per sample."""
    from ds4ref.eval.keep import about, rows_of
    from ds4ref.eval.log import read
    from ds4ref.eval.scores import summary
    from ds4ref.runs.evals import status_of

    log = read(path)
    facts, rows = {**about(log), "summary": summary(log)}, rows_of(log)
    return _from_file(Path(path), "eval", facts, rows, status_of(facts, rows))


def _from_file(
    path: Path, kind: str, facts: dict[str, Any], rows: list[dict[str, Any]], status: str = "complete"
) -> Measured:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        modified = path.stat().st_mtime
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    created = facts.get("created") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(modified))
    facts |= {"created": created, "source": {"file": path.name, "sha256": digest}}
    return Measured(Run(0, digest[:32], kind, created, path.stem, status, facts, (), len(rows)), rows)


def import_file(
    path: str | os.PathLike[str], store: Store, label: str = "", tags: tuple[str, ...] = ()
) -> tuple[int, bool]:
    """Add a results file to the store; return (number of its run, whether the run is new).

    A file that is already stored does not add a second run. A log that was stored before, by this function or by
    ds4-eval, updates its run if the number of rows has changed.
    """
    measured = read_file(path)
    digest = measured.run.fact("source", "sha256")
    if measured.run.kind == "eval":
        from ds4ref.runs.evals import same_log

        existing = same_log(store, measured.run.facts)
        if existing is not None:
            if existing.rows != measured.run.rows:
                store.replace(existing.id, measured.run.facts, measured.rows, measured.run.status)
            return existing.id, False
    for run in store.runs(kind=measured.run.kind):
        if run.fact("source", "sha256") == digest:
            return run.id, False
    number = store.add(
        measured.run.kind,
        measured.run.facts,
        measured.rows,
        label=label or measured.run.label,
        status=measured.run.status,
        tags=tags,
    )
    return number, True


def _json_object(path: Path, otherwise: str) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise DataError(f"{path}: {reason}") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DataError(f"{path}: {otherwise}")
    return value


def model_name(facts: Mapping[str, Any]) -> str | None:
    """Return the model's name from a run's metadata, else the name of its file, None if both are unknown."""
    model = facts.get("model")
    if not isinstance(model, dict):
        return None
    return model.get("name") or model.get("file")
