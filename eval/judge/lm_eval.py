"""Read lm-evaluation-harness's logged samples (``--log_samples``): ``samples_TASK_DATE.jsonl``.

The answer is what the model said (``resps``), not what a filter made of it (``filtered_resps``). A document that was
graded with several filters is logged once for each; its answers are the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..imports.tables import json_records
from .answers import Answer, Source

FIELD = "resps"
NOTES = ("it does not log how an answer ended: one that the limit cut off is taken for whole",)


def fits(path: Path, head: bytes) -> bool:
    """Return whether a file that begins with ``head`` may be logged samples."""
    return head.startswith(b"{") and b'"doc_id"' in head


def read(path: Path) -> Source:
    """Read logged samples; DataError for a damaged line."""
    seen: dict[tuple[str, str], None] = {}
    answers = []
    for record in json_records(path):
        for answer in _answers(record.line, record.cells):
            key = (answer.id, f"{answer.epoch}\0{answer.prompt}\0{answer.output}")
            if key not in seen:
                seen[key] = None
                answers.append(answer)
    return Source("lm-evaluation-harness", FIELD, answers, NOTES)


def _answers(line: int, cells: Any) -> Iterator[Answer]:
    doc = cells.get("doc") if isinstance(cells.get("doc"), dict) else {}
    name = str(doc.get("id") or cells.get("doc id"))
    where = f"line {line}"
    asked = tuple(value for value in doc.values() if isinstance(value, str))
    resps = cells.get("resps")
    if not isinstance(resps, list) or len(resps) != 1 or not isinstance(resps[0], list):
        yield Answer(where, name, refused="several requests for one document: log likelihoods, and no answer in words")
        return
    metric = next((str(name) for name in cells.get("metrics") or ()), "")
    theirs = cells.get(metric.replace("_", " "))
    for epoch, said in enumerate(resps[0], 1):
        if not isinstance(said, str):
            yield Answer(where, name, epoch, refused="a log likelihood, and no answer in words")
            continue
        score = float(theirs) if isinstance(theirs, (int, float)) and len(resps[0]) == 1 else None
        yield Answer(where, name, epoch, asked, _prompt(cells.get("arguments")), said, theirs=score)


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
