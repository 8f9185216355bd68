"""Read traces of ds4's own evaluation (its ``--trace FILE``).

A trace has a header, and a block a question with fields and three texts, each with its length in bytes, so that nothing
a model says can look like the end of it. A block that the end of the file cuts off is left out and told. A question
that was asked twice has its last answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from ds4ref.errors import DataError

from .answers import Answer, Source

FIELD = "MODEL_OUTPUT"
SCORE = "ds4"
MAGIC = b"# ds4-eval trace"
_CASE = re.compile(rb"^===== CASE [0-9]+/[0-9]+ (?P<name>.*) =====$", re.MULTILINE)
_FIELD = re.compile(rb"^([a-z_]+): (.*)$", re.MULTILINE)
_BLOCK = re.compile(rb"^([A-Z_]+)_BEGIN bytes=([0-9]+)\n", re.MULTILINE)
_SCORES = {"PASSED": 1.0, "FAILED": 0.0}


class _Torn(Exception):
    """Raised where a block is cut off."""


def fits(path: Path, head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is a trace."""
    return head.startswith(MAGIC)


def read(path: Path) -> Source:
    """Read a trace; DataError if the lengths of its texts are wrong."""
    data = path.read_bytes()
    first = _CASE.search(data)
    header = _fields(data[: first.start() if first else len(data)])
    found: dict[str, Answer] = {}
    notes = []
    try:
        for answer in _cases(path, data, first.start() if first else len(data), header):
            found.pop(answer.id, None)
            found[answer.id] = answer
    except _Torn:
        notes.append("its last question is incomplete and was skipped")
    return Source("ds4-eval of ds4", FIELD, list(found.values()), tuple(notes))


def _cases(path: Path, data: bytes, at: int, header: dict[str, str]) -> Iterator[Answer]:
    while case := _CASE.search(data, at):
        blocks: dict[str, str] = {}
        fields: dict[str, str] = {}
        at = case.end()
        while "MODEL_OUTPUT" not in blocks:
            block, other = _BLOCK.search(data, at), _CASE.search(data, at)
            if block is None or (other is not None and other.start() < block.start()):
                if block is None and other is None:
                    raise _Torn
                break  # an attempt without texts
            fields |= _fields(data[at : block.start()])
            end = block.end() + int(block[2])
            mark = block[1] + b"_END"
            if end + 1 + len(mark) >= len(data):
                raise _Torn
            rest = data[end : end + 1 + len(mark)]
            if not (rest.startswith(mark) or rest == b"\n" + mark):
                name = case["name"].decode(errors="replace")
                raise DataError(f"{path}: {block[1].decode()} of {name} has another length than it states")
            blocks[block[1].decode()] = data[block.end() : end].decode("utf-8", "replace")
            at = end + len(rest)
        if "MODEL_OUTPUT" in blocks and fields.get("status") not in ("SKIPPED", "SWITCHED"):
            yield _answer(fields, blocks, header)


def _fields(data: bytes) -> dict[str, str]:
    return {name.decode(): value.decode("utf-8", "replace") for name, value in _FIELD.findall(data)}


def _answer(fields: dict[str, str], blocks: dict[str, str], header: dict[str, str]) -> Answer:
    status, output, name = fields.get("status", ""), blocks["MODEL_OUTPUT"], fields.get("id", "")
    prompt = blocks.get("QUESTION_PROMPT", "")
    thinks = fields.get("think_mode_effective", "none") not in ("none", "nothink", "off")
    kind = fields.get("think_close", "none")
    reasoning, close = "", (kind if kind != "none" else "natural") if thinks else ""
    if thinks and "</think>" not in output:
        reasoning, output, close = output, "", "open"
    generated, limit = _number(fields, "generated_tokens"), _number(header, "max_tokens")
    cut = generated is not None and limit is not None and generated >= limit
    begun = _number(fields, "timestamp_unix")
    return Answer(
        f"case {name}", name, 1, (prompt,), prompt, output, reasoning, "length" if cut else "stop", close,
        error=fields.get("error") or {"ERROR": "an error", "STOPPED": "stopped"}.get(status, ""),
        theirs={SCORE: _SCORES[status]} if status in _SCORES else {}, model=header.get("model", ""),
        started="" if begun is None else datetime.fromtimestamp(begun, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        prompt_tokens=_number(fields, "prompt_tokens"), tokens=generated,
        seconds=float(fields.get("elapsed_sec") or 0),
    )  # fmt: skip


def _number(fields: dict[str, str], name: str) -> int | None:
    return int(fields[name]) if fields.get(name, "").isdigit() else None
