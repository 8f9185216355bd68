"""Files of questions, written for tests, and what becomes of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from ds4ref.eval import packs
from ds4ref.eval.imports.collect import collect

AIME = b'{"problem": "q", "answer": 1}\n'

HARD = [
    'quotes "a", ""b"" and, commas; \\n no escape \\',
    "two\nlines\r\nand a return\rhere",
    "$\\frac{1}{2}$\tnaïve Ωμέγα 漢字 \U0001f600\u2028\x85 end ",
    " ' ",
    "=1+1 #### 7",
]


def csv_text(header, rows) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out).writerows([header, *rows])
    return out.getvalue().encode()


def json_text(entries) -> bytes:
    return b"".join(json.dumps(entry, ensure_ascii=i % 2 == 0).encode() + b"\n" for i, entry in enumerate(entries))


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def questions(path: Path, shape: str | None = None) -> list[packs.Question]:
    return list(collect([path], shape, "test")[0].questions)


def reasons(path: Path, shape: str | None = None) -> dict[str, int]:
    """Why records of a file were left out; one good record has to be among them."""
    _, (told,) = collect([path], shape, "test")
    return {why: reason.count for why, reason in told.skipped.items()}
