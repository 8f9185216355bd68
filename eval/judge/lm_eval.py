"""Read lm-evaluation-harness's logged samples (``--log_samples``): ``samples_TASK_DATE.jsonl``.

The answer is what the model said (``resps``), not what a filter made of it (``filtered_resps``). A document that was
graded with several filters is logged once for each, in any order: its answers are the same ones, and each metric of
each filter is a score of its own, by the name that lm-evaluation-harness's results have ("exact_match,strict-match").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..imports.records import fold
from ..imports.tables import json_records
from .answers import Answer, Source

FIELD = "resps"
NOTES = ("the log does not say how an answer ended: a cut-off answer is graded as if complete",)


def fits(path: Path, head: bytes) -> bool:
    """Return whether a file that begins with ``head`` may be logged samples."""
    return head.startswith(b"{") and b'"doc_id"' in head


def read(path: Path) -> Source:
    """Read logged samples; DataError for a damaged line."""
    found: dict[tuple[object, ...], Answer] = {}
    unclear, repeated = set(), 0
    for record in json_records(path):
        for answer in _answers(record.line, record.cells):
            key = (answer.id, answer.epoch, answer.prompt, answer.output, answer.refused)
            known = found.setdefault(key, answer)
            repeated = max(repeated, answer.epoch)
            unclear |= {(key, name) for name, value in answer.theirs.items() if known.theirs.get(name, value) != value}
            found[key] = replace(known, theirs={**known.theirs, **answer.theirs})
    for key, name in unclear:
        found[key] = replace(found[key], theirs={k: v for k, v in found[key].theirs.items() if k != name})
    notes = list(NOTES)
    if unclear:
        notes.append(f"{len(unclear)} scores occur twice with different values and were skipped")
    if repeated > 1:
        notes.append("scores of documents with several answers are not compared: they belong to no single answer")
    return Source("lm-evaluation-harness", FIELD, list(found.values()), tuple(notes))


def _answers(line: int, cells: Any) -> Iterator[Answer]:
    doc = cells.get("doc") if isinstance(cells.get("doc"), dict) else {}
    name = str(doc.get("id") or cells.get("doc id"))
    where = f"line {line}"
    asked = tuple(value for value in doc.values() if isinstance(value, str))
    resps = cells.get("resps")
    if not isinstance(resps, list) or len(resps) != 1 or not isinstance(resps[0], list):
        yield Answer(where, name, refused="several requests for one document: log likelihoods, not a generated answer")
        return
    theirs = _scores(cells) if len(resps[0]) == 1 else {}
    for epoch, said in enumerate(resps[0], 1):
        if not isinstance(said, str):
            yield Answer(where, name, epoch, refused="a log likelihood, not a generated answer")
            continue
        yield Answer(where, name, epoch, asked, _prompt(cells.get("arguments")), said, theirs=theirs)


def _scores(cells: Any) -> dict[str, float]:
    """Return the scores from 0 to 1 of one line by METRIC,FILTER; without a filter's name by METRIC."""
    metrics, filter_ = cells.get("metrics"), cells.get("filter")
    ends = f",{filter_}" if isinstance(filter_, str) and filter_ else ""
    named = ((str(name), cells.get(fold(str(name)))) for name in (metrics if isinstance(metrics, list) else ()))
    return {f"{name}{ends}": float(v) for name, v in named if isinstance(v, (int, float)) and 0 <= v <= 1}


def _prompt(arguments: Any) -> str:
    """Return what was sent: a text, or the texts of a chat's messages."""
    try:
        sent = arguments["gen_args_0"]["arg_0"]
    except (KeyError, TypeError):
        return ""
    sent = sent[0] if isinstance(sent, list) and len(sent) == 1 else sent
    if not isinstance(sent, str):
        return ""
    try:
        chat = json.loads(sent)
        return "\n\n".join(message["content"] for message in chat if message["role"] != "assistant")
    except (ValueError, TypeError, KeyError):
        return sent
