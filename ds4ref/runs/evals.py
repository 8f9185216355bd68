"""Logs of ds4-eval as runs: facts, status, and which run of a store a log is (``eval.log`` reads them)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from .store import Run, Store


def eval_facts(header: Mapping[str, Any], path: str, line: bytes) -> dict[str, Any]:
    """Return the facts in a log's header, in the form that all runs have; raise KeyError if it is malformed.

    ``line`` is the header's raw bytes, whose digest still identifies the log after it has grown.
    """
    target = header["target"]
    digest = str(target.get("digest") or "")
    model = {
        "name": target.get("model") or target.get("name"),
        "checkpoint": target.get("checkpoint"),
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
