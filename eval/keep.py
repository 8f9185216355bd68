"""Store a run of ds4-eval in the run store as kind "eval", with one row per sample (docs/reference/reports.md).

Prompts and answers stay in the log. A resumed log replaces its stored run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ds4ref.runs import thinking
from ds4ref.runs.evals import eval_facts, same_log
from ds4ref.runs.store.rows import eval_row, in_order

from .log import Log
from .scores import summary

if TYPE_CHECKING:
    from ds4ref.runs.store import Store


def keep(
    store: Store,
    log: Log,
    label: str = "",
    *,
    status: str = "complete",
    tags: Sequence[str] = (),
) -> int:
    """Add the log to the store, or replace its run; return the run's number.

    ``label``: name of the run (default: pack and model). ``status``: "complete", "stopped" or "failed".
    """
    facts, rows = {**about(log), "summary": summary(log)}, rows_of(log)
    known = same_log(store, facts)
    if known is None:
        named = label or ", ".join(str(part) for part in (facts["pack"]["pack"], facts["model"]["name"]) if part)
        return store.add("eval", facts, rows, label=named, status=status, tags=tags)
    store.replace(known.id, facts, rows, status)
    if label:
        store.rename(known.id, label)
    store.tag(known.id, *tags)
    return known.id


def rows_of(log: Log) -> list[dict[str, Any]]:
    """Return a row of the run store for each sample, in the order of the pack."""
    questions = {q.id: msgspec.to_builtins(q) for q in log.header.questions}
    rows = [eval_row(msgspec.to_builtins(sample), questions[sample.id]) for sample in log.samples]
    return in_order(rows, questions)


def notes(log: Log) -> list[str]:
    """Return sentences about answers that contradict the settings of the run."""
    return thinking.notes(rows_of(log), about(log))


def about(log: Log) -> dict[str, Any]:
    """Return where a log's results come from (engine, machine, settings), in the fields that all stored runs have."""
    header = msgspec.to_builtins(log.header)
    facts = eval_facts(header, log.path, msgspec.json.encode(log.header))
    epochs = max([log.header.epochs, *(sample.epoch for sample in log.samples)])
    return {**facts, "epochs": epochs}
