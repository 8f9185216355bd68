"""Logs of ds4-eval as runs: facts and rows for other tools.

A log is JSON Lines: a header, then one line per sample. Of two lines for one sample the last one counts; a torn last
line and lines with a note are ignored. Prompts and answers are read only for whether they show thinking.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError
from .store import Run, Store
from .store.rows import eval_row, in_order

SCHEMA = "ds4-eval-log-v1"


def read_log(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the facts and rows of a log, rows in the order of the pack; raise DataError if it is no log or
    damaged."""
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    lines.pop()  # the torn or empty rest after the last line feed
    line = lines[0] if lines else b""
    header = _object(path, 1, line)
    if header.get("schema") != SCHEMA:
        raise DataError(f"{path}: not a log of ds4-eval, or of another version")
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    try:
        facts = eval_facts(header, os.fspath(path), line)
        questions = {question["id"]: question for question in header["questions"]}
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{path}:1: not the header of a log of ds4-eval") from None
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        sample = _object(path, number, line)
        if "note" in sample:
            continue
        try:
            row = eval_row(sample, questions[sample["id"]])
            key = str(row["id"]), int(row["epoch"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{path}:{number}: not a sample of ds4-eval") from None
        rows.pop(key, None)
        rows[key] = row
    facts["epochs"] = max([facts["epochs"], *(epoch for _, epoch in rows)])
    return facts, in_order(rows.values(), questions)


def eval_facts(header: Mapping[str, Any], path: str, line: bytes) -> dict[str, Any]:
    """Return the facts in a log's header, in the form that all runs have; raise KeyError if it is malformed.

    ``line`` is the header's raw bytes, whose digest still identifies the log after it has grown.
    """
    target = header["target"]
    digest = str(target.get("digest") or "")
    model = {
        "name": target.get("model") or target.get("name"),
        "bytes": target.get("bytes"),
        "sha256": digest.removeprefix("sha256:") if digest.startswith("sha256:") else None,
    }
    return {
        **header["facts"],
        "engine": target.get("engine") or target.get("name"),
        "backend": target.get("backend") or target.get("kind"),
        "numerics": target.get("numerics"),
        "model": model,
        "target": target,
        "pack": {**header["pack"], "questions": len(header["questions"])},
        "settings": header["settings"],
        "epochs": header["epochs"],
        "log": path,
        "log_id": hashlib.sha256(line).hexdigest()[:32],
    }


def status_of(facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return "complete" if the log has every sample that the run was to produce, else "stopped".

    Stopped: a sample was stopped, an epoch is incomplete, or questions of a pack that was to be asked whole are
    missing.
    """
    chosen = facts.get("selection") or {}
    asked = {row["id"] for row in rows}
    whole = bool(chosen.get("only") or chosen.get("limit")) or len(asked) == facts["pack"]["questions"]
    stopped = any(row["status"] == "stopped" for row in rows)
    return "complete" if whole and not stopped and len(rows) == len(asked) * facts["epochs"] else "stopped"


def same_log(store: Store, facts: Mapping[str, Any]) -> Run | None:
    """Return the run in ``store`` that was imported from the same log, perhaps when it was shorter; None if there is
    none."""
    runs = store.runs(kind="eval")
    return next((run for run in runs if facts.get("log_id") and run.fact("log_id") == facts["log_id"]), None)


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise DataError(f"{path}:{number}: " + ("not a log of ds4-eval" if number == 1 else "a damaged line"))
    return value
