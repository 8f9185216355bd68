"""Rows of runs, from what tools know: one place says which fields they have (docs/reports.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def vector_row(case: Mapping[str, Any], failed: Collection[str]) -> dict[str, Any]:
    """The row of one checked case, as ``ds4-vectors check --out`` writes it. ``nll`` (nats over all steps) only if
    the log probability of every step is known. KeyError or TypeError if ``case`` is something else."""
    steps = case["steps"]
    deltas = [abs(step["delta"]) for step in steps if step["delta"] is not None]
    logprobs = [step.get("logprob") for step in steps]
    row = {
        "id": case["id"],
        "verdict": case["verdict"],
        "passed": case["id"] not in failed,
        "tokens": len(steps),
        "top1": sum(step["verdict"] == "match" for step in steps) / len(steps) if steps else None,
        "max_abs": max(deltas, default=None),
        "kl": max((step["kl"] for step in steps if step["kl"] is not None), default=None),
        "reason": case.get("reason", ""),
    }
    if steps and None not in logprobs:
        row["nll"] = -sum(logprobs)
    return row
