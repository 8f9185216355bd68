"""Where runs come from: the store, or files. A CSV of ds4's own bench is a run without facts.

name                     what it is
m3_max.csv               a results CSV, ours or ds4's; NAME.json beside it tells the rest
17, latest, good, ...    a run of the store (Store.find)
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ds4ref.archs.deepseek4.shape import FLASH
from ds4ref.errors import DataError
from ds4ref.runs.results import read_rows
from ds4ref.runs.store import Run, Store
from ds4ref.runs.store.rows import vector_row


@dataclass(frozen=True)
class Measured:
    """A run with its rows."""

    run: Run
    rows: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """Its label."""
        return self.run.name


def load(name: str, store: Store | None) -> Measured:
    """The run that ``name`` means; DataError if there is none."""
    if is_file(name):
        return read_file(name)
    if store is None:
        raise DataError(f"{name}: no such CSV, and there is no run store to look it up in")
    run = store.find(name)
    return Measured(run, store.rows(run.id))


def is_file(name: str) -> bool:
    """Whether a run is named by a file."""
    return name.lower().endswith((".csv", ".json")) or os.sep in name


def read_file(path: str | os.PathLike[str]) -> Measured:
    """A results file by its suffix."""
    return read_check(path) if os.fspath(path).lower().endswith(".json") else read_csv(path)


def read_csv(path: str | os.PathLike[str]) -> Measured:
    """A results CSV as a run; rows of single repetitions come from NAME.json beside it, where that has them."""
    path = Path(path)
    rows = read_rows(path)
    facts = _facts_beside(path)
    samples = facts.pop("samples", None)
    if isinstance(samples, list) and samples and all(isinstance(row, dict) for row in samples):
        rows = samples
    facts.pop("columns", None)
    checked = check_kvcache(rows)
    if checked is not None:
        facts["kvcache_check"] = checked
    return _from_file(path, "bench", facts, rows)


def read_check(path: str | os.PathLike[str]) -> Measured:
    """The result of a vector check as a run: one row a case (verdict, passed, steps, share of matching steps, largest
    difference of log probabilities, largest KL divergence)."""
    path = Path(path)
    facts = _json_object(path, "not a JSON object")
    cases: Any = facts.pop("results", None)
    failed: Any = facts.get("failed")
    try:
        rows = [vector_row(case, failed) for case in cases]
    except (TypeError, KeyError, AttributeError):
        raise DataError(f"{path}: not the result of ds4-vectors check --out") from None
    return _from_file(path, "vectors", facts, rows)


def _from_file(path: Path, kind: str, facts: dict[str, Any], rows: list[dict[str, Any]]) -> Measured:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        modified = path.stat().st_mtime
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    created = facts.get("created") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(modified))
    facts |= {"created": created, "source": {"file": path.name, "sha256": digest}}
    return Measured(Run(0, digest[:32], kind, created, path.stem, "complete", facts, (), len(rows)), rows)


def import_file(
    path: str | os.PathLike[str], store: Store, label: str = "", tags: tuple[str, ...] = ()
) -> tuple[int, bool]:
    """Keep a results file in the store: its run, and whether it is new. The same bytes again make no second run."""
    found = read_file(path)
    digest = found.run.fact("source", "sha256")
    for run in store.runs(kind=found.run.kind):
        if run.fact("source", "sha256") == digest:
            return run.id, False
    return store.add(found.run.kind, found.run.facts, found.rows, label=label or found.run.label, tags=tags), True


def check_kvcache(rows: list[dict[str, Any]]) -> dict[str, int] | None:
    """How many rows' ``kvcache_bytes`` are those of a saved session of Flash at that depth (docs/model.md 12).

    None if no row has the column. Anything but all or none means that rows were torn, or pooled from two models.
    """
    given = [(row["ctx_tokens"], row["kvcache_bytes"]) for row in rows if row.get("kvcache_bytes")]
    if not given:
        return None
    flash = sum(FLASH.payload_bytes(int(depth)) == size for depth, size in given)
    return {"rows": len(given), "flash": flash}


def _facts_beside(path: Path) -> dict[str, Any]:
    beside = path.with_suffix(".json")
    if not beside.exists():
        return {}
    return _json_object(beside, f"not a JSON object (it should tell where {path.name} came from)")


def _json_object(path: Path, otherwise: str) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise DataError(f"{path}: {reason}") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{path}: {otherwise}")
    return found


def model_name(facts: Mapping[str, Any]) -> str | None:
    """What to call the model of a run."""
    model = facts.get("model")
    if not isinstance(model, dict):
        return None
    return model.get("name") or model.get("file")
