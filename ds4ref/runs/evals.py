"""Turns logs of ds4-eval, which ``eval.log`` reads, into runs: their metadata, their status, their run in a store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from .store import Run, Store


def eval_facts(header: Mapping[str, Any], path: str, line: bytes) -> dict[str, Any]:
    """Return the metadata of a run from its log's header, in the form that all runs have.

    ``line`` is the header as raw bytes; their digest identifies the log, even after samples were appended to it. Raise
    KeyError if the header is malformed.
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
    """Return "complete" if the log has every sample that the run should produce, else "stopped".

    facts   metadata of the run (``eval_facts``)
    rows    its samples

    A run is stopped if a sample was stopped, if a question was not asked in every epoch, or if questions are missing
    although the whole pack should be asked.
    """
    chosen = facts.get("selection") or {}
    asked = {row["id"] for row in rows}
    whole = bool(chosen.get("only") or chosen.get("limit")) or len(asked) == facts["pack"]["questions"]
    stopped = any(row["status"] == "stopped" for row in rows)
    return "complete" if whole and not stopped and len(rows) == len(asked) * facts["epochs"] else "stopped"


def same_log(store: Store, facts: Mapping[str, Any]) -> Run | None:
    """Return the run in ``store`` that was imported from the same log, perhaps when it was shorter.

    ``facts`` is the metadata read from the log. Return None if there is no such run.
    """
    runs = store.runs(kind="eval")
    return next((run for run in runs if facts.get("log_id") and run.fact("log_id") == facts["log_id"]), None)
